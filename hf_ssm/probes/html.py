"""Text coloured by the importance of its tokens, as HTML.

The page needs nothing but itself: no scripts, no files, no fonts. It sets its own colours and so looks the same where
pages are dark.
"""

import codecs
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from hf_ssm.probes.colours import ink_on, shade_of

if TYPE_CHECKING:
    from hf_ssm.probes.results import MaskingResult

__all__ = ["to_html", "write_html"]

_STYLE = """
:root { color-scheme: light; }
body { background: #FFFFFF; color: #1A1A1A; font: 16px/1.7 sans-serif; margin: 2em auto; max-width: 50em; }
body { padding: 0 1em; }
h1 { font-size: 1.2em; }
.text { overflow-wrap: anywhere; white-space: pre-wrap; }
.text span { padding: 1px 0; }
.never { background: #E4E4E4; color: #555555; }
.target { outline: 2px solid #D55E00; }
.legend span { display: inline-block; height: 0.9em; vertical-align: middle; width: 0.5em; }
.facts, .legend { color: #444444; font-size: 0.85em; }
"""
_STEPS = 24
# Signs of tokenizers for characters that cannot be seen.
_MARKS = {"Ġ": " ", "▁": " ", "Ċ": "\n", "ĉ": "\t"}
_THRESHOLDS = (0.9, 0.5)


def to_html(result: "MaskingResult", title: str = "") -> str:
    """A page with the text of a result, each token on the colour of its importance.

    Tokens that are never masked are grey, and a token that was to be predicted has a frame. The tooltip of a token says
    its position (counted from 1), when it was masked, and the probability of the target after that.

    Args:
        result: With the tokens as text; without, their ids are shown.
        title: Of the page.

    Returns:
        HTML; all that comes from the text is escaped.
    """
    heading = escape(title or "Importance of tokens")
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in _facts(result))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{heading}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{heading}</h1>\n"
        f'<p class="legend">{_legend(result)}</p>\n'
        f'<p class="text">{"".join(_spans(result))}</p>\n<ul class="facts">{facts}</ul>\n</body>\n</html>\n'
    )


def write_html(result: "MaskingResult", path: str | Path, title: str = "") -> None:
    """Write the page of `to_html`."""
    Path(path).write_text(to_html(result, title), encoding="utf-8")


def shown_tokens(tokens: Sequence[str]) -> list[str]:
    """Tokens as they stand in the text, signs for spaces and bytes made characters again.

    A character of several bytes is shown at the token that completes it. Where the tokens do not tell where spaces were
    (those of WordPiece, or plain words), there is one between two words.
    """
    if (decoded := _decoded_bytes(tokens)) is not None:
        return decoded
    if any(mark in token for token in tokens for mark in ("Ġ", "▁")):
        return ["".join(_MARKS.get(character, character) for character in token) for token in tokens]
    if all(len(token) == 1 for token in tokens if not _is_special(token)):
        return list(tokens)
    words = [token.removeprefix("##") for token in tokens]
    joined = [number == 0 or token.startswith("##") for number, token in enumerate(tokens)]
    return [word if tight else f" {word}" for word, tight in zip(words, joined, strict=True)]


def _is_special(token: str) -> bool:
    return len(token) > 2 and (token[0], token[-1]) in (("[", "]"), ("<", ">"))


def _decoded_bytes(tokens: Sequence[str]) -> list[str] | None:
    """The text of tokens that stand for bytes; `None` where they do not.

    Byte-level vocabularies write bytes as visible characters, of which some do not stand for themselves.
    """
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    table = {character: byte for byte, character in bytes_to_unicode().items()}
    plain = [token for token in tokens if not _is_special(token)]
    if all(token.isascii() for token in plain) or not all(c in table for token in plain for c in token):
        return None
    decoder = codecs.getincrementaldecoder("utf-8")()
    shown = []
    for token in tokens:
        if _is_special(token):
            # What is cut off before it will not be completed.
            decoder.reset()
            shown.append(token)
            continue
        try:
            shown.append(decoder.decode(bytes(table[character] for character in token)))
        except UnicodeDecodeError:
            return None
    # An incomplete character alone may be a letter, such as é, that stands for itself.
    moved = any(ord(c) > 0xFF for token in plain for c in token)
    return shown if moved or not "".join(shown).isascii() else None


def _spans(result: "MaskingResult") -> list[str]:
    tokens = result.tokens_text or [str(token) for token in result.input_ids.tolist()]
    ranks = {place: rank for rank, place in enumerate(result.order.tolist(), start=1)}
    values = result.probabilities.tolist()
    target = result.target.get("position")
    spans = []
    for place, (text, importance) in enumerate(zip(shown_tokens(tokens), result.importance.tolist(), strict=True)):
        kinds, style, note = ["target"] if place == target else [], "", "never masked"
        if math.isnan(importance):
            kinds.append("never")
        else:
            rank, colour = ranks[place], shade_of(importance)
            style = f' style="background:{colour};color:{ink_on(colour)}"'
            note = f"masked as number {rank} of {len(ranks)}, {_name_of_value(result)} then {values[rank]:.3f}"
        if place == target:
            note = f"the target, {note}"
        names = f' class="{" ".join(kinds)}"' if kinds else ""
        tip = escape(f"position {place + 1}: {note}", quote=True)
        # A line break alone has no width, and so no colour.
        body = escape(text).replace("\n", "↵\n")
        spans.append(f'<span{names}{style} title="{tip}">{body}</span>')
    return spans


def _legend(result: "MaskingResult") -> str:
    steps = "".join(f'<span style="background:{shade_of(step / (_STEPS - 1))}"></span>' for step in range(_STEPS))
    grey = '<span class="never"></span> never masked'
    frame = ", in a frame: the target" if result.target.get("position") is not None else ""
    return f"importance: masked first {steps} masked last, {grey}{frame}"


def _name_of_value(result: "MaskingResult") -> str:
    return "value" if result.target["kind"] == "callable" else "probability"


def _facts(result: "MaskingResult") -> list[str]:
    name = _name_of_value(result)
    first, last = result.probabilities[0].item(), result.probabilities[-1].item()
    facts = [
        f"target: {describe_target(result)}",
        f"strategy {result.strategy}, masked by {result.mask!r}",
        f"{name} {first:.3f} with nothing masked, {last:.3f} with all of {len(result.order)} tokens masked; mean over "
        f"the share masked {result.area:.3f}",
    ]
    if name == "probability":
        facts += [f"tokens left while it is at least {share}: {result.tokens_left(share)}" for share in _THRESHOLDS]
    return facts


def describe_target(result: "MaskingResult") -> str:
    """The target of a result in a few words."""
    target = result.target
    if target["kind"] == "callable":
        return f"the function {target['name']}"
    at = "" if target.get("position") is None else f" at position {target['position'] + 1} (from 1)"
    if target["kind"] == "class":
        return f"class {target['label']}{at}"
    text = result.tokens_text[target["position"]] if result.tokens_text else target["token"]
    return f"token {text!r}{at}"
