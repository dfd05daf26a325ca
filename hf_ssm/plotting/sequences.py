"""A sequence as rows of letters whose height and colour show their importance, with annotations below.

All lengths are in inches: letters, ticks and bars have the same size in short and in long sequences.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.plotting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path as Outline

MAX_TOKENS = 5000
"""Longest sequence that `plot_sequence` accepts."""

# Margins of the figure, and the parts of a row from top to bottom.
_SIDE, _HEAD, _FOOT = 0.12, 0.4, 0.2
_LETTERS, _TICKS, _LANE, _GAP = 0.32, 0.16, 0.19, 0.08
# Height of the least important letter, as a share of the most important one: smaller letters are unreadable.
_MIN_HEIGHT = 0.22
_MAX_CHARACTERS = 4
_TICK_EVERY = 10
_SMALL = 6
# Width of the legend, and of a letter of the title.
_LEGEND, _LETTER = 1.8, 0.062
# Vermilion first, which differs most from the colours of importance.
_BAR_COLOURS = (*style.PALETTE[1:4], style.PALETTE[5], style.PALETTE[4], "#000000")
# Symbols for invisible characters, including those that tokenizers write for them.
_VISIBLE = {"Ġ": "␣", "▁": "␣", " ": "␣", "Ċ": "↵", "\n": "↵", "ĉ": "⇥", "\t": "⇥"}


@dataclass(frozen=True)
class _Bar:
    """The part of an annotation in one row: columns from `start` to `stop`, in a lane below the letters."""

    row: int
    start: int
    stop: int
    lane: int
    label: str
    colour: str


@style.figure_style()
def plot_sequence(
    result: Any,
    path: str | Path | None = None,
    annotations: Sequence[tuple[int, int, str]] = (),
    *,
    first: int = 0,
    unit: str = "bp",
    per_row: int = 80,
    width: float = 7.0,
    title: str = "",
) -> "Figure":
    """Plot the letters of a sequence; tokens that were masked later are higher and darker.

    Letters that were never masked are grey, special tokens are grey blocks with their names, and the predicted token
    has a frame. Positions are counted from 1.

    Args:
        result: `MaskingResult` of a sequence of at most 5000 tokens of at most four characters each.
        annotations: Intervals to underline, such as planted motifs: first token, token after the last one, label. They
            may overlap. Equal labels have equal colours.
        first: Index of the token at position 1; special tokens before it are not counted.
        unit: Unit of the positions.
        per_row: Letters in a row.
        width: Width of the figure in inches: 7 for a page, 3.5 (with 40 letters in a row) for a column.

    Raises:
        ValueError: The sequence or one of its tokens is too long, an annotation lies outside of the sequence, or
            `per_row` is not a positive integer.
    """
    tokens = _visible_tokens(result)
    if isinstance(per_row, bool) or not isinstance(per_row, int) or per_row < 1:
        raise ValueError(f"`per_row`={per_row!r}: expected a positive integer.")
    bars = list(_bars(annotations, len(tokens), per_row))
    baselines, end = _baselines(bars, -(-len(tokens) // per_row))
    height = end + _FOOT
    figure = style.new_figure(width, height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((_SIDE / width, 0, 1 - 2 * _SIDE / width, 1))
    # x: columns; y: inches from the top.
    axes.set(xlim=(0, per_row), ylim=(height, 0))
    axes.set_axis_off()
    _draw_letters(axes, result, tokens, per_row, baselines)
    _draw_positions(axes, len(tokens), first, per_row, baselines)
    for bar in bars:
        _draw_bar(axes, bar, baselines[bar.row] + _TICKS + _LANE * bar.lane)
    axes.text(0, height - 0.07, f"position ({unit})", va="bottom")
    if notes := _notes(result):
        axes.text(per_row, height - 0.07, notes, fontsize=_SMALL, va="bottom", ha="right", color="#333333")
    if title:
        # Two lines fit beside the legend.
        lines = textwrap.fill(title, max(10, int((width - _LEGEND) / _LETTER)), max_lines=2, placeholder=" …")
        axes.text(0, 0.08, style.literal(lines), va="top")
    _draw_legend(figure, width, height)
    return style.finish_figure(figure, path)


def _visible_tokens(result: Any) -> list[str]:
    texts = result.tokens_text or [str(token) for token in result.input_ids.tolist()]
    if len(texts) > MAX_TOKENS:
        raise ValueError(
            f"`result` has {len(texts)} tokens, the maximum is {MAX_TOKENS}: use `write_sequence_html` for long "
            "sequences."
        )
    for text, importance in zip(texts, result.importance.tolist(), strict=True):
        if len(text) > _MAX_CHARACTERS and not math.isnan(importance):
            raise ValueError(
                f"`result` has the token {text!r} of more than {_MAX_CHARACTERS} characters: use `write_sequence_html` "
                "for words."
            )
    return ["".join(_VISIBLE.get(character, character) for character in text) for text in texts]


def _bars(annotations: Sequence[tuple[int, int, str]], length: int, per_row: int) -> Iterator[_Bar]:
    """The annotations split at the ends of rows; overlapping ones get different lanes."""
    labels = list(dict.fromkeys(label for _, _, label in annotations))
    ends: list[int] = []
    for start, stop, label in sorted(annotations):
        if not 0 <= start < stop <= length:
            raise ValueError(
                f"`annotations`: the interval {start}:{stop} of {label!r} is empty or outside of the {length} tokens."
            )
        lane = next((lane for lane, end in enumerate(ends) if end <= start), len(ends))
        ends[lane : lane + 1] = [stop]
        colour = _BAR_COLOURS[labels.index(label) % len(_BAR_COLOURS)]
        parts = [
            (row, max(start, row * per_row), min(stop, (row + 1) * per_row))
            for row in range(start // per_row, (stop - 1) // per_row + 1)
        ]
        longest = max(parts, key=lambda part: part[2] - part[1])
        for row, left, right in parts:
            named = label if (row, left, right) == longest else ""
            yield _Bar(row, left - row * per_row, right - row * per_row, lane, named, colour)


def _baselines(bars: Sequence[_Bar], rows: int) -> tuple[list[float], float]:
    """Baseline of the letters of each row, and the lower end of the last row."""
    baselines, top = [], _HEAD
    for row in range(rows):
        baselines.append(top + _LETTERS)
        lanes = 1 + max((bar.lane for bar in bars if bar.row == row), default=-1)
        top += _LETTERS + _TICKS + _LANE * lanes + _GAP
    return baselines, top


def _notes(result: Any) -> str:
    """Explanation of grey letters and of the frame, where there are any."""
    notes = ["grey: never masked"] if any(map(math.isnan, result.importance.tolist())) else []
    if result.target.get("position") is not None:
        notes.append("framed: the target")
    return "; ".join(notes)


def _draw_letters(axes: "Axes", result: Any, tokens: Sequence[str], per_row: int, baselines: Sequence[float]) -> None:
    from matplotlib.collections import PathCollection
    from matplotlib.patches import Rectangle

    glyphs = _Glyphs()
    outlines, colours = [], []
    target = result.target.get("position")
    for place, (token, importance) in enumerate(zip(tokens, result.importance.tolist(), strict=True)):
        baseline, column = baselines[place // per_row], place % per_row
        never_masked = math.isnan(importance)
        if place == target:
            frame = Rectangle((column, baseline - _LETTERS), 1, _LETTERS + 0.02, fill=False, edgecolor=style.PALETTE[1])
            axes.add_patch(frame)
        if never_masked and len(token) > 1:
            block = Rectangle((column + 0.08, baseline - _LETTERS), 0.84, _LETTERS, color="#E3E3E3", linewidth=0)
            axes.add_patch(block)
            name, middle = style.literal(token.strip("[]<>|")[:4]), baseline - _LETTERS / 2
            axes.text(column + 0.5, middle, name, fontsize=5, rotation=90, ha="center", va="center")
        elif token:
            share = 0.5 if never_masked else importance
            height = _LETTERS * (_MIN_HEIGHT + (1 - _MIN_HEIGHT) * share)
            outlines.append(glyphs.outline(token, column, baseline, height))
            colours.append(style.NEVER_MASKED if never_masked else style.importance_colour(importance))
    axes.add_collection(PathCollection(outlines, facecolors=colours, linewidths=0), autolim=False)


class _Glyphs:
    """Outlines of tokens, computed once for each token."""

    def __init__(self) -> None:
        from matplotlib.font_manager import FontProperties, findfont, get_font

        self._font = FontProperties(family="DejaVu Sans", weight="bold")
        self._characters = get_font(findfont(self._font))
        self._cache: dict[str, Outline] = {}
        self._capital = self._text_path("H").get_extents()

    def outline(self, token: str, column: int, baseline: float, height: float) -> "Outline":
        """The outline of a token on a baseline, centred in its column; capitals have the given height."""
        from matplotlib.transforms import Affine2D

        if token not in self._cache:
            self._cache[token] = self._text_path(token)
        path = self._cache[token]
        # A blank has no outline, hence no extents.
        start, width = (path.get_extents().x0, path.get_extents().width) if np.size(path.vertices) else (0.0, 0.0)
        # Letters fill their column, but thin ones, such as I, stay thinner than the others.
        x_scale = 0.9 / max(width, 0.75 * self._capital.width)
        y_scale = -height / self._capital.height
        left = column + (1 - x_scale * width) / 2
        return path.transformed(Affine2D().translate(-start, 0).scale(x_scale, y_scale).translate(left, baseline))

    def _text_path(self, token: str) -> "Outline":
        from matplotlib.textpath import TextPath

        # A character that the font lacks would be drawn as a box, with a warning.
        text = "".join(c if self._characters.get_char_index(ord(c)) else "?" for c in token)
        return TextPath((0, 0), style.literal(text), size=1, prop=self._font)


def _draw_positions(axes: "Axes", length: int, first: int, per_row: int, baselines: Sequence[float]) -> None:
    for row, baseline in enumerate(baselines):
        start, stop = row * per_row, min((row + 1) * per_row, length)
        axes.plot([0, stop - start], [baseline + 0.015] * 2, color="#BBBBBB", linewidth=0.5)
        for place in range(max(start, first), stop):
            number, x = place - first + 1, place - start + 0.5
            if number % _TICK_EVERY == 0 or number == 1:
                axes.plot([x, x], [baseline + 0.015, baseline + 0.045], color="#555555", linewidth=0.5)
                axes.text(x, baseline + 0.055, str(number), fontsize=_SMALL, color="#333333", ha="center", va="top")


def _draw_bar(axes: "Axes", bar: _Bar, top: float) -> None:
    from matplotlib.patches import Rectangle

    left, right = bar.start + 0.08, bar.stop - 0.08
    axes.add_patch(Rectangle((left, top), right - left, 0.035, color=bar.colour, linewidth=0))
    if bar.label:
        axes.text((left + right) / 2, top + 0.05, style.literal(bar.label), fontsize=_SMALL, ha="center", va="top")


def _draw_legend(figure: "Figure", width: float, height: float) -> None:
    """The colours and their meaning, at the top right."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    length = 1.1 if width > 5 else 0.8
    axes = figure.add_axes(((width - _SIDE - length - 0.02) / width, 1 - 0.16 / height, length / width, 0.08 / height))
    colours = ListedColormap([style.importance_colour(step / 255) for step in range(256)])
    bar = figure.colorbar(ScalarMappable(cmap=colours), cax=axes, orientation="horizontal", ticks=[0, 1])
    bar.outline.set_linewidth(0.4)
    axes.tick_params(labelsize=_SMALL, length=2, width=0.4, pad=1)
    axes.set_xticklabels(["masked first", "last"])
    axes.text(-0.04, 0.5, "importance", fontsize=_SMALL, ha="right", va="center", transform=axes.transAxes)
