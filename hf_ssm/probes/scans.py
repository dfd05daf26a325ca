"""The first selective scan of many variants of one sequence, in each of which one token is masked.

Legend: `V` rows, `M` of them that differ by their states alone, `L` length of a piece, `D` channels of the scan, `N`
stored states.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hf_ssm.models.selective.mixer_selective import OutputProjection, SelectiveMixer
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.context import no_autocast

__all__ = ["FirstScan"]


class FirstScan:
    """Stands in for the mixer of a first layer where pieces begin behind what was masked.

    There a variant reads what the first row reads, so that Δ, B and C are the same, and its scan differs by what is
    left of the difference of their states, to which it is linear: `Σ_n C_t exp(A Σ_{s<=t} Δ_s) (x - x_first)`.

    Args:
        mixer: Of the first of several layers, without Sobolev filter.
    """

    def __init__(self, mixer: SelectiveMixer):
        self.mixer = mixer
        self.reach = 1 if mixer.conv1d is None else mixer.conv1d.kernel_size[0]
        # Where states grow, the exponentials of sums might not be finite though those of each term are.
        # Of an output projection with an adapter, the bias would not be known.
        linear = mixer.out_proj is None or type(mixer.out_proj) is OutputProjection
        self.applies = linear and bool((mixer.scan.state_matrix().real <= 0).all())

    @contextmanager
    def standing_in(self, places: Tensor, border: int) -> Iterator[None]:
        """Take the place of the mixer for a piece that begins at the border, of rows masked at the places `(V,)`."""
        alike = places <= border - self.reach
        if not self.applies or not alike.any():
            yield
            return
        mixer, forward = self.mixer, self.mixer.forward
        before = mixer.__dict__.get("forward")

        def shared(inputs: Tensor, mask: Any = None, output_tau: bool = False, state: Any = None) -> Any:
            return self._forward(forward, inputs, state, alike), None

        mixer.__dict__["forward"] = shared
        try:
            yield
        finally:
            if before is None:
                del mixer.__dict__["forward"]
            else:
                mixer.__dict__["forward"] = before

    def _forward(self, forward: Any, hidden_states: Tensor, state: LayerState, alike: Tensor) -> Tensor:
        rows, others = alike.nonzero().squeeze(1), (~alike).nonzero().squeeze(1)
        by_themselves, first = state.rows(others), state.rows(others[:1])
        difference = state.tensors["scan"][rows] - first.tensors["scan"]
        outputs = hidden_states.new_empty(hidden_states.shape)
        outputs[others] = forward(hidden_states[others], None, False, by_themselves)[0]
        change, left = self._linear(hidden_states[:1], first, difference)
        outputs[rows] = (outputs[:1] + change).to(outputs.dtype)
        for name, own in by_themselves.tensors.items():
            after = own.new_empty(len(alike), *own.shape[1:])
            after[others] = own
            after[rows] = own[:1] + left if name == "scan" else own[:1]
            state.tensors[name] = after
        return outputs

    def _linear(self, hidden_states: Tensor, state: LayerState, difference: Tensor) -> tuple[Tensor, Tensor]:
        """By how much the outputs of M rows differ, `(M, L, ...)`, of the first row's inputs `(1, L, ...)` and memory.

        `difference` is that of the states, `(M, D, N)`; what is left of it at the end is returned too.
        """
        mixer, scan = self.mixer, self.mixer.scan
        inputs, gate = mixer.project(hidden_states)
        step, _, weights = scan.selection(mixer.scan_inputs(inputs, None, state))
        with no_autocast(hidden_states.device):
            decay = (scan.time_steps(step)[0].cumsum(0).unsqueeze(-1) * scan.state_matrix()).exp()
            weights = weights[0].unsqueeze(1) * decay
            change = _real(difference, 1).transpose(0, 1) @ _real(weights, -1).permute(1, 2, 0).to(
                difference.real.dtype
            )
            # (D, M, L) -> (M, L, D).
            change = change.permute(1, 2, 0)
            if gate is not None:
                change = change * torch.nn.functional.silu(gate)
            change = change.to(hidden_states.dtype)
        if mixer.out_proj is not None:
            # Linear as well: its bias is in the first row's output.
            change = torch.nn.functional.linear(change, mixer.out_proj.weight)
        return change, decay[-1] * difference


def _real(numbers: Tensor, sign: int) -> Tensor:
    """`(..., N)`, or of complex numbers `(..., 2 N)`, such that the product of both signs is `2 Re` of theirs."""
    if not numbers.is_complex():
        return numbers
    return torch.cat([numbers.real, sign * numbers.imag], dim=-1) * 2**0.5
