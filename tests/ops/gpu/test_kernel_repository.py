"""The kernel repository: loaded by the `kernels` library, and run by transformers' own Mamba models."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_ssm.hub import save_kernels

pytest.importorskip("triton", reason="triton is not installed")
kernels = pytest.importorskip("kernels", reason="the package kernels is not installed")

NAMES = {
    *("selective_scan_fn", "selective_state_update", "mamba_chunk_scan_combined"),
    *("causal_conv1d_fn", "causal_conv1d_update"),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_kernels(tmp_path_factory.mktemp("kernels") / "repository")


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
    assert set(module.__all__) == {"layers", *NAMES}
    u, weight = torch.randn(2, 3, 7), torch.randn(3, 4)
    expected = torch.nn.functional.conv1d(u, weight.unsqueeze(1), padding=3, groups=3)[..., :7]
    torch.testing.assert_close(module.causal_conv1d_fn(u, weight), expected)


# The pinned transformers supports the library from another version on than the package index has: the check is
# answered before transformers' integration is imported, which needs a process of its own.
SCRIPT = """
import sys
import transformers.utils
import transformers.utils.import_utils
for module in (transformers.utils, transformers.utils.import_utils):
    module.is_kernels_available = lambda *args: True
import kernels, torch
from pathlib import Path
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM
import hf_ssm
from hf_ssm.ops.selective_scan import hub

device = "cpu" if torch.cuda.device_count() == 0 else "cuda"
names = "selective_scan_fn mamba_chunk_scan_combined causal_conv1d_fn causal_conv1d_update selective_state_update"
layers = {
    name: {device: kernels.LocalLayerRepository(repo_path=Path(sys.argv[1]), layer_name=name)} for name in names.split()
}

def kernelize(model):
    with kernels.use_kernel_mapping(layers, inherit_mapping=False):
        fallback = kernels.KernelizeFallback.NO_LAYER
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device=device, use_fallback=fallback)

launched = set()
sizes = {"vocab_size": 11, "num_hidden_layers": 1, "initializer_range": 0.5}
for model in (
    MambaForCausalLM(MambaConfig(hidden_size=8, state_size=4, **sizes)),
    Mamba2ForCausalLM(Mamba2Config(hidden_size=16, state_size=16, num_heads=2, head_dim=16, n_groups=1, **sizes)),
):
    model = model.to(device).eval()
    ids = torch.randint(0, 11, (2, 9), device=device)
    with torch.no_grad():
        expected, tokens = model(ids).logits, model.generate(ids, max_new_tokens=3, do_sample=False)
        kernelize(model)
        module = kernels.get_local_kernel(Path(sys.argv[1]))
        declared = sys.modules[module.__name__ + ".gpu.kernels"]
        launch = declared.Kernel.launch
        def counted(self, *args, **kwargs):
            launched.add(self.name)
            return launch(self, *args, **kwargs)
        declared.Kernel.launch = counted
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(model.generate(ids, max_new_tokens=3, do_sample=False), tokens)
        declared.Kernel.launch = launch
print(sorted(launched))
# The function of this package has as many arguments as the layers of the Hub, otherwise kernelize fails.
assert not hub.has_hub_kernel()
kernelize(hf_ssm.SelectiveSSMForCausalLM(hf_ssm.SelectiveSSMConfig(hidden_size=8, state_size=4, **sizes)))
assert hub.has_hub_kernel()
"""


@pytest.mark.slow
def test_models_of_transformers_run_the_kernels(repository):
    done = subprocess.run([sys.executable, "-c", SCRIPT, repository], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    launched = done.stdout.splitlines()[-1]
    for name in ("short_conv.convolve", "selective_scan.update", "selective_scan.scan", "ssd.update", "ssd.chunk_scan"):
        assert name in launched, launched
