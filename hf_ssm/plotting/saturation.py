"""The heat map of saturation mutagenesis."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.plotting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_BASES = "ACGT"
# Positions in a row of the figure, and rows; longer regions have longer rows.
_PER_ROW, _MOST_ROWS = 60, 30
# Inches; the legend needs them.
_LEAST_WIDTH = 7.0
# Ends of the scale with an arrow, by whether scores lie below and above it.
_EXTEND = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
_LABELS = {
    "llr": "log-likelihood ratio (nats)",
    "next_token": "log-ratio of the next base (nats)",
    "masked_log_odds": "masked log-odds (nats)",
}
# What brown and blue-green mean, by score; other scores are changes of an output of the model.
_LIKELIHOOD = ("brown: less likely than the reference", "blue-green: more likely")
_MEANINGS = dict.fromkeys(_LABELS, _LIKELIHOOD)
_MEANING = ("brown: lowers the output", "blue-green: raises the output")


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
    first, last = int(positions.min()), int(positions.max()) + 1
    cells = np.full((4, last - first), np.nan)
    reference = np.full(last - first, -1)
    rows = [_BASES.index(base) for base in table["alt"]]
    cells[rows, positions - first] = np.asarray(table[score], dtype=float)
    reference[positions - first] = [_BASES.index(base) for base in table["ref"]]
    finite = cells[np.isfinite(cells)]
    # A few extreme cells do not make all others pale.
    limit = float(np.quantile(np.abs(finite), 0.99)) if len(finite) else 1.0
    per_row = style.balanced_row(last - first, _PER_ROW, _MOST_ROWS)
    count = math.ceil((last - first) / per_row)
    figure = style.new_figure(max(_LEAST_WIDTH, 2.0 + 0.1 * min(per_row, _PER_ROW)), 1.3 + 0.85 * count)
    panels = figure.subplots(count, squeeze=False)[:, 0]
    for number, axes in enumerate(panels):
        part = slice(number * per_row, (number + 1) * per_row)
        image = _draw_row(axes, cells[:, part], reference[part], first + offset + part.start, per_row, limit)
    panels[-1].set_xlabel("position")
    extend = _EXTEND[bool((finite < -limit).any()), bool((finite > limit).any())]
    # Beside a single row there is little space.
    label = style.literal(textwrap.fill(_LABELS.get(score, score), 16 * count))
    figure.colorbar(image, ax=list(panels), label=label, shrink=min(1.0, 4 / count), extend=extend)
    _explain_colours(figure, score)
    return style.finish_figure(figure, path, title)


def _draw_row(
    axes: "Axes", cells: np.ndarray, reference: np.ndarray, first: int, per_row: int, limit: float
) -> "AxesImage":
    """Draw the scores `(4, positions)` of one row, whose cells are as wide as those of a row of `per_row` positions."""
    count = cells.shape[1]
    image = axes.imshow(
        cells,
        cmap="BrBG",
        vmin=-limit,
        vmax=limit,
        aspect="auto",
        interpolation="nearest",
        extent=(first - 0.5, first + count - 0.5, 3.5, -0.5),
    )
    places = np.flatnonzero(reference >= 0)
    axes.plot(places + first, reference[places], ".", color=style.BLACK, markersize=3)
    axes.set_xlim(first - 0.5, first + per_row - 0.5)
    axes.set_yticks(range(4), list(_BASES))
    style.end_axis_at(axes, first, first + count - 1)
    axes.grid(visible=False)
    return image


def _explain_colours(figure: "Figure", score: str) -> None:
    """Below the figure, what the two colours and the dots mean."""
    from matplotlib import colormaps
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    low, high = _MEANINGS.get(score, _MEANING)
    handles = [
        Patch(color=colormaps["BrBG"](0.15), label=low),
        Patch(color=colormaps["BrBG"](0.85), label=high),
        Line2D([], [], marker=".", linestyle="", color=style.BLACK, label="base of the reference"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
