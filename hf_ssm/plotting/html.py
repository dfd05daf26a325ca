"""Text coloured by the importance of its tokens, as HTML.

The page is self-contained: it has no scripts and loads no files or fonts. It sets its own colours and looks the same in
dark mode.
"""

import codecs
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from hf_ssm.plotting.style import PALETTE, importance_background, text_colour_on

_STYLE = f"""
:root {{ color-scheme: light; }}
body {{ background: #FFFFFF; color: #1A1A1A; font: 16px/1.7 sans-serif; margin: 2em auto; max-width: 50em; }}
body {{ padding: 0 1em; }}
h1 {{ font-size: 1.2em; }}
.text {{ overflow-wrap: anywhere; white-space: pre-wrap; }}
.text span {{ padding: 1px 0; }}
.never {{ background: #E4E4E4; color: #555555; }}
.target {{ outline: 2px solid {PALETTE[1]}; }}
.legend span {{ display: inline-block; height: 0.9em; vertical-align: middle; width: 0.5em; }}
.facts, .legend {{ color: #444444; font-size: 0.85em; }}
"""
_LEGEND_STEPS = 24
# Symbols that tokenizers write for invisible characters.
_MARKS = {"Ġ": " ", "▁": " ", "Ċ": "\n", "ĉ": "\t"}
_THRESHOLDS = (0.9, 0.5)


def sequence_html(result: Any, title: str = "") -> str:
    """A page with the text of a result, each token on the colour of its importance.

    Tokens that were never masked are grey, and the predicted token has a frame. The tooltip of a token gives its
    position (counted from 1), its rank in the order of masking, and the probability of the target afterwards.

    Args:
        result: `MaskingResult`; without `tokens_text`, token ids are shown.
        title: Title of the page.

    Returns:
        HTML; the text is escaped.
    """
    heading = escape(title or "Importance of tokens")
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in _facts(result))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{heading}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{heading}</h1>\n"
        f'<p class="legend">{_legend(result)}</p>\n'
        f'<p class="text">{"".join(_spans(result))}</p>\n<ul class="facts">{facts}</ul>\n</body>\n</html>\n'
    )


def write_sequence_html(result: Any, path: str | Path, title: str = "") -> None:
    """Write the page of `sequence_html`."""
    Path(path).write_text(sequence_html(result, title), encoding="utf-8")


def displayed_tokens(tokens: Sequence[str]) -> list[str]:
    """Tokens as they appear in the text, with the tokenizer's symbols for spaces and bytes resolved.

    A character of several bytes is shown at the token that completes it. Where the tokens do not mark spaces (WordPiece
    and plain words), there is one between two words.
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
    """The text of tokens of a byte-level vocabulary; `None` for other vocabularies.

    Byte-level vocabularies write each byte as a visible character, which is not always the character of that byte.
    """
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    table = {character: byte for byte, character in bytes_to_unicode().items()}
    regular = [token for token in tokens if not _is_special(token)]
    if all(token.isascii() for token in regular) or not all(c in table for token in regular for c in token):
        return None
    decoder = codecs.getincrementaldecoder("utf-8")()
    texts = []
    for token in tokens:
        if _is_special(token):
            # A special token ends an incomplete character.
            decoder.reset()
            texts.append(token)
            continue
        try:
            texts.append(decoder.decode(bytes(table[character] for character in token)))
        except UnicodeDecodeError:
            return None
    # A single incomplete character may be a letter, such as é, of a vocabulary of characters.
    is_byte_level = any(ord(c) > 0xFF for token in regular for c in token)
    return texts if is_byte_level or not "".join(texts).isascii() else None


def _spans(result: Any) -> list[str]:
    tokens = result.tokens_text or [str(token) for token in result.input_ids.tolist()]
    ranks = {place: rank for rank, place in enumerate(result.order.tolist(), start=1)}
    values = result.probabilities.tolist()
    target = result.target.get("position")
    spans = []
    for place, (text, importance) in enumerate(zip(displayed_tokens(tokens), result.importance.tolist(), strict=True)):
        classes, style, note = ["target"] if place == target else [], "", "never masked"
        if math.isnan(importance):
            classes.append("never")
        else:
            rank, colour = ranks[place], importance_background(importance)
            style = f' style="background:{colour};color:{text_colour_on(colour)}"'
            note = f"masked as number {rank} of {len(ranks)}, {_value_name(result)} then {values[rank]:.3f}"
        if place == target:
            note = f"the target, {note}"
        names = f' class="{" ".join(classes)}"' if classes else ""
        tooltip = escape(f"position {place + 1}: {note}", quote=True)
        # A line break has no width, hence no visible colour.
        body = escape(text).replace("\n", "↵\n")
        spans.append(f'<span{names}{style} title="{tooltip}">{body}</span>')
    return spans


def _legend(result: Any) -> str:
    colours = (importance_background(step / (_LEGEND_STEPS - 1)) for step in range(_LEGEND_STEPS))
    steps = "".join(f'<span style="background:{colour}"></span>' for colour in colours)
    grey = '<span class="never"></span> never masked'
    frame = ", framed: the target" if result.target.get("position") is not None else ""
    return f"importance: masked first {steps} masked last, {grey}{frame}"


def _value_name(result: Any) -> str:
    return "value" if result.target["kind"] == "callable" else "probability"


def _facts(result: Any) -> list[str]:
    name, values = _value_name(result), result.probabilities.tolist()
    mean = (sum(values) - (values[0] + values[-1]) / 2) / len(result.order)
    facts = [
        f"target: {describe_target(result)}",
        f"strategy {result.strategy}, masked by {result.mask!r}",
        f"{name} {values[0]:.3f} with nothing masked, {values[-1]:.3f} with all of {len(result.order)} tokens masked; "
        f"mean over the share masked {mean:.3f}",
    ]
    if name == "probability":
        facts += [f"tokens left while it is at least {share}: {result.tokens_left(share)}" for share in _THRESHOLDS]
    return facts


def describe_target(result: Any) -> str:
    """The target of a `MaskingResult` in a few words."""
    target = result.target
    if target["kind"] == "callable":
        return f"the function {target['name']}"
    at = "" if target.get("position") is None else f" at position {target['position'] + 1} (from 1)"
    if target["kind"] == "class":
        return f"class {target['label']}{at}"
    text = result.tokens_text[target["position"]] if result.tokens_text else target["token"]
    return f"token {text!r}{at}"
