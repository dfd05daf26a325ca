"""`predict`: scores of each kind of classifier, windows, tokens, both strands."""

import itertools

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    PreTrainedTokenizerFast,
)

import hf_ssm
from hf_ssm.data.records import Place, Record, reverse_complement
from hf_ssm.inference import table_job
from hf_ssm.inference.windows import spans
from hf_ssm.ops.backends import use_backend
from hf_ssm.tokenization import build_byte_tokenizer, build_dna_tokenizer

SEQUENCES = ["ACGTACGTAC", "GG", "acgttgcatttacg", "NNACG", "T", "ACGTTGCATTTACC", "GG"]
ROWS = [{"sequence": text, "name": f"s{number % 3}", "score": number} for number, text in enumerate(SEQUENCES)]
LONG = "ACGTTGCAGGTTTTAACCGTACGTAGCTAGCTAGGATCGATCGATTTAGCGCGA"


@pytest.fixture(autouse=True)
def nothing_is_compiled():
    with use_backend("torch"):
        yield


@pytest.fixture
def tokenizer():
    return build_dna_tokenizer()


@pytest.fixture
def classifier(make_model):
    return make_model("S4", "ForSequenceClassification", num_labels=3)


@pytest.fixture
def tagger(make_model):
    return make_model("S4", "ForTokenClassification", num_labels=3)


def logits_of(model, tokenizer, text):
    with torch.no_grad():
        return model(tokenizer(text, return_tensors="pt")["input_ids"]).logits[0].double()


def probabilities(table, count=3):
    return np.stack([table[f"probability_LABEL_{index}"] for index in range(count)], axis=-1)


def llama():
    defaults = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForSequenceClassification(LlamaConfig(**defaults, vocab_size=12, pad_token_id=4, num_labels=3))


@pytest.mark.parametrize("family", ["Llama", "Hyena", "S4", "S5", "SelectiveSSM", "SSD"])
def test_classes_of_all_families(make_model, tokenizer, family):
    model = llama() if family == "Llama" else make_model(family, "ForSequenceClassification", num_labels=3)
    model.config.id2label = {0: "low", 1: "mid", 2: "high"}
    model.train()
    found = hf_ssm.predict(model, tokenizer, Dataset.from_list(ROWS))
    assert found.column_names == ["name", "score", "prediction", *(f"probability_{n}" for n in ("low", "mid", "high"))]
    assert model.training
    model.eval()
    for row, own in zip(ROWS, found, strict=True):
        expected = logits_of(model, tokenizer, row["sequence"]).softmax(-1)
        assert [own[f"probability_{name}"] for name in ("low", "mid", "high")] == pytest.approx(
            expected.tolist(), abs=1e-6
        )
        assert own["prediction"] == ("low", "mid", "high")[int(expected.argmax())]
        assert (own["name"], own["score"]) == (row["name"], row["score"])
    assert len(set(found["probability_low"])) == len(SEQUENCES) - 1


def test_several_labels_per_sequence(make_model, tokenizer):
    model = make_model("S4", "ForSequenceClassification", num_labels=3, problem_type="multi_label_classification")
    found = hf_ssm.predict(model, tokenizer, SEQUENCES)
    expected = np.stack([logits_of(model, tokenizer, text).sigmoid() for text in SEQUENCES])
    np.testing.assert_allclose(probabilities(found), expected, atol=1e-6)
    names = [";".join(f"LABEL_{index}" for index in range(3) if row[index] >= 0.5) for row in expected]
    assert found["prediction"] == names and len(set(names)) > 1


@pytest.mark.parametrize(("count", "names"), [(1, ["prediction"]), (2, ["value_0", "value_1"])])
def test_values(make_model, tokenizer, count, names):
    problem = None if count == 1 else "regression"
    model = make_model("S4", "ForSequenceClassification", num_labels=count, problem_type=problem)
    found = hf_ssm.predict(model, tokenizer, SEQUENCES)
    assert found.column_names == names
    expected = np.stack([logits_of(model, tokenizer, text) for text in SEQUENCES])
    np.testing.assert_allclose(np.stack([found[name] for name in names], axis=-1), expected, atol=1e-6)


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("family", ["Llama", "S4"])
def test_tokens(tagger, family, eos):
    if family == "Llama":
        tagger = LlamaForTokenClassification(llama().config).eval()
    tokenizer = build_dna_tokenizer(add_eos=eos)
    texts = ["AC\nGTR", "ggt"]
    found = hf_ssm.predict(tagger, tokenizer, [{"sequence": text, "id": text[0]} for text in texts])
    assert found.column_names[:6] == ["id", "record", "start", "end", "letters", "prediction"]
    assert found["record"] == [0] * 5 + [1] * 3 and found["id"] == ["A"] * 5 + ["g"] * 3
    assert found["start"] == [0, 1, 3, 4, 5, 0, 1, 2] and found["end"] == [1, 2, 4, 5, 6, 1, 2, 3]
    assert "".join(found["letters"]) == "ACGTRggt"
    expected = [logits_of(tagger, tokenizer, text).softmax(-1)[: len(text) - text.count("\n")] for text in texts]
    np.testing.assert_allclose(probabilities(found), torch.cat(expected), atol=1e-6)
    assert found["prediction"] == [f"LABEL_{best}" for best in torch.cat(expected).argmax(1).tolist()]


def test_spans_cover_the_sequence():
    assert spans(10, 4, 4) == [(0, 4), (4, 8), (8, 10)]
    assert spans(10, 4, 3) == [(0, 4), (3, 7), (6, 10)]
    assert spans(4, 4, 2) == [(0, 4)] and spans(1, 4, 2) == [(0, 1)]
    for length, window in itertools.product(range(1, 12), range(1, 6)):
        for stride in range(1, window + 1):
            found = spans(length, window, stride)
            assert set().union(*(range(*span) for span in found)) == set(range(length))
            # No window lies within its predecessor.
            assert all(one[1] < two[1] for one, two in itertools.pairwise(found))


def test_windows(classifier, tokenizer):
    rows = [{"sequence": LONG, "id": "x"}, {"sequence": "ACG", "id": "x"}]
    found = hf_ssm.predict(classifier, tokenizer, rows, window=20, stride=15)
    assert found.column_names[:5] == ["id", "record", "start", "end", "prediction"]
    places = list(zip(found["record"], found["start"], found["end"], strict=True))
    assert places == [(0, 0, 20), (0, 15, 35), (0, 30, 50), (0, 45, 54), (1, 0, 3)]
    texts = [rows[row]["sequence"][start:end] for row, start, end in places]
    alone = hf_ssm.predict(classifier, tokenizer, texts)
    np.testing.assert_allclose(probabilities(found), probabilities(alone), atol=1e-6)
    for aggregate, function in (("mean", np.mean), ("max", np.max)):
        whole = hf_ssm.predict(classifier, tokenizer, rows, window=20, stride=15, aggregate=aggregate)
        expected = np.stack([function(probabilities(alone)[:4], axis=0), probabilities(alone)[4]])
        np.testing.assert_allclose(probabilities(whole), expected, atol=1e-6)
        assert whole.column_names == ["id", *found.column_names[4:]]
        assert whole["prediction"] == [f"LABEL_{best}" for best in expected.argmax(1)]


def test_tokens_in_several_windows_have_the_mean(tagger, tokenizer):
    found = hf_ssm.predict(tagger, tokenizer, ["ACG", LONG], window=20, stride=15)
    assert "".join(found["letters"]) == "ACG" + LONG
    assert found["start"][3:] == list(range(len(LONG))) and found["end"][3:] == list(range(1, len(LONG) + 1))
    sums, counts = np.zeros((len(LONG), 3)), np.zeros((len(LONG), 1))
    for start, end in spans(len(LONG), 20, 15):
        sums[start:end] += logits_of(tagger, tokenizer, LONG[start:end]).softmax(-1).numpy()
        counts[start:end] += 1
    np.testing.assert_allclose(probabilities(found)[3:], sums / counts, atol=1e-6)


@pytest.mark.parametrize("eos", [False, True])
def test_only_sequences_that_are_too_long_are_cut(make_model, eos):
    model = make_model("Hyena", "ForSequenceClassification", max_position_embeddings=16)
    tokenizer, width = build_dna_tokenizer(add_eos=eos), 15 if eos else 16
    assert "start" not in hf_ssm.predict(model, tokenizer, [LONG[:width], "A C\n" * 5]).column_names
    found = hf_ssm.predict(model, tokenizer, [LONG[:width], LONG[: width + 2]])
    assert list(zip(found["record"], found["start"], found["end"], strict=True)) == [
        (0, 0, width),
        (1, 0, width),
        (1, width, width + 2),
    ]
    # Far too long for a count of the tokens.
    assert len(hf_ssm.predict(model, tokenizer, ["ACGT" * 1000])) == -(-4000 // width)
    assert len(hf_ssm.predict(model, tokenizer, [LONG], aggregate="mean")) == 1
    with pytest.raises(ValueError, match=r"row 0, letters 0 to 17 has 1\d tokens, but the model takes at most 16"):
        hf_ssm.predict(model, tokenizer, [LONG], window=17)


def test_both_strands_of_a_sequence(classifier, tokenizer):
    texts = [LONG, "ACGNRa"]
    other = [reverse_complement(text) for text in texts]
    found = hf_ssm.predict(classifier, tokenizer, texts, both_strands=True)
    one, two = (probabilities(hf_ssm.predict(classifier, tokenizer, strand)) for strand in (texts, other))
    assert np.abs(one - two).max() > 1e-3
    np.testing.assert_allclose(probabilities(found), (one + two) / 2, atol=1e-6)
    np.testing.assert_allclose(
        probabilities(hf_ssm.predict(classifier, tokenizer, other, both_strands=True)), probabilities(found), atol=1e-6
    )


@pytest.mark.parametrize("window", [None, 16])
def test_both_strands_of_tokens(tagger, tokenizer, window):
    text = LONG[:16] + "\n" + LONG[16:30] + "R"
    options = {"window": window, "both_strands": True}
    found = hf_ssm.predict(tagger, tokenizer, [text], **options)
    assert "".join(found["letters"]) == text.replace("\n", "")
    pieces = [text[start:end] for start, end in spans(len(text), window or len(text), window or len(text))]
    one = torch.cat([logits_of(tagger, tokenizer, piece).softmax(-1) for piece in pieces])
    two = torch.cat([logits_of(tagger, tokenizer, reverse_complement(p)).softmax(-1).flip(0) for p in pieces])
    np.testing.assert_allclose(probabilities(found), (one + two) / 2, atol=1e-6)
    if window is None:
        mirrored = hf_ssm.predict(tagger, tokenizer, [reverse_complement(text)], **options)
        np.testing.assert_allclose(probabilities(mirrored)[::-1], probabilities(found), atol=1e-6)


def test_windows_and_tokens_of_intervals_have_places_in_the_genome(classifier, tagger, tokenizer):
    for is_reversed in (False, True):
        letters = reverse_complement(LONG[10:24]) if is_reversed else LONG[10:24]
        record = Record(letters, "interval", {"name": "x"}, Place("chr1", 10, 24, is_reversed))
        for model, options in ((classifier, {"window": 6}), (tagger, {})):
            rows = hf_ssm.predict(model, tokenizer, [record], **options).to_list()
            assert len(rows) == (3 if options else 14)
            for row in rows:
                piece = LONG[row["genome_start"] : row["genome_end"]]
                assert letters[row["start"] : row["end"]] == (reverse_complement(piece) if is_reversed else piece)
    assert (
        "genome_start" not in hf_ssm.predict(classifier, tokenizer, [record], window=6, aggregate="mean").column_names
    )
    assert "genome_start" not in hf_ssm.predict(classifier, tokenizer, [LONG], window=6).column_names


def test_tokens_that_differ_between_strands(tagger):
    vocabulary = {"A": 0, "C": 1, "G": 2, "T": 3, "AC": 4}
    merging = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab=vocabulary, merges=[("A", "C")])))
    found = hf_ssm.predict(tagger, merging, ["GACA"])
    assert found["letters"] == ["G", "AC", "A"]
    with pytest.raises(ValueError, match=r"`inputs`, row 0: the tokens of the two strands of 'GACA' have different"):
        hf_ssm.predict(tagger, merging, ["GACA"], both_strands=True)


def test_groups_do_not_change_the_result(classifier, tagger, tokenizer, monkeypatch):
    calls = [
        lambda: hf_ssm.predict(classifier, tokenizer, ROWS, window=6, stride=4),
        lambda: hf_ssm.predict(classifier, tokenizer, iter(ROWS), window=6, aggregate="max", both_strands=True),
        lambda: hf_ssm.predict(tagger, tokenizer, [*SEQUENCES, LONG], window=10, stride=7, both_strands=True),
        lambda: hf_ssm.predict(classifier, tokenizer, ROWS, max_tokens_per_batch=1),
    ]
    before = [call().to_pandas() for call in calls]
    monkeypatch.setattr(table_job, "MOST_ITEMS", 2)
    monkeypatch.setattr(table_job, "MOST_LETTERS", 12)
    for call, expected in zip(calls, before, strict=True):
        np.testing.assert_array_equal(call().to_pandas().columns, expected.columns)
        for name, values in call().to_pandas().items():
            close = np.testing.assert_allclose if name.startswith("probability") else np.testing.assert_array_equal
            close(values, expected[name], **({"atol": 1e-6} if name.startswith("probability") else {}))


@pytest.mark.parametrize(
    ("family", "head", "message"),
    [
        ("S4", "ForCausalLM", "S4ForCausalLM is a causal language model: use hf-ssm score for .*, hf-ssm embed"),
        ("S4", "Model", "S4Model is not a classifier of sequences or tokens: use hf-ssm embed"),
    ],
)
def test_other_models_are_refused(make_model, tokenizer, family, head, message):
    options = {"bidirectional": True} if head == "ForMaskedLM" else {}
    with pytest.raises(ValueError, match=message):
        hf_ssm.predict(make_model(family, head, **options), tokenizer, SEQUENCES)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (SEQUENCES, {"window": 0}, "`window`=0, `stride`=None"),
        (SEQUENCES, {"window": 4, "stride": 5}, "`window`=4, `stride`=5: .* a stride that is at most the window"),
        (SEQUENCES, {"stride": 5}, "`stride`=5 needs `window`"),
        (SEQUENCES, {"aggregate": "men"}, "`aggregate`='men' is not known: did you mean 'mean'"),
        ([], {}, "`inputs` is empty"),
        (["ACGT", "MKVIAAGE"], {"both_strands": True}, "row 1: 'E' is not a letter of DNA"),
        ([{"sequence": "A", "prediction": 1}], {}, "row 0: the input has a column 'prediction'"),
        ([{"sequence": "A", "start": 1}], {"window": 4}, "row 0: the input has a column 'start'.*rename the column"),
    ],
)
def test_wrong_arguments(classifier, tokenizer, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        hf_ssm.predict(classifier, tokenizer, inputs, **options)


def test_tokens_are_not_aggregated(tagger, tokenizer):
    with pytest.raises(ValueError, match="`aggregate`='mean': S4ForTokenClassification classifies tokens"):
        hf_ssm.predict(tagger, tokenizer, SEQUENCES, aggregate="mean")


def test_classes_of_one_name_are_numbered(classifier, tokenizer):
    classifier.config.id2label = {0: "other", 1: "site", 2: "other"}
    found = hf_ssm.predict(classifier, tokenizer, SEQUENCES)
    assert found.column_names == ["prediction", "probability_0", "probability_1", "probability_2"]


def test_weights_with_nan_are_named(classifier, tokenizer):
    classifier.classifier.bias.data[0] = torch.nan
    with pytest.raises(ValueError, match=r"`inputs`, row \d: the model computes NaN"):
        hf_ssm.predict(classifier, tokenizer, SEQUENCES)


def test_texts_of_bytes(make_model):
    model = make_model("S4", "ForTokenClassification", vocab_size=300)
    # Two bytes of one letter stay two tokens, in windows too.
    for options in ({}, {"window": 3, "stride": 1}):
        found = hf_ssm.predict(model, build_byte_tokenizer(), ["néxé"], **options)
        assert found["letters"] == ["n", "é", "é", "x", "é", "é"] and found["end"] == [1, 2, 2, 3, 4, 4]
    places = (("néx", 2), ("éxé", 1))
    expected = [logits_of(model, build_byte_tokenizer(), text).softmax(-1)[place, 0] for text, place in places]
    assert found["probability_LABEL_0"][2] == pytest.approx(np.mean(expected), abs=1e-6)
