"""Effects of motifs that are put into backgrounds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.plotting import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Outputs with a panel of their own, motifs with a row, and motifs with a line; those of the largest effects are shown.
_MOST_PANELS, _MOST_ROWS, _MOST_LINES = 4, 30, 6


@style.figure_style()
def plot_motif_effects(table: Mapping[str, Sequence[Any]], path: str | Path | None = None, title: str = "") -> "Figure":
    """Plot the effects of motifs with their standard errors, a panel for each output of the model.

    Effects at one position are points in the order of their size, those at several are lines over the position. Where
    there are many, the largest 30 motifs, 6 lines and the first 4 outputs are shown.

    Args:
        table: Columns `motif`, `strand`, `position`, `output`, `effect` and `standard_error`, as from `marginalize`.

    Raises:
        ValueError: The table is empty.
    """
    columns = {name: np.asarray(table[name]) for name in ("motif", "strand", "position", "output")}
    effects, errors = (np.asarray(table[name], dtype=float) for name in ("effect", "standard_error"))
    if not len(effects):
        raise ValueError("`table` is empty: no motif has an effect.")
    several = len(set(columns["strand"])) > 1
    names = np.array(
        [f"{m} ({s})" if several else str(m) for m, s in zip(columns["motif"], columns["strand"], strict=True)]
    )
    outputs = list(dict.fromkeys(columns["output"].tolist()))[:_MOST_PANELS]
    is_scan = any(len(set(columns["position"][names == name])) > 1 for name in set(names.tolist()))
    rows = 1 if is_scan else min(_MOST_ROWS, len(set(names.tolist())))
    size = (6.5, 2.6 * len(outputs)) if is_scan else (6.0, (0.8 + 0.2 * rows) * len(outputs))
    figure = style.new_figure(size[0], max(2.0, size[1]))
    for axes, output in zip(figure.subplots(len(outputs), squeeze=False)[:, 0], outputs, strict=True):
        chosen = columns["output"] == output
        draw = _draw_lines if is_scan else _draw_points
        draw(axes, names[chosen], columns["position"][chosen], effects[chosen], errors[chosen])
        label = f"effect on {output}"
        (axes.set_ylabel if is_scan else axes.set_xlabel)(style.literal(label))
    return style.finish_figure(figure, path, title)


def _largest(names: np.ndarray, effects: np.ndarray, count: int) -> list[str]:
    """The names of the largest effects, the largest first."""
    sizes = {name: np.abs(effects[names == name]).max() for name in dict.fromkeys(names.tolist())}
    return sorted(sizes, key=lambda name: -sizes[name])[:count]


def _draw_points(axes: Any, names: np.ndarray, positions: np.ndarray, effects: np.ndarray, errors: np.ndarray) -> None:
    chosen = _largest(names, effects, _MOST_ROWS)
    rows = [int(np.flatnonzero(names == name)[0]) for name in chosen]
    rows = sorted(rows, key=lambda row: effects[row])
    axes.axvline(0, color=style.GREY, linewidth=0.8)
    axes.errorbar(
        effects[rows], range(len(rows)), xerr=np.nan_to_num(errors[rows]), fmt="o", color=style.PALETTE[0], markersize=4
    )
    axes.set_yticks(range(len(rows)), [style.literal(names[row]) for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)


def _draw_lines(axes: Any, names: np.ndarray, positions: np.ndarray, effects: np.ndarray, errors: np.ndarray) -> None:
    axes.axhline(0, color=style.GREY, linewidth=0.8)
    for number, name in enumerate(_largest(names, effects, _MOST_LINES)):
        rows = np.flatnonzero(names == name)
        rows = rows[np.argsort(positions[rows])]
        colour, spread = style.PALETTE[number % len(style.PALETTE)], np.nan_to_num(errors[rows])
        line = style.LINE_STYLES[number % len(style.LINE_STYLES)]
        axes.plot(positions[rows], effects[rows], line, color=colour, label=style.literal(name))
        axes.fill_between(positions[rows], effects[rows] - spread, effects[rows] + spread, color=colour, alpha=0.2)
    axes.set_xlabel("bases before the motif")
    axes.legend(fontsize="small")
