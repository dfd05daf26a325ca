"""A sequence as a strip of letters, high and dark by their importance, with annotations beneath.

Everything is placed in inches, since letters, ticks and bars keep their sizes however long the sequence is.

Legend: `L` tokens of a sequence.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.analysis.pictures import new_figure
from hf_ssm.probes.colours import GREY, colour_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path as Outline

    from hf_ssm.probes.results import MaskingResult

__all__ = ["MOST_LETTERS", "draw_strip"]

# In inches: the page, what stands above and beneath the rows, and the parts of a row from the top.
_SIDE, _HEAD, _FOOT = 0.12, 0.4, 0.2
_LETTERS, _TICKS, _LANE, _GAP = 0.32, 0.16, 0.19, 0.08
# The least important letter is so high still, as a share, that it can be read.
_LEAST = 0.22
MOST_LETTERS = 5000
"""Tokens that a strip has at most."""

_LONGEST_TOKEN = 4
_TICK_EVERY, _DPI = 10, 200
_SMALL, _SMALLER = 8, 6
# The legend, and a letter of the title.
_LEGEND, _LETTER = 1.8, 0.062
# Vermilion first, which stands out from the colours of importance; all from Okabe and Ito's palette.
_BARS = ("#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Signs of tokenizers for characters that cannot be seen.
_VISIBLE = {"Ġ": "␣", "▁": "␣", " ": "␣", "Ċ": "↵", "\n": "↵", "ĉ": "⇥", "\t": "⇥"}


@dataclass(frozen=True)
class _Bar:
    """A part of an annotation that lies in one row: columns from `start` to `stop`, in a lane beneath the letters."""

    row: int
    start: int
    stop: int
    lane: int
    label: str
    colour: str


def draw_strip(
    result: "MaskingResult",
    path: str | Path | None = None,
    annotations: Sequence[tuple[int, int, str]] = (),
    *,
    first: int = 0,
    unit: str = "bp",
    per_row: int = 80,
    width: float = 7.0,
    title: str = "",
) -> "Figure":
    """Draw the letters of a sequence, the higher and darker the later they were masked.

    Letters that are never masked are grey; special tokens are grey blocks with their names; the token that was to be
    predicted stands in a frame. Positions are counted from 1.

    Args:
        result: Of a sequence of at most 5000 tokens; its tokens are of four characters at most.
        path: Where to write it, as .png, .pdf or .svg; default: nowhere.
        annotations: Parts to underline, such as planted motifs: first token, the token after the last one, and a label.
            They may overlap. Equal labels have equal colours.
        first: The token that has the position 1; special tokens before it are not counted.
        unit: What a position counts.
        per_row: Letters in a row.
        width: Of the picture, in inches: 7 is the width of a page; for a column take 3.5 and 40 letters.
        title: Above the strip.

    Returns:
        The figure.

    Raises:
        ImportError: Without matplotlib; the message names the extra to install.
        ValueError: A sequence that is too long or has tokens that are; annotations outside of it; `per_row` below 1.
    """
    tokens = _tokens(result)
    length = len(tokens)
    if isinstance(per_row, bool) or not isinstance(per_row, int) or per_row < 1:
        raise ValueError(f"`per_row`={per_row!r}: give a positive number of letters.")
    bars = list(_bars(annotations, length, per_row))
    lines, end = _lines(bars, -(-length // per_row))
    height = end + _FOOT
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((_SIDE / width, 0, 1 - 2 * _SIDE / width, 1))
    # One column is one unit to the right, one inch is one unit down.
    axes.set(xlim=(0, per_row), ylim=(height, 0))
    axes.set_axis_off()
    _draw_letters(axes, result, tokens, per_row, lines)
    _draw_positions(axes, length, first, per_row, lines)
    for bar in bars:
        _draw_bar(axes, bar, lines[bar.row] + _TICKS + _LANE * bar.lane)
    axes.text(0, height - 0.07, f"position ({unit})", fontsize=_SMALL, va="bottom")
    if notes := _notes(result):
        axes.text(per_row, height - 0.07, notes, fontsize=_SMALLER, va="bottom", ha="right", color="#333333")
    if title:
        # Beside the legend there is room for two lines.
        lines_of_title = textwrap.fill(title, max(10, int((width - _LEGEND) / _LETTER)), max_lines=2, placeholder=" …")
        axes.text(0, 0.08, lines_of_title, fontsize=_SMALL, va="top", parse_math=False)
    _draw_legend(figure, width, height)
    if path is not None:
        figure.savefig(path, format=Path(path).suffix[1:] or "png", dpi=_DPI)
    return figure


def _tokens(result: "MaskingResult") -> list[str]:
    """The tokens as they are drawn."""
    texts = result.tokens_text or [str(token) for token in result.input_ids.tolist()]
    if len(texts) > MOST_LETTERS:
        raise ValueError(f"`result` has {len(texts)} tokens: a strip has at most {MOST_LETTERS}; use `write_html`.")
    free = result.importance.isnan().tolist()
    long = next((text for text, fixed in zip(texts, free, strict=True) if len(text) > _LONGEST_TOKEN and not fixed), "")
    if long:
        raise ValueError(
            f"`result` has the token {long!r}: a strip is for tokens of at most {_LONGEST_TOKEN} characters, such as "
            "letters of DNA; use `write_html` for words."
        )
    return ["".join(_VISIBLE.get(character, character) for character in text) for text in texts]


def _bars(annotations: Sequence[tuple[int, int, str]], length: int, per_row: int) -> Iterator[_Bar]:
    """The annotations cut at the ends of rows, those that overlap in different lanes."""
    labels = list(dict.fromkeys(label for _, _, label in annotations))
    ends: list[int] = []
    for start, stop, label in sorted(annotations):
        if not 0 <= start < stop <= length:
            raise ValueError(
                f"`annotations`: {label!r} reaches from token {start} to before {stop}, but the sequence has {length} "
                "tokens."
            )
        lane = next((lane for lane, end in enumerate(ends) if end <= start), len(ends))
        ends[lane : lane + 1] = [stop]
        colour = _BARS[labels.index(label) % len(_BARS)]
        parts = [
            (row, max(start, row * per_row), min(stop, (row + 1) * per_row))
            for row in range(start // per_row, (stop - 1) // per_row + 1)
        ]
        longest = max(parts, key=lambda part: part[2] - part[1])
        for row, left, right in parts:
            named = label if (row, left, right) == longest else ""
            yield _Bar(row, left - row * per_row, right - row * per_row, lane, named, colour)


def _lines(bars: Sequence[_Bar], rows: int) -> tuple[list[float], float]:
    """Where the letters of each row stand, and where the last row ends."""
    lines, top = [], _HEAD
    for row in range(rows):
        lines.append(top + _LETTERS)
        lanes = 1 + max((bar.lane for bar in bars if bar.row == row), default=-1)
        top += _LETTERS + _TICKS + _LANE * lanes + _GAP
    return lines, top


def _notes(result: "MaskingResult") -> str:
    """What the grey and the frame mean, where there are any."""
    found = ["in grey: never masked"] if bool(result.importance.isnan().any()) else []
    if result.target.get("position") is not None:
        found.append("in the frame: the target")
    return "; ".join(found)


def _draw_letters(
    axes: "Axes", result: "MaskingResult", tokens: Sequence[str], per_row: int, lines: Sequence[float]
) -> None:
    from matplotlib.collections import PathCollection
    from matplotlib.patches import Rectangle

    shapes = _Shapes()
    outlines, colours = [], []
    target = result.target.get("position")
    for place, (token, importance) in enumerate(zip(tokens, result.importance.tolist(), strict=True)):
        line, column = lines[place // per_row], place % per_row
        if place == target:
            frame = Rectangle((column, line - _LETTERS), 1, _LETTERS + 0.02, fill=False, edgecolor="#D55E00")
            axes.add_patch(frame)
        if math.isnan(importance) and len(token) > 1:
            axes.add_patch(Rectangle((column + 0.08, line - _LETTERS), 0.84, _LETTERS, color="#E3E3E3", linewidth=0))
            name = token.strip("[]<>|")[:4]
            middle = line - _LETTERS / 2
            axes.text(column + 0.5, middle, name, fontsize=5, rotation=90, ha="center", va="center", parse_math=False)
            continue
        if not token:
            continue
        share = 0.5 if math.isnan(importance) else importance
        outlines.append(shapes.placed(token, column, line, _LETTERS * (_LEAST + (1 - _LEAST) * share)))
        colours.append(GREY if math.isnan(importance) else colour_of(importance))
    axes.add_collection(PathCollection(outlines, facecolors=colours, linewidths=0), autolim=False)


class _Shapes:
    """Outlines of tokens, each made once."""

    def __init__(self) -> None:
        from matplotlib.font_manager import FontProperties, findfont, get_font

        self._font = FontProperties(family="DejaVu Sans", weight="bold")
        self._glyphs = get_font(findfont(self._font))
        self._known: dict[str, tuple[Outline, float]] = {}
        self._capital = self._outline("H").get_extents()

    def placed(self, token: str, column: int, line: float, height: float) -> "Outline":
        """The outline of a token above a line, a capital of which is so high, within its column."""
        from matplotlib.transforms import Affine2D

        if token not in self._known:
            outline = self._outline(token)
            # A blank has no outline, and so no extents.
            self._known[token] = outline, outline.get_extents().width if np.size(outline.vertices) else 0.0
        outline, width = self._known[token]
        # Letters fill their column, but thin ones, such as I, stay thinner than the others.
        across = 0.9 / max(width, 0.75 * self._capital.width)
        down = -height / self._capital.height
        left = column + (1 - across * width) / 2
        start = outline.get_extents().x0 if width else 0.0
        return outline.transformed(Affine2D().translate(-start, 0).scale(across, down).translate(left, line))

    def _outline(self, token: str) -> "Outline":
        from matplotlib.textpath import TextPath

        # A character that the font lacks would be drawn as a box, with a warning for each.
        drawn = "".join(c if self._glyphs.get_char_index(ord(c)) else "?" for c in token)
        return TextPath((0, 0), drawn.replace("$", r"\$"), size=1, prop=self._font)


def _draw_positions(axes: "Axes", length: int, first: int, per_row: int, lines: Sequence[float]) -> None:
    for row, line in enumerate(lines):
        start, stop = row * per_row, min((row + 1) * per_row, length)
        axes.plot([0, stop - start], [line + 0.015] * 2, color="#BBBBBB", linewidth=0.5)
        for place in range(max(start, first), stop):
            number, x = place - first + 1, place - start + 0.5
            if number % _TICK_EVERY == 0 or number == 1:
                axes.plot([x, x], [line + 0.015, line + 0.045], color="#555555", linewidth=0.5)
                axes.text(x, line + 0.055, str(number), fontsize=_SMALLER, color="#333333", ha="center", va="top")


def _draw_bar(axes: "Axes", bar: _Bar, top: float) -> None:
    from matplotlib.patches import Rectangle

    left, right = bar.start + 0.08, bar.stop - 0.08
    axes.add_patch(Rectangle((left, top), right - left, 0.035, color=bar.colour, linewidth=0))
    if bar.label:
        middle = (left + right) / 2
        axes.text(middle, top + 0.05, bar.label, fontsize=_SMALLER, ha="center", va="top", parse_math=False)


def _draw_legend(figure: "Figure", width: float, height: float) -> None:
    """The colours with their meaning, at the top right."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    long = 1.1 if width > 5 else 0.8
    axes = figure.add_axes(((width - _SIDE - long - 0.02) / width, 1 - 0.16 / height, long / width, 0.08 / height))
    colours: Any = ListedColormap([colour_of(step / 255) for step in range(256)])
    bar = figure.colorbar(ScalarMappable(cmap=colours), cax=axes, orientation="horizontal", ticks=[0, 1])
    bar.outline.set_linewidth(0.4)
    axes.tick_params(labelsize=_SMALLER, length=2, width=0.4, pad=1)
    axes.set_xticklabels(["masked first", "last"])
    axes.text(-0.04, 0.5, "importance", fontsize=_SMALLER, ha="right", va="center", transform=axes.transAxes)
