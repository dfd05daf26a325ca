"""A long convolution with its kernel generator, feed-through, Sobolev filter and complexity measure τ.

Legend: `B` batch, `L` length, `C` channels of all groups, `G` groups, `D` = C / G channels of one group, `K`
directions.
"""

from collections.abc import Callable, Mapping
from functools import partial
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from hf_ssm.modules.filters import LongFilter
from hf_ssm.modules.operator import SequenceOperator, materialized, theory_flags
from hf_ssm.modules.rows import Rows
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.context import no_autocast
from hf_ssm.ops.long_conv import StreamingConvolution, long_conv
from hf_ssm.ops.sharing import alone, whole_length
from hf_ssm.ops.sobolev import causal_taps, sobolev_response

__all__ = ["LongConvolution"]


class LongConvolution(SequenceOperator):
    """y = k ∗ u with the kernel of `filter`, a feed-through D at lag 0, and the Sobolev filter on the whole.

    With `sobolev_mode="causal"` the filter (1 + s)^β is part of the kernel (of each direction, in its own direction of
    time). With `"zero_phase"` the filter (1 + |s|)^β is applied to the input, and the result is set to 0 at padding.

    Args:
        filter: The kernel generator, with C channels.
        groups: Convolutions that share the generator (Hyena of order > 2); group g owns the channels g, g + G, ...
        **flags: See `SequenceOperator`.

    Source: Yu et al. 2025, eqs. (3) and (8); Liu & Li 2024, Algorithms 1 and 2.
    """

    def __init__(self, filter: LongFilter, *, groups: int = 1, **flags: Any):
        super().__init__(filter.channels, **flags)
        self.filter = filter
        self.directions = filter.directions
        self.groups = groups
        # Read once: a wrapper around the filter need not have these attributes.
        self._has_recurrence, self._has_graded_response = filter.has_recurrence, filter.has_graded_response
        self._num_taps, self._support = filter.num_taps, filter.support

    @classmethod
    def from_config(cls, config, layer_idx: int, filter: LongFilter, *, groups: int = 1, use_skip: bool = True):
        """The long convolution of layer `layer_idx` with the theory flags of a configuration."""
        return cls(filter, groups=groups, use_skip=use_skip, **theory_flags(config, layer_idx))

    def fp32_parameters(self) -> list[str]:
        return [*super().fp32_parameters(), "filter"]

    def scale_output_(self, factor: Tensor, channels: slice) -> None:
        self.filter(methodcaller("scale_", factor, channels))

    @property
    def is_causal(self) -> bool:
        return super().is_causal and self.directions == 1

    @property
    def has_recurrent_state(self) -> bool:
        return self._has_recurrence and not self.has_sobolev_filter

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "LongConvolution":
        # The filter stays in float32 as well.
        super(SequenceOperator, self)._apply(self._at_least_fp32(fn), recurse)
        return self

    def _time_step(self, like: Tensor) -> Tensor | float:
        # Normalised frequencies do not depend on the step size: all channels share the taps.
        return 1.0 if self.sobolev_frequency == "normalized" else self.time_step(like.dtype)

    def kernels(self, length: int) -> Tensor:
        """The whole kernel: that of the filter, the feed-through at lag 0, and the causal Sobolev filter.

        Returns:
            `(K, C, length)`, float32 or better, also under autocast.
        """
        with materialized(self):
            return self._kernels(length)

    def _kernels(self, length: int) -> Tensor:
        filtered = self.has_sobolev_filter
        # With a weight of (1 + 2/Δ)^β, rounding errors of float32 transforms would be visible at other positions.
        dtype = torch.float64 if filtered and self.sobolev_frequency != "normalized" else torch.float32
        with no_autocast(next(self.parameters()).device):
            kernel: Tensor = self.filter(methodcaller("kernel", length, dtype))
            if self.D is not None:
                # In place, to avoid a copy of a long kernel.
                kernel[0, :, 0] += self.D.to(kernel.dtype)
            if not filtered or self.sobolev_mode != "causal":
                return kernel
            step = self._time_step(kernel.new_empty(0, dtype=dtype))
            order: Any = self._order(kernel)
            taps = causal_taps(length, order, self.sobolev_frequency, step).to(kernel).expand(kernel.shape[1:])
            with alone():
                return long_conv(kernel.transpose(1, 2), taps).transpose(1, 2)

    def kernels_for(self, inputs: Tensor, rows: Rows = Rows()) -> Tensor:
        """The `kernels` for inputs `(B, L, ...)`, which groups share."""
        return self._kernels(self.longest(inputs, rows))

    def forward(
        self,
        inputs: Tensor,
        rows: Rows = Rows(),
        state: LayerState | None = None,
        *,
        kernels: Tensor | None = None,
        group: int = 0,
    ) -> Tensor:
        """Convolve one group of channels.

        Args:
            inputs: `(B, L, D)`, zero at padding.
            rows: Mask and observer of the rows.
            state: Continue the sequences of this state, which is changed in place; see `forward_with_state`.
            kernels: `kernels_for(inputs, rows)`, which all groups share. Default: they are computed.
            group: Which group of channels the inputs are.

        Returns:
            The output `(B, L, D)`, meaningless at padding.
        """
        if state is not None:
            return self.forward_with_state(inputs, state, group=group)
        channels, dtype = slice(group, None, self.groups), inputs.dtype
        if kernels is None:
            kernels = self._kernels(whole_length(inputs) if rows.observer is None else self.longest(inputs, rows))
        kernels = kernels[:, channels]
        with no_autocast(inputs.device):
            if self.sobolev_mode == "zero_phase":
                inputs = self._zero_phase(inputs.to(torch.promote_types(dtype, kernels.dtype)), rows, channels)
            if rows.observer is not None:
                factor = self.observe(rows, inputs, kernel=kernels, group=group)
                kernels = kernels if factor is None else kernels * factor
            # `ops/long_conv.py` has the sum over lags that this computes.
            return long_conv(inputs, *kernels.unbind(0)).to(dtype)

    def mean_kernel(
        self, length: int, means: Mapping[str, Tensor], direction: str = "forward", group: int = 0
    ) -> Tensor:
        return self.kernels(length)[int(direction == "backward"), group :: self.groups]

    def frequency_response(self, omega: Tensor, rows: Tensor) -> Tensor:
        """Response of kernel, feed-through and Sobolev filter; see `LongFilter.response`.

        Args:
            omega: `(F,)` or `(R, F)`, radians per sample.
            rows: `(R,)`, numbers of kernels.

        Returns:
            `(R, F)`, complex128; infinite where the Sobolev weight is.
        """
        response: Tensor = self.filter(methodcaller("response", omega, rows))
        channels = rows % self.channels
        if self.D is not None:
            ahead = (rows < self.channels).to(torch.float64)
            response = response + (self.D[channels] * ahead).unsqueeze(-1)
        if not self.has_sobolev_filter:
            return response
        order = self.initial_order if self.sobolev_order is None else self.sobolev_order[channels]
        step: Tensor | float = 1.0
        if self.sobolev_frequency != "normalized":
            step = self.time_step(torch.float64)
            step = step[channels] if isinstance(step, Tensor) else step
        causal = self.sobolev_mode == "causal"
        weight = sobolev_response(omega, order, self.sobolev_frequency, step, causal=causal)
        # Complex infinity times a number contains NaN.
        infinite = torch.isinf(weight.real)
        return torch.where(infinite, weight, response * torch.where(infinite, 0.0, weight))

    def time_step(self, dtype: torch.dtype = torch.float32) -> Tensor | float:
        step: Tensor | float = self.filter(methodcaller("time_step", dtype))
        return step

    @property
    def has_graded_response(self) -> bool:
        return self._has_graded_response

    @property
    def support(self) -> int | None:
        return self._support

    def response_features(self, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        features: tuple[Tensor, Tensor] | None = self.filter(methodcaller("response_features", rows))
        if features is None or not self.has_sobolev_filter or self.sobolev_frequency == "normalized":
            return features
        # (1 + |s|)^β has a knee at |s| = 1.
        steps = torch.as_tensor(self.time_step(torch.float64))[rows % self.channels].unsqueeze(-1)
        return torch.cat([features[0], torch.zeros_like(steps)], -1), torch.cat([features[1], steps], -1)

    def forward_with_state(self, inputs: Tensor, state: LayerState, *, group: int = 0) -> Tensor:
        """Continue the causal convolution of the sequences that `state` remembers.

        Filters with a recurrence and without Sobolev filter use it, unless the state holds a stream; every other kernel
        uses the streaming convolution.

        Args:
            inputs: `(B, L, D)`, the next inputs of one group of channels, zero at padding.
            state: The state of the layer, changed in place.
            group: Which group of channels the inputs are.

        Returns:
            `(B, L, D)`; for the last group of a state with `last_position_only`, `(B, 1, D)`.
        """
        name, taps = f"long_conv_{group}", partial(self._taps, group)
        with no_autocast(inputs.device):
            if not self.has_recurrent_state or name in state.streams:
                stream = state.streams.setdefault(name, StreamingConvolution())
                stream.longest = self._num_taps
                output = stream.extend(inputs, taps)
            else:
                # With gradients, a stored recurrence would belong to the graph of an earlier call.
                recurrence: Any = None if torch.is_grad_enabled() else state.constants.get(name)
                if recurrence is None:
                    recurrence = self._recurrence(group)
                    if not torch.is_grad_enabled():
                        state.constants[name] = recurrence
                output, after = recurrence.extend(inputs, state.get(name), taps)
                state.put(name, after)
        return output[:, -1:] if state.last_position_only and group == self.groups - 1 else output

    def _recurrence(self, group: int) -> Any:
        return self.filter(methodcaller("recurrence", slice(group, None, self.groups), self.D))

    def _taps(self, group: int, length: int) -> Tensor:
        return self._kernels(length)[0, group :: self.groups]
