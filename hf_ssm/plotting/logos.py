"""Effects per base as a sequence logo: the height of each letter is its effect."""

import math
import textwrap
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.plotting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path as Outline

# Green, blue, amber and vermilion of the palette, near to the usual colours of the bases.
_COLOURS = {"A": style.PALETTE[2], "C": style.PALETTE[0], "G": style.PALETTE[4], "T": style.PALETTE[1]}
_PER_ROW, _MOST_ROWS = 100, 30
# Share of its column that a letter fills.
_WIDTH = 0.92
_LABEL_SIZE = 9


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
    per_row = style.balanced_row(len(sequence), _PER_ROW, _MOST_ROWS)
    count = math.ceil(len(sequence) / per_row)
    finite = values[np.isfinite(values)]
    low, high = min(0.0, finite.min(initial=0.0)), max(0.0, finite.max(initial=0.0))
    margin = 0.04 * (high - low) or 1.0
    figure = style.new_figure(max(4.0, 1.2 + 0.085 * min(per_row, _PER_ROW)), 0.7 + 1.05 * count)
    for number, axes in enumerate(figure.subplots(count, squeeze=False)[:, 0]):
        begin = number * per_row
        for place, (letter, value) in enumerate(zip(sequence[begin : begin + per_row], values[begin:], strict=False)):
            if math.isfinite(value) and value:
                _draw_letter(axes, letter.upper(), first + begin + place, value)
        left, last = first + begin, first + min(begin + per_row, len(sequence)) - 1
        axes.plot([left - 0.5, last + 0.5], [0, 0], color=style.GREY, linewidth=0.6)
        axes.set_xlim(left - 0.5, left + per_row - 0.5)
        axes.set_ylim(low - margin, high + margin)
        style.end_axis_at(axes, left, last)
        axes.grid(visible=False)
    axes.set_xlabel("position")
    # A letter is about 0.55 times as wide as it is high; a long label gets several lines.
    letters = max(10, int(figure.get_figheight() * 72 / (0.55 * _LABEL_SIZE)))
    figure.supylabel(style.literal(textwrap.fill(label, letters)), fontsize=_LABEL_SIZE)
    return style.finish_figure(figure, path, title)


def _draw_letter(axes: "Axes", letter: str, position: int, height: float) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.transforms import Affine2D

    # A negative height turns the outline upside down.
    place = Affine2D().scale(_WIDTH, height).translate(position - _WIDTH / 2, 0)
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
