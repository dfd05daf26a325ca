"""One position of all blocks of a Mamba-2 model, for decoding.

Dimensions: `B` batch, `S` hidden size, `D` channels of the scan, `H` heads, `P = D / H`, `G` groups, `N` states, `K`
taps, `M = D + 2 G N` channels of the convolution.

For a single position each operation of torch costs more to call than to compute. On a CPU one compiled kernel computes
all blocks, on a GPU a few kernels compute each block. There are no other implementations than these and the reference.

Source: Dao & Gu 2024 (Mamba-2), Section 7.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.backends import Compiled, Operation
from hf_ssm.ops.decoding import check_weight_shapes, normed, step_through_blocks
from hf_ssm.ops.ssd.step import ssd_step

__all__ = [
    "SSDBlockOptions",
    "SSDBlockWeights",
    "check_ssd_block_weights",
    "find_ssd_blocks_step",
    "ssd_blocks_step_reference",
]


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


def _gated(y: Tensor, z: Tensor, w: SSDBlockWeights, options: SSDBlockOptions) -> Tensor:
    gate = F.silu(z)
    if w.gate_weight is None:
        return y * gate
    y = (y if options.norm_before_gate else y * gate).unflatten(-1, (options.groups, -1))
    y = F.rms_norm(y, y.shape[-1:], None, options.gate_epsilon).flatten(-2) * w.gate_weight
    return y * gate if options.norm_before_gate else y


def _block_step_reference(
    hidden: Tensor, past: Tensor, state: Tensor, w: SSDBlockWeights, options: SSDBlockOptions
) -> tuple[Tensor, Tensor, Tensor]:
    heads, channels = len(w.A_log), w.out_weight.shape[1]
    read = normed(hidden, options, w.norm_weight, w.norm_bias) if options.norm_first else hidden
    z, inputs, dt = F.linear(read, w.in_weight, w.in_bias).split([channels, len(w.conv_weight), heads], dim=-1)
    window = torch.cat([past, inputs.unsqueeze(-1)], dim=-1)
    mixed = (window * w.conv_weight.squeeze(1)).sum(-1)
    mixed = F.silu(mixed if w.conv_bias is None else mixed + w.conv_bias)
    x, rest = mixed.split([channels, mixed.shape[-1] - channels], dim=-1)
    B, C = rest.unflatten(-1, (2, options.groups, -1)).unbind(1)
    skip = w.skip if len(w.skip) == heads else w.skip.unflatten(0, (heads, -1))
    x, A = x.unflatten(-1, (heads, -1)), -w.A_log.exp()
    y, state = ssd_step(x, dt, A, B, C, state, skip, w.dt_bias, dt_softplus=True, dt_limit=options.dt_limit)
    output = F.linear(_gated(y.flatten(1), z, w, options), w.out_weight, w.out_bias)
    output = hidden + output if options.residual else output
    output = output if options.norm_first else normed(output, options, w.norm_weight, w.norm_bias)
    return output, window[..., 1:], state


def ssd_blocks_step_reference(
    hidden: Tensor,
    pasts: Tensor,
    states: Tensor,
    weights: Sequence[SSDBlockWeights],
    options: SSDBlockOptions,
    final_norm: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor, Tensor]:
    """`find_ssd_blocks_step(weights, options, final_norm)(hidden, pasts, states)` in PyTorch."""
    return step_through_blocks(_block_step_reference, hidden, pasts, states, weights, options, final_norm)


def check_ssd_block_weights(weights: Sequence[SSDBlockWeights]) -> None:
    """Raise a ValueError for the first tensor that does not have the shape that follows from those of the first block.

    These are the shapes of `A_log`, `skip`, `out_weight` and `conv_weight`.
    """
    w = weights[0]
    (size, channels), (mixed, _, taps), heads = w.out_weight.shape, w.conv_weight.shape, len(w.A_log)
    rows = channels + mixed + heads
    expected = (
        *((size,), (size,), (rows, size), (rows,), (mixed, 1, taps), (mixed,), (heads,), (heads,)),
        *((heads,) if len(w.skip) == heads else (channels,), (channels,), (size, channels), (size,)),
    )
    for block in weights:
        check_weight_shapes(block, expected)


_BLOCKS_STEP = Operation(
    numba=Compiled("hf_ssm.ops.ssd.numba_decoding", "SSDBlocksStep"),
    triton=Compiled("hf_ssm.ops.ssd.triton_decoding", "TritonSSDBlocksStep", "supports_blocks"),
)


def find_ssd_blocks_step(
    weights: Sequence[SSDBlockWeights],
    options: SSDBlockOptions,
    final_norm: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Callable[..., tuple[Tensor, Tensor, Tensor]] | None:
    """The compiled step of blocks with these weights.

    It keeps the memory of the weights alive and reads changes in place.

    Args:
        weights: Of each block, of the same shapes; all contiguous and on one device. On a CPU all of one real dtype; on
            a GPU each in single or half precision.
        options: The same for all blocks.
        final_norm: Weight and bias of the norm after the last block, `(S,)` or `None`.

    Returns:
        `None` where no backend supports these weights, else a function of

        - `hidden`, `(B, S)`, or with further axes of length 1,
        - `pasts`, the inputs of each block's convolution at the `K - 1` positions before, oldest first,
          `(number of blocks, B, K - 1, M)`,
        - `states`, the state of each block's scan after the position before, `(number of blocks, B, H, P, N)`,

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
