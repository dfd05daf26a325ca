"""A sequence as rows of letters whose height and colour show their effect or rank, with annotations below.

All lengths are in inches: letters, ticks and bars have the same size in short and in long sequences.
"""

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.plotting import style
from hf_ssm.plotting.tokens import headline, scale_labels, shares, value_name, warning

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path as Outline

MAX_TOKENS = 5000
"""Longest sequence that `plot_sequence` accepts."""

# Margins of the figure, and the parts of a row from top to bottom.
_SIDE, _TOP, _LINE, _FOOT = 0.12, 0.08, 0.17, 0.22
_LETTERS, _TICKS, _LANE, _GAP = 0.34, 0.17, 0.19, 0.1
# Height of the least important letter, as a share of the most important one: smaller letters are unreadable.
_MIN_HEIGHT = 0.22
_MAX_CHARACTERS = 4
_TICK_EVERY, _STEPS = 10, 128
_SMALL, _TEXT = 7, 8
# Width of the scale of colours, and of a letter of the text above the sequence.
_SCALE, _LETTER = 1.1, 0.064
# Vermilion first, which differs most from the colours of importance.
BAR_COLOURS = (*style.PALETTE[1:4], style.PALETTE[5], style.PALETTE[4], "#000000")
# Symbols for invisible characters, including those that tokenizers write for them.
_VISIBLE = {"Ġ": "␣", "▁": "␣", " ": "␣", "Ċ": "↵", "\n": "↵", "ĉ": "⇥", "\t": "⇥"}


@dataclass(frozen=True)
class Bar:
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
    per_row: int = 60,
    width: float = 7.0,
    title: str = "",
    by: str = "effect",
    class_names: Mapping[int, str] | None = None,
) -> "Figure":
    """Plot the letters of a sequence; tokens that the prediction depends on are higher and darker.

    Letters that were never masked are grey, special tokens are grey blocks with their names, and the predicted token
    has a frame. Positions are counted from 1. Above the sequence stand the target, the probability with nothing and
    with all tokens masked, the meaning of the height, and a warning for a prediction that stays with all tokens masked.

    Args:
        result: `MaskingResult` of a sequence of at most 5000 tokens of at most four characters each.
        annotations: Intervals to underline, such as planted motifs: first token, token after the last one, label. They
            may overlap. Equal labels have equal colours.
        first: Index of the token at position 1; special tokens before it are not counted.
        unit: Unit of the positions.
        per_row: Letters in a row.
        width: Width of the figure in inches: 7 for a page, 3.5 (with 30 letters in a row) for a column.
        by: "effect", the share of the probability that is lost once the token, too, is masked; or "rank", the rank in
            the order of masking, under which tokens without any effect differ in height, too.
        class_names: Names by the number of the class, such as `model.config.id2label`.

    Raises:
        ValueError: The sequence or one of its tokens is too long, an annotation lies outside of the sequence,
            `per_row` is not a positive integer, or `by` is unknown.
    """
    tokens = visible_tokens(result)
    heights = shares(result, by)
    bars = list(split_annotations(annotations, len(tokens), per_row))
    texts = [title, headline(result, class_names), warning(result, class_names)]
    lines = [textwrap.wrap(text, max(10, int((width - 2 * _SIDE) / _LETTER))) for text in texts]
    head = _TOP + _LINE * sum(map(len, lines)) + 0.28
    *tops, end = row_tops(bars, -(-len(tokens) // per_row), head, _LETTERS + _TICKS + _GAP, _LANE)
    baselines, height = [top + _LETTERS for top in tops], end + _FOOT
    figure = style.new_figure(width, height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((_SIDE / width, 0, 1 - 2 * _SIDE / width, 1))
    # x: columns; y: inches from the top.
    axes.set(xlim=(0, per_row), ylim=(height, 0))
    axes.set_axis_off()
    top = _TOP
    for paragraph, weight in zip(lines, ("bold", "normal", "normal"), strict=True):
        for line in paragraph:
            axes.text(0, top, style.literal(line), va="top", fontsize=_TEXT, weight=weight)
            top += _LINE
    low, high = scale_labels(by, value_name(result), "base" if unit in ("bp", "bases") else "token")
    _draw_legend(axes, top + 0.08, width, f"height and colour: {low}", high)
    _draw_letters(axes, result, tokens, heights, per_row, baselines)
    _draw_positions(axes, len(tokens), first, per_row, baselines)
    for bar in bars:
        draw_bar(axes, bar, bar.start + 0.08, bar.stop - 0.08, baselines[bar.row] + _TICKS + _LANE * bar.lane)
    axes.text(0, height - 0.07, f"position ({unit})", va="bottom", fontsize=_TEXT)
    notes = ["grey: never masked"] if any(map(math.isnan, heights)) else []
    notes += ["framed: the target"] if result.target.get("position") is not None else []
    axes.text(per_row, height - 0.07, "; ".join(notes), fontsize=_SMALL, va="bottom", ha="right", color="#333333")
    return style.finish_figure(figure, path)


def visible_tokens(result: Any) -> list[str]:
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


def split_annotations(annotations: Sequence[tuple[int, int, str]], length: int, per_row: int) -> Iterator[Bar]:
    """The annotations split at the ends of rows; overlapping ones get different lanes."""
    if isinstance(per_row, bool) or not isinstance(per_row, int) or per_row < 1:
        raise ValueError(f"`per_row`={per_row!r}: expected a positive integer.")
    labels = list(dict.fromkeys(label for _, _, label in annotations))
    ends: list[int] = []
    for start, stop, label in sorted(annotations):
        if not 0 <= start < stop <= length:
            raise ValueError(
                f"`annotations`: the interval {start}:{stop} of {label!r} is empty or outside of the {length} tokens."
            )
        lane = next((lane for lane, end in enumerate(ends) if end <= start), len(ends))
        ends[lane : lane + 1] = [stop]
        colour = BAR_COLOURS[labels.index(label) % len(BAR_COLOURS)]
        rows = range(start // per_row, (stop - 1) // per_row + 1)
        columns = {row: (max(start - row * per_row, 0), min(stop - row * per_row, per_row)) for row in rows}
        longest = max(rows, key=lambda row: columns[row][1] - columns[row][0])
        for row, (left, right) in columns.items():
            yield Bar(row, left, right, lane, label if row == longest else "", colour)


def row_tops(bars: Sequence[Bar], rows: int, top: float, height: float, lane: float) -> list[float]:
    """Upper ends of rows of a height and of the lanes of their bars, and the lower end of the last row."""
    lanes = [1 + max((bar.lane for bar in bars if bar.row == row), default=-1) for row in range(rows)]
    return list(accumulate((height + lane * count for count in lanes), initial=top))


def draw_bar(axes: "Axes", bar: Bar, left: float, right: float, top: float) -> None:
    """Draw a bar with its label below."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, top), right - left, 0.035, color=bar.colour, linewidth=0))
    if bar.label:
        axes.text((left + right) / 2, top + 0.05, style.literal(bar.label), fontsize=_SMALL, ha="center", va="top")


def draw_scale(
    axes: "Axes", left: float, middle: float, width: float, height: float, colour: Callable[[float], str]
) -> None:
    """Draw the colours of the shares from 0 to 1 side by side."""
    colours = [colour(step / (_STEPS - 1)) for step in range(_STEPS)]
    lefts = left + width / _STEPS * np.arange(_STEPS)
    # Overlapping, as a viewer may show the page between them.
    options: dict[str, Any] = {"align": "edge", "color": colours, "linewidth": 0}
    axes.bar(lefts, height, 1.2 * width / _STEPS, middle - height / 2, **options)


def _draw_letters(
    axes: "Axes",
    result: Any,
    tokens: Sequence[str],
    heights: Sequence[float],
    per_row: int,
    baselines: Sequence[float],
) -> None:
    from matplotlib.collections import PathCollection
    from matplotlib.patches import Rectangle

    outlines, colours = [], []
    target = result.target.get("position")
    for place, (token, share) in enumerate(zip(tokens, heights, strict=True)):
        baseline, column = baselines[place // per_row], place % per_row
        never_masked = math.isnan(share)
        if place == target:
            frame = Rectangle((column, baseline - _LETTERS), 1, _LETTERS + 0.02, fill=False, edgecolor=style.PALETTE[1])
            axes.add_patch(frame)
        if never_masked and len(token) > 1:
            block = Rectangle((column + 0.08, baseline - _LETTERS), 0.84, _LETTERS, color="#E3E3E3", linewidth=0)
            axes.add_patch(block)
            name, middle = style.literal(token.strip("[]<>|")[:4]), baseline - _LETTERS / 2
            axes.text(column + 0.5, middle, name, fontsize=5, rotation=90, ha="center", va="center")
        elif token:
            height = _LETTERS * (_MIN_HEIGHT + (1 - _MIN_HEIGHT) * (0.5 if never_masked else min(share, 1.0)))
            outlines.append(_outline(token, column, baseline, height))
            colours.append(style.NEVER_MASKED if never_masked else style.importance_colour(share))
    axes.add_collection(PathCollection(outlines, facecolors=colours, linewidths=0), autolim=False)


@lru_cache(1000)
def _glyphs(token: str) -> "Outline":
    """The outline of a token, of size 1."""
    from matplotlib.font_manager import FontProperties, findfont, get_font
    from matplotlib.textpath import TextPath

    font = FontProperties(family="DejaVu Sans", weight="bold")
    characters = get_font(findfont(font))
    # A character that the font lacks would be drawn as a box, with a warning.
    text = "".join(c if characters.get_char_index(ord(c)) else "?" for c in token)
    return TextPath((0, 0), style.literal(text), size=1, prop=font)


def _outline(token: str, column: int, baseline: float, height: float) -> "Outline":
    """The outline of a token on a baseline, centred in its column; capitals have the given height."""
    from matplotlib.transforms import Affine2D

    path, capital = _glyphs(token), _glyphs("H").get_extents()
    # A blank has no outline, hence no extents.
    start, width = (path.get_extents().x0, path.get_extents().width) if np.size(path.vertices) else (0.0, 0.0)
    # Letters fill their column, but thin ones, such as I, stay thinner than the others.
    x_scale = 0.9 / max(width, 0.75 * capital.width)
    left = column + (1 - x_scale * width) / 2
    return path.transformed(
        Affine2D().translate(-start, 0).scale(x_scale, -height / capital.height).translate(left, baseline)
    )


def _draw_positions(axes: "Axes", length: int, first: int, per_row: int, baselines: Sequence[float]) -> None:
    for row, baseline in enumerate(baselines):
        start, stop = row * per_row, min((row + 1) * per_row, length)
        axes.plot([0, stop - start], [baseline + 0.015] * 2, color="#BBBBBB", linewidth=0.5)
        for place in range(max(start, first), stop):
            number, x = place - first + 1, place - start + 0.5
            if number % _TICK_EVERY == 0 or number == 1:
                axes.plot([x, x], [baseline + 0.015, baseline + 0.045], color="#555555", linewidth=0.5)
                axes.text(x, baseline + 0.055, str(number), fontsize=_SMALL, color="#333333", ha="center", va="top")


def _draw_legend(axes: "Axes", middle: float, width: float, low: str, high: str) -> None:
    """The scale of colours between the meanings of its ends."""
    columns = axes.get_xlim()[1] / (width - 2 * _SIDE)
    words = axes.text(0, middle, low, fontsize=_SMALL, va="center")
    left = words.get_window_extent().x1 / axes.figure.dpi - _SIDE + 0.06
    draw_scale(axes, left * columns, middle, _SCALE * columns, 0.1, style.importance_colour)
    axes.text((left + _SCALE + 0.06) * columns, middle, high, fontsize=_SMALL, va="center")
