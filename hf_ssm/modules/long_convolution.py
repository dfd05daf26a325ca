"""A long convolution with its kernel generator, feed-through, Sobolev filter and complexity τ.

Legend: `B` batch, `L` length, `C` channels of all groups, `G` groups, `D` = C / G channels of one group, `K`
directions.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from hf_ssm.modules.filters import LongFilter
from hf_ssm.ops.long_conv import long_conv
from hf_ssm.ops.sobolev import causal_taps, zero_phase_taps
from hf_ssm.theory.complexity import lag_moments, tau

__all__ = ["LongConvolution"]

# The zero-phase filter is sampled on this many frequencies whatever the length of the input, so that its taps depend
# on the lag alone and padding changes nothing. Odd (no node at the Nyquist frequency) and quick to transform.
ZERO_PHASE_GRID = 3**3 * 5**4


def _no_autocast(device: torch.device) -> AbstractContextManager:
    """Kernels and τ are computed as they are written, not in the precision of the surrounding matrix products."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


class LongConvolution(nn.Module):
    """y = k ∗ u with the kernel of `filter`, a feed-through D at lag 0, and the Sobolev filter on the whole.

    With `sobolev_mode="causal"` the filter (1 + s)^β is part of the kernel (of each direction, in its own direction of
    time). With `"zero_phase"` the filter (1 + |s|)^β is applied to the input, whose tokens alone are kept.

    Args:
        filter: The kernel generator, with C channels.
        groups: Convolutions that share the generator (Hyena of order > 2); group g owns the channels g, g + G, ...
        use_skip: Whether there is a feed-through.
        sobolev_order: β.
        sobolev_mode, sobolev_frequency, sobolev_trainable, tau_statistics, tau_detach_statistics: See `SSMConfig`.

    Source: Yu et al. 2025, eqs. (3) and (8); Liu & Li 2024, Algorithms 1 and 2.
    """

    def __init__(
        self,
        filter: LongFilter,
        *,
        groups: int = 1,
        use_skip: bool = True,
        sobolev_order: float = 0.0,
        sobolev_mode: str = "causal",
        sobolev_frequency: str = "normalized",
        sobolev_trainable: bool = False,
        tau_statistics: str = "batch",
        tau_detach_statistics: bool = True,
    ):
        super().__init__()
        self.filter = filter
        self.groups = groups
        self.initial_order = sobolev_order
        self.sobolev_mode = sobolev_mode
        self.sobolev_frequency = sobolev_frequency
        self.tau_statistics = tau_statistics
        self.tau_detach_statistics = tau_detach_statistics
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.D = nn.Parameter(torch.empty(filter.channels, dtype=dtype)) if use_skip else None
        self.sobolev_order = nn.Parameter(torch.empty(filter.channels, dtype=dtype)) if sobolev_trainable else None
        # While a list, the forward pass rescales the parameters before it uses them and appends the τ it found.
        self.rescaling: list[Tensor] | None = None

    @classmethod
    def from_config(cls, config, layer_idx: int, filter: LongFilter, *, groups: int = 1, use_skip: bool = True):
        """The long convolution of layer `layer_idx` with the theory flags of a configuration."""
        return cls(
            filter,
            groups=groups,
            use_skip=use_skip,
            sobolev_order=config.sobolev_orders[layer_idx],
            sobolev_mode=config.sobolev_mode,
            sobolev_frequency=config.sobolev_frequency,
            sobolev_trainable=config.sobolev_trainable,
            tau_statistics=config.tau_statistics,
            tau_detach_statistics=config.tau_detach_statistics,
        )

    def initial_parameters(self) -> dict[str, Tensor]:
        """Fresh values of its own parameters; the filter has the same method for its own."""
        values = {}
        if self.D is not None:
            values["D"] = torch.randn(self.D.shape)
        if self.sobolev_order is not None:
            values["sobolev_order"] = torch.full(self.sobolev_order.shape, self.initial_order)
        return values

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "LongConvolution":
        # `model.bfloat16()` and the like: steps, frequencies and kernels lose their meaning in half precision.
        def at_least_single(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if tensor.is_floating_point() and moved.dtype in (torch.float16, torch.bfloat16):
                return tensor.to(device=moved.device, dtype=torch.promote_types(tensor.dtype, torch.float32))
            return moved

        return super()._apply(at_least_single, recurse)

    @property
    def _filters_widely(self) -> bool:
        # Against (1 + 2/Δ)^β the rounding of float32 transforms would be seen at positions that ought to be untouched.
        has_filter = self.sobolev_order is not None or self.initial_order != 0
        return has_filter and self.sobolev_frequency != "normalized"

    def _order(self, like: Tensor) -> Tensor | None:
        """β, a number or `(C,)`, or `None` where there is no filter."""
        if self.sobolev_order is not None:
            return self.sobolev_order.to(like.dtype)
        return torch.tensor(self.initial_order).to(like) if self.initial_order != 0 else None

    def _time_step(self, like: Tensor) -> Tensor | float:
        # Normalised frequencies know no step size; without one, all channels share the taps.
        return 1.0 if self.sobolev_frequency == "normalized" else self.filter.time_step(like.dtype)

    def kernels(self, length: int) -> Tensor:
        """What is convolved with the input: kernel, feed-through at lag 0, and the causal Sobolev filter.

        Returns:
            `(K, C, length)`, float32 or better, also under autocast.
        """
        with _no_autocast(next(self.parameters()).device):
            kernel = self.filter(length, torch.float64 if self._filters_widely else torch.float32)
            if self.D is not None:
                impulse = torch.zeros_like(kernel[0])
                impulse[:, 0] = 1.0
                skip = impulse * self.D.to(kernel.dtype).unsqueeze(-1)
                kernel = torch.cat([(kernel[0] + skip).unsqueeze(0), kernel[1:]])
            order = self._order(kernel)
            if order is None or self.sobolev_mode != "causal":
                return kernel
            taps = causal_taps(length, order, self.sobolev_frequency, self._time_step(kernel))
            return long_conv(kernel.transpose(1, 2), taps.to(kernel).expand(kernel.shape[1:])).transpose(1, 2)

    def forward(
        self,
        inputs: Tensor,
        kernels: Tensor,
        mask: Tensor | None = None,
        *,
        group: int = 0,
        output_tau: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Convolve one group of channels.

        Args:
            inputs: `(B, L, D)`, zero at padding.
            kernels: `kernels(L)`.
            mask: `(B, L)` or `None`, true at tokens.
            group: Which group of channels the inputs are.
            output_tau: Also return τ.

        Returns:
            The output, `(B, L, D)`, whose values at padding mean nothing, and τ (a scalar, float32 or better) or
            `None`.
        """
        channels = slice(group, None, self.groups)
        kernels = kernels[:, channels]
        dtype = inputs.dtype
        value = None
        with _no_autocast(inputs.device):
            inputs = inputs.to(torch.promote_types(dtype, kernels.dtype))
            if self.sobolev_mode == "zero_phase":
                inputs = self._filter_input(inputs, channels, mask)
            if output_tau or self.rescaling is not None:
                value = self._tau(inputs, kernels, mask).to(next(self.parameters()).dtype)
                if self.rescaling is not None:
                    self.rescaling.append(value.detach())
                    kernels = kernels * self._rescale_(value.detach(), channels)
            backward = kernels[1] if len(kernels) == 2 else None
            return long_conv(inputs, kernels[0], backward).to(dtype), value

    def _filter_input(self, inputs: Tensor, channels: slice, mask: Tensor | None) -> Tensor:
        order = self._order(inputs)
        if order is None:
            return inputs
        step = self._time_step(inputs)
        order = order[channels] if order.dim() else order
        step = step[channels] if isinstance(step, Tensor) else step
        taps = zero_phase_taps(ZERO_PHASE_GRID, order, self.sobolev_frequency, step)
        taps = taps[..., : inputs.shape[1] + 1].to(inputs).expand(inputs.shape[-1], -1)
        filtered = long_conv(inputs, taps[:, :-1], taps[:, 1:])
        return filtered if mask is None else filtered * mask.unsqueeze(-1)

    def _tau(self, inputs: Tensor, kernels: Tensor, mask: Tensor | None) -> Tensor:
        """Mean over channels and directions of τ at the last (for the other direction: the first) token."""
        if self.tau_statistics == "unit":
            return tau(kernels).mean()
        if self.tau_detach_statistics:
            inputs = inputs.detach()
        values = [tau(kernels[0], *lag_moments(inputs, mask))]
        if len(kernels) == 2:
            mean, variance = lag_moments(inputs, mask, from_first=True)
            values.append(tau(kernels[1, :, :-1], mean[1:], variance[1:]))
        return torch.stack(values).mean()

    def _rescale_(self, value: Tensor, channels: slice) -> Tensor:
        """Divide the kernel's parameters by √τ, in place (Liu & Li 2024, eq. (7), with C and D alike)."""
        if not torch.isfinite(value) or value <= 0:
            raise ValueError(
                f"τ of a layer is {value.item()}: rescaling needs a positive, finite τ. Look for an input that is "
                "constant zero (τ = 0), or for NaN or huge values in the batch or the weights."
            )
        factor = value.rsqrt()
        self.filter.scale_(factor, channels)
        if self.D is not None:
            self.D.data[channels] *= factor
        return factor
