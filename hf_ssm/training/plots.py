"""The log of a run as a picture. matplotlib is optional and loaded only here."""

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INSTALL_HINT = 'matplotlib is not installed: pip install "hf_ssm[plots]"'

# Okabe and Ito's palette, made for colour-blind readers; the markers tell the lines apart once more.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")

Entry = Mapping[str, Any]


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def series(log_history: Sequence[Entry], key: str) -> tuple[list[float], list[float]]:
    """Steps and values of the entries that have a finite number under `key`."""
    points = [
        (float(entry["step"]), float(entry[key]))
        for entry in log_history
        if "step" in entry and isinstance(entry.get(key), int | float) and math.isfinite(entry[key])
    ]
    return [step for step, _ in points], [value for _, value in points]


def plot_training_log(
    log_history: Sequence[Entry], path: str | Path, metrics: Sequence[str] = (), title: str = ""
) -> None:
    """Write the log of a run as a PNG: losses, the metrics of the validation split, and τ where it is logged.

    Args:
        log_history: `trainer.state.log_history`; each entry has `step` and some of `loss`, `task_loss`,
            `eval_loss`, `eval_<metric>`, `tau`, `tau_layer_<i>`.
        path: where to write the PNG.
        metrics: names without `eval_`; those without an entry are left out.
        title: written above the picture.

    Raises:
        ImportError: without matplotlib; the message names the extra to install.
        ValueError: if the log holds neither a loss nor a metric.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(INSTALL_HINT) from error

    panels = [(name, lines, scale) for name, lines, scale in _panels(log_history, metrics) if lines]
    if not panels:
        raise ValueError("log_history holds no loss and no metric to draw")
    # No pyplot: a figure of its own keeps the caller's windows, backend and state as they are.
    figure = Figure(figsize=(7.0, 2.4 * len(panels) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for axes, (name, lines, scale) in zip(grid[:, 0], panels, strict=True):
        _draw(axes, log_history, name, lines, scale)
    grid[-1, 0].set_xlabel("optimizer step")
    if title:
        figure.suptitle(title)
    figure.savefig(path, format="png", dpi=120)


def _panels(log_history: Sequence[Entry], metrics: Sequence[str]) -> list[tuple[str, list[tuple[str, str]], str]]:
    """Label of the y axis, `(key, label)` of each line that has points, and scale, for each panel."""
    keys = {key for entry in log_history for key in entry if series([entry], key)[0]}
    layers = sorted((key for key in keys if key.startswith("tau_layer_")), key=lambda key: (len(key), key))
    wanted = [
        (
            "loss",
            [
                ("loss", "training, with regulariser" if "task_loss" in keys else "training"),
                ("task_loss", "training, task only"),
                ("eval_loss", "validation"),
            ],
            "linear",
        ),
        ("metric", [(f"eval_{name}", name) for name in metrics], "linear"),
        ("τ", [("tau", "sum"), *((key, key[len("tau_") :].replace("_", " ")) for key in layers)], "log"),
    ]
    return [(name, [line for line in lines if line[0] in keys], scale) for name, lines, scale in wanted]


def _draw(axes: "Axes", log_history: Sequence[Entry], name: str, lines: list[tuple[str, str]], scale: str) -> None:
    for index, (key, label) in enumerate(lines):
        steps, values = series(log_history, key)
        axes.plot(
            steps,
            values,
            color=_COLOURS[index % len(_COLOURS)],
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=3,
            linewidth=1.2,
            label=label,
        )
    # τ of a layer whose kernel vanished is 0, which a logarithm cannot show.
    if scale == "log" and all(value > 0 for key, _ in lines for value in series(log_history, key)[1]):
        axes.set_yscale("log")
    axes.set_ylabel(name)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
