"""Pieces of HTML: messages, progress, bars, tables, coloured tokens, heat maps.

All texts are escaped. Colours have a contrast of at least 4.5 with the letters on them, and are never the only sign: a
bar has its number, a cell its tooltip, a token its note.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from hf_ssm.app.jobs import Job
from hf_ssm.plotting.style import PALETTE, importance_background, text_colour_on

__all__ = [
    "ABOVE",
    "BELOW",
    "CSS",
    "Token",
    "bars",
    "definitions",
    "details",
    "diverging",
    "error",
    "heat_map",
    "legend",
    "note",
    "progress",
    "section",
    "sequential",
    "swatches",
    "table",
    "tokens",
]

# Blue and vermilion of the palette of Okabe and Ito at the ends, white between.
_LOW, _MIDDLE, _HIGH = (213, 94, 0), (247, 247, 247), (0, 114, 178)
_PLAIN = "#E4E4E4"
# Marks of the values beyond a scale of colours.
ABOVE, BELOW = "▲", "▼"
_BLOCK = 10
_LEGEND_STEPS = 21

_COLOURS = "".join(f"--palette-{number}: {colour}; " for number, colour in enumerate(PALETTE))
_SHEET = Path(__file__).with_name("page.css").read_text(encoding="utf-8")

CSS = f":root {{ {_COLOURS}--plain: {_PLAIN}; }}\n{_SHEET}"
"""The style sheet of the page."""


def note(text: str) -> str:
    """A sentence."""
    return section(f'<p class="message" role="status">{escape(text)}</p>')


def error(text: str) -> str:
    """An error message about the input."""
    return section(f'<p class="message error" role="alert">{escape(text)}</p>')


def progress(job: Job) -> str:
    """How far a computation is."""
    if job.total is None:
        counted = f"{job.done:,} {job.unit}, " if job.done else ""
        return section(
            f'<p role="status">Running: {counted}{job.seconds:.0f} s</p><progress aria-label="progress"></progress>'
        )
    left = "" if job.seconds_left is None else f", about {math.ceil(job.seconds_left)} s left"
    return section(
        f'<p role="status">Running: {job.done:,} of {job.total:,} {escape(job.unit)}{left}</p>'
        f'<progress aria-label="progress" max="{job.total}" value="{job.done}"></progress>'
    )


def section(*parts: str, title: str = "", lead: str = "") -> str:
    """Pieces of HTML below a heading and a sentence."""
    head = (f"<h3>{escape(title)}</h3>" if title else "") + (f"<p>{escape(lead)}</p>" if lead else "")
    return f'<div class="hf-ssm">{head}{"".join(parts)}</div>'


def bars(values: Mapping[str, float], title: str) -> str:
    """Probabilities as horizontal bars, with their numbers."""
    drawn = "".join(
        f'<div class="bar"><span>{escape(name)}</span><div class="track">'
        f'<div class="fill" style="width:{100 * value:.2f}%"></div></div><span class="value">{value:.1%}</span></div>'
        for name, value in values.items()
    )
    return f'<div role="group" aria-label="{escape(title, quote=True)}">{drawn}</div>'


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> str:
    """A table, which scrolls by itself where it is wider than the page; columns with words are aligned left."""
    has_words = [any(_is_word(row[column]) for row in rows) for column in range(len(header))]

    def line(tag: str, cells: Sequence[Any]) -> str:
        shown = []
        for cell, words in zip(cells, has_words, strict=True):
            name = f' class="word{" long" if len(str(cell)) > 30 else ""}"' if words else ""
            shown.append(f"<{tag}{name}>{escape(_cell(cell))}</{tag[:2]}>")
        return f"<tr>{''.join(shown)}</tr>"

    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    head, body = line('th scope="col"', header), "".join(line("td", row) for row in rows)
    return (
        f'<div class="wide" tabindex="0"><table class="numbers">{named}<thead>{head}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _is_word(cell: Any) -> bool:
    if not isinstance(cell, str):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


class Token(NamedTuple):
    """A token: its text, its colour (`None` for grey), what its tooltip says, whether it is the target."""

    text: str
    colour: str | None
    note: str
    is_target: bool = False


def tokens(shown: Sequence[Token], first: int = 1) -> str:
    """Coloured tokens; single letters in groups of ten with the position of the first.

    Args:
        shown: The tokens.
        first: Position of the first token.
    """
    if any(len(token.text) != 1 for token in shown):
        return f'<div class="tokens">{"".join(map(_token, shown))}</div>'
    groups = "".join(
        f'<span class="group"><span class="place">{first + start}</span>'
        f"{''.join(map(_token, shown[start : start + _BLOCK]))}</span>"
        for start in range(0, len(shown), _BLOCK)
    )
    return f'<div class="tokens letters">{groups}</div>'


def _token(token: Token) -> str:
    colour = token.colour or _PLAIN
    style = f"background:{colour};color:{text_colour_on(colour)}"
    name = "token target" if token.is_target else "token"
    text = escape(token.text).replace("\n", "↵\n")
    return f'<span class="{name}" style="{style}" title="{escape(token.note, quote=True)}">{text}</span>'


def sequential(share: float) -> str:
    """Colour of a share from 0 (pale) to 1 (dark blue)."""
    return importance_background(share)


def diverging(share: float) -> str:
    """Colour from -1 (vermilion) over 0 (white) to 1 (blue)."""
    end = _HIGH if share > 0 else _LOW
    weight = min(abs(share), 1.0)
    mixed = (round(middle + weight * (colour - middle)) for middle, colour in zip(_MIDDLE, end, strict=True))
    return "#" + "".join(f"{channel:02X}" for channel in mixed)


def legend(low: str, high: str, both_signs: bool) -> str:
    """The scale of `sequential` or `diverging` with the meaning of its ends."""
    shares = [step / (_LEGEND_STEPS - 1) for step in range(_LEGEND_STEPS)]
    colours = [diverging(2 * share - 1) if both_signs else sequential(share) for share in shares]
    scale = "".join(f'<span style="background:{colour}"></span>' for colour in colours)
    return (
        f'<p class="legend"><span>{escape(low)}</span><span class="scale">{scale}</span><span>{escape(high)}</span></p>'
    )


def swatches(colours: Mapping[str, str]) -> str:
    """A legend of names and their colours."""
    entries = (
        f'<span><span class="swatch" style="background:{colour}"></span>{escape(name)}</span>'
        for name, colour in colours.items()
    )
    return f'<p class="legend">{"".join(entries)}</p>'


def heat_map(
    letters: str, cells: Mapping[tuple[int, str], float], rows: Sequence[str], first: int, limit: float, unit: str
) -> str:
    """A cell for each letter in place of each position, in blocks of ten positions that wrap.

    A triangle marks a cell whose value is beyond the scale of colours.

    Args:
        letters: The reference.
        cells: Value by index of the position and new letter.
        rows: The letters that replace others.
        first: Position of the first letter, for labels.
        limit: Absolute value with the darkest colour.
        unit: Unit of the values, for tooltips.
    """

    def cell(letter: str, place: int) -> str:
        value = cells.get((place, letter))
        where = f"{first + place}: {letters[place]}"
        if value is None:
            mark = "•" if letters[place].upper() == letter else ""
            return f'<td class="cell own" title="{escape(where, quote=True)} in the sequence">{mark}</td>'
        colour, what = diverging(value / limit if limit else 0.0), f"{where} to {letter}: {value:+.3g} {unit}"
        mark = "" if abs(value) <= limit else ABOVE if value > 0 else BELOW
        style = f"background:{colour};color:{text_colour_on(colour)}"
        return f'<td class="cell" style="{style}" title="{escape(what, quote=True)}">{mark}</td>'

    blocks = []
    for start in range(0, len(letters), _BLOCK):
        places = range(start, min(start + _BLOCK, len(letters)))
        head = f'<tr><td></td><th class="place" colspan="{len(places)}">{first + start}</th></tr>'
        for letter in rows:
            head += f'<tr><th scope="row">{escape(letter)}</th>{"".join(cell(letter, place) for place in places)}</tr>'
        blocks.append(f"<table>{head}</table>")
    return f'<div class="heat">{"".join(blocks)}</div>'


def definitions(meanings: Mapping[str, str]) -> str:
    """The meaning of numbers, in a sentence each."""
    entries = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in meanings.items())
    return f"<dl>{entries}</dl>"


def details(summary: str, content: str) -> str:
    """Something long that a click unfolds."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"
