"""Sequences as rows of coloured tiles, one letter each: what the predictions of a model depend on.

All lengths are in inches.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ssm.plotting import style
from hf_ssm.plotting.tokens import coloured_tokens, headline, scale_labels, value_name, warning

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_TOKENS = 5000
"""Longest sequence that `plot_sequences` accepts."""

# The figure is drawn at 8 inches, so that a width of 800 pixels shows 9 points as 12 pixels.
_WIDTH, _LEFT, _RIGHT = 8.0, 0.48, 0.12
_TITLE, _LEGEND, _FOOT = 0.3, 0.42, 0.1
_NAME, _LINE, _TILE, _LANE, _LINE_GAP, _GAP, _SCALE = 0.27, 0.17, 0.25, 0.17, 0.06, 0.16, 1.2
_SMALL, _TEXT, _HEADING = 8, 9, 11
# Characters in a line of the title, of the target, which is bold and ends before the name of the sequence, and of a
# warning.
_TITLE_CHARACTERS, _BOLD_CHARACTERS, _CHARACTERS = 75, 85, 130
# Letters from this share on are bold.
_BOLD = 0.1
_MAX_CHARACTERS = 4
_STEPS = 128
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
def plot_sequences(
    results: Sequence[Any],
    path: str | Path | None = None,
    annotations: Sequence[Sequence[tuple[int, int, str]]] = (),
    *,
    by: str = "effect",
    class_names: Mapping[int, str] | None = None,
    names: Sequence[str] = (),
    first: Sequence[int] = (),
    unit: str = "base",
    per_row: int = 50,
    title: str = "",
) -> "Figure":
    """Plot sequences as letters on coloured tiles: dark where the prediction is lost once the token, too, is masked.

    Above each sequence stand its target and the probability with nothing and with all tokens masked.

    Args:
        results: `MaskingResult` objects of sequences of at most 5000 tokens of at most four characters each.
        annotations: For each sequence the intervals to underline: first token, token after the last one, label.
        by: "effect", the share of the probability that is lost once the token, too, is masked, or "rank", the rank in
            the order of masking.
        class_names: Names by the number of the class, such as `model.config.id2label`.
        names: Name of each sequence, at the right margin; default: none.
        first: Index of the token at position 1 of each sequence; default: 0.
        unit: Name of a token: "base", or "token".
        per_row: Letters in a row.

    Raises:
        ValueError: There is no result; other numbers of annotations, names or first tokens than of results; a sequence
            or one of its tokens is too long; an annotation lies outside of its sequence; `per_row` is not a positive
            integer; or `by` is unknown.
    """
    if not results:
        raise ValueError("`results` is empty: pass the result of at least one sequence.")
    annotations = annotations or [()] * len(results)
    names, first = names or [""] * len(results), first or [0] * len(results)
    bars = [
        list(_split_annotations(intervals, len(_visible_tokens(result)), per_row))
        for result, intervals in zip(results, annotations, strict=True)
    ]
    heads = [textwrap.wrap(headline(result, class_names), _BOLD_CHARACTERS) for result in results]
    cautions = [textwrap.wrap(warning(result, class_names), _CHARACTERS) for result in results]
    titles = textwrap.wrap(title, _TITLE_CHARACTERS)
    top = _FOOT + _TITLE * len(titles)
    ends = [top + _LEGEND]
    all_tops = []
    for result, lanes, head, caution in zip(results, bars, heads, cautions, strict=True):
        begin = ends[-1] + _NAME + _LINE * (len(head) - 1 + len(caution))
        all_tops.append(_row_tops(lanes, -(-len(result.input_ids) // per_row), begin, _TILE + _LINE_GAP, _LANE))
        ends.append(all_tops[-1][-1] + _GAP)
    figure = style.new_figure(_WIDTH, ends[-1])
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, _WIDTH), ylim=(ends[-1], 0))
    axes.set_axis_off()
    for line, text in enumerate(titles):
        axes.text(_LEFT, _FOOT + _TITLE * line, style.literal(text), fontsize=_HEADING, weight="bold", va="top")
    _draw_legend(axes, top, results[0], by, unit, any(annotations))
    sequences = zip(results, ends[:-1], all_tops, bars, heads, cautions, names, first, strict=True)
    for result, begin, tops, lanes, head, caution, name, start in sequences:
        axes.text(_WIDTH - _RIGHT, begin, style.literal(name), fontsize=_SMALL, color=style.GREY, va="top", ha="right")
        for line, text in enumerate(head):
            axes.text(_LEFT, begin + _LINE * line, style.literal(text), fontsize=_TEXT, weight="bold", va="top")
        begin += _NAME + _LINE * (len(head) - 1)
        for line, text in enumerate(caution):
            axes.text(_LEFT, begin - 0.03 + _LINE * line, style.literal(text), fontsize=_SMALL, va="top")
        _draw_tiles(axes, tops[:-1], result, by, lanes, start, per_row)
    return style.finish_figure(figure, path)


def _draw_tiles(
    axes: "Axes", tops: Sequence[float], result: Any, by: str, bars: Sequence[_Bar], first: int, per_row: int
) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    cell = (_WIDTH - _LEFT - _RIGHT) / per_row
    tokens, letters = coloured_tokens(result, by), _visible_tokens(result)
    target = result.target.get("position")
    patches = []
    for place, (token, letter) in enumerate(zip(tokens, letters, strict=True)):
        left, upper = _LEFT + place % per_row * cell, tops[place // per_row]
        patches.append(Rectangle((left + 0.004, upper), cell - 0.008, _TILE))
        text = style.literal(letter.strip("[]<>|")[:4] if len(letter) > 4 else letter)
        size = 10 if len(text) <= 1 else 10 / len(text) + 2
        middle = left + cell / 2, upper + _TILE / 2
        weight = "bold" if token.share >= _BOLD else "normal"
        drawn: dict[str, Any] = {"fontsize": size, "color": token.foreground, "weight": weight}
        axes.text(*middle, text, ha="center", va="center_baseline", **drawn)
        if place == target:
            axes.add_patch(Rectangle((left, upper), cell, _TILE, fill=False, edgecolor=style.PALETTE[1], linewidth=1.5))
    axes.add_collection(PatchCollection(patches, facecolors=[token.background for token in tokens]), autolim=False)
    for row, upper in enumerate(tops):
        position = max(row * per_row - first, 0) + 1
        middle = _LEFT - 0.06, upper + _TILE / 2
        axes.text(*middle, str(position), fontsize=_SMALL, color=style.GREY, ha="right", va="center")
    for bar in bars:
        upper = tops[bar.row] + _TILE + 0.025 + _LANE * bar.lane
        _draw_bar(axes, bar, _LEFT + bar.start * cell, _LEFT + bar.stop * cell, upper)


def _draw_legend(axes: "Axes", top: float, result: Any, by: str, unit: str, has_bars: bool) -> None:
    """The scale of colours, in words."""
    from matplotlib.patches import Rectangle

    low, high = scale_labels(by, value_name(result), unit)
    middle = top + 0.12
    words = axes.text(_LEFT, middle, low, fontsize=_SMALL, va="center")
    left = _end_of(axes, words) + 0.08
    _draw_scale(axes, left, middle, _SCALE, 0.12)
    axes.add_patch(Rectangle((left, middle - 0.06), _SCALE, 0.12, fill=False, edgecolor=style.GREY, linewidth=0.4))
    words = axes.text(left + _SCALE + 0.08, middle, high, fontsize=_SMALL, va="center")
    if has_bars:
        left = _end_of(axes, words) + 0.25
        axes.add_patch(Rectangle((left, middle - 0.018), 0.3, 0.035, color=_BAR_COLOURS[0], linewidth=0))
        axes.text(left + 0.36, middle, "known site", fontsize=_SMALL, va="center")


def _end_of(axes: "Axes", text: Any) -> float:
    """Right end of a text in inches."""
    return float(text.get_window_extent().x1) / axes.figure.dpi


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


def _split_annotations(annotations: Sequence[tuple[int, int, str]], length: int, per_row: int) -> Iterator[_Bar]:
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
        colour = _BAR_COLOURS[labels.index(label) % len(_BAR_COLOURS)]
        rows = range(start // per_row, (stop - 1) // per_row + 1)
        columns = {row: (max(start - row * per_row, 0), min(stop - row * per_row, per_row)) for row in rows}
        longest = max(rows, key=lambda row: columns[row][1] - columns[row][0])
        for row, (left, right) in columns.items():
            yield _Bar(row, left, right, lane, label if row == longest else "", colour)


def _row_tops(bars: Sequence[_Bar], rows: int, top: float, height: float, lane: float) -> list[float]:
    """Upper ends of rows of a height and of the lanes of their bars, and the lower end of the last row."""
    lanes = [1 + max((bar.lane for bar in bars if bar.row == row), default=-1) for row in range(rows)]
    return list(accumulate((height + lane * count for count in lanes), initial=top))


def _draw_bar(axes: "Axes", bar: _Bar, left: float, right: float, top: float) -> None:
    """Draw a bar with its label below."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, top), right - left, 0.035, color=bar.colour, linewidth=0))
    if bar.label:
        axes.text((left + right) / 2, top + 0.05, style.literal(bar.label), fontsize=_SMALL, ha="center", va="top")


def _draw_scale(axes: "Axes", left: float, middle: float, width: float, height: float) -> None:
    """Draw the colours of the shares from 0 to 1 side by side."""
    colours = [style.importance_background(step / (_STEPS - 1)) for step in range(_STEPS)]
    lefts = left + width / _STEPS * np.arange(_STEPS)
    # Overlapping, as a viewer may show the page between them.
    options: dict[str, Any] = {"align": "edge", "color": colours, "linewidth": 0}
    axes.bar(lefts, height, 1.2 * width / _STEPS, middle - height / 2, **options)
