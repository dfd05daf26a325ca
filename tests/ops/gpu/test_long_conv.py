"""The Triton kernels of the long convolution, against the reference in double precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from costs.long_conv import backward_cost, forward_cost
from costs.rates import Cost
from proofs import assert_counted, assert_parity, counted

from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.long_conv import long_conv, long_conv_reference, triton_toeplitz
from hf_ssm.ops.long_conv import triton as module
from hf_ssm.ops.long_conv.streaming import StreamingConvolution
from hf_ssm.ops.long_conv.triton_layout import _crop, _pad
from hf_ssm.ops.long_conv.triton_toeplitz import _convolve_blocks

WAYS = ("blocks", "transforms")


def choose(way: str, patch: pytest.MonkeyPatch) -> None:
    """Convolve by one of both ways, whatever the sizes."""
    patch.setattr(module, "takes_blocks", lambda *sizes: way == "blocks")


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    choose(request.param, monkeypatch)
    return request.param


def operands(shape, taps, back, dtype, device, taps_dtype=torch.float32):
    """Inputs and taps of both sides, which are absent where a size is zero."""
    channels = shape[2]
    generator = torch.Generator().manual_seed(sum(shape) + taps)

    def make(size, dtype, present=True):
        t = torch.randn(size, generator=generator).to(dtype).to(device)
        return t.requires_grad_() if present else None

    return [
        make(shape, dtype),
        make((channels, taps), taps_dtype),
        make((channels, back), taps_dtype, back > 0),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("back", [0, 30, 50])
def test_parity(device, way, dtype, back):
    assert_parity(long_conv, long_conv_reference, operands((3, 37, 2), 37, back, dtype, device))


@pytest.mark.parametrize("taps_dtype", [torch.float32, torch.bfloat16])
def test_half_precision(device, way, taps_dtype):
    arguments = operands((2, 21, 3), 9, 4, torch.float16, device, taps_dtype)
    assert_parity(long_conv, long_conv_reference, arguments)


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 2)),
    st.integers(1, 50),
    st.integers(0, 50),
    st.sampled_from(WAYS),
)
@settings(max_examples=5)
def test_parity_at_any_shape(shape, taps, back, way):
    device = "cpu" if torch.cuda.device_count() == 0 else "cuda"
    with pytest.MonkeyPatch.context() as patch:
        choose(way, patch)
        assert_parity(long_conv, long_conv_reference, operands(shape, taps, back, torch.float32, device))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [_pad, _crop, _convolve_blocks], ids=lambda kernel: kernel.name)
def test_every_configuration(device, kernel, monkeypatch):
    choose("blocks" if kernel is _convolve_blocks else "transforms", monkeypatch)
    for config in kernel.configs:
        monkeypatch.setattr(kernel, "configs", [config])
        arguments = operands((1, 130, 1), 70, 40, torch.float32, device)
        assert_parity(long_conv, long_conv_reference, arguments)


def test_blocks_of_rows_and_channels(device, way, monkeypatch):
    """Two rows and two channels at a time."""
    monkeypatch.setattr(module, "_FEWEST_CHANNELS", 2)
    monkeypatch.setattr(module, "MOST_SAMPLES_ON_A_GPU", 2 * 2 * 32)
    arguments = operands((3, 12, 3), 12, 5, torch.float32, device)
    assert_parity(long_conv, long_conv_reference, arguments)


def test_the_division_fits_a_grid_and_the_memory():
    for batch, channels, points in ((100_000, 3, 32), (1, 300_000, 64), (8, 2048, 1 << 16), (2, 512, 1 << 22)):
        parts, rows = module._division(batch, channels, points)
        assert (parts[-1].stop, rows[-1].stop) == (channels, batch)
        sizes = [max(s.stop - s.start for s in found) for found in (parts, rows)]
        assert max(sizes) < 1 << 16
        assert sizes[0] * sizes[1] * points <= max(1 << 26, 32 * points)


def test_the_default_dtype_does_not_matter(device, way):
    arguments = operands((2, 9, 2), 5, 3, torch.float32, device)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert_parity(long_conv, long_conv_reference, arguments)
    finally:
        torch.set_default_dtype(before)


def test_parts_of_the_batch_are_summed(device, monkeypatch):
    choose("blocks", monkeypatch)
    for fewest in (1, 2, 100):
        monkeypatch.setattr(triton_toeplitz, "_FEWEST_PROGRAMS", fewest)
        assert_parity(long_conv, long_conv_reference, operands((5, 9, 1), 6, 3, torch.float32, device))


def test_parts_of_the_batch_read_their_rows_only(device, monkeypatch):
    monkeypatch.setattr(triton_toeplitz, "_FEWEST_PROGRAMS", 2)
    u, grad = torch.full((2, 6, 1, 32), torch.nan, device=device)
    u[:5], grad[:5] = torch.randn(2, 5, 1, 32, device=device)
    # Three rows and two.
    by_lag = triton_toeplitz.Blocks(32, 3, 2, torch.float32)._correlate(grad[:5], u[:5])
    for lag in range(-2, 3):
        expected = sum(
            (grad[b, 0, max(lag, 0) : 32 + min(lag, 0)] * u[b, 0].roll(lag)[max(lag, 0) : 32 + min(lag, 0)]).sum()
            for b in range(5)
        )
        torch.testing.assert_close(by_lag[0, 32 + lag], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wanted", range(3))
def test_gradient_of_one_argument_only(device, way, wanted):
    arguments = operands((2, 19, 3), 11, 7, torch.float32, device)
    arguments = [t.detach().requires_grad_(number == wanted) for number, t in enumerate(arguments)]
    assert_parity(long_conv, long_conv_reference, arguments)


def test_only_the_inputs_are_read(device, way):
    """Inputs are a slice of a tensor whose other numbers are NaN, and taps those of longer rows."""
    whole = torch.full((3, 40, 12), torch.nan, device=device)
    whole[1:, :23, 2:11] = torch.randn(2, 23, 9, device=device)
    u = whole[1:, :23, 2:5]
    taps = torch.full((3, 40), torch.nan, device=device)
    taps[:, :20] = torch.randn(3, 20, device=device)
    leaves = [t.detach().requires_grad_() for t in (u, taps[:, :20], taps[:, :20].flip(0))]
    assert leaves[0].stride() == (480, 12, 1)
    assert_parity(long_conv, long_conv_reference, leaves)
    # Channels that are not innermost.
    leaves[0] = torch.randn(23, 3, 2, device=device).permute(2, 0, 1).requires_grad_()
    assert_parity(long_conv, long_conv_reference, leaves)


def test_nan_stays_in_its_row_and_channel(device, way):
    u, taps, *_ = operands((3, 40, 3), 40, 0, torch.float32, device)
    with torch.no_grad():
        u[1, 20, 2] = torch.nan
    with use_backend("triton"):
        y = long_conv(u, taps)
        grad_u, grad_taps = torch.autograd.grad(y, (u, taps), torch.ones_like(y))
    bad = torch.zeros(3, 3, dtype=torch.bool, device=device)
    bad[1, 2] = True
    assert torch.equal(y.isnan().any(1), bad)
    assert not grad_u.isnan().any()
    assert torch.equal(grad_taps.isnan().any(1), bad[1])


def test_an_empty_batch(device, way):
    with use_backend("triton"):
        arguments = operands((0, 30, 2), 7, 3, torch.float32, device)
        y = long_conv(*arguments)
        grads = torch.autograd.grad(y, arguments, torch.ones_like(y))
    assert y.shape == grads[0].shape == (0, 30, 2)
    assert not grads[1].any()
    assert not grads[2].any()


def test_second_derivatives(device, way):
    def penalty(function, tensors, cast=lambda t: t):
        leaves = [t if t is None else cast(t.detach()).requires_grad_() for t in tensors]
        given = [t for t in leaves if t is not None]
        first = torch.autograd.grad(function(*leaves).sin().sum(), given, create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in first), given)

    arguments = operands((2, 10, 2), 10, 4, torch.float32, device)
    expected = penalty(long_conv_reference, arguments, lambda t: t.double())
    with use_backend("triton"):
        found = penalty(long_conv, arguments)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)


def test_function_transforms_and_other_dtypes_take_torch(device):
    u, taps, *_ = (t.detach() for t in operands((2, 9, 2), 5, 0, torch.float32, device) if t is not None)
    with use_backend("triton"):
        found = torch.func.vmap(long_conv, in_dims=(0, None))(u.unsqueeze(1), taps)
        torch.testing.assert_close(found.squeeze(1), long_conv(u, taps))
        assert long_conv(u.double(), taps).dtype == torch.float64
        assert not module.supports_long_conv(u.double(), taps, None)
        assert not module.supports_long_conv(u, taps.double(), None)
        assert module.supports_long_conv(u.half(), taps, None)


def test_it_compiles_as_one_graph(device, way):
    torch._dynamo.reset()
    arguments = operands((2, 9, 1), 5, 3, torch.float32, device)
    compiled = torch.compile(long_conv, backend="aot_eager", fullgraph=True)
    assert_parity(compiled, long_conv_reference, arguments)


def test_the_operators_keep_the_rules_of_operators(device, way):
    arguments = operands((2, 8, 1), 5, 4, torch.float32, device)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.hf_ssm.long_conv_triton.default, tuple(arguments), test_utils=tests)
    detached = [t.detach() for t in (arguments[0], *arguments)]
    for wanted in ([True, True, True], [False, True, True]):
        torch.library.opcheck(
            torch.ops.hf_ssm.long_conv_triton_backward.default, (*detached, wanted), test_utils=tests[::2]
        )


@pytest.mark.parametrize("pieces", [(70,), (20, 45, 1, 4), (1, 1, 68)])
def test_a_stream_equals_the_whole(device, pieces):
    u, taps, *_ = (t.detach() for t in operands((2, 70, 1), 70, 0, torch.float32, device) if t is not None)
    stream, outputs = StreamingConvolution(longest=70), []
    with use_backend("triton"):
        outputs = [stream.extend(piece, lambda n: taps[:, :n]) for piece in u.split(pieces, dim=1)]
    expected = long_conv_reference(u, taps)
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, rtol=0, atol=1e-4)
    # With gradients, each chunk is a convolution of the whole.
    stream, leaf = StreamingConvolution(longest=70), u.clone().requires_grad_()
    with use_backend("triton"):
        outputs = [stream.extend(piece, lambda n: taps[:, :n]) for piece in leaf.split((40, 30), dim=1)]
        (grad,) = torch.autograd.grad(torch.cat(outputs, dim=1).pow(2).sum(), leaf)
    reference = u.clone().requires_grad_()
    (expected,) = torch.autograd.grad(long_conv_reference(reference, taps).pow(2).sum(), reference)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(3, 120, 1, 120), (2, 90, 2, 20)])
def test_counted_cost(device, way, sizes, dtype, monkeypatch):
    # One part of the sum over the batch.
    monkeypatch.setattr(triton_toeplitz, "_FEWEST_PROGRAMS", 1)
    *shape, taps = sizes
    arguments = operands(shape, taps, 0, dtype, device)
    with use_backend("triton"):
        with counted() as forward:
            y = long_conv(*arguments)
        with counted() as backward:
            torch.autograd.grad(y, [t for t in arguments if t is not None], torch.ones_like(y))
    for counter, cost in ((forward, forward_cost), (backward, backward_cost)):
        expected, _ = cost(*sizes, dtype.itemsize, blocks=way == "blocks")
        assert expected.exponentials == 0
        assert_counted(counter, expected, local=True)


def test_transforms_of_the_vendor_are_assumed_to_move_more():
    for cost in (forward_cost, backward_cost):
        kernels, transforms = cost(8, 8192, 1024, 8192, 2)
        moved = [part.read + part.reread + part.written for part in (transforms, kernels)]
        assert 1 < moved[0] / moved[1] < 3
        assert cost(8, 256, 1024, 256, 4)[1] == Cost()


def test_the_way_depends_on_the_number_of_taps():
    takes = triton_toeplitz.takes_blocks
    assert takes(512, 512, 0, torch.float32)
    assert not takes(1024, 1024, 0, torch.float32)
    assert takes(1024, 1024, 0, torch.bfloat16)
    assert not takes(2048, 2048, 0, torch.bfloat16)
    assert takes(65536, 100, 100, torch.float32)
    assert not takes(65536, 1000, 0, torch.float32)
