"""The heat map of a dependency map."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.plotting import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Longer regions have positions on the axes, and no letters.
_MOST_LETTERS = 120


@style.figure_style()
def plot_dependencies(dependencies: Any, path: str | Path | None = None, title: str = "", offset: int = 0) -> "Figure":
    """Plot how a substitution at the position of a row changes the predictions at the position of a column.

    Up to 120 positions, both axes have the sequence. The scale ends at the 99 % quantile, so that a few extreme cells
    do not make all others dark; cells without a value, such as the diagonal, are grey.

    Args:
        dependencies: Object with `matrix` `(N, N)`, `sequence` and `start`, as from `dependency_map`.
        offset: Added to the positions on the axes, such as 1 for positions counted from 1.

    Raises:
        ValueError: No cell has a value.
    """
    matrix = style.to_numpy(dependencies.matrix)
    if not np.isfinite(matrix).any():
        raise ValueError("`dependencies` is empty: no pair of positions has a value.")
    count, first = len(matrix), dependencies.start + offset
    size = min(9.0, max(4.0, 0.085 * count + 2.0))
    figure = style.new_figure(size + 0.9, size)
    axes = figure.subplots()
    extent = (first - 0.5, first + count - 0.5, first + count - 0.5, first - 0.5)
    image = style.heat_map(axes, matrix, extent, cmap="cividis", vmin=0, vmax=style.scale_end(matrix) or 1.0)
    axes.set_facecolor(style.NEVER_MASKED)
    axes.ticklabel_format(style="plain", useOffset=False)
    axes.locator_params(nbins=5, integer=True)
    axes.tick_params(axis="both", pad=9 if count <= _MOST_LETTERS else 2)
    axes.tick_params(axis="y", labelrotation=90)
    for label in axes.get_yticklabels():
        label.set_verticalalignment("center")
    if count <= _MOST_LETTERS:
        _write_letters(axes, dependencies.sequence, first)
    axes.set_xlabel("position whose prediction changes")
    axes.set_ylabel("position of the substitution")
    figure.colorbar(image, ax=axes, label="dependency (largest |log2 odds ratio|)", shrink=0.8, extend="max")
    return style.finish_figure(figure, path, title)


def _write_letters(axes: Any, sequence: str, first: int) -> None:
    """The bases along both axes, between the cells and the positions."""
    from matplotlib.ticker import FixedFormatter, FixedLocator

    places = [first + place for place in range(len(sequence))]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(FixedLocator(places))
        axis.set_minor_formatter(FixedFormatter(list(sequence)))
        axis.remove_overlapping_locs = False
    axes.tick_params(which="major", length=0)
    axes.tick_params(which="minor", length=0, pad=1, labelsize=max(3.0, 7.0 - len(sequence) / 40), labelrotation=0)
