"""Decoding by the kernel of all blocks with weights in bfloat16 and int8: the numbers of the blocks one by one."""

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")

import hf_ssm.models.selective.modeling_selective as selective
import hf_ssm.models.ssd.modeling_ssd as ssd
from hf_ssm.ops.backends import use_backend

STEPS = {"SelectiveSSM": (selective, "step_of_blocks"), "SSD": (ssd, "step_of_ssd_blocks")}
FAMILIES = pytest.mark.parametrize("family", STEPS)


@pytest.fixture
def make(make_model, monkeypatch):
    """A model of a family, and a list that says of each pass with a cache whether the kernel served."""

    def made(family: str) -> tuple[Any, list[bool]]:
        torch.manual_seed(0)
        # Wide enough for the errors of single weights to average out.
        model = make_model(family, "ForCausalLM", hidden_size=64, initializer_range=0.02, use_bias=True)
        module, name = STEPS[family]
        served: list[bool] = []
        original = getattr(module, name)

        def spy(*arguments: Any) -> Any:
            found = original(*arguments)
            served.append(found is not None)
            return found

        monkeypatch.setattr(module, name, spy)
        return model, served

    return made


def step_by_step(model: Any, ids: torch.Tensor, backend: str) -> torch.Tensor:
    """Logits of the single tokens behind a prompt of four, in float32."""
    with torch.no_grad(), use_backend(backend):
        output = model(ids[:, :4], use_cache=True)
        logits = []
        for token in ids[:, 4:].split(1, dim=1):
            output = model(token, cache=output.cache)
            logits.append(output.logits.float())
    return torch.cat(logits, dim=1)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference relative to the largest logit."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


@FAMILIES
def test_bfloat16(make, family: str) -> None:
    model, served = make(family)
    model.bfloat16()
    ids = torch.randint(0, 12, (2, 12))
    found = step_by_step(model, ids, "numba")
    assert served == [False] + [True] * 8
    # Of the numbers that the weights stand for: the kernel rounds less often than the blocks do.
    exact = step_by_step(copy.deepcopy(model).float(), ids, "torch")
    blocks = error(step_by_step(model, ids, "torch"), exact)
    assert 0 < error(found, exact) < max(0.01, blocks)
    output = model(ids, use_cache=True)
    before = {name: t.dtype for name, t in output.cache.states[0].tensors.items()}
    with torch.no_grad(), use_backend("numba"):
        output = model(ids[:, :1], cache=output.cache)
    assert served[-1] and output.logits.dtype == torch.bfloat16
    assert {name: t.dtype for name, t in output.cache.states[0].tensors.items()} == before


@FAMILIES
def test_int8(make, family: str, tmp_path) -> None:
    """As `from_pretrained(..., quantization_config=...)` makes it."""
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    from transformers import TorchAoConfig

    plain, served = make(family)
    plain.save_pretrained(tmp_path)
    config = TorchAoConfig(quantization.Int8WeightOnlyConfig())
    model = type(plain).from_pretrained(tmp_path, quantization_config=config).eval()
    ids = torch.randint(0, 12, (2, 12))
    found = step_by_step(model, ids, "numba")
    assert served == [False] + [True] * 8
    assert error(found, step_by_step(model, ids, "torch")) < 1e-5
    assert 0 < error(found, step_by_step(plain, ids, "torch")) < 0.05
    # Another scale is read, as the kernel keeps addresses of the tensors.
    with torch.no_grad():
        model.model.layers[0].mixer.in_proj.weight.scale.mul_(2)
    assert error(step_by_step(model, ids, "numba"), step_by_step(model, ids, "torch")) < 1e-5
