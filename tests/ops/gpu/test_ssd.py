"""The Triton kernels of the state space duality, against the loop over positions in double precision."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from costs.ssd import backward_cost, forward_cost
from proofs import assert_counted, assert_near, assert_parity, counted

from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.ssd import ssd_scan, triton_tiles
from hf_ssm.ops.ssd.reference import loop_ssd
from hf_ssm.ops.ssd.triton import ssd_triton, supports_ssd
from hf_ssm.ops.ssd.triton_backward import grad_inputs, grad_weights
from hf_ssm.ops.ssd.triton_forward import chunk_scan
from hf_ssm.ops.ssd.triton_tiles import Tiling

NAMES = ("x", "d", "A", "B", "C", "D", "state")


def scan_inputs(
    device: str,
    dtype: torch.dtype = torch.float32,
    batch: int = 1,
    length: int = 21,
    heads: int = 2,
    channels: int = 3,
    groups: int = 1,
    states: int = 5,
) -> dict[str, Any]:
    """Leaves for all tensors of an implementation of the scan; decays from almost none to almost total ones."""
    inputs = {
        "x": torch.randn(batch, length, heads, channels, dtype=dtype),
        "d": torch.rand(batch, length, heads),
        "A": -torch.logspace(-2, 1, heads),
        "B": torch.randn(batch, length, groups, states, dtype=dtype),
        "C": torch.randn(batch, length, groups, states, dtype=dtype),
        "D": torch.randn(heads),
        "state": torch.randn(batch, heads, channels, states),
    }
    return {name: t.to(device).requires_grad_() for name, t in inputs.items()}


def assert_same(
    inputs: dict[str, Any],
    starts: torch.Tensor | None = None,
    chunk_size: int | None = 16,
    tolerance: float | None = None,
    compiled: bool = False,
) -> None:
    """Values and gradients of the kernels are those of the loop."""
    scan = torch.compile(ssd_triton, backend="aot_eager", fullgraph=True) if compiled else ssd_triton
    given_arguments = [inputs.get(name) for name in NAMES]
    assert supports_ssd(*given_arguments, starts, chunk_size)
    assert_parity(
        lambda *tensors: scan(*tensors, starts, chunk_size),
        lambda *tensors: loop_ssd(*tensors, None if starts is None else starts.cpu(), None),
        given_arguments,
        tolerance,
    )


def resets(device: str, batch: int, length: int) -> torch.Tensor:
    starts = torch.rand(batch, length) < 0.15
    starts[:, 0] = False
    return starts.to(device)


@pytest.mark.parametrize(("dtype", "batch", "heads", "groups"), [(torch.float32, 2, 2, 1), (torch.bfloat16, 1, 4, 2)])
def test_parity(device, dtype, batch, heads, groups):
    # With resets, and a skip for each channel.
    inputs = scan_inputs(device, dtype, batch, heads=heads, groups=groups)
    inputs["D"] = torch.randn(heads, 3, device=device, requires_grad=True)
    assert_same(inputs, resets(device, batch, 21))


@pytest.fixture
def many_sequences(monkeypatch):
    """Programs go through all chunks, and sum over all heads of a group, as if there were enough for a GPU."""
    monkeypatch.setattr(triton_tiles, "_PROGRAMS", 1)


@pytest.mark.usefixtures("many_sequences")
def test_many_sequences(device):
    inputs = scan_inputs(device, length=35, states=33)
    tiling = Tiling.of(inputs["x"], inputs["B"], 16)
    assert (tiling.carries, tiling.blocks, tiling.parts, tiling.chunks) == (True, 2, 1, 3)
    assert_same(inputs, resets(device, 1, 35))


@pytest.mark.parametrize("absent", ["D", "state"])
def test_optional_arguments(device, absent):
    # Three chunks, of which the recurrence has a middle one.
    assert_same(scan_inputs(device, length=35) | {absent: None})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_several_tiles_and_blocks(device, dtype):
    # Chunks of two tiles (of 64 or 32 positions), states of two blocks, heads in two parts.
    rows = 64 if dtype == torch.float16 else 32
    inputs = scan_inputs(device, dtype, length=2 * rows + 3, channels=17, states=rows + 1)
    tiling = Tiling.of(inputs["x"], inputs["B"], 2 * rows)
    assert (tiling.tiles, tiling.blocks, tiling.parts, tiling.chunks) == (2, 2, 2, 2)
    assert_same(inputs, resets(device, 1, 2 * rows + 3), 2 * rows)


def test_heads_of_many_channels(device):
    inputs = scan_inputs(device, length=5, channels=100)
    assert Tiling.of(inputs["x"], inputs["B"], 16).wide == 128
    assert_same(inputs)


@given(
    st.integers(1, 2),
    st.integers(1, 34),
    st.sampled_from([(1, 1), (2, 1), (2, 2)]),
    st.integers(1, 18),
    st.integers(1, 18),
    st.sets(st.sampled_from(["D", "state", "starts"])),
)
@settings(max_examples=4)
def test_parity_at_any_shape(batch, length, heads, channels, states, absent):
    device = "cpu" if torch.cuda.device_count() == 0 else "cuda"
    inputs = scan_inputs(device, torch.float32, batch, length, heads[0], channels, heads[1], states)
    starts = None if "starts" in absent else resets(device, batch, length)
    assert_same(inputs | dict.fromkeys(absent), starts)


def test_gradients_of_one_result_alone(device):
    inputs = scan_inputs(device, length=18)
    leaves = list(inputs.values())
    for result in (0, 1):
        expected = loop_ssd(*leaves, None, None)[result]
        random = torch.randn_like(expected)
        # D has no part in the last state.
        wanted = torch.autograd.grad(expected, leaves, random, allow_unused=True, materialize_grads=True)
        found = torch.autograd.grad(ssd_triton(*leaves, None, 16)[result], leaves, random)
        for name, a, b in zip(NAMES, found, wanted, strict=True):
            assert_near(a, b, 2e-5, name)


@pytest.mark.parametrize("kind", ["total", "none", "mixed", "growing"])
def test_extreme_decays(device, kind):
    rate, step = {"total": (-1e6, 1e4), "none": (-1e-4, 1e-6), "mixed": (-30.0, 1.0), "growing": (0.2, 1.0)}[kind]
    inputs = scan_inputs(device, heads=1, length=40)
    inputs["A"] = torch.full((1,), rate, device=device, requires_grad=True)
    steps = torch.full((1, 40, 1), step)
    if kind == "mixed":
        # A decay of e^-3e5 between decays of e^-3e-5, whose sums a difference of sums in float32 would lose.
        steps = torch.where(torch.arange(40).view(1, -1, 1) % 10 == 9, 1e4, 1e-6)
    inputs["d"] = steps.to(device).requires_grad_()
    assert_same(inputs, chunk_size=32)


def test_resets_are_exact(device):
    # What was before a reset has no influence, not even by rounding; within a chunk, and before its first position.
    inputs = scan_inputs(device, length=36)
    starts = torch.zeros(1, 36, dtype=torch.bool, device=device)
    starts[0, [10, 32]] = True
    leaves = [inputs[name].detach() for name in NAMES]
    found = ssd_triton(*leaves, starts, 16)
    for name in ("x", "d", "B", "C"):
        leaves[NAMES.index(name)][:, 10:32] += 1e3
    other = ssd_triton(*leaves, starts, 16)
    assert torch.equal(found[0][:, :10], other[0][:, :10])
    assert torch.equal(found[0][:, 32:], other[0][:, 32:])
    assert torch.equal(found[1], other[1])


def test_no_gradient_passes_through_total_decays(device):
    # Not even by rounding. Without input the only gradient of a step is that of its decay.
    inputs = scan_inputs(device, length=12)
    starts = torch.arange(12, device=device).view(1, 12) == 6
    with torch.no_grad():
        inputs["d"][0, 9, 1] = 1e4
        inputs["x"][0, [6, 9]] = 0.0
    y, last = ssd_triton(*inputs.values(), starts, 16)
    (grad,) = torch.autograd.grad(y.square().sum() + last.square().sum(), inputs["d"])
    assert not grad[0, 6].any()
    assert grad[0, 9, 1] == 0
    assert grad[0, 9, 0] != 0


def test_strides_and_memory_that_is_not_read(device):
    # x, B and C are slices of one wider tensor, whose other numbers are NaN.
    inputs = scan_inputs(device)
    wide = torch.full((1, 30, 2 * 3 + 2 * 5 + 4), float("nan"), device=device)
    parts = wide[:, 3:24].split([6, 5, 5, 4], dim=-1)
    for name, part in zip("xBC", parts, strict=False):
        part.copy_(inputs[name].detach().flatten(2))
        inputs[name] = part.unflatten(-1, inputs[name].shape[2:]).requires_grad_()
    assert_same(inputs)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [chunk_scan, grad_inputs, grad_weights], ids=lambda k: k.name)
def test_every_configuration(device, kernel, monkeypatch):
    monkeypatch.setattr(kernel, "configs", kernel.configs[1:])
    assert_same(scan_inputs(device, length=17))


def test_compiles_as_one_graph_with_gradients(device):
    torch._dynamo.reset()
    assert_same(scan_inputs(device, length=17), compiled=True)


def test_second_derivatives(device):
    inputs = scan_inputs(device, length=5, heads=1)
    leaves = list(inputs.values())

    def second(scan):
        grads = torch.autograd.grad(scan(*leaves, None, 16)[0].square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), leaves)

    for name, found, expected in zip(NAMES, second(ssd_triton), second(loop_ssd), strict=True):
        assert_near(found, expected, 2e-5, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_reaches_the_kernels(device, dtype):
    inputs = {name: t.detach() for name, t in scan_inputs(device, dtype, length=6).items()}
    given_arguments = [inputs[name] for name in ("x", "d", "A", "B", "C", "D")]
    with use_backend("triton"), counted() as counter:
        y, last = ssd_scan(*given_arguments, return_last_state=True)
    assert (y.dtype, last.dtype) == (dtype, torch.float32)
    tiling = Tiling.of(inputs["x"], inputs["B"], 16)
    assert sum(counter.launches[1].values()) == dtype.itemsize * (6 * 6 + 6 * 5) + 2 * 16 * 3 * 4
    assert tiling.chunks == 1
    # Of several dtypes the kernels take the widest.
    given_arguments[3] = given_arguments[3].float()
    with use_backend("triton"):
        assert_near(ssd_scan(*given_arguments), y.float(), 1e-2, "y")


def test_unsupported_arguments(device):
    inputs = [t.detach() for t in scan_inputs(device, length=2).values()]
    assert supports_ssd(*inputs, None, None)
    assert not supports_ssd(*(t.double() for t in inputs), None, None)
    assert not supports_ssd(torch.zeros(1, 2, 2, 129, device=device), *inputs[1:], None, None)


def test_empty_batch(device):
    inputs = scan_inputs(device, batch=0, length=3)
    y, last = ssd_triton(*inputs.values(), None, None)
    grads = torch.autograd.grad(y.sum() + last.sum(), list(inputs.values()))
    assert [g.shape for g in grads] == [t.shape for t in inputs.values()]
    assert not grads[2].any()


@pytest.mark.parametrize("carries", [False, True])
def test_counted_cost(device, carries, request):
    if carries:
        request.getfixturevalue("many_sequences")
    inputs = scan_inputs(device, torch.float32, 1, 64, 2, 17, 1, 33)
    inputs["D"] = torch.randn(2, 17, device=device, requires_grad=True)
    given_arguments = [inputs[name] for name in NAMES[:-1]]
    with use_backend("triton"):
        with counted() as forward:
            y, _ = ssd_triton(*given_arguments, None, None, 64)
        with counted() as backward:
            y.backward(torch.ones_like(y))
    tiling = Tiling.of(inputs["x"], inputs["B"], 64)
    assert (tiling.tiles, tiling.blocks, tiling.parts, tiling.carries) == (2, 2, 1 if carries else 2, carries)
    assert_counted(forward, forward_cost(tiling, 4))
    assert_counted(backward, backward_cost(tiling, 4))
