"""Total variation of the frequency responses of a model, layer by layer, in bounded time.

Legend: `C` kernels of one convolution in one direction.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hf_ssm.analysis.frequency import FrequencyResponse, band_total_variation

__all__ = ["Variation", "layer_variations"]

_RTOL = 1e-4
# Largest number of taps evaluated per model (minutes), and least number of kernels for a meaningful mean.
_MOST_TAPS, _FEWEST_KERNELS = 2**24, 4


@dataclasses.dataclass(frozen=True)
class Variation:
    """Total variation of the response of one layer, by bands of frequency.

    Attributes:
        layer: Number of the block.
        direction: "forward" or "backward".
        variation: Mean over the measured kernels for each band; NaN if none was measured.
        kernels: Kernels of the layer in this direction (all groups).
        measured: Number of measured kernels, evenly chosen: fewer than all, or none, for long implicit or sinusoid
            filters.
    """

    layer: int
    direction: str
    variation: list[float]
    kernels: int
    measured: int


@dataclasses.dataclass(frozen=True, eq=False)
class _SomeKernels(FrequencyResponse):
    """A response with the kernels `chosen` from its convolution."""

    chosen: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    @property
    def rows(self) -> Tensor:
        return super().rows[self.chosen]


def layer_variations(responses: Sequence[FrequencyResponse], bands: Sequence[float]) -> list[Variation]:
    """The total variation of each layer and direction over bands of frequency; see `band_total_variation`.

    Args:
        responses: From `frequency_responses`, of a whole model.
        bands: Ends of the bands, ascending, in radians per sample in [0, π].

    Raises:
        ValueError: Fewer than two ends, ends out of order or range.

    Source: Yu et al. 2025, Section 2.
    """
    found = []
    for layer, direction in sorted(
        {(part.layer, part.direction) for part in responses}, key=lambda p: (p[0], p[1] == "backward")
    ):
        own = [part for part in responses if (part.layer, part.direction) == (layer, direction)]
        chosen = [_chosen(part, _MOST_TAPS // len(responses)) for part in own]
        lengths = [band_total_variation(part, bands, rtol=_RTOL) for part in chosen if len(part.response)]
        total, measured = (sum(len(part.response) for part in parts) for parts in (own, chosen))
        mean = torch.cat(lengths).mean(0).tolist() if measured else [math.nan] * (len(bands) - 1)
        found.append(Variation(layer, direction, mean, total, measured))
    return found


def _chosen(response: FrequencyResponse, most_taps: int) -> FrequencyResponse:
    """A response with at most `most_taps` taps: all kernels, or evenly spaced ones."""
    kernels = len(response.response)
    # The time of the variation is proportional to the support of a kernel, if there is one.
    taps = 1 if response.operator is None else response.operator.support or 1
    count = min(kernels, most_taps // taps)
    if count == kernels:
        return response
    count = 0 if count < _FEWEST_KERNELS else count
    chosen = torch.linspace(0, kernels - 1, count).round().long()
    held = {field.name: getattr(response, field.name) for field in dataclasses.fields(response)}
    return _SomeKernels(**{**held, "response": response.response[chosen]}, chosen=chosen)
