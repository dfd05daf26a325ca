"""Two-frequency kernels with a finite window (Nishikawa & Suzuki 2025).

Legend: `C` channels, `K` directions (1, or 2 for a two-sided convolution), `L` length, `N` state size, `H` = N / 2
stored conjugate pairs. Kernels have the shape `(K, C, L)`; the second direction holds the taps that look ahead, the
nearest first.
"""

import math

import torch
from torch import Tensor

from hf_ssm.modules.filters.base import LongFilter
from hf_ssm.modules.operator import check_stored, fp32_parameter, scale_entries_
from hf_ssm.modules.roles import ParameterRole
from hf_ssm.ops.lti.sinusoid import sinusoid_kernel, sinusoid_response

__all__ = ["SinusoidFilter"]


class SinusoidFilter(LongFilter):
    """k_t = c₁ cos(2π a₁ t / U) + c₂ sin(2π a₂ t / U) for t < U (`inclusive`: t <= U), and 0 beyond.

    The frequencies a are drawn uniformly from [0, U/8] periods per window, times `frequency_scale`, plus
    `frequency_shift`; the amplitudes c are normal with variance 1/U, so that the kernel has an expected squared
    norm of one.

    Source: Nishikawa & Suzuki 2025, Section 3 (gated convolution layer) and Appendix D (as a state space model).
    """

    def __init__(self, config, channels: int):
        super().__init__(channels, 2 if config.bidirectional else 1)
        self.window, self.inclusive = config.sinusoid_window, config.sinusoid_inclusive
        self.frequency_scale, self.frequency_shift = config.frequency_scale, config.frequency_shift
        self.amplitudes = fp32_parameter(2, self.directions, channels)
        self.frequencies = fp32_parameter(2, self.directions, channels)

    def initial_parameters(self) -> dict[str, Tensor]:
        draw = torch.rand(self.frequencies.shape) * self.window / 8
        return {
            "amplitudes": torch.randn(self.amplitudes.shape) / math.sqrt(self.window),
            "frequencies": self.frequency_scale * draw + self.frequency_shift,
        }

    def parameter_roles(self) -> dict[str, ParameterRole]:
        return {
            "amplitudes": ParameterRole("filter_amplitude"),
            "frequencies": ParameterRole("filter_frequency", is_dynamics=True),
        }

    @property
    def support(self) -> int:
        return self.window + self.inclusive

    def kernel(self, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
        dtype = torch.promote_types(self.amplitudes.dtype, dtype)
        (c1, c2), (a1, a2) = self.amplitudes.to(dtype).flatten(1), self.frequencies.to(dtype).flatten(1)
        kernel = sinusoid_kernel(c1, c2, a1, a2, self.window, length, inclusive=self.inclusive)
        return kernel.unflatten(0, (self.directions, self.channels))

    def response(self, omega: Tensor, rows: Tensor | None = None) -> Tensor:
        amplitudes, frequencies = self.amplitudes.flatten(1), self.frequencies.flatten(1)
        if rows is not None:
            amplitudes, frequencies = amplitudes[:, rows], frequencies[:, rows]
        (c1, c2), (a1, a2) = amplitudes, frequencies
        return sinusoid_response(omega, c1, c2, a1, a2, self.window, inclusive=self.inclusive)

    @torch.no_grad()
    def scale_(self, factor: float | Tensor, channels: slice) -> None:
        check_stored(self, "amplitudes")
        scale_entries_(self.amplitudes, factor, lambda weight: weight[:, :, channels])
