"""Values along a sequence in rows of equal length: sequence logos, and the heat map of saturation mutagenesis."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.plotting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path as Outline

_BASES = "ACGT"
# Longer sequences have longer rows.
_MOST_ROWS = 30
# Green, blue, amber and vermilion of the palette, near to the usual colours of the bases.
_COLOURS = {"A": style.PALETTE[2], "C": style.PALETTE[0], "G": style.PALETTE[4], "T": style.PALETTE[1]}
# Share of its column that a letter fills.
_LETTER_WIDTH = 0.92
_LABELS = {
    "llr": "log-likelihood ratio (nats)",
    "next_token": "log-ratio of the next base (nats)",
    "masked_log_odds": "masked log-odds (nats)",
}


@style.figure_style()
def plot_logo(
    sequence: str,
    heights: Sequence[float] | Any,
    path: str | Path | None = None,
    title: str = "",
    *,
    first: int = 1,
    label: str = "effect",
) -> "Figure":
    """Plot a sequence whose letters have the heights of their effects, in rows of equal length.

    A row has at most 100 letters, unless the sequence would need more than 30 rows. Letters with negative effects hang
    below the line, upside down. All rows have one scale.

    Args:
        sequence: The letters; lower case is drawn as capitals.
        heights: An effect for each letter; NaN leaves its place empty.
        first: Position of the first letter.
        label: What the heights are, with their unit.

    Raises:
        ValueError: The sequence is empty, or there is not one height for each letter.
    """
    values = style.to_numpy(heights).astype(float)
    if values.shape != (len(sequence),) or not len(sequence):
        raise ValueError(
            f"`heights` has the shape {values.shape}: give one height for each of {len(sequence)} letters."
        )
    finite = values[np.isfinite(values)]
    low, high = min(0.0, finite.min(initial=0.0)), max(0.0, finite.max(initial=0.0))
    margin = 0.04 * (high - low) or 1.0
    per_row, parts = _rows(len(sequence), 100)
    figure = style.new_figure(max(4.0, 1.2 + 0.085 * min(per_row, 100)), 0.7 + 1.05 * len(parts))
    panels = figure.subplots(len(parts), squeeze=False)[:, 0]
    for axes, part in zip(panels, parts, strict=True):
        for place in range(part.start, part.stop):
            if math.isfinite(values[place]) and values[place]:
                _draw_letter(axes, sequence[place].upper(), first + place, values[place])
        axes.plot([first + part.start - 0.5, first + part.stop - 0.5], [0, 0], color=style.GREY, linewidth=0.6)
        axes.set_ylim(low - margin, high + margin)
        _limit_row(axes, first, part, per_row)
    panels[-1].set_xlabel("position")
    # A letter is about 0.55 times as wide as its 9 points of height; a long label gets several lines.
    letters = max(10, int(figure.get_figheight() * 72 / (0.55 * 9)))
    figure.supylabel(style.literal(textwrap.fill(label, letters)), fontsize=9)
    return style.finish_figure(figure, path, title)


@style.figure_style()
def plot_saturation(
    table: Mapping[str, Sequence[Any]],
    score: str,
    path: str | Path | None = None,
    title: str = "",
    offset: int = 0,
) -> "Figure":
    """Plot the score of every base in place of every other, in rows of equal length.

    A row has at most 60 positions, unless the region would need more than 30 rows. Negative scores, of bases that the
    model finds less likely than those of the reference, are brown, positive ones blue-green; a dot marks the base of
    the reference. The scale ends at the 99 % quantile of the absolute scores; arrows at its ends show that some cells
    exceed it.

    Args:
        table: Columns `position`, `ref`, `alt` and the score, as from `saturate`.
        score: Name of the column to plot.
        offset: Added to the positions on the axis, such as 1 for positions counted from 1.

    Raises:
        ValueError: The table is empty.
    """
    positions = np.asarray(table["position"])
    if not len(positions):
        raise ValueError("`table` is empty: no position has a score.")
    first, count = int(positions.min()), int(np.ptp(positions)) + 1
    cells, reference = np.full((4, count), np.nan), np.full(count, -1)
    cells[[_BASES.index(base) for base in table["alt"]], positions - first] = np.asarray(table[score], dtype=float)
    reference[positions - first] = [_BASES.index(base) for base in table["ref"]]
    limit = style.scale_end(cells)
    per_row, parts = _rows(count, 60)
    # The legend needs 7 inches.
    figure = style.new_figure(max(7.0, 2.0 + 0.1 * min(per_row, 60)), 1.3 + 0.85 * len(parts))
    panels = figure.subplots(len(parts), squeeze=False)[:, 0]
    for axes, part in zip(panels, parts, strict=True):
        left = first + offset + part.start
        extent = (left - 0.5, left + part.stop - part.start - 0.5, 3.5, -0.5)
        image = style.heat_map(axes, cells[:, part], extent, cmap="BrBG", vmin=-limit, vmax=limit, aspect="auto")
        places = np.flatnonzero(reference[part] >= 0)
        axes.plot(places + left, reference[part][places], ".", color=style.BLACK, markersize=3)
        axes.set_yticks(range(4), list(_BASES))
        _limit_row(axes, first + offset, part, per_row)
    panels[-1].set_xlabel("position")
    # Beside a single row there is little space.
    label = style.literal(textwrap.fill(_LABELS.get(score, score), 16 * len(parts)))
    below, above = (cells < -limit).any(), (cells > limit).any()
    extend = "both" if below and above else "min" if below else "max" if above else "neither"
    figure.colorbar(image, ax=list(panels), label=label, shrink=min(1.0, 4 / len(parts)), extend=extend)
    _explain_colours(figure, score)
    return style.finish_figure(figure, path, title)


def _rows(length: int, per_row: int) -> tuple[int, list[slice]]:
    """Positions in a row, so that all rows have nearly the same number, and the positions of each row."""
    rows = min(_MOST_ROWS, math.ceil(length / per_row))
    per_row = math.ceil(length / rows)
    return per_row, [slice(start, min(start + per_row, length)) for start in range(0, length, per_row)]


def _limit_row(axes: "Axes", first: int, part: slice, per_row: int) -> None:
    """Make positions as wide as those of a full row; end the line and the ticks of the axis with those of the row."""
    left, last = first + part.start, first + part.stop - 1
    axes.set_xlim(left - 0.5, left + per_row - 0.5)
    ticks = [tick for tick in axes.get_xticks() if left <= tick <= last and tick == round(tick)]
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    axes.set_xlim(left - 0.5, left + per_row - 0.5)
    axes.spines["bottom"].set_bounds(left - 0.5, last + 0.5)
    axes.grid(visible=False)


def _draw_letter(axes: "Axes", letter: str, position: int, height: float) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.transforms import Affine2D

    # A negative height turns the outline upside down.
    place = Affine2D().scale(_LETTER_WIDTH, height).translate(position - _LETTER_WIDTH / 2, 0)
    outline = place.transform_path(_outline(letter))
    axes.add_patch(PathPatch(outline, color=_COLOURS.get(letter, style.GREY), linewidth=0))


@lru_cache(maxsize=64)
def _outline(letter: str) -> "Outline":
    """The outline of a letter, stretched to the unit square."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    outline = TextPath((0, 0), letter, size=1, prop=FontProperties(family="DejaVu Sans", weight="bold"))
    box = outline.get_extents()
    # A narrow letter such as I keeps its shape.
    narrow = Affine2D().translate(-box.x0, -box.y0).scale(1 / max(box.width, 0.4), 1 / (box.height or 1))
    return narrow.transform_path(outline)


def _explain_colours(figure: "Figure", score: str) -> None:
    """Below the figure, what the two colours and the dots mean."""
    from matplotlib import colormaps
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if score in _LABELS:
        low, high = "brown: less likely than the reference", "blue-green: more likely"
    else:
        low, high = "brown: lowers the output", "blue-green: raises the output"
    handles = [
        Patch(color=colormaps["BrBG"](0.15), label=low),
        Patch(color=colormaps["BrBG"](0.85), label=high),
        Line2D([], [], marker=".", linestyle="", color=style.BLACK, label="base of the reference"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
