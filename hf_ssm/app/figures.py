"""Figures as SVG that takes the colours and the font of the page."""

import base64
import io
import math
import re
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.plotting import style
from hf_ssm.plotting.responses import plot_gain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["beside", "figure_html", "plot_responses", "row"]

# Inches, and points; at the width of a phone, 360 pixels, a point is slightly more than a pixel.
_WIDTH, _HEIGHT, _FONT_SIZE = 4.2, 2.9, 9.5
# White and black of figures become those of the page. A grey in between suits both.
_COLOURS = {"#ffffff": "none", "#000000": "currentColor", "#1a1a1a": "currentColor", "#666666": "#767676"}


def figure_html(figure: "Figure", caption: str) -> str:
    """A figure in the width of the page, with a caption, which screen readers read too, and a link to its file."""
    import matplotlib
    from matplotlib.text import Text

    width, height = figure.get_size_inches()
    figure.set_size_inches(_WIDTH, max(_HEIGHT, float(height * np.sqrt(_WIDTH / width))))
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_fontsize(max(_FONT_SIZE, text.get_fontsize()))
    for legend in list(figure.legends):
        if legend.get_window_extent().width > figure.bbox.width:
            handles: Any = legend.legend_handles
            labels = [text.get_text() for text in legend.get_texts()]
            legend.remove()
            figure.legend(handles, labels, loc="outside lower center", frameon=False, fontsize=_FONT_SIZE)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hf_ssm"}):
        # Where a label exceeds the figure, the figure grows: nothing is cut.
        figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight", pad_inches=0.05)
    svg = buffer.getvalue()
    file = base64.b64encode(svg.encode()).decode()
    svg = svg[svg.index("<svg") :]
    for old, new in _COLOURS.items():
        svg = re.sub(re.escape(old), new, svg, flags=re.IGNORECASE)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: ([^;\"]*?)'[^;\"]*", r"font: \1 inherit", svg)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(caption, quote=True)}" ', 1)
    link = f'<a download="figure.svg" href="data:image/svg+xml;base64,{file}">Download</a>'
    return f"<figure>{svg}<figcaption>{escape(caption)} {link}</figcaption></figure>"


def row(*figures: str) -> str:
    """Figures side by side, or below each other where the page is narrow."""
    return f'<div class="figures">{"".join(figures)}</div>'


def beside(content: str) -> str:
    """Something else than a figure in a row of figures."""
    return f'<div class="beside">{content}</div>'


@style.figure_style()
def plot_responses(trained: Any, changed: Any | None, label: str) -> "Figure":
    """Gain of a convolution as trained and, if given, with α and β: median and middle 80 % of the channels."""
    figure = style.new_figure(_WIDTH, _HEIGHT + 0.5)
    axes = figure.subplots()
    plot_gain(axes, trained, "as trained", style.PALETTE[0], "-")
    if changed is not None:
        plot_gain(axes, changed, label, style.PALETTE[1], "--")
    axes.set(xscale="log", xlabel="frequency (cycles per position)", ylabel="gain (dB)")
    axes.set_xlim(max(1e-3, float(trained.omega[1]) / (2 * math.pi)), 0.5)
    # Without the bands, which the caption explains.
    lines = axes.get_lines()
    figure.legend(lines, ["as trained", label][: len(lines)], loc="outside lower center", ncols=2)
    return figure
