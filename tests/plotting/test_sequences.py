"""Sequences as rows of letters: positions, heights and colours."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from hf_ssm.plotting import coloured_tokens, plot_sequence, plot_sequences, sequences
from hf_ssm.plotting.style import NEVER_MASKED, importance_colour
from hf_ssm.tokenization import build_dna_tokenizer


def letters_of(figure):
    """Boxes and colours of the letters, in the order of the sequence."""
    (drawn,) = figure.axes[0].collections
    return [path.get_extents() for path in drawn.get_paths()], [to_hex(c).upper() for c in drawn.get_facecolor()]


def test_height_and_colour_show_the_importance(make_result):
    result = make_result("ACGTTGCAACGT" * 3)
    boxes, colours = letters_of(plot_sequence(result, per_row=10, by="rank"))
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


def test_the_effect_is_the_default(make_result):
    result = make_result("ACGTTGCA")
    figure = plot_sequence(result, title="row 3", class_names={1: "enhancer"})
    _, colours = letters_of(figure)
    lost = [share / result.probabilities[0].item() for share in result.effect.tolist()]
    assert colours == [importance_colour(share) for share in lost]
    texts = [text.get_text() for text in figure.axes[0].texts]
    start, end = result.probabilities[[0, -1]].tolist()
    assert texts[:2] == ["row 3", f"class enhancer: probability {start:.2f}, with all tokens masked {end:.2f}"]
    assert "height and colour: probability lost when the base is also masked: none" in texts
    texts = [text.get_text() for text in plot_sequence(result, unit="tokens").axes[0].texts]
    assert "height and colour: probability lost when the token is also masked: none" in texts
    result.probabilities[-1] = 0.8
    result.probabilities[0] = 1.0
    texts = [text.get_text() for text in plot_sequence(result).axes[0].texts]
    assert any(
        text.startswith("The probability stays at 0.80 with all tokens masked: class 1 is the answer") for text in texts
    )


def test_several_sequences_as_tiles(make_result, tmp_path):
    results = [make_result("ACGTTGCA", seed=1), make_result("ACGTN", build_dna_tokenizer(add_eos=True), seed=2)]
    results[1].probabilities[-1] = results[1].probabilities[0]
    options = {"annotations": [[(6, 8, "motif")], []], "names": ["row 5", "row $9"], "per_row": 7, "title": "a run"}
    figure = plot_sequences(results, tmp_path / "sequences.png", first=[0, 1], **options)
    (axes,) = figure.axes
    tiles = [[to_hex(colour).upper() for colour in drawn.get_facecolor()] for drawn in axes.collections]
    assert tiles == [[token.background for token in coloured_tokens(result)] for result in results]
    texts = [text.get_text() for text in axes.texts]
    for text in ("a run", "row 5", r"row \$9", "known site", "SEP", "8", *"ACGTN"):
        assert text in texts
    assert sum(text.startswith("The probability stays at") for text in texts) == 1
    # All lines of text and tiles are inside the figure, and none of the letters is above the legend.
    assert all(0 <= text.get_position()[1] <= figure.get_size_inches()[1] for text in axes.texts)
    with pytest.raises(ValueError, match="`results` is empty"):
        plot_sequences([])
    with pytest.raises(ValueError, match="`per_row`=0"):
        plot_sequences(results, per_row=0)


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
    thin = [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and p.get_height() < 0.09]
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"annotations": [(3, 11, "motif")]}, r"the interval 3:11 of 'motif' is empty or outside of the 10 tokens"),
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
