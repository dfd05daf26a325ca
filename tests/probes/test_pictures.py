"""Curves, strips and pages: what is drawn where, against plain computations."""

import itertools
import math
import random
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from transformers import PreTrainedTokenizerBase

from hf_ssm.probes import MaskingResult, MaskingResults
from hf_ssm.probes.colours import GREY, colour_of, ink_on, shade_of
from hf_ssm.probes.html import shown_tokens
from hf_ssm.probes.pictures import draw_curves, draw_strip, to_html, write_html
from hf_ssm.tokenization import build_byte_tokenizer, build_dna_tokenizer


def make_result(
    text: str = "ACGTACGTAC",
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    target: dict | None = None,
    seed: int = 0,
) -> MaskingResult:
    """An order of chance of all that can be masked, and falling probabilities."""
    tokenizer = tokenizer or build_dna_tokenizer()
    ids = torch.tensor(tokenizer(text)["input_ids"])
    target = target or {"kind": "class", "label": 1}
    free = [
        place
        for place, token in enumerate(ids.tolist())
        if token not in tokenizer.all_special_ids and place < target.get("position", len(ids))
    ]
    draw = random.Random(seed)
    order = torch.tensor(draw.sample(free, len(free)))
    falling = torch.tensor(sorted((draw.random() for _ in range(len(free) + 1)), reverse=True), dtype=torch.float64)
    tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
    return MaskingResult(ids, order, falling, target, "exact", "n", 55, 550, tokens)


def curve(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Curves


def test_mean_and_band_of_equal_lengths():
    rows = [curve(1.0, 0.8, 0.3), curve(0.9, 0.4, 0.1), curve(0.95, 0.9, 0.2)]
    axes = draw_curves(rows).axes[0]
    (line,) = axes.get_lines()
    assert line.get_xdata() == pytest.approx([0, 1, 2])
    means = [sum(row[k].item() for row in rows) / 3 for k in range(3)]
    assert line.get_ydata() == pytest.approx(means)
    deviations = [math.sqrt(sum((row[k].item() - means[k]) ** 2 for row in rows) / 2) for k in range(3)]
    corners = axes.collections[0].get_paths()[0].vertices
    for k in range(3):
        at = corners[np.isclose(corners[:, 0], k), 1]
        assert at.min() == pytest.approx(max(means[k] - deviations[k], 0))
        assert at.max() == pytest.approx(min(means[k] + deviations[k], 1))
    assert axes.get_xlabel() == "number of masked tokens" and axes.get_ylabel() == "probability of the target"
    assert axes.child_axes[0].get_xlabel() == "share of tokens masked"
    assert axes.get_legend().get_title().get_text() == "mean ± one standard deviation"


def test_different_lengths_meet_on_the_share():
    results = MaskingResults([make_result("ACGTACG"), make_result("ACGTTGCAACCT", seed=1)])
    axes = results.plot().axes[0]
    (line,) = axes.get_lines()
    shares, mean, _ = results.mean_curve()
    assert line.get_xdata() == pytest.approx(shares.numpy())
    assert line.get_ydata() == pytest.approx(mean.numpy())
    assert axes.get_xlabel() == "share of the 7 to 12 tokens masked" and not axes.child_axes


def test_groups_have_names_colours_and_styles():
    groups = {"chosen": [make_result(seed=s) for s in range(3)], "others": [curve(*[0.5] * 11), curve(*[0.7] * 11)]}
    axes = draw_curves(groups, chance=0.5).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["chosen (n = 3)", "others (n = 2)", "chance"]
    first, second, chance = axes.get_lines()
    assert first.get_color() != second.get_color() and first.get_linestyle() != second.get_linestyle()
    assert list(chance.get_ydata()) == [0.5, 0.5]


def test_one_curve_has_neither_band_nor_legend():
    axes = make_result().plot().axes[0]
    assert not axes.collections and axes.get_legend() is None and len(axes.get_lines()) == 1


def test_numbers_that_are_no_probabilities_are_not_cut():
    axes = draw_curves([curve(2.0, -3.0), curve(4.0, -5.0)], value="margin").axes[0]
    corners = axes.collections[0].get_paths()[0].vertices
    assert corners[:, 1].max() == pytest.approx(3 + math.sqrt(2)) and corners[:, 1].min() < -5
    assert axes.get_ylim()[0] < -5 and axes.get_ylabel() == "margin"


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a", b"\x89PNG")])
def test_the_suffix_chooses_the_format(tmp_path, name, start):
    for draw in (lambda path: draw_curves([make_result()], path), lambda path: draw_strip(make_result(), path)):
        draw(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ([], r"`curves` is empty"),
        ({}, r"`curves` is empty"),
        ({"a": [curve(1, 0)], "b": []}, r"the group 'b' of `curves` is empty"),
        ([curve(1)], r"has the shape \(1,\): give \(M \+ 1,\)"),
        ({"a": [curve(1, math.nan)]}, r"of the group 'a' .* not finite"),
    ],
)
def test_curves_that_cannot_be_drawn(curves, message):
    with pytest.raises(ValueError, match=message):
        draw_curves(curves)


# Strips


def letters_of(figure):
    """Boxes and colours of the letters, in the order of the sequence."""
    (drawn,) = figure.axes[0].collections
    return [path.get_extents() for path in drawn.get_paths()], [to_hex(c).upper() for c in drawn.get_facecolor()]


def test_height_and_colour_are_the_importance():
    result = make_result("ACGTTGCAACGT" * 3)
    boxes, colours = letters_of(draw_strip(result, per_row=10))
    assert len(boxes) == 36
    assert colours == [colour_of(share) for share in result.importance.tolist()]
    # Of one letter, since round ones reach over the line.
    places = [place for place, token in enumerate(result.tokens_text) if token == "T"]
    by_height = sorted(places, key=lambda place: boxes[place].height)
    assert by_height == sorted(places, key=lambda place: result.importance[place].item())
    assert boxes[by_height[-1]].height > 1.5 * boxes[by_height[0]].height
    for place, box in enumerate(boxes):
        assert place % 10 <= box.x0 < box.x1 <= place % 10 + 1
    feet = [box.y1 for place, box in enumerate(boxes) if result.tokens_text[place] == "T"]
    assert len({round(foot, 6) for foot in feet}) == 4


def test_what_is_never_masked_is_grey():
    result = make_result("ACGTN", build_dna_tokenizer(add_eos=True), target={"kind": "token", "position": 3})
    figure = draw_strip(result)
    boxes, colours = letters_of(figure)
    # T, the target, and N behind it; [SEP] is a block with its name.
    assert len(boxes) == 5 and colours[3:] == [GREY, GREY] and GREY not in colours[:3]
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "SEP" in texts and "in grey: never masked; in the frame: the target" in texts
    framed = [patch for patch in figure.axes[0].patches if not patch.get_fill()]
    assert [frame.get_x() for frame in framed] == [3]


def bars_of(figure) -> list[tuple[float, float, float]]:
    thin = [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and p.get_height() < 0.1]
    return [(round(p.get_x()), round(p.get_x() + p.get_width()), round(p.get_y(), 3)) for p in thin]


def test_annotations_are_cut_at_the_ends_of_rows_and_make_way_for_each_other():
    annotations = [(7, 13, "motif"), (2, 4, "one"), (3, 6, "two")]
    figure = draw_strip(make_result("ACGTA" * 4), annotations=annotations, per_row=10)
    (one, two, first, second) = bars_of(figure)
    assert (one[:2], two[:2], first[:2], second[:2]) == ((2, 4), (3, 6), (7, 10), (0, 3))
    assert one[2] == first[2] < two[2] < second[2]
    assert [text.get_text() for text in figure.axes[0].texts].count("motif") == 1


def test_positions_count_from_the_first_letter():
    def numbers(first: int) -> dict[str, float]:
        texts = draw_strip(make_result("ACGTA" * 5), first=first).axes[0].texts
        return {text.get_text(): text.get_position()[0] for text in texts if text.get_text().isdigit()}

    assert numbers(0) == {"1": 0.5, "10": 9.5, "20": 19.5}
    assert numbers(2) == {"1": 2.5, "10": 11.5, "20": 21.5}


def test_tokens_of_other_kinds():
    """No character, and none that the font lacks, is a reason to warn or fail."""
    result = make_result("ACGTAC")
    result.tokens_text = [" ", "語", "$", "ab", "Ġ", ""]
    boxes, _ = letters_of(draw_strip(result, title="cost in $ and $"))
    assert len(boxes) == 5


def test_rows_take_the_room_that_they_need():
    plain, annotated = (draw_strip(make_result("ACGTA" * 40), annotations=a) for a in ([], [(1, 3, "motif")]))
    assert 0 < annotated.get_size_inches()[1] - plain.get_size_inches()[1] < 0.3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"annotations": [(3, 11, "motif")]}, r"'motif' reaches from token 3 to before 11, but .* 10 tokens"),
        ({"annotations": [(3, 3, "motif")]}, r"`annotations`"),
        ({"per_row": 0}, r"`per_row`=0"),
    ],
)
def test_strips_that_cannot_be_drawn(arguments, message):
    with pytest.raises(ValueError, match=message):
        draw_strip(make_result(), **arguments)


def test_words_are_not_for_a_strip():
    result = make_result("ACGT")
    result.tokens_text = ["a", "b", "movie", "c"]
    with pytest.raises(ValueError, match=r"the token 'movie': .* use `write_html`"):
        draw_strip(result)


# Pages


class Page(HTMLParser):
    """The tags, titles and texts of a page."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.spans: list[tuple[dict, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag != "meta":
            self.open.append(tag)
        if tag == "span" and "title" in dict(attrs):
            self.spans.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "span" and self.spans:
            attributes, text = self.spans[-1]
            self.spans[-1] = attributes, text + data

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.spans).replace("↵\n", "\n")


NASTY = "Ça <script>alert(\"1\")</script> & Zoë\n— 🎬 'end'"


def test_page_holds_the_text_as_it_was():
    result = make_result(NASTY, build_byte_tokenizer(add_eos=True))
    page = to_html(result, "a <b> & c")
    found = Page(page)
    assert found.text == NASTY + "[EOS]"
    assert found.tags == {"html", "head", "meta", "title", "style", "body", "h1", "p", "span", "ul", "li"}
    assert found.open == [] and "<title>a &lt;b&gt; &amp; c</title>" in page
    assert not re.search(r"https?:|url\(|@import| on\w+=", page)


def test_words_are_escaped():
    result = make_result("ACGT")
    result.tokens_text = ["▁<script>alert(1)</script>", '▁"a"', "▁&amp;", "▁b</span></p>"]
    found = Page(to_html(result))
    assert found.text == ' <script>alert(1)</script> "a" &amp; b</span></p>' and "script" not in found.tags


def test_tooltips_and_colours_of_a_page():
    result = make_result("ACGT", build_dna_tokenizer(add_eos=True))
    *letters, special = Page(to_html(result)).spans
    for rank, place in enumerate(result.order.tolist(), start=1):
        attributes, _ = letters[place]
        after = f"{result.probabilities[rank].item():.3f}"
        assert attributes["title"] == f"position {place + 1}: masked as number {rank} of 4, probability then {after}"
        assert attributes["style"].startswith(f"background:{shade_of(rank / 4)};")
    assert special[0]["title"] == "position 5: never masked" and special[0]["class"] == "never"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"kind": "class", "label": 1}, "target: class 1<"),
        ({"kind": "class", "label": 1, "position": 2}, "target: class 1 at position 3 (from 1)<"),
        ({"kind": "token", "position": 3, "token": 10}, "target: token &#x27;T&#x27; at position 4 (from 1)<"),
        ({"kind": "callable", "name": "f.<locals>.g"}, "target: the function f.&lt;locals&gt;.g<"),
    ],
)
def test_a_page_says_what_was_asked(target, words):
    page = to_html(make_result("ACGTA", target=target))
    assert words in page
    assert ("target, never masked" in page) == ("position" in target)
    assert ("tokens left" in page) == (target["kind"] != "callable")


def test_page_without_text_and_in_a_file(tmp_path):
    result = make_result("ACGT")
    result.tokens_text = None
    write_html(result, tmp_path / "page.html", "title")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page == to_html(result, "title") and Page(page).text == "7 8 9 10"


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["▁The", "▁film", "s"], " The films"),
        (["The", "Ġfilm", "Ċ", "."], "The film\n."),
        (["[CLS]", "the", "film", "##s", "[SEP]"], "[CLS] the films [SEP]"),
        (["MAX", "3", "]"], "MAX 3 ]"),
        (["A", "C", "[UNK]", "é"], "AC[UNK]é"),
        # Of the last character a byte is missing.
        (["Ġ", "Ã", "©", "Ã"], " é"),
        (["Ã", "©", "Ġ", "a"], "é a"),
    ],
)
def test_tokens_as_text(tokens, text):
    shown = shown_tokens(tokens)
    assert len(shown) == len(tokens) and "".join(shown) == text


# Colours


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [colour_of, shade_of])
def test_more_important_is_darker_and_can_be_read(colours):
    found = [luminance(colours(step / 50)) for step in range(51)]
    assert all(a > b for a, b in itertools.pairwise(found))
    for step in range(201):
        ground, ink = luminance(colours(step / 200)), luminance(ink_on(colours(step / 200)))
        assert (max(ground, ink) + 0.05) / (min(ground, ink) + 0.05) >= 4.5
    assert colours(-1) == colours(0) and colours(2) == colours(1)
    with pytest.raises(ValueError, match="nan"):
        colours(math.nan)


def test_without_matplotlib(monkeypatch):
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "position 1: " in to_html(make_result())
    for draw in (lambda: draw_curves([make_result()]), lambda: draw_strip(make_result())):
        with pytest.raises(ImportError, match=re.escape('pip install "hf_ssm[plots]"')):
            draw()


def test_pictures_can_be_repeated(tmp_path: Path):
    for name in ("a.png", "b.png"):
        draw_strip(make_result(), tmp_path / name, [(1, 4, "motif")])
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
