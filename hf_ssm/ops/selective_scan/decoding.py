"""One position of all blocks of a Mamba model, for decoding.

Dimensions: `B` batch, `H` hidden size, `D` channels of the scan, `N` states, `R` rank of the step projection, `K` taps.

For a single position each operation of torch costs more to call than to compute. On a CPU one compiled kernel computes
all blocks, on a GPU a few kernels compute each block. There are no other implementations than these and the reference.

Source: Gu & Dao 2023 (Mamba), Section 3.4 and Algorithm 2.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.backends import Compiled, Operation
from hf_ssm.ops.decoding import check_weight_shapes, normed, step_through_blocks

__all__ = ["BlockOptions", "BlockWeights", "blocks_step_reference", "check_block_weights", "find_blocks_step"]


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


def _block_step_reference(
    hidden: Tensor, past: Tensor, state: Tensor, w: BlockWeights, options: BlockOptions
) -> tuple[Tensor, Tensor, Tensor]:
    rank, states = w.dt_weight.shape[1], w.A.shape[1]
    read = normed(hidden, options, w.norm_weight, w.norm_bias) if options.norm_first else hidden
    inputs, gate = F.linear(read, w.in_weight, w.in_bias).chunk(2, dim=-1)
    window = torch.cat([past, inputs.unsqueeze(-1)], dim=-1)
    u = (window * w.conv_weight.squeeze(1)).sum(-1)
    u = F.silu(u if w.conv_bias is None else u + w.conv_bias)
    step, B, C = F.linear(u, w.x_weight).split([rank, states, states], dim=-1)
    d = F.softplus(F.linear(step, w.dt_weight, w.dt_bias))
    A = -w.A.exp() if options.logarithmic else w.A
    state = torch.exp(d.unsqueeze(-1) * A) * state + (d * u).unsqueeze(-1) * B.unsqueeze(1)
    y = (state * C.unsqueeze(1)).sum(-1)
    y = (y if w.skip is None else y + w.skip * u) * F.silu(gate)
    output = F.linear(y, w.out_weight, w.out_bias)
    output = hidden + output if options.residual else output
    output = output if options.norm_first else normed(output, options, w.norm_weight, w.norm_bias)
    return output, window[..., 1:], state


def blocks_step_reference(
    hidden: Tensor,
    pasts: Tensor,
    states: Tensor,
    weights: Sequence[BlockWeights],
    options: BlockOptions,
    final_norm: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor, Tensor]:
    """`find_blocks_step(weights, options, final_norm)(hidden, pasts, states)` in PyTorch."""
    return step_through_blocks(_block_step_reference, hidden, pasts, states, weights, options, final_norm)


def check_block_weights(weights: Sequence[BlockWeights]) -> None:
    """Raise a ValueError for the first tensor that does not have the shape that follows from those of the first block.

    These are the shapes of `A`, `dt_weight`, `out_weight` and `conv_weight`.
    """
    w = weights[0]
    (channels, states), rank = w.A.shape, w.dt_weight.shape[1]
    size, taps = len(w.out_weight), w.conv_weight.shape[-1]
    expected = (
        *((size,), (size,), (2 * channels, size), (2 * channels,), (channels, 1, taps), (channels,)),
        *((rank + 2 * states, channels), (channels, rank), (channels,), (channels, states), (channels,)),
        *((size, channels), (size,)),
    )
    for block in weights:
        check_weight_shapes(block, expected)


_BLOCKS_STEP = Operation(
    numba=Compiled("hf_ssm.ops.selective_scan.numba_decoding", "BlocksStep"),
    triton=Compiled("hf_ssm.ops.selective_scan.triton_decoding", "TritonBlocksStep", "supports_blocks"),
)


def find_blocks_step(
    weights: Sequence[BlockWeights],
    options: BlockOptions,
    final_norm: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Callable[..., tuple[Tensor, Tensor, Tensor]] | None:
    """The compiled step of blocks with these weights.

    It keeps the memory of the weights alive and reads changes in place.

    Args:
        weights: Of each block, of the same shapes; all contiguous and on one device. On a CPU all of one real dtype; on
            a GPU each in single or half precision.
        options: The same for all blocks.
        final_norm: Weight and bias of the norm after the last block, `(H,)` or `None`.

    Returns:
        `None` where no backend supports these weights, else a function of

        - `hidden`, `(B, H)`, or with further axes of length 1,
        - `pasts`, the inputs of each block's convolution at the `K - 1` positions before, oldest first,
          `(number of blocks, B, K - 1, D)`,
        - `states`, the state of each block's scan after the position before, `(number of blocks, B, D, N)`,

        all on the device of the weights; on a CPU of their dtype, on a GPU `states` in float32, the others in single or
        half precision. It returns new tensors: the outputs of the blocks, `(number of blocks, *hidden.shape)`, the
        last after the final norm, on a GPU in float32, and the next `pasts` and `states` in their dtypes. On a GPU a
        further argument `mask`, `(B,)`, bool, is false at rows whose states stay as they are, and whose outputs are
        meaningless. The function raises a ValueError where shapes do not fit.

    Raises:
        ValueError: A weight of another shape.
    """
    arguments: tuple[Any, ...] = tuple(weights), options, final_norm
    implementation = _BLOCKS_STEP.choose(*arguments)
    return None if implementation is None else implementation(*arguments)
