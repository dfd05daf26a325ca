"""Sequences as rows of tiles: positions, colours and annotations."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from hf_ssm.plotting import coloured_tokens, plot_sequences, sequences
from hf_ssm.tokenization import build_dna_tokenizer


def texts_of(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def tiles_of(figure):
    """Boxes and colours of the tiles of the only sequence, in its order."""
    (drawn,) = figure.axes[0].collections
    return [path.get_extents() for path in drawn.get_paths()], [to_hex(c).upper() for c in drawn.get_facecolor()]


@pytest.mark.parametrize("by", ["effect", "rank"])
def test_the_colour_shows_the_importance(make_result, by):
    result = make_result("ACGTTGCAACGT" * 3)
    figure = plot_sequences([result], per_row=10, by=by, class_names={1: "enhancer"})
    boxes, colours = tiles_of(figure)
    assert colours == [token.background for token in coloured_tokens(result, by)]
    assert len({round(box.y0, 6) for box in boxes}) == 4 and len({round(box.x0, 6) for box in boxes}) == 10
    start, end = result.probabilities[[0, -1]].tolist()
    texts = texts_of(figure)
    assert f"class enhancer: probability {start:.2f}, with all tokens masked {end:.2f}" in texts
    word = "probability lost when the base is also masked: none" if by == "effect" else "order of masking of the bases:"
    assert any(text.startswith(word) for text in texts)


def test_several_sequences_as_tiles(make_result, tmp_path):
    results = [make_result("ACGTTGCA", seed=1), make_result("ACGTN", build_dna_tokenizer(add_eos=True), seed=2)]
    results[1].probabilities[:] = results[1].probabilities[0]
    options = {"annotations": [[(6, 8, "motif")], []], "names": ["row 5", "row $9"], "per_row": 7, "title": "a run"}
    figure = plot_sequences(results, tmp_path / "sequences.png", first=[0, 1], **options)
    (axes,) = figure.axes
    tiles = [[to_hex(colour).upper() for colour in drawn.get_facecolor()] for drawn in axes.collections]
    assert tiles == [[token.background for token in coloured_tokens(result)] for result in results]
    texts = [text.get_text() for text in axes.texts]
    for text in ("a run", "row 5", r"row \$9", "known site", "SEP", "8", *"ACGTN"):
        assert text in texts
    assert sum(text.startswith("Not explained: the probability stays at") for text in texts) == 1
    # All lines of text and tiles are inside the figure, and none of the letters is above the legend.
    assert all(0 <= text.get_position()[1] <= figure.get_size_inches()[1] for text in axes.texts)
    with pytest.raises(ValueError, match="`results` is empty"):
        plot_sequences([])
    with pytest.raises(ValueError, match="`per_row`=0"):
        plot_sequences(results, per_row=0)


def test_tokens_never_masked_are_grey_and_the_target_is_framed(make_result):
    result = make_result("ACGTN", build_dna_tokenizer(add_eos=True), target={"kind": "token", "position": 3})
    figure = plot_sequences([result])
    boxes, colours = tiles_of(figure)
    # T (the target), the N after it, and [SEP].
    grey = [token.background for token in coloured_tokens(result)][-1]
    assert colours[3:] == [grey] * 3 and grey not in colours[:3] and "SEP" in texts_of(figure)
    framed = [patch for patch in figure.axes[0].patches if not patch.get_fill() and patch.get_height() > 0.2]
    assert [frame.get_x() for frame in framed] == pytest.approx([boxes[3].x0 - 0.004])


def test_annotations_are_split_at_row_ends_and_do_not_overlap(make_result):
    annotations = [(7, 13, "motif"), (2, 4, "one"), (3, 6, "two")]
    figure = plot_sequences([make_result("ACGTA" * 4)], annotations=[annotations], per_row=10)
    boxes, _ = tiles_of(figure)
    left, width = boxes[0].x0, boxes[1].x0 - boxes[0].x0
    thin = [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and p.get_height() == 0.035]
    # The first one belongs to the legend.
    found = {
        (round((p.get_x() - left) / width), round((p.get_x() + p.get_width() - left) / width)): round(p.get_y(), 3)
        for p in sorted(thin, key=lambda p: p.get_y())[1:]
    }
    assert set(found) == {(2, 4), (3, 6), (7, 10), (0, 3)}
    assert found[2, 4] == found[7, 10] < found[3, 6] < found[0, 3]
    assert texts_of(figure).count("motif") == 1


def test_positions_are_counted_from_the_first_letter(make_result):
    for first, expected in ((0, ["1", "11", "21"]), (2, ["1", "9", "19"])):
        figure = plot_sequences([make_result("ACGTA" * 5)], first=[first], per_row=10)
        assert [text for text in texts_of(figure) if text.isdigit()] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"annotations": [[(3, 11, "motif")]]}, r"the interval 3:11 of 'motif' is empty or outside of the 10 tokens"),
        ({"per_row": 0}, r"`per_row`=0"),
    ],
)
def test_invalid_arguments_are_rejected(make_result, arguments, message):
    with pytest.raises(ValueError, match=message):
        plot_sequences([make_result()], **arguments)


def test_words_and_long_sequences_are_rejected(make_result, monkeypatch):
    result = make_result("ACGT")
    result.tokens_text = ["a", "b", "movie", "c"]
    with pytest.raises(ValueError, match=r"the token 'movie' .* use `write_sequence_html`"):
        plot_sequences([result])
    monkeypatch.setattr(sequences, "MAX_TOKENS", 3)
    with pytest.raises(ValueError, match=r"4 tokens, the maximum is 3"):
        plot_sequences([make_result("ACGT")])
