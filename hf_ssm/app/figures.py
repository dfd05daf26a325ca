"""Figures as SVG that takes the colours and the font of the page."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.plotting import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["beside", "figure_html", "plot_curve", "plot_responses", "plot_spectra", "resized", "row"]

# Inches; at the width of a phone, 360 pixels, a point is slightly less than a pixel.
_WIDTH, _HEIGHT = 4.2, 2.9
# Neighbouring frequencies that are averaged: the spectrum of a single sequence is noisy.
_SMOOTHED = 5
_FONTS: dict[Any, Any] = {
    "font.size": 10,
    "axes.labelsize": 10,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}
# White and black of figures become those of the page. A grey in between suits both.
_COLOURS = {"#ffffff": "none", "#000000": "currentColor", "#1a1a1a": "currentColor", "#666666": "#767676"}


def figure_html(figure: "Figure", caption: str) -> str:
    """A figure with a caption, which also describes it to a screen reader."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hf_ssm"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for old, new in _COLOURS.items():
        svg = re.sub(re.escape(old), new, svg, flags=re.IGNORECASE)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: ([^;\"]*?)'[^;\"]*", r"font: \1 inherit", svg)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(caption, quote=True)}" ', 1)
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def row(*figures: str) -> str:
    """Figures side by side, or below each other where the page is narrow."""
    return f'<div class="figures">{"".join(figures)}</div>'


def beside(content: str) -> str:
    """Something else than a figure in a row of figures."""
    return f'<div class="beside">{content}</div>'


def _new_axes(lines_of_legend: int = 0) -> tuple["Figure", Any]:
    figure = style.new_figure(_WIDTH, _HEIGHT + 0.25 * lines_of_legend)
    return figure, figure.subplots()


@style.figure_style()
def plot_curve(values: Sequence[float], label: str) -> "Figure":
    """The probability (or value) against the number of masked tokens."""
    import matplotlib

    with matplotlib.rc_context(_FONTS):
        figure, axes = _new_axes()
        axes.plot(range(len(values)), values, color=style.PALETTE[0], linewidth=2)
        axes.set_xlabel("tokens masked, the least important first")
        axes.set_ylabel(label)
        axes.set_xlim(0, len(values) - 1)
        if min(values) >= 0 and max(values) <= 1:
            axes.set_ylim(-0.02, 1.02)
    return figure


@style.figure_style()
def plot_spectra(spectra: Mapping[str, Any]) -> "Figure":
    """Power spectra as densities over the frequency in cycles per position, with a second axis of periods.

    Means of five neighbouring frequencies; white noise is constant at 2.
    """
    import matplotlib

    from hf_ssm.plotting.theory import spectral_density

    with matplotlib.rc_context(_FONTS):
        figure, axes = _new_axes(2 + len(spectra) // 2)
        for number, (name, power) in enumerate(spectra.items()):
            cycles, density = (part[1:] for part in spectral_density(power))
            kind = style.LINE_STYLES[number % len(style.LINE_STYLES)]
            window = np.ones(_SMOOTHED) / _SMOOTHED
            level = np.convolve(np.ones_like(density), window, "same")
            density = np.convolve(density, window, "same") / level
            axes.plot(cycles, density, label=style.literal(name), linewidth=1.4, linestyle=kind)
        axes.set_yscale("log")
        axes.set_xlim(0, 0.5)
        axes.set_xlabel("frequency (cycles per position)")
        axes.set_ylabel("power density")
        above = axes.secondary_xaxis("top")
        above.set_xticks([1 / period for period in (2, 3, 4, 6, 10, 20)], ["2", "3", "4", "6", "10", "20"])
        above.set_xlabel("period (positions)")
        if len(spectra) > 1:
            figure.legend(loc="outside lower center", ncols=2)
    return figure


@style.figure_style()
def plot_responses(trained: Any, changed: Any | None, label: str) -> "Figure":
    """Gain of a convolution as trained and, if given, with α and β: median and middle 80 % of the channels."""
    import matplotlib

    from hf_ssm.plotting.theory import gain_quantiles

    with matplotlib.rc_context(_FONTS):
        figure, axes = _new_axes(2)
        for number, (response, name) in enumerate(((trained, "as trained"), (changed, label))):
            if response is None:
                continue
            cycles, (low, median, high) = gain_quantiles(response)
            positive = cycles > 0
            colour, kind = style.PALETTE[number], style.LINE_STYLES[number]
            axes.fill_between(cycles[positive], low[positive], high[positive], color=colour, alpha=0.2, linewidth=0)
            axes.plot(cycles[positive], median[positive], color=colour, linestyle=kind, linewidth=2, label=name)
        axes.set_xscale("log")
        axes.set_xlim(max(1e-3, float(trained.omega[1]) / (2 * math.pi)), 0.5)
        axes.set_xlabel("frequency (cycles per position)")
        axes.set_ylabel("gain (dB)")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def resized(figure: "Figure") -> "Figure":
    """A figure of the package in the width of the page."""
    from matplotlib.text import Text

    width, height = figure.get_size_inches()
    figure.set_size_inches(_WIDTH, max(_HEIGHT, float(height * np.sqrt(_WIDTH / width))))
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_fontsize(max(9, text.get_fontsize()))
    return figure
