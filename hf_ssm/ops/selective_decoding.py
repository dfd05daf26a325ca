"""One position of all blocks of a Mamba model, for decoding.

Dimensions: `B` batch, `H` hidden size, `D` channels of the scan, `N` states, `R` rank of the step projection, `K` taps.

Source: Gu & Dao 2023 (Mamba), Section 3.4 and Algorithm 2.
"""

from functools import partial
from typing import NamedTuple

from torch import Tensor

from hf_ssm.ops.decoding import BlockShapes, find_step

__all__ = ["BlockOptions", "BlockWeights", "block_shapes", "find_blocks_step"]


class BlockWeights(NamedTuple):
    """The weights of a block.

    Attributes:
        norm_weight, norm_bias: `(H,)` or `None`.
        in_weight, in_bias: `(2 D, H)`; `(2 D,)` or `None`.
        conv_weight, conv_bias: `(D, 1, K)`; `(D,)` or `None`.
        x_weight: `(R + 2 N, D)`.
        dt_weight, dt_bias: `(D, R)`, `(D,)`.
        A: `(D, N)`: the state matrix, or the logarithm of its negative.
        skip: `(D,)` or `None`.
        out_weight, out_bias: `(H, D)`; `(H,)` or `None`.
    """

    norm_weight: Tensor | None
    norm_bias: Tensor | None
    in_weight: Tensor
    in_bias: Tensor | None
    conv_weight: Tensor
    conv_bias: Tensor | None
    x_weight: Tensor
    dt_weight: Tensor
    dt_bias: Tensor
    A: Tensor
    skip: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None


class BlockOptions(NamedTuple):
    """Options of the blocks.

    Attributes:
        norm: `"none"`, `"layer"` or `"rms"`.
        epsilon: Added to the variance by the norms.
        norm_first: Norms before each mixer and after the last block, instead of after each sum.
        residual: Whether the input of a block is added to its output.
        logarithmic: `A` is given as the logarithm of its negative.
    """

    norm: str
    epsilon: float
    norm_first: bool
    residual: bool
    logarithmic: bool


def block_shapes(w: BlockWeights) -> BlockShapes:
    """Shapes of blocks like this one, from those of `A`, `dt_weight`, `out_weight` and `conv_weight`."""
    (channels, states), rank = w.A.shape, w.dt_weight.shape[1]
    size, taps = w.out_weight.shape[0], w.conv_weight.shape[-1]
    weights = (
        *((size,), (size,), (2 * channels, size), (2 * channels,), (channels, 1, taps), (channels,)),
        *((rank + 2 * states, channels), (channels, rank), (channels,), (channels, states), (channels,)),
        *((size, channels), (size,)),
    )
    return BlockShapes(weights, (taps - 1, channels), (channels, states), size)


find_blocks_step = partial(find_step, ("hf_ssm.ops.cpu.selective_decoding", "BlocksStep"))
"""`find_step` of Mamba blocks, with `pasts` `(number of blocks, B, K - 1, D)` and `states` `(..., B, D, N)`."""
