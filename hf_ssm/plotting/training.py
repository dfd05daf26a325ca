"""Curves of a training log."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_ssm.plotting.style import LINE_STYLES, MARKERS, PALETTE, figure_style, finish_figure, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class _Panel(NamedTuple):
    """Label and scale of the y axis, and the label of each line by its key in the log."""

    label: str
    lines: dict[str, str]
    scale: str


@figure_style()
def plot_training_log(
    log_history: Sequence[Mapping[str, Any]],
    path: str | Path | None = None,
    metrics: Sequence[str] = (),
    title: str = "",
) -> "Figure":
    """Plot losses, metrics of the validation split, and τ where it is logged.

    Args:
        log_history: `trainer.state.log_history`; each entry has `step` and some of `loss`, `task_loss`,
            `eval_loss`, `eval_<metric>`, `tau`, `tau_layer_<i>`. Values that are not finite are left out.
        metrics: Names without the prefix `eval_`; those without an entry are left out.

    Raises:
        ValueError: The log has neither a loss nor a metric.
    """
    panels = [panel for panel in _panels(log_history, metrics) if panel.lines]
    if not panels:
        raise ValueError("`log_history` has no loss, metric or τ to plot.")
    figure = new_figure(7.0, 1.9 * len(panels) + 0.6)
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        _plot_panel(axes, log_history, panel)
    grid[-1, 0].set_xlabel("optimizer step")
    return finish_figure(figure, path, title)


def _series(log_history: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """Steps and values of the entries that have a finite number under `key`."""
    points = [
        (float(entry["step"]), float(entry[key]))
        for entry in log_history
        if "step" in entry and isinstance(entry.get(key), int | float) and math.isfinite(entry[key])
    ]
    return [step for step, _ in points], [value for _, value in points]


def _panels(log_history: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> list[_Panel]:
    keys = {key for entry in log_history for key in entry if _series([entry], key)[0]}
    layers = sorted((key for key in keys if key.startswith("tau_layer_")), key=lambda key: (len(key), key))
    losses = {
        "loss": "training, with regulariser" if "task_loss" in keys else "training",
        "task_loss": "training, task only",
        "eval_loss": "validation",
    }
    taus = {"tau": "sum", **{key: key.removeprefix("tau_").replace("_", " ") for key in layers}}
    panels = (
        _Panel("loss", losses, "linear"),
        _Panel("metric (validation)", {f"eval_{name}": name for name in metrics}, "linear"),
        _Panel("τ", taus, "log"),
    )
    return [panel._replace(lines={key: label for key, label in panel.lines.items() if key in keys}) for panel in panels]


def _plot_panel(axes: "Axes", log_history: Sequence[Mapping[str, Any]], panel: _Panel) -> None:
    values: list[float] = []
    for index, (key, label) in enumerate(panel.lines.items()):
        steps, line = _series(log_history, key)
        marker, line_style = MARKERS[index % len(MARKERS)], LINE_STYLES[index // len(PALETTE) % len(LINE_STYLES)]
        axes.plot(steps, line, marker=marker, linestyle=line_style, label=literal(label))
        values += line
    # τ of a layer with a zero kernel is 0, which a logarithmic axis cannot show.
    if panel.scale == "log" and min(values) > 0:
        axes.set_yscale("log")
    axes.set_ylabel(panel.label)
    # Beside the axes: many layers would cover the curves.
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, ncols=1 + (len(panel.lines) - 1) // 9)
