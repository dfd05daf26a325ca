"""One position of all blocks of a Mamba-2 model, for decoding.

Dimensions: `B` batch, `E` hidden size, `H` heads, `P` channels of a head, `D` = H P channels, `G` groups of heads, `N`
states per channel, `C` = D + 2 G N channels of the short convolution, `K` taps.

For a single position each operation of torch costs more to call than to compute, so one compiled kernel computes all
blocks. There is no other implementation than this kernel and the reference.

Source: Dao & Gu 2024 (Mamba-2), Sections 5 and 7.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.backends import Compiled, Operation
from hf_ssm.ops.ssd.arguments import limited_steps
from hf_ssm.ops.ssd.step import ssd_step

__all__ = ["SSDBlockOptions", "SSDBlockWeights", "find_ssd_blocks_step", "ssd_blocks_step_reference"]


class SSDBlockWeights(NamedTuple):
    """The weights of a block.

    Attributes:
        norm_weight, norm_bias: `(E,)` or `None`.
        in_weight, in_bias: `(D + C + H, E)`: gate; x, B and C; step sizes. `(D + C + H,)` or `None`.
        conv_weight, conv_bias: `(C, 1, K)`; `(C,)` or `None`.
        dt_bias, A_log: `(H,)`.
        skip: `(H,)` or `(D,)`.
        gated_weight: Of the norm after the gate, `(D,)`.
        out_weight, out_bias: `(E, D)`; `(E,)` or `None`.
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
    gated_weight: Tensor
    out_weight: Tensor
    out_bias: Tensor | None


class SSDBlockOptions(NamedTuple):
    """Options of the blocks.

    Attributes:
        norm: `"none"`, `"layer"` or `"rms"`.
        epsilon: Added to the mean squares by all norms.
        norm_first: Norms before each mixer and after the last block, instead of after each sum.
        residual: Whether the input of a block is added to its output.
        groups: G.
        low, high: Least and greatest step size.
    """

    norm: str
    epsilon: float
    norm_first: bool
    residual: bool
    groups: int
    low: float
    high: float


def _block_norm(h: Tensor, options: SSDBlockOptions, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if options.norm == "layer":
        return F.layer_norm(h, h.shape[-1:], weight, bias, options.epsilon)
    return h if options.norm == "none" else F.rms_norm(h, h.shape[-1:], weight, options.epsilon)


def _ssd_block_reference(
    hidden: Tensor, past: Tensor, state: Tensor, w: SSDBlockWeights, options: SSDBlockOptions
) -> tuple[Tensor, Tensor, Tensor]:
    (heads,), channels, mixed = w.A_log.shape, w.out_weight.shape[1], len(w.conv_weight)
    read = _block_norm(hidden, options, w.norm_weight, w.norm_bias) if options.norm_first else hidden
    gate, inputs, dt = F.linear(read, w.in_weight, w.in_bias).split([channels, mixed, heads], dim=-1)
    window = torch.cat([past, inputs.unsqueeze(1)], dim=1)
    convolved = (window * w.conv_weight.squeeze(1).T).sum(1)
    convolved = F.silu(convolved if w.conv_bias is None else convolved + w.conv_bias)
    size = (mixed - channels) // 2
    x, B, C = convolved.split([channels, size, size], dim=-1)
    x, B, C = (
        part.unflatten(-1, (count, -1)) for part, count in ((x, heads), (B, options.groups), (C, options.groups))
    )
    d = limited_steps(dt, w.dt_bias, True, (options.low, options.high))
    skip = w.skip if len(w.skip) == heads else w.skip.unflatten(0, (heads, -1))
    y, state = ssd_step(x, d, -w.A_log.exp(), B, C, state, skip)
    gated = (y.flatten(1) * F.silu(gate)).unflatten(-1, (options.groups, -1))
    normed = F.rms_norm(gated, gated.shape[-1:], None, options.epsilon).flatten(1) * w.gated_weight
    output = F.linear(normed, w.out_weight, w.out_bias)
    output = hidden + output if options.residual else output
    output = output if options.norm_first else _block_norm(output, options, w.norm_weight, w.norm_bias)
    return output, window[:, 1:], state


def ssd_blocks_step_reference(
    hidden: Tensor,
    pasts: Tensor,
    states: Tensor,
    weights: Sequence[SSDBlockWeights],
    options: SSDBlockOptions,
    final_norm: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor, Tensor]:
    """`find_ssd_blocks_step(weights, options, final_norm)(hidden, pasts, states)` in PyTorch."""
    found = []
    for past, state, w in zip(pasts, states, weights, strict=True):
        found.append(_ssd_block_reference(hidden, past, state, w, options))
        hidden = found[-1][0]
    outputs, new_pasts, new_states = (list(part) for part in zip(*found, strict=True))
    if options.norm_first:
        outputs[-1] = _block_norm(hidden, options, *final_norm)
    return torch.stack(outputs), torch.stack(new_pasts), torch.stack(new_states)


_SSD_BLOCKS_STEP = Operation(numba=Compiled("hf_ssm.ops.ssd.numba_decoding", "SSDBlocksStep"))


def find_ssd_blocks_step(
    weights: Sequence[SSDBlockWeights],
    options: SSDBlockOptions,
    final_norm: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None:
    """The compiled step of blocks with these weights.

    It keeps the memory of the weights alive and reads changes in place.

    Args:
        weights: Of each block, of the same shapes; all contiguous and of one real dtype.
        options: The same for all blocks.
        final_norm: Weight and bias of the norm after the last block, `(E,)` or `None`.

    Returns:
        `None` where no backend supports these weights, else a function of

        - `hidden`, `(B, E)`, or with further axes of length 1,
        - `pasts`, the inputs of each block's convolution at the `K - 1` positions before, oldest first,
          `(number of blocks, B, K - 1, C)`,
        - `states`, the state of each block's scan after the position before, `(number of blocks, B, H, P, N)`,

        all on a CPU and of the dtype of the weights. It returns new tensors: the outputs of the blocks,
        `(number of blocks, *hidden.shape)`, the last after the final norm, and the next `pasts` and `states`. It
        raises a ValueError where shapes do not fit.

    Raises:
        ValueError: A weight of another shape.
    """
    arguments: tuple[Any, ...] = tuple(weights), options, final_norm
    implementation = _SSD_BLOCKS_STEP.choose(*arguments)
    return None if implementation is None else implementation(*arguments)
