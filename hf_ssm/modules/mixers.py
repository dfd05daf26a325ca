"""Sequence mixers: the gated long convolutions of Hyena, the state space layer of S4, the selective scan.

Legend: `B` batch, `L` length, `D` hidden size. A mixer maps `(B, L, D)` to `(B, L, D)` and, on request, returns the
mean τ of its long convolutions or scans. Padding is read as zeros by everything that mixes positions. With a memory
(`state`) the input goes on where the memory ends; where that says `last_only`, the output is the last position's.
"""

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from hf_ssm.modules.activation import build_activation
from hf_ssm.modules.filters import build_filter
from hf_ssm.modules.long_convolution import LongConvolution
from hf_ssm.modules.plain import is_plain
from hf_ssm.modules.selective_scan import SelectiveScan
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.short_conv import short_conv, short_conv_extend

__all__ = ["HyenaMixer", "OutputProjection", "S4Mixer", "SelectiveMixer", "ShortConvolution"]


def _masked(hidden: Tensor, mask: Tensor | None) -> Tensor:
    return hidden if mask is None else hidden * mask.unsqueeze(-1).to(hidden.dtype)


class ShortConvolution(nn.Conv1d):
    """Depth-wise convolution of the tokens of `(B, L, D)`, from a memory on where there is one; zero at padding."""

    def __init__(self, channels: int, taps: int, *, bias: bool = True, bidirectional: bool = False):
        super().__init__(channels, channels, taps, groups=channels, bias=bias)
        self.bidirectional = bidirectional

    def forward(
        self,
        inputs: Tensor,
        state: LayerState | None = None,
        mask: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        weight = self.weight.squeeze(1)
        if state is None:
            return short_conv(inputs, weight, self.bias, self.bidirectional, activation, mask)
        memory = state.get("short_conv")
        output, state.tensors["short_conv"] = short_conv_extend(inputs, memory, weight, self.bias, activation, mask)
        return output


class HyenaMixer(nn.Module):
    """v ← x_o ⊙ v, v ← k_o ∗ v for o = order-1, ..., 1; y = W_out (x_0 ⊙ v), with [x_0, ..., v] = short(W_in h).

    Source: Nishikawa & Suzuki 2025, Section 3; the practical form is HyenaDNA's operator.
    """

    def __init__(self, config, layer_idx: int):
        super().__init__()
        self.order = config.hyena_order
        size = config.hidden_size
        width = (self.order + 1) * size
        self.in_proj = nn.Linear(size, width, bias=config.use_bias)
        self.short_filter = ShortConvolution(width, config.conv_kernel, bidirectional=bool(config.bidirectional))
        filters = build_filter(config, config.filter_type, (self.order - 1) * size)
        self.long_conv = LongConvolution.from_config(config, layer_idx, filters, groups=self.order - 1)
        self.out_proj = nn.Linear(size, size, bias=config.use_bias)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        output_tau: bool = False,
        state: LayerState | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        # All streams are zero at padding, and so is each product with one.
        *gates, value = self.short_filter(self.in_proj(hidden_states), state, mask).chunk(self.order + 1, dim=-1)
        kernels = self.long_conv.kernels_for(hidden_states, output_tau=output_tau) if state is None else None
        taus = []
        for group, gate in enumerate(reversed(gates[1:])):
            gated = value * gate
            if state is None:
                value, tau = self.long_conv(gated, kernels, mask, group=group, output_tau=output_tau)
                taus.append(tau)
            else:
                value = self.long_conv.extend(gated, state, group=group)
        output = self.out_proj(value * gates[0][:, -value.shape[1] :])
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
        self.activation = build_activation(config)
        self.output_glu = config.output_glu
        self.out_proj = nn.Linear(size, 2 * size if config.output_glu else size)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        output_tau: bool = False,
        state: LayerState | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        hidden_states, tau = _masked(hidden_states, mask), None
        if state is None:
            kernels = self.long_conv.kernels_for(hidden_states, output_tau=output_tau)
            output, tau = self.long_conv(hidden_states, kernels, mask, output_tau=output_tau)
        else:
            output = self.long_conv.extend(hidden_states, state)
        output = self.out_proj(self.activation(output))
        return nn.functional.glu(output, dim=-1) if self.output_glu else output, tau


class OutputProjection(nn.Linear):
    """The way back to the residual stream, whose initial weights follow a law of their own."""


class SelectiveMixer(nn.Module):
    """Block "mamba": out_proj(scan(act(conv(u))) ⊙ SiLU(z)) with [u, z] = in_proj(h). Block "plain": scan(h).

    Two-sided, a second convolution and scan read the sequence from its end, and the outputs are added; the projections
    are shared.

    Source: Gu & Dao 2023 (Mamba), Section 3.4; Honarpisheh et al. 2025, eq. (8).
    """

    def __init__(self, config, layer_idx: int):
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        plain = config.block == "plain"
        self.in_proj = None if plain else nn.Linear(size, 2 * inner, bias=config.use_bias)
        self.activation = None if plain else build_activation(config)
        self.out_proj = None if plain else OutputProjection(inner, size, bias=config.use_bias)
        self.conv1d = None if plain else self._convolution(config)
        self.scan = SelectiveScan(config, layer_idx)
        self.bidirectional = bool(config.bidirectional)
        if self.bidirectional:
            self.reverse_conv1d = None if plain else self._convolution(config)
            self.reverse_scan = SelectiveScan(config, layer_idx)

    @staticmethod
    def _convolution(config) -> ShortConvolution:
        return ShortConvolution(config.intermediate_size, config.conv_kernel, bias=config.use_conv_bias)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        output_tau: bool = False,
        state: LayerState | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if state is not None and state.last_only:
            return self._last(hidden_states, mask, state), None
        inputs, gate = self.project(hidden_states, mask)
        scanned = self.scan_inputs(inputs, mask, state)
        output, tau = self.scan(scanned, gate, mask, output_tau=output_tau, state=state)
        if self.bidirectional:
            gate, mask = (None if part is None else part.flip(1) for part in (gate, mask))
            scanned = self.scan_inputs(inputs.flip(1), mask, reverse=True)
            behind, other = self.reverse_scan(scanned, gate, mask, output_tau=output_tau)
            output = output + behind.flip(1)
            tau = (tau + other) / 2 if output_tau else None
        return output if self.out_proj is None else self.out_proj(output), tau

    def _last(self, hidden_states: Tensor, mask: Tensor | None, state: LayerState) -> Tensor:
        """The output at the last position, `(B, 1, D)`: no other one is gated and projected."""
        gate = None
        if type(self.in_proj) is nn.Linear:
            halves = (part.chunk(2) for part in self.in_proj.parameters())
            for_input, for_gate = zip(*halves, strict=True)
            inputs = nn.functional.linear(hidden_states, *for_input)
            gate = nn.functional.linear(hidden_states[:, -1:], *for_gate)
        else:
            # An adapter, say, whose halves are not known.
            inputs, gate = self.project(hidden_states, mask)
            gate = None if gate is None else gate[:, -1:]
        output = self.scan(self.scan_inputs(inputs, mask, state), None, mask, state=state)[0][:, -1:]
        if gate is not None:
            output = output * nn.functional.silu(gate)
        return output if self.out_proj is None else self.out_proj(output)

    def project(self, hidden_states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The input of the convolution and the gate, both `(B, L, D)`; in the block "plain" there is no gate.

        At padding, the input of the convolution means nothing, and that of the block "plain" is zero.
        """
        if self.in_proj is None:
            return _masked(hidden_states, mask), None
        inputs, gate = self.in_proj(hidden_states).chunk(2, dim=-1)
        return inputs, gate

    def scan_inputs(
        self, inputs: Tensor, mask: Tensor | None = None, state: LayerState | None = None, *, reverse: bool = False
    ) -> Tensor:
        """What the scan (the reverse one where asked for) reads, `(B, L, D)`, from what `project` returns."""
        convolution = self.reverse_conv1d if reverse else self.conv1d
        if self.activation is None or convolution is None:
            return inputs
        if is_plain(self.activation, nn.SiLU, SiLUActivation):
            return convolution(inputs, state, mask, "silu")
        return _masked(self.activation(convolution(inputs, state, mask)), mask)
