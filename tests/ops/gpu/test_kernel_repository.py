"""The kernel repository: loaded by the `kernels` library, and run by transformers' own Mamba models."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Mamba2Config, MambaConfig

import hf_ssm
from hf_ssm.hub import save_kernels
from hf_ssm.ops.selective_scan import hub

pytest.importorskip("triton", reason="triton is not installed")
kernels = pytest.importorskip("kernels", reason="the package kernels is not installed")

NAMES = ("selective_scan_fn", "mamba_chunk_scan_combined", "causal_conv1d_fn", "causal_conv1d_update")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_kernels(tmp_path_factory.mktemp("kernels") / "repository")


@pytest.fixture
def mapping(repository: Path, device: str):
    layers = {name: {device: kernels.LocalLayerRepository(repo_path=repository, layer_name=name)} for name in NAMES}
    with kernels.use_kernel_mapping(layers, inherit_mapping=False):
        yield


@pytest.fixture
def kernelized(mapping, device):
    """Kernelizes models; the functions that it replaces are those of all models, and are put back."""
    changed = []

    def run(model):
        for module in model.modules():
            changed.extend(getattr(module, "_kernel_funcs", {}).values())
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device=device)

    yield run
    for function in changed:
        vars(function).pop("forward", None)


def test_files(repository):
    assert {path.name for path in (repository / "build").iterdir()} == {"torch-cpu", "torch-cuda", "torch-rocm"}
    package = repository / "torch-ext" / "hf_ssm_kernels"
    for variant in (repository / "build").iterdir():
        assert json.loads((variant / "metadata.json").read_text())["backend"]["type"] == variant.name.removeprefix(
            "torch-"
        )
        for path in package.rglob("*.py"):
            assert (variant / path.relative_to(package)).read_text() == path.read_text()
            # Nothing but the package itself, torch and Triton is needed.
            assert "from hf_ssm" not in path.read_text()


def test_the_loader_of_the_library_accepts_it(repository):
    module = kernels.get_local_kernel(repository)
    assert set(NAMES) <= set(module.__all__)
    u, weight = torch.randn(2, 3, 7), torch.randn(3, 4)
    expected = torch.nn.functional.conv1d(u, weight.unsqueeze(1), padding=3, groups=3)[..., :7]
    torch.testing.assert_close(module.causal_conv1d_fn(u, weight), expected)


@pytest.mark.parametrize(
    "config",
    [
        MambaConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1, state_size=4),
        Mamba2Config(
            vocab_size=11, hidden_size=16, num_hidden_layers=1, state_size=16, num_heads=2, head_dim=16, n_groups=1
        ),
    ],
    ids=["mamba", "mamba2"],
)
def test_models_of_transformers_run_the_kernels(config, kernelized, device):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(device).eval()
    ids = torch.randint(0, 11, (2, 9), device=device)
    with torch.no_grad():
        expected = model(ids).logits
        tokens = model.generate(ids, max_new_tokens=3, do_sample=False)
        kernelized(model)
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(model.generate(ids, max_new_tokens=3, do_sample=False), tokens)


def test_a_kernel_of_the_hub_serves_where_one_was_asked_for(kernelized):
    config = hf_ssm.SelectiveSSMConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1, state_size=4)
    model = hf_ssm.SelectiveSSMForCausalLM(config)
    assert not hub.has_hub_kernel()
    # Fails unless the function has as many arguments as the layers of the Hub.
    kernelized(model)
    assert hub.has_hub_kernel()
