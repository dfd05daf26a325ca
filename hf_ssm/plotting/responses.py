"""Frequency responses of convolutions, and how training changed them.

Legend: `C` kernels of one convolution, `F` frequencies.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.plotting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Panels in a row: those of one layer if they are at most `_MAX_OF_LAYER`, otherwise `_COLUMNS`.
_MAX_OF_LAYER, _COLUMNS = 4, 3
_QUANTILES = (0.1, 0.5, 0.9)
# Smaller gains are clipped: their logarithm would only stretch the axis.
_FLOOR_DB = -120.0
# A change of the gain that is smaller everywhere is invisible in a figure.
_UNCHANGED_DB = 0.5
# Heights in inches of a panel with gains, and of the panel with their change below it.
_GAIN_HEIGHT, _CHANGE_HEIGHT = 1.9, 1.1
# Ticks of logarithmic axes of frequencies, in cycles per sample.
_MOST_TICKS = 7
_FREQUENCIES = tuple(base * 10.0**power for power in range(-6, 0) for base in (1, 2, 5))


@style.figure_style()
def plot_frequency_responses(
    before: Sequence[Any],
    after: Sequence[Any],
    path: str | Path | None = None,
    title: str = "",
    *,
    length: int | None = None,
    unit: str = "sample",
) -> "Figure":
    """Plot the frequency response of each convolution and, with `before`, how training changed it.

    Each convolution and direction has a panel with the median of the gain over channels and the band between the 10 %
    and the 90 % quantile, in dB, over the frequency on a logarithmic axis. With `before`, a dashed line is the median
    before training, and a second panel shows the change of the gain of each channel (after minus before) in the same
    way; where the band stays within 0.5 dB, that panel says "unchanged".

    Args:
        before: `FrequencyResponse` objects; may be empty.
        after: Those of the same convolutions, in the same order.
        length: Length L of the sequences; the axis starts at 1/L, below which a sequence holds no whole period.
            Default: the lowest positive frequency.
        unit: Name of a position in the label of the axis, such as "base".

    Raises:
        ValueError: `after` is empty, `before` belongs to other convolutions, or a response holds NaN.
    """
    places, places_before = (
        [(response.name, response.direction, response.group) for response in responses] for responses in (after, before)
    )
    if not after or (before and places != places_before):
        raise ValueError(
            f"`before` ({len(before)} responses) and `after` ({len(after)} responses) must belong to the same "
            "convolutions, and `after` must not be empty."
        )
    of_layer = sum(response.layer == after[0].layer for response in after)
    columns = of_layer if 1 < of_layer <= _MAX_OF_LAYER else min(_COLUMNS, len(after))
    heights = [_GAIN_HEIGHT, _CHANGE_HEIGHT] if before else [_GAIN_HEIGHT]
    rows = -(-len(after) // columns)
    figure = style.new_figure(max(5.0, 0.8 + 3.0 * columns), 1.4 + rows * sum(heights))
    grid = figure.subplots(rows * len(heights), columns, squeeze=False, height_ratios=heights * rows)
    gains = _panels(grid[:: len(heights)], len(after), "gain (dB)")
    changes = _panels(grid[1::2], len(after), "change (dB)") if before else []
    for index, (response, axes) in enumerate(zip(after, gains, strict=True)):
        if before:
            cycles, quantiles = gain_quantiles(before[index])
            axes.plot(cycles[cycles > 0], quantiles[1, cycles > 0], "--", color=style.BLACK, label="before training")
            axes.tick_params(labelbottom=False)
            _plot_change(changes[index], before[index], response)
        plot_gain(axes, response, "after training" if before else "gain", style.PALETTE[1], "-")
        axes.set_title(response_title(response, after))
    drawn: dict[str, Any] = {}
    for axes in (*gains, *changes):
        _scale_frequencies(axes, length)
        drawn |= {str(line.get_label()): line for line in axes.get_legend_handles_labels()[0]}
    for axes in (changes or gains)[-columns:]:
        axes.set_xlabel(f"frequency (cycles per {unit})")
    meaning = "lines: median of the channels; bands: 10 % to 90 % of the channels"
    figure.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=3, title=meaning)
    return style.finish_figure(figure, path, title)


def _panels(grid: np.ndarray, count: int, label: str) -> list["Axes"]:
    """The first panels of a grid, which share the y axis, with a label in the first column."""
    panels = list(grid.flat)
    for axes in panels[count:]:
        axes.set_axis_off()
    for axes in panels[1:count]:
        axes.sharey(panels[0])
    for axes in grid[:, 0]:
        axes.set_ylabel(label)
    return panels[:count]


def _scale_frequencies(axes: "Axes", length: int | None) -> None:
    """A logarithmic axis from one period per sequence to one half, with labels that leave space between panels."""
    axes.set_xscale("log")
    lowest = 1 / max(length, 3) if length is not None else axes.get_xlim()[0]
    axes.set_xlim(lowest, 0.5)
    ticks = [tick for tick in _FREQUENCIES if tick >= 0.999 * lowest]
    # More labels would touch each other: those of 1, 10, 100, ... remain.
    axes.set_xticks(ticks if len(ticks) <= _MOST_TICKS else ticks[-3::-3], minor=False)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")


def _plot_change(axes: "Axes", before: Any, after: Any) -> None:
    """The change of the gain of each channel, or the sentence that there is none."""
    cycles, gain_before, gain_after = _finite_gains(before, after)
    low, median, high = np.quantile(gain_after - gain_before, _QUANTILES, axis=0)
    axes.axhline(0, color=style.GREY, linewidth=0.8)
    largest = max(float(np.abs(low).max(initial=0.0)), float(np.abs(high).max(initial=0.0)))
    if largest < _UNCHANGED_DB:
        text = f"unchanged: at most {math.ceil(10 * largest) / 10:g} dB"
        axes.text(0.5, 0.75, text, transform=axes.transAxes, ha="center", va="center", fontsize=8)
    else:
        axes.plot(cycles, median, color=style.PALETTE[0], label="after minus before")
        axes.fill_between(cycles, low, high, color=style.PALETTE[0], alpha=0.2, linewidth=0)
    # The panels share the axis, which does not zoom into small changes.
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(bottom, -1.0), max(top, 1.0))


def plot_gain(axes: "Axes", response: Any, label: str, colour: str, line_style: str) -> None:
    """Draw the median of the gain over channels, and the band of the middle 80 %."""
    cycles, quantiles = gain_quantiles(response)
    positive = cycles > 0
    low, median, high = quantiles[:, positive]
    axes.plot(cycles[positive], median, color=colour, linestyle=line_style, label=label)
    axes.fill_between(cycles[positive], low, high, color=colour, alpha=0.2, linewidth=0)


def gain_quantiles(response: Any) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles over channels of the gain 20 log10 |H| in dB.

    Frequencies with an infinite response are left out; gains below -120 dB are clipped.

    Args:
        response: A `FrequencyResponse`, with `response` `(C, F)` and `omega` `(F,)` in radians per sample.

    Returns:
        Frequencies in cycles per sample `(F,)`, and the 10, 50 and 90 % quantiles `(3, F)`.

    Raises:
        ValueError: The response holds NaN.
    """
    cycles, gain = _finite_gains(response)
    return cycles, np.quantile(gain, _QUANTILES, axis=0)


def _finite_gains(*responses: Any) -> tuple[np.ndarray, ...]:
    """Frequencies in cycles per sample at which all responses are finite `(F,)`, and the gains in dB `(C, F)`."""
    values = [style.to_numpy(response.response) for response in responses]
    for response, of_response in zip(responses, values, strict=True):
        if np.isnan(of_response).any():
            raise ValueError(f"the response of {response.name!r} holds NaN: check the weights of the model.")
    finite = np.logical_and.reduce([np.isfinite(of_response).all(0) for of_response in values])
    with np.errstate(divide="ignore"):
        gains = [(20 * np.log10(np.abs(of_response[:, finite]))).clip(min=_FLOOR_DB) for of_response in values]
    return style.to_numpy(responses[0].omega)[finite] / (2 * math.pi), *gains


def response_title(response: Any, responses: Sequence[Any]) -> str:
    """The layer of a response, with direction and number of the convolution where these differ between responses."""
    parts = [f"layer {response.layer}"]
    if any(other.direction != response.direction for other in responses):
        parts.append(response.direction)
    if any(other.group != response.group for other in responses):
        parts.append(f"convolution {response.group}")
    return ", ".join(parts)
