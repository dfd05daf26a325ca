"""One position of all blocks of a Mamba-2 model, for decoding.

Dimensions: `B` batch, `S` hidden size, `D` channels of the scan, `H` heads, `P = D / H`, `G` groups, `N` states, `K`
taps, `M = D + 2 G N` channels of the convolution.

Source: Dao & Gu 2024 (Mamba-2), Section 7.
"""

from functools import partial
from typing import NamedTuple

from torch import Tensor

from hf_ssm.ops.decoding import BlockShapes, find_step

__all__ = ["SSDBlockOptions", "SSDBlockWeights", "find_ssd_blocks_step", "ssd_block_shapes"]


class SSDBlockWeights(NamedTuple):
    """The weights of a block.

    Attributes:
        norm_weight, norm_bias: `(S,)` or `None`.
        in_weight, in_bias: `(D + M + H, S)`, the rows of the gate, the input of the convolution and the step sizes;
            `(D + M + H,)` or `None`.
        conv_weight, conv_bias: `(M, 1, K)`; `(M,)` or `None`.
        dt_bias: `(H,)`.
        A_log: Logarithm of the negative of A, `(H,)`.
        skip: `(H,)`, or `(D,)`, one for each channel.
        gate_weight: Weight of the gated norm `(D,)`; `None` without it.
        out_weight, out_bias: `(S, D)`; `(S,)` or `None`.
    """

    norm_weight: Tensor | None
    norm_bias: Tensor | None
    in_weight: Tensor
    in_bias: Tensor | None
    conv_weight: Tensor
    conv_bias: Tensor | None
    dt_bias: Tensor
    A_log: Tensor
    skip: Tensor
    gate_weight: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None


class SSDBlockOptions(NamedTuple):
    """Options of the blocks.

    Attributes:
        norm: `"none"`, `"layer"` or `"rms"`.
        epsilon: Added to the variance by the norms.
        norm_first: Norms before each mixer and after the last block, instead of after each sum.
        residual: Whether the input of a block is added to its output.
        groups: G.
        gate_epsilon: Added to the mean square by the gated norm.
        norm_before_gate: Whether the gate multiplies the output of the gated norm instead of its input.
        dt_limit: Least and greatest step size.
    """

    norm: str
    epsilon: float
    norm_first: bool
    residual: bool
    groups: int
    gate_epsilon: float
    norm_before_gate: bool
    dt_limit: tuple[float, float]


def ssd_block_shapes(w: SSDBlockWeights, options: SSDBlockOptions) -> BlockShapes:
    """Shapes of blocks like this one, from those of `A_log`, `skip`, `out_weight` and `conv_weight`."""
    (size, channels), (mixed, _, taps), heads = w.out_weight.shape, w.conv_weight.shape, len(w.A_log)
    rows, states = channels + mixed + heads, (mixed - channels) // (2 * options.groups)
    weights = (
        *((size,), (size,), (rows, size), (rows,), (mixed, 1, taps), (mixed,), (heads,), (heads,)),
        *((heads,) if len(w.skip) == heads else (channels,), (channels,), (size, channels), (size,)),
    )
    return BlockShapes(weights, (taps - 1, mixed), (heads, channels // heads, states), size)


find_ssd_blocks_step = partial(find_step, ("hf_ssm.ops.cpu.ssd_decoding", "SSDBlocksStep"))
"""`find_step` of Mamba-2 blocks, with `pasts` `(number of blocks, B, K - 1, M)` and `states` `(..., B, H, P, N)`."""
