"""The Sobolev filter of the input of a scan.

Legend: `B` batch, `L` length, `D` channels.
"""

from functools import partial

import torch
from torch import Tensor

from hf_ssm.modules.operator import SequenceOperator
from hf_ssm.modules.rows import ByChannel, Rows, zero_padding
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.long_conv import StreamingConvolution, long_conv
from hf_ssm.ops.sobolev import causal_taps

__all__ = ["FilteredInput"]


class FilteredInput(SequenceOperator):
    """Base of operators with a recurrent state, whose input passes the Sobolev filter (Yu et al. 2025, Appendix F)."""

    @property
    def has_recurrent_state(self) -> bool:
        return not self.has_sobolev_filter

    def filter_input(
        self,
        inputs: Tensor,
        rows: Rows = Rows(),
        state: LayerState | None = None,
        channels: slice | list[int] = slice(None),
    ) -> Tensor:
        """The input of these channels after the Sobolev filter, `(B, L, D)`."""
        if not self.has_sobolev_filter:
            return inputs
        precise = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        if self.sobolev_mode == "zero_phase":
            return self._zero_phase(precise, rows, channels).to(inputs.dtype)
        taps = partial(self._taps, precise, channels)
        if state is not None:
            filtered = state.streams.setdefault("sobolev", StreamingConvolution()).extend(precise, taps)
        else:
            kernel = taps(rows.longest(inputs))
            split = ByChannel(lambda batch, part: long_conv(batch, kernel[part]))
            filtered = rows.map(lambda batch, _: long_conv(batch, kernel), precise, split=split)
        filtered = zero_padding(filtered, rows.mask)
        return filtered.to(inputs.dtype)

    def _taps(self, like: Tensor, channels: slice | list[int], length: int) -> Tensor:
        order = self._order(like)
        order = order[channels] if order is not None and order.dim() else order
        taps = causal_taps(length, 0.0 if order is None else order, self.sobolev_frequency, 1.0)
        return taps.to(like).expand(like.shape[-1], -1)
