"""Frequency responses and spectra as pictures. matplotlib is optional and loaded only here.

Legend: `C` kernels of one convolution, `F` frequencies.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_ssm.analysis.frequency import AlphaRecommendation, FrequencyResponse
from hf_ssm.analysis.pictures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_frequency_responses", "plot_spectrum"]

# Okabe and Ito's palette, made for colour-blind readers; the line styles tell the lines apart once more.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLES = ("-", "--", "-.", ":")
# Panels side by side: those of one layer if they are so many at most, else so many.
_MOST_OF_A_LAYER, _COLUMNS = 4, 3
_QUANTILES = (0.1, 0.5, 0.9)
# Below this a gain is as good as none, and its logarithm would only stretch the picture.
_FLOOR_DB = -120.0
_STEEP, _LEAST = 30.0, 1e-7


def gain_quantiles(response: FrequencyResponse) -> tuple[Tensor, Tensor]:
    """Cycles per sample `(F,)`, and 10, 50 and 90 % quantiles over channels of the gain 20 log10 |H| in dB, `(3, F)`.

    Frequencies at which the response is infinite are left out; a gain below -120 dB counts as that.

    Raises:
        ValueError: The response holds NaN.
    """
    if bool(torch.isnan(response.response).any()):
        raise ValueError(f"the response of {response.name!r} holds NaN: look at the weights of the model.")
    finite = torch.isfinite(response.response).all(0)
    gain = 20 * torch.log10(response.response[:, finite].abs())
    quantiles = torch.quantile(gain.clamp(min=_FLOOR_DB), torch.tensor(_QUANTILES, dtype=gain.dtype), dim=0)
    return response.omega[finite] / (2 * math.pi), quantiles


def plot_frequency_responses(
    before: Sequence[FrequencyResponse], after: Sequence[FrequencyResponse], path: str | Path, title: str = ""
) -> None:
    """Write each convolution's frequency response before and after training as a PNG.

    One panel for a convolution and direction: the median of the gain over channels, and the band between the 10 % and
    the 90 % quantile, in dB, over the frequency in cycles per sample (logarithmic; the frequency 0 is left out).

    Args:
        before: Of `frequency_responses`; may be empty.
        after: Of the same model later, in the same order.
        path: Where to write the PNG.
        title: Written above the picture.

    Raises:
        ImportError: Without matplotlib; the message names the extra to install.
        ValueError: `after` is empty, or `before` is of other convolutions.
    """
    places = [(response.name, response.direction, response.group) for response in after]
    if not after or (before and places != [(response.name, response.direction, response.group) for response in before]):
        raise ValueError(
            f"`before` ({len(before)} responses) and `after` ({len(after)}) must be of the same convolutions, one at "
            "least: pass what `frequency_responses` gave for one model twice."
        )
    of_a_layer = sum(response.layer == after[0].layer for response in after)
    columns = of_a_layer if 1 < of_a_layer <= _MOST_OF_A_LAYER else min(_COLUMNS, len(after))
    rows = -(-len(after) // columns)
    figure = new_figure(1.2 + 3.6 * columns, 0.9 + 2.5 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for index, axes in enumerate(grid.flat):
        if index >= len(after):
            axes.set_axis_off()
            continue
        if before:
            _draw_gain(axes, before[index], "before training", 0)
        _draw_gain(axes, after[index], "after training" if before else "median and 10-90 %", 1)
        axes.set_title(_panel_title(after[index], after), fontsize="medium")
        axes.set_xscale("log")
        axes.grid(alpha=0.3)
        if index % columns == 0:
            axes.set_ylabel("gain (dB)")
        if index + columns >= len(after):
            axes.set_xlabel("frequency (cycles per sample)")
            axes.tick_params(labelbottom=True)
    grid[0, 0].legend(fontsize="small")
    if title:
        # Names of files may hold dollar signs.
        figure.suptitle(title, parse_math=False)
    figure.savefig(path, format="png", dpi=120)


def _draw_gain(axes: "Axes", response: FrequencyResponse, label: str, number: int) -> None:
    cycles, (low, median, high) = gain_quantiles(response)
    shown = cycles > 0
    colour = _COLOURS[number]
    axes.fill_between(cycles[shown], low[shown], high[shown], color=colour, alpha=0.2, linewidth=0)
    axes.plot(cycles[shown], median[shown], color=colour, linestyle=_STYLES[1 - number], linewidth=1.2, label=label)


def _panel_title(response: FrequencyResponse, all_responses: Sequence[FrequencyResponse]) -> str:
    """The layer, and what tells its convolutions apart where there are several."""
    parts = [f"layer {response.layer}"]
    if any(other.direction != response.direction for other in all_responses):
        parts.append(response.direction)
    if any(other.group != response.group for other in all_responses):
        parts.append(f"convolution {response.group}")
    return ", ".join(parts)


def plot_spectrum(
    spectra: Mapping[str, Tensor], path: str | Path, recommendation: AlphaRecommendation | None = None, title: str = ""
) -> None:
    """Write spectra as a PNG, with the edges of a recommendation and the largest α that it gives for them.

    Each spectrum is drawn as a density, the share of its power per cycle per sample; white noise is flat at 2. The
    frequency 0 is left out. The axis is logarithmic where a peak would otherwise flatten the rest.

    Args:
        spectra: Name to power `(F,)`, as `power_spectrum` gives it for one channel.
        path: Where to write the PNG.
        recommendation: Of `alpha_recommendation` with a power; default: no edges.
        title: Written above the picture.

    Raises:
        ImportError: Without matplotlib; the message names the extra to install.
        ValueError: No spectrum, or one without power.
    """
    if not spectra:
        raise ValueError("`spectra` is empty: give at least one name with its power.")
    figure = new_figure(8.0, 4.2)
    axes = figure.subplots()
    highest, steep = 0.0, False
    for number, (name, power) in enumerate(spectra.items()):
        cycles, density = (part[1:] for part in spectral_density(power))
        highest = max(highest, density.max().item())
        steep |= bool(density.max() > _STEEP * density.median())
        style = _STYLES[number // len(_COLOURS) % len(_STYLES)]
        axes.plot(cycles, density, color=_COLOURS[number % len(_COLOURS)], linestyle=style, linewidth=1.0, label=name)
    if recommendation is not None:
        for number, (q, edge) in enumerate(recommendation.edges.items(), start=1):
            low, high = recommendation.from_data[q]
            axes.axvline(
                edge / (2 * math.pi),
                color="black",
                linewidth=1.0,
                linestyle=_STYLES[number % len(_STYLES)],
                label=f"{q:.0%} of the power below {edge / (2 * math.pi):.3g}: α up to {low:.2g} ... {high:.2g}",
            )
    axes.set_xlabel("frequency (cycles per sample)")
    axes.set_ylabel("density of power (share per cycle/sample)")
    axes.set_xlim(0, 0.5)
    if steep:
        axes.set_yscale("log")
        # What is nothing but rounding would stretch the axis.
        axes.set_ylim(bottom=max(axes.get_ylim()[0], highest * _LEAST))
    else:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", title=None if recommendation is None else _legend_title(recommendation))
    if title:
        # Names of files may hold dollar signs.
        figure.suptitle(title, parse_math=False)
    figure.savefig(path, format="png", dpi=120)


def spectral_density(power: Tensor) -> tuple[Tensor, Tensor]:
    """Cycles per sample and share of the power per cycle per sample, both `(F,)`; its integral from 0 to 1/2 is 1.

    Raises:
        ValueError: The power is zero.
    """
    total = power.sum()
    if not total > 0:
        raise ValueError("`spectra` holds one without power: the inputs are constant.")
    count = power.shape[-1]
    cycles = torch.arange(count, dtype=torch.float64) / (2 * (count - 1))
    width = torch.full_like(cycles, 1 / (2 * (count - 1)))
    # The cells at 0 and 1/2 have half of the width.
    width[0] = width[-1] = width[0] / 2
    return cycles, power.to(torch.float64) / total / width


def _legend_title(recommendation: AlphaRecommendation) -> str:
    low, high = recommendation.time_steps
    return (
        f"N = {recommendation.state_size}, init {recommendation.init!r}, {recommendation.discretization}, "
        f"Δ from {high:g} down to {low:g}"
    )
