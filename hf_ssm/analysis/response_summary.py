"""The frequency responses of a model before and after training, as quantiles in a small JSON file.

Legend: `C` kernels of one convolution in one direction, `F` frequencies.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_ssm.analysis.frequency import FrequencyResponse

__all__ = ["QUANTILES", "response_summary", "spectral_summary", "write_response_summary"]

QUANTILES = (0.1, 0.5, 0.9)
"""Quantiles of the channels' magnitudes at each frequency."""

# More digits would be noise.
_DIGITS = 5


def response_summary(before: Sequence[FrequencyResponse], after: Sequence[FrequencyResponse]) -> dict[str, Any]:
    """Compute quantiles over the channels of |response|, as plain values for a JSON file.

    Returns `omega` `(F,)` in radians per sample, `quantiles`, and for each convolution under `responses` its `name`,
    `layer`, `direction`, `group`, and `before` and `after`: for each quantile `(F,)`, five digits, infinite as `None`.

    Raises:
        ValueError: `before` and `after` are not of the same convolutions and frequencies.
    """
    places = [[(r.name, r.layer, r.direction, r.group, len(r.omega)) for r in each] for each in (before, after)]
    if places[0] != places[1] or not before:
        raise ValueError(f"`before` and `after` must be of the same convolutions, got {places[0]} and {places[1]}.")
    levels, entries = torch.tensor(QUANTILES, dtype=torch.float64), []
    for pair in zip(before, after, strict=True):
        entry: dict[str, Any] = {name: getattr(pair[0], name) for name in ("name", "layer", "direction", "group")}
        for when, response in zip(("before", "after"), pair, strict=True):
            quantiles = response.response.abs().quantile(levels, dim=0, interpolation="lower")
            entry[when] = [_rounded(row) for row in quantiles]
        entries.append(entry)
    return {"omega": _rounded(before[0].omega), "quantiles": list(QUANTILES), "responses": entries}


def spectral_summary(responses: Sequence[FrequencyResponse]) -> dict[str, float]:
    """Compute centroid and peak of the power |response|², mean over the channels, in cycles per sample.

    Returns `centroid_layer_<i>` and `peak_layer_<i>`, with the suffix "_backward" for the kernel of the other direction
    and "_<group>" for further convolutions of a layer. Infinite values of a response are left out.
    """
    summary = {}
    for response in responses:
        power = response.response.abs().square().mean(dim=0)
        kept = power.isfinite()
        power, cycles = power[kept], response.omega[kept] / (2 * math.pi)
        place = f"layer_{response.layer}" + ("_backward" if response.direction == "backward" else "")
        place += f"_{response.group}" if response.group else ""
        total = power.sum().item()
        summary[f"centroid_{place}"] = (power * cycles).sum().item() / total if total > 0 else 0.0
        summary[f"peak_{place}"] = cycles[power.argmax()].item()
    return summary


def _rounded(row: Tensor) -> list[float | None]:
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in row.tolist()]


def write_response_summary(
    before: Sequence[FrequencyResponse], after: Sequence[FrequencyResponse], path: str | Path
) -> None:
    """Write `response_summary` as a JSON file, one line for each convolution."""
    summary = response_summary(before, after)
    responses = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in summary.pop("responses"))
    head = json.dumps(summary, ensure_ascii=False)[:-1]
    Path(path).write_text(f'{head}, "responses": [\n{responses}\n]}}\n', encoding="utf-8")
