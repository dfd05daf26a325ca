"""The heat map of saturation mutagenesis."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.plotting import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BASES = "ACGT"
# Positions in a row of the figure, and rows; longer regions have longer rows.
_PER_ROW, _MOST_ROWS = 60, 30
_LABELS = {
    "llr": "log-likelihood ratio (nats)",
    "next_token": "log-ratio of the next base (nats)",
    "masked_log_odds": "masked log-odds (nats)",
}


@style.figure_style()
def plot_saturation(
    table: Mapping[str, Sequence[Any]],
    score: str,
    path: str | Path | None = None,
    title: str = "",
    offset: int = 0,
) -> "Figure":
    """Plot the score of every base in place of every other, in rows of 60 positions or, in long regions, in 30 rows.

    Negative scores, of bases that the model finds less likely than those that are there, are brown, positive ones
    blue-green; a dot marks the base of the reference.

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
    finite = np.abs(cells[np.isfinite(cells)])
    # A few extreme cells do not make all others pale.
    limit = float(np.quantile(finite, 0.99)) if len(finite) else 1.0
    per_row = max(_PER_ROW, math.ceil((last - first) / _MOST_ROWS))
    count = math.ceil((last - first) / per_row)
    width = min(last - first, per_row)
    figure = style.new_figure(max(5.0, 2.0 + 0.1 * min(width, _PER_ROW)), 1.0 + 0.85 * count)
    panels = figure.subplots(count, squeeze=False)[:, 0]
    for number, axes in enumerate(panels):
        begin = number * per_row
        row, left = cells[:, begin : begin + per_row], first + offset + begin
        image = axes.imshow(
            row,
            cmap="BrBG",
            vmin=-limit,
            vmax=limit,
            aspect="auto",
            interpolation="nearest",
            extent=(left - 0.5, left + row.shape[1] - 0.5, 3.5, -0.5),
        )
        bases = reference[begin : begin + per_row]
        places = np.flatnonzero(bases >= 0)
        axes.plot(places + left, bases[places], ".", color=style.BLACK, markersize=3)
        axes.set_xlim(left - 0.5, left + width - 0.5)
        axes.set_yticks(range(4), list(_BASES))
        axes.ticklabel_format(axis="x", style="plain", useOffset=False)
        axes.grid(visible=False)
    panels[-1].set_xlabel("position; a dot marks the base of the reference")
    figure.colorbar(image, ax=list(panels), label=_LABELS.get(score, score), shrink=min(1.0, 4 / count), extend="both")
    return style.finish_figure(figure, path, title)
