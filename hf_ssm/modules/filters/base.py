"""The interface of a kernel generator.

Legend: `C` channels, `K` directions (1, or 2 for a two-sided convolution), `L` length, `N` state size, `H` = N / 2
stored conjugate pairs, `F` frequencies. Kernels have the shape `(K, C, L)`; the second direction holds the taps that
look ahead, the nearest first. Every kernel is linear in the parameters that `scale_` multiplies.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.modules.roles import ParameterRole
from hf_ssm.ops.lti.recurrence import Recurrence

__all__ = ["LongFilter"]


class LongFilter(nn.Module):
    """Base: a kernel of any length for each of `channels` channels, in one or two directions."""

    def __init__(self, channels: int, directions: int):
        super().__init__()
        self.channels = channels
        self.directions = directions

    def forward(self, function: Callable[["LongFilter"], Any]) -> Any:
        """Call a function of the filter, and return its result.

        Other modules read a filter in this way only, as in `self.filter(lambda filter: filter.kernel(length))`, since
        wrappers (adapters of PEFT on parameters, offloaded weights) give the parameters their values for the time of
        `forward`, and have no other methods of the filter.
        """
        return function(self)

    def kernel(self, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The kernel `(K, C, length)`, computed in `dtype`, or in the precision of the parameters if that is higher.

        It is a new tensor, which the caller may change in place.
        """
        raise NotImplementedError

    def initial_parameters(self) -> dict[str, Tensor]:
        """Initial values of the parameters and buffers by name (some are random draws)."""
        raise NotImplementedError

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Roles of the parameters by name."""
        raise NotImplementedError

    def scale_(self, factor: float | Tensor, channels: slice) -> None:
        """Multiply the kernel of some channels, in place, by scaling the parameters it is linear in."""
        raise NotImplementedError

    def response(self, omega: Tensor, rows: Tensor | None = None) -> Tensor:
        """The frequency response of the kernel, Σ_l k_l e^{-iωl} over all its taps.

        Args:
            omega: In radians per sample, `(F,)`, or `(R, F)` for frequencies of each row's own.
            rows: Numbers of the kernels, `(R,)`: row k C + c is channel c of direction k, in its own direction of time.
                Default: all, R = K C.

        Returns:
            `(R, F)`, complex128.
        """
        raise NotImplementedError

    def response_features(self, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Peaks of the response of each row: centres in [0, π] and widths, both `(R, n)`; `None` where not known."""
        return None

    @property
    def has_graded_response(self) -> bool:
        """Whether peaks of the response are known and its values at single frequencies are cheap."""
        return False

    def time_step(self, dtype: torch.dtype = torch.float32) -> Tensor | float:
        """Δ of each channel, `(C,)`, or 1.0 where the filter has no step size."""
        return 1.0

    @property
    def has_recurrence(self) -> bool:
        """Whether `recurrence` exists: the kernel is that of a state space model of finite size."""
        return False

    def recurrence(self, channels: slice, skip: Tensor | None) -> Recurrence:
        """The causal convolution of some channels as a linear recurrence, where `has_recurrence`.

        Args:
            channels: Which channels.
            skip: Feed-through of all channels, `(C,)`, or `None`.
        """
        raise NotImplementedError

    @property
    def num_taps(self) -> int | None:
        """Greatest length of the kernel; `None` where there is no limit."""
        return None

    @property
    def support(self) -> int | None:
        """Number of taps that are not zero; `None` for an infinite kernel."""
        return self.num_taps

    @staticmethod
    def _in_precision(parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """`parameter` in `dtype`, or in its own precision if that is higher."""
        return parameter.to(torch.promote_types(parameter.dtype, dtype))
