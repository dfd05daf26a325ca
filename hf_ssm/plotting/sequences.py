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


@dataclass(frozen=True)
class _Block:
    """A sequence in the figure: where it starts, the lines above it, its letters and its annotations."""

    result: Any
    top: float
    name: str
    first: int
    letters: Sequence[str]
    bars: Sequence[_Bar]
    head: Sequence[str]
    caution: Sequence[str]

    def row_tops(self, per_row: int) -> list[float]:
        """Upper ends of the rows of tiles, each with the lanes of its annotations, and the lower end of the last."""
        lanes = [0] * -(-len(self.letters) // per_row)
        for bar in self.bars:
            lanes[bar.row] = max(lanes[bar.row], bar.lane + 1)
        begin = self.top + _NAME + _LINE * (len(self.head) - 1 + len(self.caution))
        return list(accumulate((_TILE + _LINE_GAP + _LANE * count for count in lanes), initial=begin))


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
    if isinstance(per_row, bool) or not isinstance(per_row, int) or per_row < 1:
        raise ValueError(f"`per_row`={per_row!r}: expected a positive integer.")
    count = len(results)
    each = zip(results, annotations or [()] * count, names or [""] * count, first or [0] * count, strict=True)
    titles = textwrap.wrap(title, _TITLE_CHARACTERS)
    top = _FOOT + _TITLE * len(titles)
    height, blocks = top + _LEGEND, []
    for result, intervals, name, start in each:
        letters = _visible_tokens(result)
        bars = list(_split_annotations(intervals, len(letters), per_row))
        head = textwrap.wrap(headline(result, class_names), _BOLD_CHARACTERS)
        caution = textwrap.wrap(warning(result, class_names), _CHARACTERS)
        blocks.append(_Block(result, height, name, start, letters, bars, head, caution))
        height = blocks[-1].row_tops(per_row)[-1] + _GAP
    figure = style.new_figure(_WIDTH, height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, _WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    for line, text in enumerate(titles):
        axes.text(_LEFT, _FOOT + _TITLE * line, style.literal(text), fontsize=_HEADING, weight="bold", va="top")
    _draw_legend(axes, top, results[0], by, unit, any(annotations))
    for block in blocks:
        _draw_heading(axes, block)
        _draw_tiles(axes, block, by, per_row)
    return style.finish_figure(figure, path)


def _draw_heading(axes: "Axes", block: _Block) -> None:
    name, middle = style.literal(block.name), block.top + _NAME + _LINE * (len(block.head) - 1) - 0.03
    axes.text(_WIDTH - _RIGHT, block.top, name, fontsize=_SMALL, color=style.GREY, va="top", ha="right")
    for line, text in enumerate(block.head):
        axes.text(_LEFT, block.top + _LINE * line, style.literal(text), fontsize=_TEXT, weight="bold", va="top")
    for line, text in enumerate(block.caution):
        axes.text(_LEFT, middle + _LINE * line, style.literal(text), fontsize=_SMALL, va="top")


def _draw_tiles(axes: "Axes", block: _Block, by: str, per_row: int) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    cell = (_WIDTH - _LEFT - _RIGHT) / per_row
    tokens, tops = coloured_tokens(block.result, by), block.row_tops(per_row)[:-1]
    target = block.result.target.get("position")
    patches = []
    for place, (token, letter) in enumerate(zip(tokens, block.letters, strict=True)):
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
        position = max(row * per_row - block.first, 0) + 1
        middle = _LEFT - 0.06, upper + _TILE / 2
        axes.text(*middle, str(position), fontsize=_SMALL, color=style.GREY, ha="right", va="center")
    for bar in block.bars:
        left, right = _LEFT + bar.start * cell, _LEFT + bar.stop * cell
        upper = tops[bar.row] + _TILE + 0.025 + _LANE * bar.lane
        axes.add_patch(Rectangle((left, upper), right - left, 0.035, color=bar.colour, linewidth=0))
        if bar.label:
            middle, text = ((left + right) / 2, upper + 0.05), style.literal(bar.label)
            axes.text(*middle, text, fontsize=_SMALL, ha="center", va="top")


def _draw_legend(axes: "Axes", top: float, result: Any, by: str, unit: str, has_bars: bool) -> None:
    """The scale of colours, in words."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Rectangle

    low, high = scale_labels(by, value_name(result), unit)
    middle = top + 0.12
    words = axes.text(_LEFT, middle, low, fontsize=_SMALL, va="center")
    left = _end_of(axes, words) + 0.08
    colours = ListedColormap([style.importance_background(step / (_STEPS - 1)) for step in range(_STEPS)])
    extent = (left, left + _SCALE, middle - 0.06, middle + 0.06)
    style.heat_map(axes, np.arange(_STEPS)[None], extent, cmap=colours, aspect="auto")
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
