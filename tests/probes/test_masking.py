"""`MaskingProbe`: arguments, errors, and resuming after an interruption."""

import pytest
import torch
from datasets import Dataset, DatasetDict
from transformers import BertConfig, BertForSequenceClassification, T5Config, T5ForConditionalGeneration

from hf_ssm.probes import MaskingProbe, MaskingResult, MaskingResults, masking
from hf_ssm.tokenization import build_dna_tokenizer

TEXTS = ["ACGTTGCA", "GGGTACAT", "TTTTACGA"]


@pytest.fixture
def tokenizer():
    return build_dna_tokenizer()


@pytest.fixture
def classifier(make_model):
    return make_model("S4", "ForSequenceClassification", num_labels=3)


@pytest.fixture
def probe(classifier, tokenizer):
    return MaskingProbe(classifier, tokenizer, "mask", "exact")


def test_one_text_gives_one_result(probe, classifier, tokenizer):
    result = probe.run(TEXTS[0], progress=False)
    assert isinstance(result, MaskingResult)
    ids = tokenizer(TEXTS[0])["input_ids"]
    assert result.input_ids.tolist() == ids and result.tokens_text == list(TEXTS[0])
    expected = classifier(torch.tensor([ids])).logits.double().softmax(-1).max()
    assert result.probabilities[0] == pytest.approx(expected.item(), rel=1e-6)
    assert sorted(result.order.tolist()) == list(range(8))
    assert result.evaluations == 1 + 8 * 9 // 2 and result.tokens == 8 * result.evaluations


@pytest.mark.parametrize(
    "inputs",
    [
        TEXTS,
        Dataset.from_dict({"sequence": TEXTS}),
        Dataset.from_dict({"text": TEXTS}),
        torch.tensor([[7, 8, 9, 10, 10, 9, 8, 7], [9, 9, 9, 10, 7, 8, 7, 10], [10, 10, 10, 10, 7, 8, 9, 7]]),
        Dataset.from_dict(
            {
                "input_ids": [
                    [7, 8, 9, 10, 10, 9, 8, 7, 4],
                    [4, 9, 9, 9, 10, 7, 8, 7, 10],
                    [10, 10, 10, 10, 7, 8, 9, 7],
                ],
                "attention_mask": [[1] * 8 + [0], [0] + [1] * 8, [1] * 8],
            }
        ),
    ],
    ids=["texts", "sequences", "text column", "tensor", "padded"],
)
def test_many_sequences_in_every_form(probe, inputs):
    results = probe.run(inputs, progress=False)
    assert isinstance(results, MaskingResults) and len(results) == 3
    for text, result in zip(TEXTS, results, strict=True):
        assert torch.equal(result.order, probe.run(text, progress=False).order)


def test_labels_of_a_dataset_are_its_targets(probe, classifier, tokenizer):
    ids = torch.tensor(tokenizer(TEXTS)["input_ids"])
    labels = classifier(ids).logits.argmax(-1).tolist()
    results = probe.run(Dataset.from_dict({"text": TEXTS, "label": labels}), target="label", progress=False)
    assert [result.target["label"] for result in results] == labels
    with pytest.raises(ValueError, match=r"sequence 1: the prediction is wrong before anything is masked: class \d"):
        wrong = [labels[0], (labels[1] + 1) % 3, labels[2]]
        probe.run(TEXTS, target=wrong, progress=False)


def test_a_wrong_prediction_is_allowed_with_a_flag(classifier, tokenizer):
    probe = MaskingProbe(classifier, tokenizer, "mask", allow_wrong=True)
    assert {probe.run(TEXTS[0], target=label, progress=False).target["label"] for label in range(3)} == {0, 1, 2}


def test_the_start_says_what_is_predicted(probe, classifier, tokenizer):
    logits = classifier(torch.tensor(tokenizer(TEXTS)["input_ids"])).logits.double()
    starts = probe.start(TEXTS, [0, 1, 2])
    assert [start.predicted for start in starts] == logits.argmax(-1).tolist()
    assert [start.right for start in starts] == (logits.argmax(-1) == torch.arange(3)).tolist()
    expected = logits.softmax(-1).diagonal().tolist()
    assert [start.probability for start in starts] == pytest.approx(expected, rel=1e-6)
    single = probe.start(TEXTS[0])
    assert single.right and single.probability == pytest.approx(logits[0].softmax(-1).max().item(), rel=1e-6)


@pytest.mark.parametrize(("head", "position"), [("ForCausalLM", 5), ("ForMaskedLM", 3)])
def test_the_start_of_a_language_model_is_what_run_refuses_or_takes(make_model, tokenizer, head, position):
    probe = MaskingProbe(make_model("Hyena", head), tokenizer)
    rights = set()
    for base in "ACGT":
        text = "ACGTTGCA"[:position] + base + "GC"
        start = probe.start(text, position)
        rights.add(start.right)
        assert start.right == (start.predicted == tokenizer(base)["input_ids"][0])
        if start.right:
            found = probe.run(text, position, progress=False).probabilities[0]
            assert found == pytest.approx(start.probability, rel=1e-6)
        else:
            with pytest.raises(ValueError, match=rf"token {start.predicted}, not the target"):
                probe.run(text, position, progress=False)
    assert False in rights


def test_the_start_of_a_callable_is_its_number(probe):
    start = probe.start(TEXTS[0], lambda logits: logits[:, 0] * 0 + 7)
    assert (start.probability, start.predicted, start.right) == (7, None, True)


def test_special_tokens_are_never_masked(make_model):
    tokenizer = build_dna_tokenizer(add_eos=True)
    probe = MaskingProbe(make_model("Hyena", "ForSequenceClassification"), tokenizer, "n", "exact")
    result = probe.run("ANC[MASK]GT[PAD]", progress=False)
    assert sorted(result.order.tolist()) == [0, 2, 4, 5]
    assert result.importance.isnan().tolist() == [False, True, False, True, False, False, True, True]


def test_special_tokens_of_the_configuration_are_never_masked(make_model):
    model = make_model("S4", "ForSequenceClassification", eos_token_id=[1, 2], pad_token_id=4)
    assert sorted(MaskingProbe(model, replace=5).run([1, 7, 2, 8, 4], progress=False).order.tolist()) == [1, 3]


def test_the_model_is_left_as_it_was(classifier, tokenizer):
    classifier.train()
    classifier.classifier.eval()
    classifier.classifier.bias.requires_grad_(False)
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    MaskingProbe(classifier, tokenizer, strategy="shortlist").run(TEXTS[0], progress=False)
    assert classifier.training and classifier.model.training and not classifier.classifier.training
    frozen = [name for name, weight in classifier.named_parameters() if not weight.requires_grad]
    assert frozen == ["classifier.bias"]
    assert all(weight.grad is None for weight in classifier.parameters())
    assert all(torch.equal(value, before[name]) for name, value in classifier.state_dict().items())


@pytest.mark.parametrize("replace", ["mask", "composition"])
@pytest.mark.parametrize("strategy", ["shortlist", "one_shot"])
def test_the_other_strategies_tell_the_truth_along_their_order(make_model, tokenizer, strategy, replace):
    model = make_model("SelectiveSSM", "ForSequenceClassification").double()
    exact = MaskingProbe(model, tokenizer, replace, "exact").run("ACGTTGCATTGACCATGACATTGACA", progress=False)
    options = {"masks_per_step": 0.2, "candidates": 4} if replace == "mask" else {}
    probe = MaskingProbe(model, tokenizer, replace, strategy, **options)
    probe.max_tokens_per_batch = 90
    result = probe.run("ACGTTGCATTGACCATGACATTGACA", progress=False)
    assert sorted(result.order.tolist()) == list(range(26))
    along = probe.evaluate("ACGTTGCATTGACCATGACATTGACA", result.order)
    torch.testing.assert_close(result.probabilities, along, rtol=1e-9, atol=1e-12)
    assert result.evaluations < 0.6 * exact.evaluations
    if strategy == "shortlist":
        if replace == "mask":
            # The first step asks all.
            assert result.order[0] == exact.order[0]
        assert abs(exact.agreement(result)["area_difference"]) < 0.01


@pytest.mark.parametrize("strategy", ["exact", "shortlist", "one_shot"])
def test_a_model_that_gives_nan_is_refused(classifier, tokenizer, strategy):
    with torch.no_grad():
        classifier.classifier.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"the model gives NaN"):
        MaskingProbe(classifier, tokenizer, strategy=strategy, allow_wrong=True).run("ACGT", target=1, progress=False)


def test_a_screened_search_with_all_candidates_one_at_a_time_is_exact(make_model, tokenizer):
    model = make_model("Hyena", "ForSequenceClassification").double()
    exact = MaskingProbe(model, tokenizer, "mask", "exact").run("ACGTTGCATTG", progress=False)
    options = {"candidates": 11, "masks_per_step": 0.0}
    screened = MaskingProbe(model, tokenizer, "mask", **options).run("ACGTTGCATTG", progress=False)
    assert exact.agreement(screened) == {"spearman": 1.0, "area_difference": pytest.approx(0, abs=1e-12)}


def test_evaluate_masks_another_sequence_in_the_same_places(probe, classifier, tokenizer):
    found = probe.evaluate("ACG[MASK]", [2, 3, 0], target=2)
    texts = ["ACG[MASK]", "AC[MASK][MASK]", "AC[MASK][MASK]", "[MASK]C[MASK][MASK]"]
    expected = classifier(torch.tensor(tokenizer(texts)["input_ids"])).logits.double().softmax(-1)[:, 2]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    assert probe.evaluate("ACG", []).shape == (1,)
    for order in ([4], [-1], [1, 1]):
        with pytest.raises(ValueError, match=r"`order` must hold different positions from 0 to 3"):
            probe.evaluate("ACGT", order)
    with pytest.raises(ValueError, match=r"`inputs` must be one sequence"):
        probe.evaluate(TEXTS, [0])


def test_evaluate_of_a_token_ignores_what_follows_it(make_model, tokenizer):
    probe = MaskingProbe(make_model("S4", "ForCausalLM"), tokenizer)
    found = probe.evaluate("ACGTACGT", [6, 1, 4], target=4)
    assert found[0] == found[1] != found[2] and found[2] == found[3]


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted])
def test_an_interrupted_run_continues(classifier, tokenizer, tmp_path, monkeypatch, error):
    output = tmp_path / "probe.safetensors"
    probe, asked = MaskingProbe(classifier, tokenizer, draws=4), []
    whole = probe.run(TEXTS, progress=False)
    search = masking.search

    def interrupted(evaluator, *rest):
        if len(asked) == 2:
            raise error
        asked.append(evaluator.read.tolist())
        return search(evaluator, *rest)

    monkeypatch.setattr(masking, "search", interrupted)
    with pytest.raises(error):
        probe.run(TEXTS, output=output, progress=False)
    assert MaskingResults.load(output).indices == [0, 1]
    asked.clear()
    results = probe.run(TEXTS, output=output, progress=False)
    assert asked == [tokenizer(TEXTS[2])["input_ids"]]
    for found, expected in zip(results, whole, strict=True):
        assert torch.equal(found.order, expected.order)
        assert torch.equal(found.probabilities, expected.probabilities)
    asked.clear()
    assert len(probe.run(TEXTS, output=output, progress=False)) == 3 and asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["probe.safetensors"]


def test_processes_that_are_not_joined_are_refused(classifier, tokenizer, tmp_path, monkeypatch):
    probe = MaskingProbe(classifier, tokenizer)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE=2 processes"):
        probe.run(TEXTS, output=tmp_path / "probe.safetensors", progress=False)
    assert not list(tmp_path.iterdir())


def test_the_output_of_another_run_is_refused(classifier, tokenizer, make_model, tmp_path):
    output = tmp_path / "probe.safetensors"
    MaskingProbe(classifier, tokenizer).run(TEXTS[:1], output=output, progress=False)
    before = output.read_bytes()
    other = make_model("S4", "ForSequenceClassification", num_labels=3)
    with pytest.raises(ValueError, match=r"holds results of another model: .* Choose another file"):
        MaskingProbe(other, tokenizer).run(TEXTS[:1], output=output, progress=False)
    with pytest.raises(ValueError, match=r"holds results of other settings \(replace\)"):
        MaskingProbe(classifier, tokenizer, "n").run(TEXTS[:1], output=output, progress=False)
    with pytest.raises(ValueError, match=r"holds results of other settings \(strategy\)"):
        MaskingProbe(classifier, tokenizer, strategy="one_shot").run(TEXTS[:1], output=output, progress=False)
    with pytest.raises(ValueError, match=r"holds results of other inputs"):
        MaskingProbe(classifier, tokenizer).run(TEXTS[:2], output=output, progress=False)
    assert output.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "exakt"}, r"`strategy`='exakt' is not known: did you mean 'exact'"),
        ({"strategy": "all"}, r"choose one of 'exact', 'shortlist', 'one_shot'"),
        ({"replace": "Mask"}, r"`replace`='Mask' is neither a draw nor a token of the tokenizer: did you mean 'mask'"),
        ({"replace": 12}, r"`replace`=12 has the id 12, but the model has embeddings for 0 to 11"),
        ({"replace": "background"}, r"`replace`='background' needs `background`, the count of each token"),
        ({"draws": 0}, r"`draws`=0: give a positive integer"),
        ({"candidates": 0}, r"`candidates`=0: give a positive integer"),
        ({"masks_per_step": 1.5}, r"`masks_per_step`=1.5: give a share"),
        ({"candidates": 4}, r"`candidates`=4 is for one token .*, not for `replace`='composition' with 16 draws"),
    ],
)
def test_bad_settings_are_refused(classifier, tokenizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        MaskingProbe(classifier, tokenizer, **arguments)


def test_a_mask_that_the_tokenizer_lacks_is_refused(classifier, tokenizer):
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match=r"has no such token; choose 'pad', 'n', 'zero'"):
        MaskingProbe(classifier, tokenizer, "mask")
    with pytest.raises(ValueError, match=r"`replace`='n' needs a tokenizer"):
        MaskingProbe(classifier, replace="n")


@pytest.mark.parametrize(
    ("inputs", "target", "message"),
    [
        ("ACGT", 3, r"`target`=3: the model has the classes 0 to 2"),
        ("ACGT", 0.5, r"`target`=0.5: give the number of a class"),
        ("ACGT", "label", r"`target`='label' is the name of a column, but `inputs` is not a Dataset"),
        ("", None, r"the sequence is empty"),
        ([], None, r"`inputs` is empty"),
        (["ACG", ""], None, r"sequence 1: the sequence is empty"),
        ("[MASK][PAD]", None, r"nothing can be masked: all 2 tokens"),
        ([7, 99], None, r"ids from 7 to 99, but the model has embeddings for 0 to 11"),
        (torch.rand(3), None, r"a sequence is a text, or a list or tensor of token ids"),
        ([[7, 8], [0.5]], None, r"sequence 1: this is a list"),
        (7, None, r"`inputs` is a int: give a text"),
        (TEXTS, [0, 1], r"`target` has 2 entries for 3 sequences"),
        (Dataset.from_dict({"dna": TEXTS}), None, r"has the columns 'dna': name one of them"),
        (
            Dataset.from_dict({"text": TEXTS, "labl": [0] * 3}),
            "label",
            r"`target`='label' is not known: did you mean 'labl'",
        ),
        (DatasetDict(test=Dataset.from_dict({"text": TEXTS})), None, r"has the splits 'test': give one of them"),
        ("ACGT", lambda logits: logits, r"`target` must return a tensor with one number for each sequence, \(1,\)"),
        ("ACGT", lambda logits: logits[:, 0] * torch.nan, r"`target` returned NaN"),
    ],
)
def test_bad_inputs_are_refused(probe, inputs, target, message):
    with pytest.raises(ValueError, match=message):
        probe.run(inputs, target=target, progress=False)


@pytest.mark.parametrize(("head", "first"), [("ForCausalLM", 1), ("ForMaskedLM", 0)])
def test_bad_positions_are_refused(make_model, tokenizer, head, first):
    probe = MaskingProbe(make_model("Hyena", head), tokenizer)
    for position in (first - 1, 4):
        with pytest.raises(ValueError, match=rf"the sequence has 4 tokens, so give a position from {first} to 3"):
            probe.run("ACGT", target=position)
    with pytest.raises(ValueError, match=r"`target`=None: give the position of a token"):
        probe.run("ACGT")
    with pytest.raises(ValueError, match=r"65 tokens, but the model takes at most 64"):
        probe.run("A" * 65, target=3)


def test_models_that_cannot_be_probed_are_refused(make_model, tokenizer):
    with pytest.raises(ValueError, match=r"has no embedding of tokens"):
        MaskingProbe(make_model("S4", "ForSignalRegression"), tokenizer)
    small = T5Config(vocab_size=12, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match=r"an encoder and a decoder"):
        MaskingProbe(T5ForConditionalGeneration(small), tokenizer)
    regression = make_model("S4", "ForSequenceClassification", num_labels=1)
    with pytest.raises(ValueError, match=r"its logits are not probabilities of classes: give a callable"):
        MaskingProbe(regression, tokenizer).run("ACGT")
    with pytest.raises(ValueError, match=r"give a callable"):
        MaskingProbe(make_model("S4", "Model"), tokenizer).run("ACGT", target=0)


def test_unlikely_targets_are_refused_on_request(classifier, tokenizer):
    probe = MaskingProbe(classifier, tokenizer, minimum_probability=1.0)
    with pytest.raises(ValueError, match=r"below `minimum_probability`=1.0"):
        probe.run(TEXTS[0])


def test_models_of_transformers_say_how_much_they_take(tokenizer):
    config = BertConfig(
        vocab_size=12, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=5
    )
    with pytest.raises(ValueError, match=r"6 tokens, but the model takes at most 5"):
        MaskingProbe(BertForSequenceClassification(config), tokenizer).run("ACGTAC")
