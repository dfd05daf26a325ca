"""Pictures of the theory report. matplotlib is optional and loaded only here."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hf_ssm.analysis.complexity import LayerComplexity
from hf_ssm.modules.roles import QUANTITIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["INSTALL_HINT", "can_plot", "draw_movement", "draw_tau", "new_figure"]

INSTALL_HINT = 'matplotlib is not installed: pip install "hf_ssm[plots]"'
# From Okabe and Ito's palette, made for colour-blind readers.
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#666666"
_DPI = 120


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def new_figure(width: float, height: float) -> "Figure":
    """A figure of that size in inches.

    Raises:
        ImportError: Without matplotlib; the message names the extra to install.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(INSTALL_HINT) from error
    # No pyplot: a figure of its own keeps the caller's windows, backend and state as they are.
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_tau(layers: Sequence[LayerComplexity], path: str | Path, title: str = "") -> None:
    """Write a PNG: how τ spreads over the channels of each layer, with the mean, which is the τ of the layer.

    Boxes reach from the first to the third quartile, whiskers to the ends.

    Args:
        layers: Of `layer_complexities`.
        path: Where to write it.
        title: Above the picture.

    Raises:
        ImportError: Without matplotlib; the message names the extra to install.
    """
    figure = new_figure(max(4.5, 1.8 + 0.6 * len(layers)), 3.6)
    axes = figure.subplots()
    positions = list(range(len(layers)))
    axes.boxplot(
        [layer.tau_of_channels.tolist() for layer in layers],
        positions=positions,
        whis=(0, 100),
        widths=0.5,
        patch_artist=True,
        boxprops={"facecolor": "#DCEAF5", "edgecolor": _BLUE},
        medianprops={"color": _BLUE},
        whiskerprops={"color": _BLUE},
        capprops={"color": _BLUE},
    )
    axes.plot(positions, [layer.tau for layer in layers], "D", color=_ORANGE, markersize=5, label="τ (mean)", zorder=3)
    # A channel whose kernel vanished has τ = 0, which a logarithm cannot show.
    if all(bool((layer.tau_of_channels > 0).all()) for layer in layers):
        axes.set_yscale("log")
    axes.set_xticks(positions, [str(layer.layer) for layer in layers])
    axes.set_xlabel("layer")
    axes.set_ylabel("τ of the channels")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small")
    if title:
        axes.set_title(title, fontsize="medium")
    figure.savefig(path, format="png", dpi=_DPI)


def draw_movement(movement: Mapping[str, float | None], path: str | Path, title: str = "") -> None:
    """Write a PNG: the relative change of each group of parameters as a bar, on a logarithmic scale.

    Groups without a ratio, or that did not move, have no bar but their name and what was found.

    Args:
        movement: By the groups of `movement.QUANTITIES`.
        path: Where to write it.
        title: Above the picture.

    Raises:
        ImportError: Without matplotlib.
        ValueError: No group.
    """
    if not movement:
        raise ValueError("`movement` is empty: there is nothing to draw.")
    figure = new_figure(7.0, 1.1 + 0.3 * len(movement))
    axes = figure.subplots()
    positive = [value for value in movement.values() if value]
    low = min([*positive, 1.0]) / 3
    for row, value in enumerate(movement.values()):
        if value:
            axes.barh(row, value, color=_BLUE, height=0.65)
        text = "no ratio: zero before" if value is None else f" {value:.3g}"
        axes.text(value or low, row, text, va="center", fontsize="small", color=_GREY)
    axes.set_xscale("log")
    # Room for the numbers beside the bars.
    axes.set_xlim(low, max([*positive, 1.0]) * 6)
    axes.set_yticks(range(len(movement)), [QUANTITIES[group] for group in movement], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("‖θ_after − θ_before‖ / ‖θ_before‖")
    axes.grid(axis="x", alpha=0.3)
    if title:
        axes.set_title(title, fontsize="medium")
    figure.savefig(path, format="png", dpi=_DPI)
