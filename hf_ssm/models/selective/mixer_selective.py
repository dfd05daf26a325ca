"""The mixer of the selective state space models.

Legend: `B` batch, `L` length, `D` hidden size. A mixer maps `(B, L, D)` to `(B, L, D)` and, on request, returns the
mean τ of its operators. Padding is read as zeros by everything that mixes positions.
"""

from functools import partial

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from hf_ssm.modules.activation import build_activation
from hf_ssm.modules.projection import OutputProjection, has_standard_forward
from hf_ssm.modules.selective_scan import SelectiveScan
from hf_ssm.modules.short_convolution import ShortConvolution, masked
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.documents import Documents

__all__ = ["OutputProjection", "SelectiveMixer", "has_standard_forward"]


class SelectiveMixer(nn.Module):
    """Block "mamba": out_proj(scan(act(conv(u))) ⊙ SiLU(z)) with [u, z] = in_proj(h). Block "plain": scan(h).

    If bidirectional, a second convolution and scan read the reversed sequence, and the outputs are added; the
    projections are shared.

    Source: Gu & Dao 2023 (Mamba), Section 3.4; Honarpisheh et al. 2025, eq. (8).
    """

    def __init__(self, config, layer_idx: int):
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        plain = config.block == "plain"
        self.in_proj = None if plain else nn.Linear(size, 2 * inner, bias=config.use_bias)
        self.activation = None if plain else build_activation(config)
        gain = config.num_hidden_layers**-0.5 if config.rescale_prenorm_residual else 1.0
        self.out_proj = None if plain else OutputProjection(inner, size, bias=config.use_bias, gain=gain)
        self.conv1d = None if plain else self._convolution(config)
        self.scan = SelectiveScan(config, layer_idx)
        self.bidirectional = bool(config.bidirectional)
        if self.bidirectional:
            self.reverse_conv1d = None if plain else self._convolution(config)
            self.reverse_scan = SelectiveScan(config, layer_idx, "backward")

    @staticmethod
    def _convolution(config) -> ShortConvolution:
        return ShortConvolution(config.intermediate_size, config.conv_kernel, bias=config.use_conv_bias)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        output_tau: bool = False,
        state: LayerState | None = None,
        documents: Documents | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if state is not None and state.last_position_only:
            return self._last(hidden_states, mask, state), None
        inputs, gate = self.project(hidden_states, mask)
        scanned = self.scan_inputs(inputs, mask, state, documents=documents)
        output, tau = self.scan(scanned, gate, mask, output_tau=output_tau, state=state, documents=documents)
        if self.bidirectional:
            flip = partial(torch.flip, dims=(1,)) if documents is None else documents.flip
            gate, mask = (None if part is None else flip(part) for part in (gate, mask))
            documents = None if documents is None else documents.reversed()
            scanned = self.scan_inputs(flip(inputs), mask, reverse=True, documents=documents)
            behind, other = self.reverse_scan(scanned, gate, mask, output_tau=output_tau, documents=documents)
            output = output + flip(behind)
            tau = (tau + other) / 2 if output_tau else None
        return output if self.out_proj is None else self.out_proj(output), tau

    def _last(self, hidden_states: Tensor, mask: Tensor | None, state: LayerState) -> Tensor:
        """The output at the last position, `(B, 1, D)`; other positions are neither gated nor projected."""
        gate = None
        if type(self.in_proj) is nn.Linear:
            halves = (part.chunk(2) for part in self.in_proj.parameters())
            for_input, for_gate = zip(*halves, strict=True)
            inputs = nn.functional.linear(hidden_states, *for_input)
            gate = nn.functional.linear(hidden_states[:, -1:], *for_gate)
        else:
            # For example an adapter, whose halves are not known.
            inputs, gate = self.project(hidden_states, mask)
            gate = None if gate is None else gate[:, -1:]
        output = self.scan(self.scan_inputs(inputs, mask, state), None, mask, state=state)[0][:, -1:]
        if gate is not None:
            output = output * nn.functional.silu(gate)
        return output if self.out_proj is None else self.out_proj(output)

    def project(self, hidden_states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The input of the convolution and the gate, both `(B, L, D)`; in the block "plain" there is no gate.

        At padding, the input of the convolution is meaningless, and that of the block "plain" is zero.
        """
        if self.in_proj is None:
            return masked(hidden_states, mask), None
        inputs, gate = self.in_proj(hidden_states).chunk(2, dim=-1)
        return inputs, gate

    def scan_inputs(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        state: LayerState | None = None,
        *,
        reverse: bool = False,
        documents: Documents | None = None,
    ) -> Tensor:
        """Input of the scan (or of the reverse one), `(B, L, D)`, from the first output of `project`."""
        convolution = self.reverse_conv1d if reverse else self.conv1d
        if self.activation is None or convolution is None:
            return inputs
        if has_standard_forward(self.activation, nn.SiLU, SiLUActivation):
            return convolution(inputs, state, mask, "silu", documents)
        return masked(self.activation(convolution(inputs, state, mask, None, documents)), mask)
