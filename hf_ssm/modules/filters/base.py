"""The interface of a kernel generator.

Legend: `C` channels, `K` directions (1, or 2 for a two-sided convolution), `L` length, `N` state size, `H` = N / 2
stored conjugate pairs. Kernels have the shape `(K, C, L)`; the second direction holds the taps that look ahead, the
nearest first. Every kernel is linear in the parameters that `scale_` multiplies.
"""

import torch
from torch import Tensor, nn

__all__ = ["LongFilter"]


class LongFilter(nn.Module):
    """Base: a kernel of any length for each of `channels` channels, in one or two directions."""

    def __init__(self, channels: int, directions: int):
        super().__init__()
        self.channels = channels
        self.directions = directions

    def forward(self, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The kernel of shape `(K, C, length)`, computed in `dtype`, or in that of the parameters if it is better.

        It is the caller's, who may change it in place.
        """
        raise NotImplementedError

    def response(self, omega: Tensor, rows: Tensor | None = None) -> Tensor:
        """The response of the kernel to frequencies, Σ_l k_l e^{-iωl} over all its taps.

        Args:
            omega: In radians per sample, `(F,)`, or `(R, F)` for frequencies of each row's own.
            rows: Which kernels, numbers `(R,)`: row k C + c is channel c of direction k, in its own direction of time.
                Default: all, R = K C.

        Returns:
            `(R, F)`, complex128.
        """
        raise NotImplementedError

    def time_step(self, dtype: torch.dtype = torch.float32) -> Tensor | float:
        """Δ of each channel, `(C,)`, or 1.0 where the filter has no step size."""
        return 1.0

    @property
    def num_taps(self) -> int | None:
        """Number of taps there are; `None` where there is no limit."""
        return None

    def initial_parameters(self) -> dict[str, Tensor]:
        """Fresh values of the parameters and buffers by name (some are random draws)."""
        raise NotImplementedError

    def scale_(self, factor: float | Tensor, channels: slice) -> None:
        """Multiply the kernel of some channels, in place, by scaling the parameters it is linear in."""
        raise NotImplementedError

    @staticmethod
    def _precise(parameter: Tensor, dtype: torch.dtype) -> Tensor:
        return parameter.to(torch.promote_types(parameter.dtype, dtype))
