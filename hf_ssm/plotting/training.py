"""Curves of a training log."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_ssm.plotting import style
from hf_ssm.plotting.style import BLACK, GREY, LINE_STYLES, MARKERS, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Metrics that share an axis, as their values are at most 1; each other metric has a panel of its own.
_AT_MOST_ONE = ("accuracy", "f1", "mcc", "auroc", "auprc", "r2", "pearson", "spearman")
# Curves that differ by less than this share of the range of their panel lie upon each other.
_EQUAL = 0.02
# Points by which a line is wider, and its markers are larger, for each line that lies upon it.
_WIDER, _LARGER = 1.8, 3.0
_MOST_LEVELS = 2
# τ of all layers within this factor has a linear axis, as a logarithmic one would have no labels.
_LOG_RANGE = 10.0
# Labels of the panels of τ.
_SUM, _LAYERS = _TAU_LABELS = ("τ, sum of the layers", "τ of the layers")

_Series = tuple[list[float], list[float]]


class _Panel(NamedTuple):
    """Label of the y axis, and the label of each line by its key in the log."""

    label: str
    lines: dict[str, str]


@style.figure_style()
def plot_training_log(
    log_history: Sequence[Mapping[str, Any]],
    path: str | Path | None = None,
    metrics: Sequence[str] = (),
    title: str = "",
    *,
    chance: Mapping[str, float] | None = None,
    tau: Mapping[str, Sequence[float]] | None = None,
) -> "Figure":
    """Plot losses, metrics of the validation split, and τ where it is known, in a panel for each scale.

    Accuracies and correlations share a panel; every other metric, such as the perplexity, has a panel of its own, as
    have the sum of τ and τ of the layers. Of curves that coincide, the first is drawn the thickest, so that all are
    visible. A vertical line marks the chosen checkpoint and stars its values on the test split, where the log has them.

    Args:
        log_history: `trainer.state.log_history`; each entry has `step` and some of `loss`, `task_loss`, `eval_loss`,
            `eval_<metric>`, `test_loss`, `test_<metric>`, `tau`, `tau_layer_<i>`, `relative_change_step` (of the chosen
            checkpoint). Values that are not finite are left out.
        metrics: Names without the prefix `eval_`; those without an entry are left out.
        chance: Values of metrics without information, such as those of `constant_class_metrics`; dotted lines.
        tau: τ of each layer by the time of the measurement, as in `RunResult.tau`: the first before any rescaling, the
            last after training. Between them the log is shown.

    Raises:
        ValueError: The log has neither a loss nor a metric.
    """
    from matplotlib.ticker import MaxNLocator

    log = [*log_history, *_tau_entries(log_history, list((tau or {}).values()))]
    panels = _panels(log, metrics)
    if not panels:
        raise ValueError("`log_history` has no loss, metric or τ to plot.")
    figure = style.new_figure(7.0, 1.9 * len(panels) + 0.6)
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        _plot_panel(axes, log, panel)
        if panel.label == _LAYERS:
            _plot_tau_references(axes, list((tau or {}).values()))
        elif panel.label != _SUM:
            _plot_references(axes, log, panel, chance or {})
        if (chosen := _chosen_step(log)) is not None:
            axes.axvline(chosen, color=GREY, linewidth=1.0, linestyle="--", label="chosen checkpoint", zorder=1)
        # Beside the axes: many layers would cover the curves.
        columns = 1 + (len(axes.get_legend_handles_labels()[1]) - 1) // 9
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, ncols=columns)
    grid[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    grid[-1, 0].set_xlabel("optimizer step")
    return style.finish_figure(figure, path, title)


def _tau_entries(log_history: Sequence[Mapping[str, Any]], taus: Sequence[Sequence[float]]) -> list[dict[str, float]]:
    """Entries of the log for τ at the start, after any rescaling, and at the end, unless the log has τ itself."""
    if not taus or any("tau_layer_0" in entry for entry in log_history):
        return []
    last = _chosen_step(log_history)
    if last is None:
        last = max((float(entry["step"]) for entry in log_history if "step" in entry), default=0.0)
    ends = [(0.0, taus[-2])] if len(taus) > 1 else []
    return [
        {"step": step, **{f"tau_layer_{layer}": value for layer, value in enumerate(values)}}
        for step, values in [*ends, (last, taus[-1])]
    ]


def _series(log_history: Sequence[Mapping[str, Any]], key: str) -> _Series:
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
    taus = {key: key.removeprefix("tau_").replace("_", " ") for key in layers}
    panels = {
        "loss": losses,
        **_metric_panels([name for name in metrics if f"eval_{name}" in keys]),
        _SUM: {"tau": "sum"},
        _LAYERS: taus,
    }
    return [
        _Panel(name, {key: label for key, label in lines.items() if key in keys})
        for name, lines in panels.items()
        if not keys.isdisjoint(lines)
    ]


def _metric_panels(metrics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Keys and labels of the lines by the label of the axis; the metrics that share an axis first."""
    together = [name for name in metrics if name in _AT_MOST_ONE]
    groups = [together, *([name] for name in metrics if name not in _AT_MOST_ONE)]
    return {
        f"{group[0].replace('_', ' ') if len(group) == 1 else 'metric'} (validation)": {
            f"eval_{name}": name.replace("_", " ") for name in group
        }
        for group in groups
        if group
    }


def _plot_panel(axes: "Axes", log: Sequence[Mapping[str, Any]], panel: _Panel) -> None:
    from matplotlib import rcParams

    series = {key: _series(log, key) for key in panel.lines}
    values = [value for _, line in series.values() for value in line]
    span = max(values) - min(values)
    width, size = rcParams["lines.linewidth"], rcParams["lines.markersize"]
    for index, (key, label) in enumerate(panel.lines.items()):
        marker, line_style = MARKERS[index % len(MARKERS)], LINE_STYLES[index // len(PALETTE) % len(LINE_STYLES)]
        above = sum(_coincide(series[key], series[other], span) for other in list(panel.lines)[index + 1 :])
        above = min(above, _MOST_LEVELS)
        sizes: dict[str, Any] = {"linewidth": width + _WIDER * above, "markersize": size + _LARGER * above}
        axes.plot(*series[key], marker=marker, linestyle=line_style, label=style.literal(label), **sizes)
    # τ of a layer with a zero kernel is 0, which a logarithmic axis cannot show.
    if panel.label in _TAU_LABELS and min(values) > 0 and max(values) > _LOG_RANGE * min(values):
        axes.set_yscale("log")
    axes.set_ylabel(style.literal(panel.label))


def _coincide(one: _Series, other: _Series, span: float) -> bool:
    """Whether two curves have nearly equal values at the steps that both have."""
    values = dict(zip(*one, strict=True))
    pairs = [(values[step], value) for step, value in zip(*other, strict=True) if step in values]
    return bool(pairs) and all(abs(first - second) <= _EQUAL * span for first, second in pairs)


def _plot_references(
    axes: "Axes", log: Sequence[Mapping[str, Any]], panel: _Panel, chance: Mapping[str, float]
) -> None:
    """Stars at the values of the test split, and dotted lines at those without information, in the metrics' colours."""
    chosen = _chosen_step(log)
    star: dict[str, Any] = {"marker": "*", "linestyle": "", "markersize": 9}
    edge: dict[str, Any] = {"markeredgecolor": BLACK, "markeredgewidth": 0.5, "zorder": 4}
    dots: dict[str, Any] = {"linewidth": 1.0, "linestyle": ":"}
    legend: dict[str, dict[str, Any]] = {}
    for index, key in enumerate(panel.lines):
        name, colour = key.removeprefix("eval_"), PALETTE[index % len(PALETTE)]
        steps, values = _series(log, f"test_{name}")
        if key.startswith("eval_") and values:
            axes.plot(steps[-1] if chosen is None else chosen, values[-1], color=colour, **star, **edge)
            legend["test"] = star
        if key.startswith("eval_") and name in chance:
            axes.axhline(chance[name], color=colour, **dots)
            legend["chance: a constant\nprediction"] = dots
    # Without a colour of their own: they stand for all metrics.
    for label in sorted(legend, reverse=True):
        axes.plot([], [], color=GREY, label=label, **legend[label])


def _chosen_step(log: Sequence[Mapping[str, Any]]) -> float | None:
    return next(iter(_series(log, "relative_change_step")[1][-1:]), None)


def _plot_tau_references(axes: "Axes", taus: Sequence[Sequence[float]]) -> None:
    """τ before the rescaling in words, as it is often a hundred times as large, and the value 1 that it sets."""
    low, high = axes.get_ylim()
    if len(taus) > 2:
        text = f"before rescaling:\n{min(taus[0]):.3g} to {max(taus[0]):.3g}"
        axes.plot([], [], linestyle="", label=text)
    if len(taus) > 2 or low <= 1 <= high:
        axes.axhline(1, color=BLACK, linewidth=0.8, linestyle=":", label="τ = 1", zorder=1)
