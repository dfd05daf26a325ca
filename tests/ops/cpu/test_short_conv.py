"""The compiled short convolution, against the reference; the plain torch path beside it."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")

from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.short_conv import numba as numba_short_conv
from hf_ssm.ops.short_conv import short_conv, short_conv_extend, short_conv_reference


@pytest.fixture(autouse=True)
def compiled_kernels() -> Iterator[None]:
    with use_backend("numba"):
        yield


def make(batch: int, length: int, channels: int, taps: int, bias: bool = True, dtype=torch.float64) -> dict:
    """Arguments with gradients; the input is a part of a wider projection."""
    arguments = {
        "u": torch.randn(batch, length, channels + 5, dtype=dtype)[..., 3 : 3 + channels],
        "weight": torch.randn(channels, taps, dtype=dtype),
        "bias": torch.randn(channels, dtype=dtype) if bias else None,
    }
    return {name: t if t is None else t.requires_grad_() for name, t in arguments.items()}


def gradients(y: torch.Tensor, arguments: dict, cotangent: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(y, [t for t in arguments.values() if t is not None], cotangent)


@pytest.mark.parametrize("kernels", ["numba", "torch"])
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 40), st.integers(1, 6)),
    bidirectional=st.booleans(),
    activation=st.sampled_from([None, "silu"]),
    bias=st.booleans(),
    masked=st.booleans(),
)
def test_values_and_gradients_match_the_reference(kernels, shape, bidirectional, activation, bias, masked):
    arguments = make(*shape, bias)
    mask = torch.rand(shape[:2]) < 0.7 if masked else None
    options = {"bidirectional": bidirectional, "activation": activation, "mask": mask}
    with use_backend(kernels):
        y = short_conv(**arguments, **options)
    expected = short_conv_reference(**arguments, **options)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-13)
    cotangent = torch.randn_like(y)
    found, wanted = (gradients(t, arguments, cotangent) for t in (y, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    with use_backend(kernels), torch.no_grad():
        # Without gradients the kernel is called without the operator.
        assert torch.equal(short_conv(**arguments, **options), y)


@pytest.mark.parametrize("length", [511, 1030])
def test_tiles_of_time_and_blocks_of_channels_meet(length):
    arguments = make(2, length, 300, 4)
    y = short_conv(**arguments, activation="silu")
    with use_backend("torch"):
        # The reference would take its time.
        expected = short_conv(**arguments, activation="silu")
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-13)
    cotangent = torch.randn_like(y)
    found, wanted = (gradients(t, arguments, cotangent) for t in (y, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("kernels", ["numba", "torch", "reference"])
def test_nan_at_padding_goes_nowhere(kernels):
    arguments = make(2, 9, 5, 4)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :3] = mask[1, 6:] = False
    clean = arguments["u"].detach()
    dirty = clean.masked_fill(~mask.unsqueeze(-1), torch.nan).requires_grad_()
    with use_backend(kernels):
        y = short_conv(dirty, arguments["weight"], arguments["bias"], activation="silu", mask=mask)
        du, dweight = torch.autograd.grad(y, [dirty, arguments["weight"]], torch.randn_like(y))
    assert (y[~mask] == 0).all() and (du[~mask] == 0).all()
    assert y.isfinite().all() and du.isfinite().all() and dweight.isfinite().all()


def test_nan_in_nan_out():
    arguments = {name: t.detach() for name, t in make(1, 9, 20, 4).items()}
    arguments["u"][0, 4, 17] = torch.nan
    y = short_conv(**arguments, activation="silu")
    assert y.isnan().nonzero().tolist() == [[0, t, 17] for t in range(4, 8)]


@pytest.mark.parametrize("kernels", ["numba", "torch", "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(kernels, dtype):
    arguments = {name: t.detach().to(dtype).requires_grad_() for name, t in make(2, 9, 5, 4).items()}
    precise = {name: t.detach().float().requires_grad_() for name, t in arguments.items()}
    with use_backend(kernels):
        y = short_conv(**arguments, activation="silu")
    expected = short_conv_reference(**precise, activation="silu")
    assert y.dtype == dtype
    assert torch.equal(y, expected.to(dtype)) or kernels == "numba"
    epsilon = torch.finfo(dtype).eps
    torch.testing.assert_close(y.float(), expected, rtol=epsilon, atol=epsilon / 100)
    cotangent = torch.randn(y.shape).to(dtype)
    found, wanted = gradients(y, arguments, cotangent), gradients(expected, precise, cotangent.float())
    for grad, expected_grad in zip(found, wanted, strict=True):
        assert grad.dtype == dtype
        torch.testing.assert_close(grad.float(), expected_grad, rtol=8 * epsilon, atol=8 * epsilon)


@pytest.mark.parametrize("wanted", ["u", "weight", "bias"])
def test_only_wanted_gradients(wanted):
    arguments = {name: t.detach().requires_grad_(name == wanted) for name, t in make(2, 9, 5, 4).items()}
    y, expected = (f(**arguments) for f in (short_conv, short_conv_reference))
    found, correct = (torch.autograd.grad(t.sum(), arguments[wanted])[0] for t in (y, expected))
    torch.testing.assert_close(found, correct)


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kernels", ["numba", "torch", "reference"])
def test_pieces_equal_the_whole(kernels, grad, taps, with_mask):
    arguments = make(2, 9, 18, taps)
    mask = torch.rand(2, 9) < 0.7 if with_mask else None
    u, weight, bias = arguments.values()
    with use_backend(kernels), torch.set_grad_enabled(grad):
        state, outputs, start = None, [], 0
        for length in (2, 1, 1, 4, 1):
            piece = slice(start, start + length)
            part = None if mask is None else mask[:, piece]
            y, state = short_conv_extend(u[:, piece], state, weight, bias, "silu", part)
            outputs.append(y)
            start += length
    expected = short_conv_reference(**arguments, activation="silu", mask=mask)
    y = torch.cat(outputs, dim=1)
    torch.testing.assert_close(y.detach(), expected.detach(), rtol=0, atol=1e-13)
    assert state is not None and state.shape == (2, 18, taps - 1)
    if grad:
        cotangent = torch.randn_like(y)
        found, wanted = (gradients(t, arguments, cotangent) for t in (y, expected))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_the_operator_keeps_the_rules_of_torch():
    arguments = make(2, 5, 6, 3, dtype=torch.float32)
    mask = torch.ones(2, 5, dtype=torch.bool)
    torch.library.opcheck(numba_short_conv._operator, (*arguments.values(), mask, 2, True))


def test_compiled_by_torch_without_a_break():
    arguments = make(2, 9, 20, 4, dtype=torch.float32)
    function = torch.compile(lambda *a: short_conv(*a, activation="silu") * 2, backend="aot_eager", fullgraph=True)
    y, expected = function(*arguments.values()), 2 * short_conv(**arguments, activation="silu")
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    cotangent = torch.randn_like(y)
    found, wanted = (gradients(t, arguments, cotangent) for t in (y, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_checkpointed_and_under_autocast():
    arguments = make(2, 9, 20, 4, dtype=torch.float32)
    expected = short_conv(**arguments, activation="silu")
    cotangent = torch.randn_like(expected)
    y = checkpoint(
        lambda u: short_conv(u, *list(arguments.values())[1:], activation="silu"), arguments["u"], use_reentrant=False
    )
    found, wanted = (gradients(t, arguments, cotangent) for t in (y, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    for kernels in ("numba", "torch"):
        with use_backend(kernels), torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(short_conv(**arguments, activation="silu"), expected)


def test_threads_change_no_digit():
    arguments = make(3, 1100, 70, 4, dtype=torch.float32)
    cotangent = torch.randn(3, 1100, 70)

    def run() -> list[torch.Tensor]:
        y = short_conv(**arguments, activation="silu")
        return [y, *gradients(y, arguments, cotangent)]

    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(run())
        with ThreadPoolExecutor(3) as pool:
            results += [future.result() for future in [pool.submit(run) for _ in range(3)]]
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


def test_in_a_forked_process(monkeypatch):
    # Several tasks, but no tensor so large that torch itself would take threads, which do not survive a fork.
    monkeypatch.setattr(numba_short_conv, "_TASK_SIZE", 64)
    arguments = {name: t.detach() for name, t in make(3, 40, 20, 4).items()}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = short_conv(**arguments)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if torch.equal(short_conv(**arguments), expected) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)


def test_functional_transforms_have_their_gradient():
    arguments = make(2, 5, 3, 2)
    u, weight, bias = (t.detach() for t in arguments.values())
    found = torch.func.grad(lambda w: short_conv(u, w, bias, activation="silu").sum())(weight)
    expected = torch.autograd.grad(
        short_conv(u, arguments["weight"], bias, activation="silu").sum(), arguments["weight"]
    )
    torch.testing.assert_close(found, expected[0])


def test_errors():
    u, weight = torch.zeros(2, 5, 3), torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"activation must be None or 'silu', got 'gelu'"):
        short_conv(u, weight, activation="gelu")
    with pytest.raises(ValueError, match=r"mask must be bool .* = \(2, 5\), got torch.int64 \(2, 5\)"):
        short_conv(u, weight, mask=torch.ones(2, 5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"mask must be bool .* = \(2, 5\), got torch.bool \(2, 4\)"):
        short_conv_extend(u, None, weight, mask=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"length >= 1"):
        short_conv_extend(u[:, :0], None, weight)


def test_nothing_and_almost_nothing():
    for shape in ((0, 5, 3), (2, 0, 3)):
        u = torch.zeros(shape, requires_grad=True)
        weight = torch.ones(3, 4, requires_grad=True)
        y = short_conv(u, weight, activation="silu")
        assert y.shape == shape
        du, dweight = torch.autograd.grad(y.sum(), [u, weight])
        assert du.shape == shape and not dweight.any()
    u = torch.randn(1, 1, 1)
    torch.testing.assert_close(short_conv(u, torch.full((1, 4), 2.0), activation="silu"), F.silu(2 * u))
