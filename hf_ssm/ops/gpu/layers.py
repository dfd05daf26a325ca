"""The kernels as layers of the Hub's `kernels` library, under the names and signatures by which transformers asks.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps, `N` states, `H` heads, `P` channels of a head, `G` groups.

`kernelize` puts the `forward` of such a class in place of a function of transformers, which must have as many
arguments. Calls that the Triton kernels do not support run in PyTorch.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_ssm.ops.documents import document_starts
from hf_ssm.ops.selective_scan.arguments import ScanTensors
from hf_ssm.ops.selective_scan.chunked import chunked_scan
from hf_ssm.ops.selective_scan.step import scan_step_in_parts
from hf_ssm.ops.selective_scan.triton import scan_triton, supports_scan
from hf_ssm.ops.selective_scan.triton_decoding import scan_step_triton, supports_scan_step
from hf_ssm.ops.short_conv.pytorch import short_conv_torch
from hf_ssm.ops.short_conv.triton import extend_triton, short_conv_triton, supports_extend, supports_short_conv
from hf_ssm.ops.ssd.arguments import SSDTensors, limited_steps
from hf_ssm.ops.ssd.chunked import chunked_ssd
from hf_ssm.ops.ssd.step import ssd_step_in_parts
from hf_ssm.ops.ssd.triton import ssd_triton, supports_ssd
from hf_ssm.ops.ssd.triton_decoding import ssd_step_triton, supports_ssd_step

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "mamba_chunk_scan_combined",
    "selective_scan_fn",
    "selective_state_update",
]


def _convolution_of_documents(u: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor) -> Tensor:
    """The causal convolution of `u` `(B, L, D)` in which no tap reads another document."""
    y = u * weight[:, -1] if bias is None else torch.addcmul(bias.to(u.dtype), u, weight[:, -1])
    for lag in range(1, min(weight.shape[1], u.shape[1])):
        same = (seq_idx[:, lag:] == seq_idx[:, :-lag]).unsqueeze(-1)
        read = F.pad((u[:, :-lag] * weight[:, -1 - lag]).masked_fill(~same, 0), (0, 0, lag, 0))
        y = y + read
    return y


class causal_conv1d_fn(nn.Module):
    """Short depth-wise convolution; `hidden_states` `(B, D, L)`, `weight` `(D, K)`, result `(B, D, L)`.

    `seq_idx` `(B, L)` keeps packed documents apart.
    """

    can_torch_compile = True

    def forward(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> Tensor:
        u, seq_idx = hidden_states.transpose(1, 2), kwargs.get("seq_idx")
        activation = "silu" if activation in ("silu", "swish") else activation
        if seq_idx is not None:
            y = _convolution_of_documents(u, weight, bias, seq_idx)
            return (y if activation is None else F.silu(y)).to(u.dtype).transpose(1, 2)
        arguments = u, weight, bias, False, activation, None
        run = short_conv_triton if supports_short_conv(*arguments) else short_conv_torch
        return run(*arguments).transpose(1, 2)


class causal_conv1d_update(nn.Module):
    """The convolution of the next positions, `hidden_states` `(B, D, L)`.

    Changes `conv_state`, the last inputs, `(B, D, K - 1)` or more.
    """

    def forward(
        self,
        hidden_states: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        u, taps = hidden_states.transpose(1, 2), weight.shape[1]
        activation = "silu" if activation in ("silu", "swish") else activation
        past = conv_state[..., conv_state.shape[-1] - taps + 1 :].transpose(1, 2).to(u.dtype)
        arguments = u, past, weight, bias, activation, None
        if supports_extend(*arguments):
            y = extend_triton(*arguments)
        else:
            y = short_conv_torch(torch.cat([past, u], dim=1), weight, bias, False, activation, None)[:, taps - 1 :]
        conv_state.copy_(torch.cat([conv_state, hidden_states], dim=-1)[..., -conv_state.shape[-1] :])
        return y.transpose(1, 2)


class selective_scan_fn(nn.Module):
    """The selective scan; `hidden_states`, `dt`, `z` `(B, D, L)`, `A` `(D, N)`, `B` and `C` `(B, N, L)`.

    Returns `(B, D, L)`, with `return_last_state` also the state `(B, D, N)`.
    """

    can_torch_compile = True

    def forward(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        # For other implementations; without effect here.
        use_mambapy: bool = False,
        use_associative_scan: bool = False,
        **kwargs: Any,
    ) -> Any:
        u, delta, b, c = (t.transpose(1, 2) for t in (hidden_states, dt, B, C))
        gate = None if z is None else z.transpose(1, 2)
        arguments = ScanTensors(u, delta, A, b, c, D, gate, delta_bias), delta_softplus, return_last_state
        y, last = scan_triton(*arguments) if supports_scan(*arguments) else chunked_scan(*arguments)
        return (y.transpose(1, 2), last) if return_last_state else y.transpose(1, 2)


class mamba_chunk_scan_combined(nn.Module):
    """The scan of Mamba-2; `hidden_states` `(B, L, H, P)`, `dt` `(B, L, H)`, `A` `(H,)`, `B` and `C` `(B, L, G, N)`.

    `seq_idx` `(B, L)` resets the state where it changes. Returns `(B, L, H, P)`, with `return_final_states` also the
    state `(B, H, P, N)`.
    """

    can_torch_compile = True

    def forward(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        initial_states: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **kwargs: Any,
    ) -> Any:
        d = limited_steps(dt.float(), None if dt_bias is None else dt_bias.float(), dt_softplus, dt_limit)
        starts, state = document_starts(kwargs.get("seq_idx"), hidden_states), initial_states
        D, state = (t if t is None else t.float() for t in (D, state))
        arguments = hidden_states, d, A.float(), B, C, D, state, starts, None
        if supports_ssd(*arguments):
            y, last = ssd_triton(*arguments)
        else:
            x, b, c = (t.float() for t in (hidden_states, B, C))
            y, last = chunked_ssd(x, d, A.float(), b, c, D, state, starts, None)
        y = y.to(hidden_states.dtype)
        return (y, last) if return_final_states else y


class selective_state_update(nn.Module):
    """One position of the scan of Mamba or Mamba-2; changes `state`.

    For Mamba `state` `(B, D, N)`, `hidden_states`, `dt` and `z` `(B, D)`, `A` `(D, N)`, `B` and `C` `(B, N)`. For
    Mamba-2 `state` `(B, H, P, N)`, `hidden_states` and `z` `(B, H, P)`, `B` and `C` `(B, G, N)`, and `dt` `(B, H, P)`,
    `A` `(H, P, N)`, `D` and `dt_bias` `(H, P)`, whose numbers are the same for all channels and states of a head.
    """

    can_torch_compile = True

    def forward(
        self,
        state: Tensor,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        z: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        if state.dim() == 4:
            y, after = _step_of_heads(state, hidden_states, dt, A, B, C, D, dt_bias, dt_softplus)
            y = y if z is None else y * F.silu(z)
        else:
            args = ScanTensors(hidden_states, dt, A, B, C, D, z, dt_bias, state)
            step = scan_step_triton if supports_scan_step(args, dt_softplus) else scan_step_in_parts
            y, after = step(args, dt_softplus)
        state.copy_(after)
        return y


def _step_of_heads(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
) -> tuple[Tensor, Tensor]:
    """One position of the scan of Mamba-2, whose arguments are expanded to all channels and states of a head."""
    args = SSDTensors(x, dt[..., 0], A[:, 0, 0], B, C, D, None if dt_bias is None else dt_bias[:, 0], state)
    limits = 0.0, math.inf
    step = ssd_step_triton if supports_ssd_step(args, dt_softplus, limits) else ssd_step_in_parts
    return step(args, dt_softplus, limits)
