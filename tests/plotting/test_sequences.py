"""Sequences as rows of letters: positions, heights and colours."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from hf_ssm.plotting import plot_sequence, sequences
from hf_ssm.plotting.style import NEVER_MASKED, importance_colour
from hf_ssm.tokenization import build_dna_tokenizer


def letters_of(figure):
    """Boxes and colours of the letters, in the order of the sequence."""
    (drawn,) = figure.axes[0].collections
    return [path.get_extents() for path in drawn.get_paths()], [to_hex(c).upper() for c in drawn.get_facecolor()]


def test_height_and_colour_show_the_importance(make_result):
    result = make_result("ACGTTGCAACGT" * 3)
    boxes, colours = letters_of(plot_sequence(result, per_row=10))
    assert len(boxes) == 36
    assert colours == [importance_colour(share) for share in result.importance.tolist()]
    # One letter only: round letters extend beyond the line.
    places = [place for place, token in enumerate(result.tokens_text) if token == "T"]
    by_height = sorted(places, key=lambda place: boxes[place].height)
    assert by_height == sorted(places, key=lambda place: result.importance[place].item())
    assert boxes[by_height[-1]].height > 1.5 * boxes[by_height[0]].height
    for place, box in enumerate(boxes):
        assert place % 10 <= box.x0 < box.x1 <= place % 10 + 1
    feet = [box.y1 for place, box in enumerate(boxes) if result.tokens_text[place] == "T"]
    assert len({round(foot, 6) for foot in feet}) == 4


def test_tokens_never_masked_are_grey(make_result):
    result = make_result("ACGTN", build_dna_tokenizer(add_eos=True), target={"kind": "token", "position": 3})
    figure = plot_sequence(result)
    boxes, colours = letters_of(figure)
    # T (the target) and the N after it; [SEP] is a block with its name.
    assert len(boxes) == 5 and colours[3:] == [NEVER_MASKED, NEVER_MASKED] and NEVER_MASKED not in colours[:3]
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "SEP" in texts and "grey: never masked; framed: the target" in texts
    framed = [patch for patch in figure.axes[0].patches if not patch.get_fill()]
    assert [frame.get_x() for frame in framed] == [3]


def bars_of(figure) -> list[tuple[float, float, float]]:
    thin = [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and p.get_height() < 0.1]
    return [(round(p.get_x()), round(p.get_x() + p.get_width()), round(p.get_y(), 3)) for p in thin]


def test_annotations_are_split_at_row_ends_and_do_not_overlap(make_result):
    annotations = [(7, 13, "motif"), (2, 4, "one"), (3, 6, "two")]
    figure = plot_sequence(make_result("ACGTA" * 4), annotations=annotations, per_row=10)
    (one, two, first, second) = bars_of(figure)
    assert (one[:2], two[:2], first[:2], second[:2]) == ((2, 4), (3, 6), (7, 10), (0, 3))
    assert one[2] == first[2] < two[2] < second[2]
    assert [text.get_text() for text in figure.axes[0].texts].count("motif") == 1


def test_positions_are_counted_from_the_first_letter(make_result):
    def numbers(first: int) -> dict[str, float]:
        texts = plot_sequence(make_result("ACGTA" * 5), first=first).axes[0].texts
        return {text.get_text(): text.get_position()[0] for text in texts if text.get_text().isdigit()}

    assert numbers(0) == {"1": 0.5, "10": 9.5, "20": 19.5}
    assert numbers(2) == {"1": 2.5, "10": 11.5, "20": 21.5}


def test_blanks_dollars_and_characters_without_glyph(make_result):
    result = make_result("ACGTAC")
    result.tokens_text = [" ", "語", "$", "ab", "Ġ", ""]
    boxes, _ = letters_of(plot_sequence(result, title="cost in $ and $"))
    assert len(boxes) == 5


def test_figure_height_depends_on_the_annotations(make_result):
    plain, annotated = (plot_sequence(make_result("ACGTA" * 40), annotations=a) for a in ([], [(1, 3, "motif")]))
    assert 0 < annotated.get_size_inches()[1] - plain.get_size_inches()[1] < 0.3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"annotations": [(3, 11, "motif")]}, r"the interval 3:11 of 'motif' is empty or outside of the 10 tokens"),
        ({"annotations": [(3, 3, "motif")]}, r"`annotations`"),
        ({"per_row": 0}, r"`per_row`=0"),
    ],
)
def test_invalid_arguments_are_rejected(make_result, arguments, message):
    with pytest.raises(ValueError, match=message):
        plot_sequence(make_result(), **arguments)


def test_words_and_long_sequences_are_rejected(make_result, monkeypatch):
    result = make_result("ACGT")
    result.tokens_text = ["a", "b", "movie", "c"]
    with pytest.raises(ValueError, match=r"the token 'movie' .* use `write_sequence_html`"):
        plot_sequence(result)
    monkeypatch.setattr(sequences, "MAX_TOKENS", 3)
    with pytest.raises(ValueError, match=r"4 tokens, the maximum is 3"):
        plot_sequence(make_result("ACGT"))
