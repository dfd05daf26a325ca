"""The palette, sizes and file output that all figures share, and the check for matplotlib.

matplotlib is optional (the extra `plots`) and imported only when a figure is drawn.
"""

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INSTALL_HINT = 'matplotlib is not installed: pip install "hf_ssm[plots]"'

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of lines: the palette of Okabe and Ito, which readers with impaired colour vision can tell apart."""

LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P")
BLACK, GREY = "#1A1A1A", "#666666"

NEVER_MASKED = "#C4C4C4"
"""Colour of tokens without an importance."""

# Stops of the colour map cividis, from light to dark: important tokens are dark on a white page. The lightest part is
# left out because letters drawn in it are unreadable.
_LETTER_STOPS: tuple[tuple[float, tuple[int, int, int]], ...] = (
    (0.0, (214, 195, 96)),
    (0.25, (172, 160, 116)),
    (0.5, (124, 123, 120)),
    (0.75, (67, 78, 108)),
    (1.0, (0, 32, 76)),
)
# A background may be as light as the page.
_BACKGROUND_STOPS = (
    (0.0, (255, 250, 229)),
    (0.4, (214, 195, 96)),
    *((0.4 + 0.6 * position, colour) for position, colour in _LETTER_STOPS[1:]),
)

_RC_PARAMS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.titlesize": 8,
    "figure.titlesize": 9,
    "font.size": 8,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "lines.linewidth": 1.2,
    "lines.markersize": 3,
    "savefig.dpi": 200,
    # Element ids of SVG files are random otherwise.
    "svg.hashsalt": "hf_ssm",
    # Titles are names of files, which `literal` makes safe for matplotlib's own parser, but not for TeX.
    "text.parse_math": True,
    "text.usetex": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}
# Metadata whose default value is the current time.
_NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


@contextmanager
def figure_style() -> Iterator[None]:
    """Context manager and decorator under which figures are drawn in the style of this package.

    Raises:
        ImportError: matplotlib is not installed; the message names the extra to install.
    """
    try:
        import matplotlib
        from cycler import cycler
    except ImportError as error:
        raise ImportError(INSTALL_HINT) from error
    params: Any = {**_RC_PARAMS, "axes.prop_cycle": cycler(color=PALETTE)}
    with matplotlib.rc_context(params):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Create an empty figure; pyplot is not used, so that the caller's windows and backend stay unchanged.

    Args:
        width: Inches.
        height: Inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure atomically: an interrupted or failed call leaves no partial file.

    Equal figures give equal bytes.

    Args:
        figure: The figure.
        path: File to write. The suffix gives the format (`.png`, `.svg`, `.pdf`, ...); without a suffix it is PNG.

    Raises:
        ValueError: matplotlib does not know the format.
    """
    path = Path(path)
    kind = path.suffix[1:].lower() or "png"
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        scratch = Path(folder, path.name)
        figure.savefig(scratch, format=kind, metadata=_NO_DATE.get(kind))
        os.replace(scratch, path)


def finish_figure(figure: "Figure", path: str | Path | None, title: str = "") -> "Figure":
    """Add the title, if any, and write the file, if there is a path; returns the figure."""
    if title:
        figure.suptitle(literal(title), wrap=True)
    if path is not None:
        save_figure(figure, path)
    return figure


def literal(text: str) -> str:
    """Escape dollar signs, which matplotlib takes for the delimiters of formulas."""
    return text.replace("$", r"\$")


def to_numpy(values: Any) -> np.ndarray:
    """An array of the values of a tensor on any device, an array or a sequence."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def importance_colour(importance: float) -> str:
    """Colour of a letter, light for unimportant tokens and dark for important ones.

    Args:
        importance: From 0 to 1; values outside are clipped.

    Returns:
        The colour as `#RRGGBB`.

    Raises:
        ValueError: `importance` is NaN.
    """
    return _interpolate(_LETTER_STOPS, importance)


def importance_background(importance: float) -> str:
    """Colour of the background of a token; as `importance_colour`, but lighter for unimportant tokens."""
    return _interpolate(_BACKGROUND_STOPS, importance)


def _interpolate(stops: tuple[tuple[float, tuple[int, int, int]], ...], importance: float) -> str:
    if math.isnan(importance):
        raise ValueError("`importance` is NaN: expected a number from 0 to 1.")
    positions, colours = zip(*stops, strict=True)
    channels = (np.interp(importance, positions, channel) for channel in zip(*colours, strict=True))
    return "#" + "".join(f"{round(float(channel)):02X}" for channel in channels)


def text_colour_on(background: str) -> str:
    """Black or white, whichever has the higher contrast ratio (WCAG 2) on a background `#RRGGBB`."""
    channels = [int(background[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # The ratios are equal where (luminance + 0.05)² = 0.05 · 1.05.
    return "#000000" if luminance > 0.1791 else "#FFFFFF"
