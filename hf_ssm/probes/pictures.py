"""What a probe found as pictures: curves, and the letters of a sequence by their importance.

matplotlib is optional and loaded only here. The suffix of a path chooses the format: .png, .pdf or .svg.

Legend: `L` tokens of a sequence, `M` of them that could be masked.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hf_ssm.analysis.pictures import new_figure
from hf_ssm.probes.html import to_html, write_html
from hf_ssm.probes.strip import draw_strip

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hf_ssm.probes.results import MaskingResult

__all__ = ["draw_curves", "draw_strip", "to_html", "write_html"]

# Okabe and Ito's palette, made for colour-blind readers; the line styles tell the lines apart once more.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLES = ("-", "--", "-.", ":")
# As wide as a column of a journal, in inches.
_WIDTH, _HEIGHT, _DPI = 3.5, 2.8, 200
_SMALL, _SMALLER = 8, 7
# Curves of different lengths meet at so many shares at least.
_FEWEST_POINTS = 101


def draw_curves(
    curves: "Sequence[MaskingResult | Tensor] | Mapping[str, Sequence[MaskingResult | Tensor]]",
    path: str | Path | None = None,
    *,
    title: str = "",
    value: str = "probability of the target",
    chance: float | None = None,
) -> "Figure":
    """Draw the probability of the target against the tokens masked, for one group of sequences or for several.

    Of each group the mean as a line, and one standard deviation of the sample to either side as a band (none for a
    single sequence; a band of probabilities ends at 0 and 1). Where all sequences have equally many tokens to mask,
    the axis counts them, with the share at the top; else it is the share, and curves are interpolated linearly.

    Args:
        curves: Results, or values `(M + 1,)`, of which the first is that with nothing masked; for several groups a
            mapping from the name of each to its curves.
        path: Where to write the picture; default: nowhere.
        title: Above the picture.
        value: Label of the values.
        chance: Where a guess would be, drawn as a line; default: none.

    Returns:
        The figure.

    Raises:
        ImportError: Without matplotlib; the message names the extra to install.
        ValueError: No curve; a curve of fewer than two values, or with one that is not finite.

    Source: Nishikawa & Suzuki 2025, Figure C.1.
    """
    groups = _groups(curves)
    counts = {len(curve) - 1 for group in groups.values() for curve in group}
    count = counts.pop() if len(counts) == 1 else None
    several = any(len(group) > 1 for group in groups.values())
    figure = new_figure(_WIDTH, _HEIGHT)
    axes = figure.subplots()
    for number, (name, group) in enumerate(groups.items()):
        size = f"n = {len(group)}"
        label = f"{name} ({size})" if name and several else name or size
        _draw_group(axes, number, label, group, count)
    if chance is not None:
        axes.axhline(chance, color="#666666", linewidth=0.8, linestyle=(0, (1, 2)), label="chance")
    _label(axes, count, counts, value)
    if all(curve.min() >= 0 and curve.max() <= 1 for group in groups.values() for curve in group):
        axes.set_ylim(-0.02, 1.02)
    means = "mean ± one standard deviation" if several else None
    if several or len(axes.get_lines()) > 1:
        axes.legend(fontsize=_SMALLER, title=means, title_fontsize=_SMALLER).get_frame().set_linewidth(0.5)
    if title:
        # Names of files may hold dollar signs.
        axes.set_title(title, fontsize=_SMALL, parse_math=False)
    if path is not None:
        save(figure, path)
    return figure


def save(figure: "Figure", path: str | Path) -> None:
    """Write a figure in the format of the suffix, PNG where there is none."""
    figure.savefig(path, format=Path(path).suffix[1:] or "png", dpi=_DPI)


def _groups(curves: Any) -> dict[str, list[np.ndarray]]:
    """Name to curves `(M + 1,)` in float64."""
    named = dict(curves) if isinstance(curves, Mapping) else {"": curves}
    groups = {name: [_values(curve, name) for curve in group] for name, group in named.items()}
    empty = [name for name, group in groups.items() if not group]
    if not groups or empty:
        where = f"the group {empty[0]!r} of `curves`" if empty and empty[0] else "`curves`"
        raise ValueError(f"{where} is empty: there is nothing to draw.")
    return groups


def _values(curve: Any, name: str) -> np.ndarray:
    found = torch.as_tensor(getattr(curve, "probabilities", curve)).detach().to("cpu", torch.float64).numpy()
    if found.ndim != 1 or len(found) < 2 or not np.isfinite(found).all():
        where = f" of the group {name!r}" if name else ""
        raise ValueError(
            f"`curves`: one{where} has the shape {found.shape}"
            f"{'' if np.isfinite(found).all() else ' and values that are not finite'}: give (M + 1,) finite values, "
            "the first with nothing masked."
        )
    return found


def _draw_group(axes: "Axes", number: int, label: str, group: list[np.ndarray], count: int | None) -> None:
    points = max(_FEWEST_POINTS, *(len(curve) for curve in group)) if count is None else count + 1
    shares = np.linspace(0, 1, points)
    rows = np.stack([np.interp(shares, np.linspace(0, 1, len(curve)), curve) for curve in group])
    mean = rows.mean(0)
    x = shares * (count or 1)
    colour, style = _COLOURS[number % len(_COLOURS)], _STYLES[number % len(_STYLES)]
    if len(rows) > 1:
        spread = rows.std(0, ddof=1)
        low, high = mean - spread, mean + spread
        if rows.min() >= 0 and rows.max() <= 1:
            low, high = low.clip(0), high.clip(max=1)
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(x, mean, color=colour, linestyle=style, linewidth=1.3, label=label, zorder=3)


def _label(axes: "Axes", count: int | None, counts: set[int], value: str) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.set_ylabel(value, fontsize=_SMALL)
    axes.tick_params(labelsize=_SMALLER)
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.set_xlim(0, count or 1)
    if count is None:
        axes.set_xlabel(f"share of the {min(counts)} to {max(counts)} tokens masked", fontsize=_SMALL)
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        return
    axes.set_xlabel("number of masked tokens", fontsize=_SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    share = axes.secondary_xaxis("top", functions=(partial(_scaled, 1 / count), partial(_scaled, count)))
    share.set_xlabel("share of tokens masked", fontsize=_SMALL)
    share.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    share.tick_params(labelsize=_SMALLER)


def _scaled(factor: float, x: Any) -> Any:
    return factor * x
