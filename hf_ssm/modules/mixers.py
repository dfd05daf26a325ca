"""Sequence mixers: the gated long convolutions of Hyena and the state space layer of S4.

Legend: `B` batch, `L` length, `D` hidden size. A mixer maps `(B, L, D)` to `(B, L, D)` and, on request, returns the
mean τ of its convolutions. Padding is zeroed in front of everything that mixes positions.
"""

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from hf_ssm.modules.filters import build_filter
from hf_ssm.modules.long_convolution import LongConvolution
from hf_ssm.ops.short_conv import short_conv

__all__ = ["HyenaMixer", "S4Mixer"]


def _masked(hidden: Tensor, mask: Tensor | None) -> Tensor:
    return hidden if mask is None else hidden * mask.unsqueeze(-1).to(hidden.dtype)


class HyenaMixer(nn.Module):
    """v ← x_o ⊙ v, v ← k_o ∗ v for o = order-1, ..., 1; y = W_out (x_0 ⊙ v), with [x_0, ..., v] = short(W_in h).

    Source: Nishikawa & Suzuki 2025, Section 3; the practical form is HyenaDNA's operator.
    """

    def __init__(self, config, layer_idx: int):
        super().__init__()
        self.order = config.hyena_order
        self.bidirectional = bool(config.bidirectional)
        size = config.hidden_size
        width = (self.order + 1) * size
        self.in_proj = nn.Linear(size, width, bias=config.use_bias)
        self.short_filter = nn.Conv1d(width, width, config.conv_kernel, groups=width)
        filters = build_filter(config, config.filter_type, (self.order - 1) * size)
        self.long_conv = LongConvolution.from_config(config, layer_idx, filters, groups=self.order - 1)
        self.out_proj = nn.Linear(size, size, bias=config.use_bias)

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None = None, output_tau: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        streams = _masked(self.in_proj(hidden_states), mask)
        weight, bias = self.short_filter.weight.squeeze(1), self.short_filter.bias
        streams = short_conv(streams, weight, bias, bidirectional=self.bidirectional)
        *gates, value = streams.chunk(self.order + 1, dim=-1)
        kernels = self.long_conv.kernels(hidden_states.shape[1])
        taus = []
        for group, gate in enumerate(reversed(gates[1:])):
            # The bias of the short convolution is not zero at padding, hence the mask once more.
            value, tau = self.long_conv(_masked(value * gate, mask), kernels, mask, group=group, output_tau=output_tau)
            taus.append(tau)
        output = self.out_proj(value * gates[0])
        return output, torch.stack(taus).mean() if output_tau else None


class S4Mixer(nn.Module):
    """State space convolution, activation, and a linear map (with a gated linear unit where configured).

    Source: Liu & Li 2024, Appendix A.2 (S4-LegS, S4D-LegS).
    """

    def __init__(self, config, layer_idx: int):
        super().__init__()
        size = config.hidden_size
        filters = build_filter(config, config.kernel_type, size)
        self.long_conv = LongConvolution.from_config(config, layer_idx, filters, use_skip=config.use_skip)
        self.activation = ACT2FN[config.hidden_act]
        self.output_glu = config.output_glu
        self.out_proj = nn.Linear(size, 2 * size if config.output_glu else size)

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None = None, output_tau: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        kernels = self.long_conv.kernels(hidden_states.shape[1])
        output, tau = self.long_conv(_masked(hidden_states, mask), kernels, mask, output_tau=output_tau)
        output = self.out_proj(self.activation(output))
        return nn.functional.glu(output, dim=-1) if self.output_glu else output, tau
