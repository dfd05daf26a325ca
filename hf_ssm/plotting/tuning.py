"""Scores of the candidates of a tuning."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_ssm.plotting import style
from hf_ssm.plotting.style import BLACK, GREY, PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style.figure_style()
def plot_tuning(
    scores: Mapping[str, Sequence[float]],
    path: str | Path | None = None,
    title: str = "",
    *,
    metric: str = "score",
    chance: float | None = None,
) -> "Figure":
    """Plot the validation scores of each candidate: the run that selected it, and those with fresh seeds.

    Args:
        scores: By the name of the candidate, the score of the run with the seed of the settings, then those with fresh
            seeds. A score that is not finite is written as "diverged".
        path: File to write.
        title: Title.
        metric: Label of the axis.
        chance: Score of a constant prediction; a dotted line.

    Raises:
        ValueError: `scores` is empty, or a candidate has no score.
    """
    if not scores or not all(map(len, scores.values())):
        raise ValueError("`scores` must have one or more candidates, each with one or more scores.")
    figure = style.new_figure(7.0, 1.4 + 0.3 * len(scores))
    axes = figure.subplots()
    shapes: tuple[dict[str, Any], ...] = (
        {"marker": "o", "color": PALETTE[0], "label": "seed of the settings, which selects"},
        {"marker": "D", "color": PALETTE[1], "markerfacecolor": "white", "label": "fresh seeds"},
    )
    for row, values in enumerate(scores.values()):
        for shape, group in zip(shapes, (values[:1], values[1:]), strict=True):
            finite = [value for value in group if math.isfinite(value)]
            height = row + (0.15 if shape is shapes[1] else 0.0)
            axes.plot(finite, [height] * len(finite), linestyle="", markersize=5, **shape)
            shape["label"] = "_nolegend_" if finite else shape["label"]
        diverged = sum(not math.isfinite(value) for value in values)
        if diverged:
            text = f"{diverged} of {len(values)} diverged"
            axes.text(1.0, row, text, transform=axes.get_yaxis_transform(), ha="right", va="center", color=BLACK)
    if chance is not None and math.isfinite(chance):
        axes.axvline(chance, color=GREY, linewidth=1.0, linestyle=":", label="trivial baseline")
    axes.set_yticks(range(len(scores)), [style.literal(name) for name in scores])
    axes.set_ylim(len(scores) - 0.5, -0.5)
    axes.set_xlabel(f"{style.literal(metric)} (validation)")
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=3)
    return style.finish_figure(figure, path, title)
