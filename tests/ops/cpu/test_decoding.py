"""Single-token decoding by the compiled kernels against the torch path."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")

from decoding_references import blocks_step_reference

from hf_ssm.ops.cpu.selective_decoding import BlocksStep
from hf_ssm.ops.decoding import LINEAR_MAPS, ScaledRows
from hf_ssm.ops.selective_decoding import BlockOptions, BlockWeights

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    # Not too large, as after a matrix.
    return torch.randn(*shape, dtype=dtype) / max(1, shape[-1]) ** 0.5


def weights(size, channels, states, rank, taps, norm, biases, logarithmic, dtype) -> BlockWeights:
    def maybe(*shape: int, wanted: bool = True) -> torch.Tensor | None:
        return randn(*shape, dtype=dtype) if wanted else None

    A = randn(channels, states, dtype=dtype)
    return BlockWeights(
        norm_weight=maybe(size, wanted=norm != "none"),
        norm_bias=maybe(size, wanted=norm == "layer"),
        in_weight=randn(2 * channels, size, dtype=dtype),
        in_bias=maybe(2 * channels, wanted=biases),
        conv_weight=randn(channels, 1, taps, dtype=dtype),
        conv_bias=maybe(channels, wanted=biases),
        x_weight=randn(rank + 2 * states, channels, dtype=dtype),
        dt_weight=randn(channels, rank, dtype=dtype),
        dt_bias=randn(channels, dtype=dtype),
        A=A if logarithmic else -A.abs(),
        skip=maybe(channels, wanted=biases),
        out_weight=randn(size, channels, dtype=dtype),
        out_bias=maybe(size, wanted=biases),
    )


def in_int8(block: BlockWeights) -> tuple[BlockWeights, BlockWeights]:
    """The block with linear maps in int8, and the numbers that these stand for."""
    stored, meant = {}, {}
    for name in LINEAR_MAPS & set(block._fields):
        weight = getattr(block, name)
        scales = weight.abs().amax(1, keepdim=True) / 127
        values = (weight / scales).round().to(torch.int8)
        stored[name], meant[name] = ScaledRows(values, scales), values * scales
    return block._replace(**stored), block._replace(**meant)


def in_bfloat16(block: BlockWeights) -> tuple[BlockWeights, BlockWeights]:
    """The block with all but the dynamics in bfloat16, and the same numbers in its own dtype."""
    kept = ("A", "skip", "dt_bias")
    stored = {name: t.bfloat16() for name, t in block._asdict().items() if t is not None and name not in kept}
    return block._replace(**stored), block._replace(**{name: t.to(block.A.dtype) for name, t in stored.items()})


def check(batch, shape, norm, flags, dtype, tolerance, store=lambda block: (block, block)) -> None:
    """Two blocks over three positions."""
    biases, norm_first, residual, logarithmic, dense = flags
    size, channels, states, _, taps = shape
    pairs = [store(weights(*shape, norm, biases, logarithmic, dtype)) for _ in range(2)]
    stored, blocks = zip(*pairs, strict=True)
    options = BlockOptions(norm, 1e-5, norm_first, residual, logarithmic)
    final = blocks[1].norm_weight, blocks[1].norm_bias
    step = BlocksStep(stored, options, (stored[1].norm_weight, stored[1].norm_bias))
    pasts = randn(2, batch, taps - 1, channels, dtype=dtype)
    if not dense:
        pasts = pasts.transpose(2, 3).contiguous().transpose(2, 3)
    memories = pasts, randn(2, batch, channels, states, dtype=dtype)
    found = expected = None, *memories
    for _ in range(3):
        hidden = torch.randn(batch, size, dtype=dtype)
        before = found[1:]
        copies = [memory.clone() for memory in before]
        found = step(hidden, *before)
        torch.testing.assert_close(list(before), copies, rtol=0, atol=0)
        expected = blocks_step_reference(hidden, *expected[1:], blocks, options, final)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@given(
    batch=st.integers(1, 3),
    # Hidden size, channels, states, rank, taps.
    shape=st.tuples(*(st.integers(1, largest) for largest in (70, 70, 35, 20, 5))),
    norm=st.sampled_from(["none", "layer", "rms"]),
    flags=st.tuples(*[st.booleans()] * 5),
)
def test_two_blocks_over_three_positions(batch, shape, norm, flags):
    check(batch, shape, norm, flags, torch.float64, 1e-11)


@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
def test_two_blocks_in_single_precision(norm):
    check(2, (64, 128, 16, 4, 4), norm, (True,) * 5, torch.float32, 1e-5)


@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
@pytest.mark.parametrize("store", [in_int8, in_bfloat16])
def test_weights_that_are_stored_in_fewer_bits(store, norm):
    """The step is that of the numbers that they stand for."""
    check(2, (70, 67, 5, 3, 4), norm, (True, True, True, True, True), torch.float32, 1e-5, store)
    check(1, (64, 128, 16, 4, 4), norm, (False, False, True, False, True), torch.float64, 1e-12, store)


def test_nan_stays_in_its_row():
    blocks = [weights(20, 24, 5, 3, 4, "rms", True, True, torch.float32)]
    step = BlocksStep(blocks, BlockOptions("rms", 1e-5, True, True, True), (blocks[0].norm_weight, None))
    hidden = torch.randn(3, 20)
    hidden[1, 7] = torch.nan
    outputs, pasts, states = step(hidden, torch.zeros(1, 3, 3, 24), torch.zeros(1, 3, 24, 5))
    for tensor in (outputs[0], pasts[0], states[0]):
        assert tensor[1].isnan().any()
        assert not tensor[[0, 2]].isnan().any()


def test_what_does_not_fit_is_refused():
    blocks = [weights(20, 24, 5, 3, 4, "rms", True, True, torch.float32)]
    options = BlockOptions("rms", 1e-5, True, True, True)
    with pytest.raises(ValueError, match=r"x_weight must have shape \(13, 24\), got \(12, 24\)"):
        BlocksStep([blocks[0]._replace(x_weight=torch.zeros(12, 24))], options)
    with pytest.raises(ValueError, match=r"weights must be of torch.float32 or bfloat16, got torch.float16"):
        BlocksStep([blocks[0]._replace(x_weight=blocks[0].x_weight.half())], options)
    with pytest.raises(ValueError, match=r"int8 with a scale of torch.float32 for each row"):
        rows = ScaledRows(torch.zeros(13, 24, dtype=torch.int8), torch.ones(1, 1))
        BlocksStep([blocks[0]._replace(x_weight=rows)], options)
    step = BlocksStep(blocks, options)
    memories = torch.zeros(1, 2, 3, 24), torch.zeros(1, 2, 24, 5)
    with pytest.raises(ValueError, match=r"hidden must have 20 numbers for each row, got \(2, 3, 20\)"):
        step(torch.zeros(2, 3, 20), *memories)
    with pytest.raises(ValueError, match=r"states must have shape \(1, 1, 24, 5\), got \(1, 2, 24, 5\)"):
        step(torch.zeros(1, 20), memories[0][:, :1], memories[1])
