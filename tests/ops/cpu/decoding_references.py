"""One position of all blocks in plain PyTorch, for any dtype: what the kernels of `hf_ssm.ops.*.decoding` compute.

Dimensions: `B` batch, `H` hidden size, `K` taps of the short convolution.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.selective_decoding import BlockOptions, BlockWeights
from hf_ssm.ops.ssd import ssd_step
from hf_ssm.ops.ssd_decoding import SSDBlockOptions, SSDBlockWeights


def _normed(h: Tensor, options: Any, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """The norm that `options` names, with its `epsilon`."""
    if options.norm == "layer":
        return F.layer_norm(h, h.shape[-1:], weight, bias, options.epsilon)
    return h if options.norm == "none" else F.rms_norm(h, h.shape[-1:], weight, options.epsilon)


def _step_through_blocks(
    step: Callable[..., tuple[Tensor, Tensor, Tensor]],
    hidden: Tensor,
    pasts: Tensor,
    states: Tensor,
    weights: Sequence[Any],
    options: Any,
    final_norm: tuple[Tensor | None, Tensor | None],
) -> tuple[Tensor, Tensor, Tensor]:
    """One position of all blocks, one after the other.

    Args:
        step: One block: from the hidden state `(B, H)`, the past of the convolution `(B, channels, K - 1)`, the state
            of the scan, weights and options to the output and the next past and state.
        hidden: `(B, H)`.
        pasts: `(number of blocks, B, K - 1, channels)`.
        states: `(number of blocks, B, ...)`.
        weights: Of each block.
        options: Of all blocks.
        final_norm: Weight and bias of the norm after the last block, if norms come first.

    Returns:
        The outputs of all blocks, the last after the final norm, and the next `pasts` and `states`.
    """
    outputs, new_pasts, new_states = [], [], []
    for past, state, w in zip(pasts, states, weights, strict=True):
        hidden, past, state = step(hidden, past.transpose(1, 2), state, w, options)
        outputs.append(hidden)
        new_pasts.append(past.transpose(1, 2))
        new_states.append(state)
    if options.norm_first:
        outputs[-1] = _normed(hidden, options, *final_norm)
    return torch.stack(outputs), torch.stack(new_pasts), torch.stack(new_states)


def _mamba_step(
    hidden: Tensor, past: Tensor, state: Tensor, w: BlockWeights, options: BlockOptions
) -> tuple[Tensor, Tensor, Tensor]:
    rank, states = w.dt_weight.shape[1], w.A.shape[1]
    read = _normed(hidden, options, w.norm_weight, w.norm_bias) if options.norm_first else hidden
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
    output = output if options.norm_first else _normed(output, options, w.norm_weight, w.norm_bias)
    return output, window[..., 1:], state


def _gated(y: Tensor, z: Tensor, w: SSDBlockWeights, options: SSDBlockOptions) -> Tensor:
    gate = F.silu(z)
    if w.gate_weight is None:
        return y * gate
    y = (y if options.norm_before_gate else y * gate).unflatten(-1, (options.groups, -1))
    y = F.rms_norm(y, y.shape[-1:], None, options.gate_epsilon).flatten(-2) * w.gate_weight
    return y * gate if options.norm_before_gate else y


def _mamba2_step(
    hidden: Tensor, past: Tensor, state: Tensor, w: SSDBlockWeights, options: SSDBlockOptions
) -> tuple[Tensor, Tensor, Tensor]:
    heads, channels = len(w.A_log), w.out_weight.shape[1]
    read = _normed(hidden, options, w.norm_weight, w.norm_bias) if options.norm_first else hidden
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
    output = output if options.norm_first else _normed(output, options, w.norm_weight, w.norm_bias)
    return output, window[..., 1:], state


blocks_step_reference = partial(_step_through_blocks, _mamba_step)
ssd_blocks_step_reference = partial(_step_through_blocks, _mamba2_step)
