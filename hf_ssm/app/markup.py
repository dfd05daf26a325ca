"""Pieces of HTML: messages, progress, bars, tables, coloured tokens, heat maps.

All texts are escaped. Colours have a contrast of at least 4.5 with the letters on them, and are never the only sign: a
bar has its number, a cell its tooltip, a token its note.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from hf_ssm.app.jobs import Job
from hf_ssm.plotting.style import PALETTE, importance_background, text_colour_on

__all__ = [
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
_BLOCK = 10
_LEGEND_STEPS = 21

CSS = f"""
.gradio-container {{ max-width: 1100px !important; margin: 0 auto !important; width: 100% !important; }}
.gradio-container .wrap, .gradio-container .contain {{ max-width: 100%; min-width: 0; }}
@media (max-width: 640px) {{
  .gradio-container .main {{ padding: 12px !important; }}
  .tab-container button {{ font-size: 0.8rem !important; padding: 0 0.45rem !important; }}
  .hf-ssm .heat, .hf-ssm .heat table {{ width: 100%; }}
  .hf-ssm .bar {{ grid-template-columns: minmax(4rem, 8rem) 1fr 3.6rem; }}
}}
.hf-ssm {{ color: var(--body-text-color); overflow-wrap: anywhere; }}
.hf-ssm h3 {{ font-size: 1.05rem; font-weight: 600; margin: 1.2rem 0 0.4rem; }}
.hf-ssm p {{ margin: 0.3rem 0; }}
.hf-ssm .quiet {{ color: var(--body-text-color); font-size: 0.9rem; opacity: 0.85; }}
.hf-ssm .message {{ border-left: 5px solid {PALETTE[0]}; padding: 0.5rem 0.8rem; }}
.hf-ssm .message.error {{ border-color: {PALETTE[1]}; font-weight: 600; }}
.hf-ssm .answer {{ font-size: 1.3rem; font-weight: 600; margin: 0.4rem 0; }}
.hf-ssm progress {{ accent-color: {PALETTE[0]}; height: 0.8rem; width: 100%; }}
.hf-ssm .wide {{ overflow-x: auto; max-width: 100%; }}
.hf-ssm table {{ border-collapse: collapse; font-size: 0.9rem; }}
.hf-ssm table, .hf-ssm thead, .hf-ssm tr, .hf-ssm th, .hf-ssm td {{ border: 0 !important; }}
.hf-ssm table caption {{ font-size: 0.9rem; padding: 0.2rem 0; text-align: left; }}
.hf-ssm table.numbers th, .hf-ssm table.numbers td {{
  border-bottom: 1px solid var(--border-color-primary) !important;
  padding: 0.25rem 0.7rem 0.25rem 0; text-align: right; white-space: nowrap; vertical-align: top; }}
.hf-ssm table.numbers th {{ overflow-wrap: normal; white-space: normal; }}
.hf-ssm table.numbers th.word, .hf-ssm table.numbers td.word {{ text-align: left; }}
.hf-ssm td.word.long {{ white-space: normal !important; min-width: 12rem; }}
.hf-ssm .bar {{ display: grid; grid-template-columns: minmax(4rem, 12rem) 1fr 4.2rem; gap: 0.6rem; margin: 0.25rem 0;
  align-items: center; }}
.hf-ssm .bar .track {{ background: var(--border-color-primary); border-radius: 3px; height: 1.1rem; }}
.hf-ssm .bar .fill {{ background: {PALETTE[0]}; border-radius: 3px; height: 100%; min-width: 2px; }}
.hf-ssm .bar .fill.second {{ background: {PALETTE[4]}; }}
.hf-ssm .bar .value {{ font-variant-numeric: tabular-nums; text-align: right; }}
.hf-ssm .tokens {{ font-size: 1.05rem; line-height: 1.75; white-space: pre-wrap; }}
.hf-ssm .tokens.letters {{ font-family: var(--font-mono); display: flex; flex-wrap: wrap; gap: 0.15rem 0.7rem; }}
.hf-ssm .tokens .group {{ white-space: nowrap; }}
.hf-ssm .tokens .place {{ color: var(--body-text-color); font-size: 0.7rem; opacity: 0.85; display: block;
  line-height: 1; }}
.hf-ssm .tokens .token {{ padding: 0.1rem 0.02rem; }}
.hf-ssm .tokens .target {{ outline: 3px solid {PALETTE[1]}; }}
.hf-ssm .legend {{ align-items: center; display: flex; flex-wrap: wrap; font-size: 0.9rem; gap: 0.1rem 0.6rem; }}
.hf-ssm .legend .scale {{ display: inline-flex; }}
.hf-ssm .legend .scale span {{ height: 1rem; width: 0.5rem; }}
.hf-ssm .legend .swatch {{ display: inline-block; height: 1rem; width: 1rem; margin-right: 0.3rem;
  vertical-align: text-bottom; }}
.hf-ssm .heat {{ display: flex; flex-wrap: wrap; gap: 0.9rem 1rem; margin: 0.6rem 0; }}
.hf-ssm .heat table {{ font-family: var(--font-mono); line-height: 1; }}
.hf-ssm .heat th[scope] {{ width: 1.4rem; }}
.hf-ssm .heat th {{ font-weight: 600; padding: 0 0.35rem 0 0; }}
.hf-ssm .heat th.place {{ font-weight: 400; font-size: 0.75rem; padding: 0 0 0.2rem; text-align: left; }}
.hf-ssm .heat td.cell {{ border: 1px solid rgba(127, 127, 127, 0.35) !important;
  font-size: 0.85rem; height: 1.3rem; padding: 0;
  text-align: center; width: 1.3rem; min-width: 1.3rem; }}
.hf-ssm .heat td.own {{ background: {_PLAIN}; color: #1A1A1A; }}
.hf-ssm .figures {{ display: flex; flex-wrap: wrap; gap: 1rem; }}
.hf-ssm figure {{ flex: 1 1 21rem; margin: 0; max-width: 34rem; min-width: 0; overflow-x: auto; }}
.hf-ssm figure svg {{ display: block; height: auto; width: 100%; }}
.hf-ssm figure svg text {{ fill: currentColor; }}
.hf-ssm figcaption {{ font-size: 0.9rem; margin-top: 0.2rem; }}
.hf-ssm summary {{ cursor: pointer; margin: 0.8rem 0; }}
.hf-ssm dl {{ display: grid; gap: 0.3rem 1rem; grid-template-columns: minmax(3.5rem, max-content) 1fr; margin: 0.4rem 0;
  font-size: 0.9rem; }}
.hf-ssm dt {{ font-weight: 600; }}
.hf-ssm dd {{ margin: 0; }}
.hf-ssm .beside {{ flex: 1 1 18rem; min-width: 0; }}
.html-container {{ padding: 0 !important; }}
button.primary, button.stop {{ flex: 0 0 auto !important; white-space: nowrap; width: max-content !important; }}
.gradio-container {{ --color-accent: #0072B2; }}
.dark .gradio-container, .dark.gradio-container {{ --color-accent: #4B99CB; }}
.min_value, .max_value {{ color: var(--body-text-color) !important; }}
#sequence textarea {{ font-family: var(--font-mono); }}
#title h1 {{ font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }}
#title p {{ margin: 0.2rem 0 0; }}
button:focus-visible, textarea:focus-visible, input:focus-visible {{ outline: 3px solid {PALETTE[4]} !important; }}
"""
"""The style sheet of the page."""


def _whole(content: str) -> str:
    return f'<div class="hf-ssm">{content}</div>'


def note(text: str) -> str:
    """A sentence."""
    return _whole(f'<p class="message" role="status">{escape(text)}</p>')


def error(text: str) -> str:
    """What was wrong with the input."""
    return _whole(f'<p class="message error" role="alert">{escape(text)}</p>')


def progress(job: Job) -> str:
    """How far a computation is."""
    if job.total is None:
        counted = f"{job.done:,} {job.unit}, " if job.done else ""
        return _whole(
            f'<p role="status">Running: {counted}{job.seconds:.0f} s</p><progress aria-label="progress"></progress>'
        )
    left = "" if job.seconds_left is None else f", about {math.ceil(job.seconds_left)} s left"
    return _whole(
        f'<p role="status">Running: {job.done:,} of {job.total:,} {escape(job.unit)}{left}</p>'
        f'<progress aria-label="progress" max="{job.total}" value="{job.done}"></progress>'
    )


def section(*parts: str, title: str = "", lead: str = "") -> str:
    """Pieces of HTML below a heading and a sentence."""
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return _whole(head + (f"<p>{escape(lead)}</p>" if lead else "") + "".join(parts))


def bars(values: Mapping[str, float], title: str, second: bool = False) -> str:
    """Probabilities as horizontal bars, with their numbers."""
    rows = "".join(
        f'<div class="bar"><span>{escape(name)}</span><div class="track"><div class="fill{" second" if second else ""}"'
        f' style="width:{100 * min(max(value, 0), 1):.2f}%"></div></div><span class="value">{value:.1%}</span></div>'
        for name, value in values.items()
    )
    return f'<div role="group" aria-label="{escape(title, quote=True)}">{rows}</div>'


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> str:
    """A table, which scrolls by itself where it is wider than the page."""
    words = [any(_is_word(row[column]) for row in rows) for column in range(len(header))]
    head = "".join(
        f'<th scope="col"{_word(is_word, "")}>{escape(str(name))}</th>'
        for name, is_word in zip(header, words, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{_word(word, cell)}>{escape(_cell(cell))}</td>" for cell, word in zip(row, words, strict=True))
        + "</tr>"
        for row in rows
    )
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="wide" tabindex="0"><table class="numbers">{named}<thead><tr>{head}</tr></thead>'
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


def _word(is_word: bool, cell: Any) -> str:
    if not is_word:
        return ""
    return f' class="word{" long" if len(str(cell)) > 30 else ""}"'


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


def tokens(found: Sequence[Token], first: int = 1) -> str:
    """Coloured tokens; single letters in groups of ten with the position of the first.

    Args:
        found: The tokens.
        first: Position of the first token.
    """
    if any(len(token.text) != 1 for token in found):
        return f'<div class="tokens">{"".join(map(_token, found))}</div>'
    groups = "".join(
        f'<span class="group"><span class="place">{first + start}</span>'
        f"{''.join(map(_token, found[start : start + _BLOCK]))}</span>"
        for start in range(0, len(found), _BLOCK)
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

    Args:
        letters: The reference.
        cells: Value by index of the position and new letter.
        rows: The letters that replace others.
        first: Position of the first letter, for labels.
        limit: Absolute value with the darkest colour.
        unit: Unit of the values, for tooltips.
    """
    blocks = (_block(letters, cells, rows, first, limit, unit, start) for start in range(0, len(letters), _BLOCK))
    return f'<div class="heat">{"".join(blocks)}</div>'


def _block(
    letters: str,
    cells: Mapping[tuple[int, str], float],
    rows: Sequence[str],
    first: int,
    limit: float,
    unit: str,
    start: int,
) -> str:
    places = range(start, min(start + _BLOCK, len(letters)))
    lines = []
    for letter in rows:
        columns = []
        for place in places:
            value = cells.get((place, letter))
            if value is None:
                mark = "•" if letters[place].upper() == letter else ""
                what = f"{first + place}: {letters[place]} in the sequence"
                columns.append(f'<td class="cell own" title="{escape(what, quote=True)}">{mark}</td>')
                continue
            colour = diverging(value / limit if limit else 0.0)
            what = f"{first + place}: {letters[place]} to {letter}: {value:+.3g} {unit}"
            columns.append(f'<td class="cell" style="background:{colour}" title="{escape(what, quote=True)}"></td>')
        lines.append(f'<tr><th scope="row">{escape(letter)}</th>{"".join(columns)}</tr>')
    head = f'<tr><td></td><th class="place" colspan="{len(places)}">{first + start}</th></tr>'
    return f"<table>{head}{''.join(lines)}</table>"


def definitions(meanings: Mapping[str, str]) -> str:
    """What numbers mean, in a sentence each."""
    entries = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in meanings.items())
    return f"<dl>{entries}</dl>"


def details(summary: str, content: str) -> str:
    """Something long that a click unfolds."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"
