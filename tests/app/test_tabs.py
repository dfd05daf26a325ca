"""The computations behind the tabs, on tiny models."""

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gradio")

import hf_ssm
from hf_ssm import plotting
from hf_ssm.analysis.frequency import frequency_responses
from hf_ssm.app import ServedModel, bases, frequency, markup, predicting, theory, variants
from hf_ssm.app.figures import figure_html
from hf_ssm.app.jobs import Job, Stopped
from hf_ssm.app.served import Example
from hf_ssm.app.wiring import Jobs
from hf_ssm.cli import app, main
from hf_ssm.data import SignalFeatureExtractor
from hf_ssm.data.records import Record
from hf_ssm.probes import MaskingProbe
from hf_ssm.probes.targets import Prediction
from hf_ssm.tokenization import build_byte_tokenizer, build_dna_tokenizer
from hf_ssm.training.inputs import load_data
from hf_ssm.training.run import fingerprints
from hf_ssm.training.settings import read_settings_file, resolve

SEQUENCE = "ACGTTTGACATTAGGACCATGACA"
TABS = (predicting, bases, variants, frequency, theory)


@pytest.fixture
def serve(make_model: Callable[..., Any]) -> Callable[..., ServedModel]:
    """`serve(family, head, **config)`: a served tiny model of DNA, or of numbers."""

    def make(family: str, head: str, **config: Any) -> ServedModel:
        processor: Any = build_dna_tokenizer()
        if "num_input_channels" in config:
            processor = SignalFeatureExtractor(
                [0.0] * config["num_input_channels"], [1.0] * config["num_input_channels"]
            )
        else:
            config = {"vocab_size": 12} | config
        return ServedModel(make_model(family, head, **config), processor)

    return make


HEADS = [
    ("S4", "ForSequenceClassification", {}, set()),
    ("SelectiveSSM", "ForCausalLM", {}, {frequency}),
    ("Hyena", "ForMaskedLM", {"bidirectional": True}, set()),
    ("SSD", "ForTokenClassification", {"num_labels": 3}, {variants, frequency}),
    ("S5", "ForSignalRegression", {"num_input_channels": 2}, {bases, variants}),
    ("S4", "ForSequenceClassification", {"num_input_channels": 1}, {bases, variants}),
    ("S4", "ForSequenceClassification", {"num_labels": 1}, {bases}),
    ("S4", "ForSequencePairClassification", {}, {bases, variants}),
    ("Hyena", "Model", {}, {predicting, bases, variants}),
]


@pytest.mark.parametrize(("family", "head", "config", "absent"), HEADS)
def test_every_kind_of_model(
    serve: Callable[..., ServedModel], family: str, head: str, config: dict[str, Any], absent: set[Any]
) -> None:
    served = serve(family, head, **config)
    text = served.examples[0].text[:40] if served.reads == "numbers" else SEQUENCE
    text = f">a\n{SEQUENCE}\n>b\n{SEQUENCE[:9]}" if served.reads == "pairs" else text
    assert {tab for tab in TABS if tab.missing(served)} == absent
    assert len(served.facts()) >= 4
    target = "the predicted class" if served.head == "class" else 0
    results = {
        predicting: lambda: predicting.prediction_html(served, Job(), text),
        bases: lambda: bases.probe_html(served, bases.probe(served, Job(), text, "one_shot", "n", target)),
        variants: lambda: variants.variants_html(served, Job(), text, 3, 5),
        theory: lambda: theory.report_html(served, Job(), text),
    }
    for tab, compute in results.items():
        if tab not in absent:
            html = compute()
            assert any(part in html for part in ("<table", 'class="bar"', 'class="answer"')) and ">nan" not in html, tab


def test_predictions(serve: Callable[..., ServedModel]) -> None:
    served = serve("S4", "ForSequenceClassification")
    found = hf_ssm.predict(served.model, served.processor, [SEQUENCE, SEQUENCE[3:]])
    html = predicting.prediction_html(served, Job(), f">a\n{SEQUENCE}\n>b\n{SEQUENCE[3:]}")
    expected = [row[f"probability_{name}"] for row in found for name in served.class_names]
    cells = [float(cell) for cell in re.findall(r"<td>(0\.\d{4})</td>", html)]
    assert cells == pytest.approx(expected, abs=1e-4)


def test_one_prediction_is_shown_once(serve: Callable[..., ServedModel], make_model: Callable[..., Any]) -> None:
    served = serve("S4", "ForSequenceClassification", num_labels=3)
    html = predicting.prediction_html(served, Job(), SEQUENCE)
    assert html.count('class="bar"') == 3 and "<table" not in html and "Probabilities of the classes" in html
    named = predicting.prediction_html(served, Job(), f">gene1\n{SEQUENCE}")
    assert named.count('class="bar"') == 3 and "gene1" in named and ">LABEL_0</th>" not in named
    # Several sequences: a table, without bars for the first.
    html = predicting.prediction_html(served, Job(), f">a\n{SEQUENCE}\n>b\n{SEQUENCE}")
    assert 'class="bar"' not in html and html.count("<tr>") == 3
    # More classes than bars: all of them in a folded table.
    html = predicting.prediction_html(serve("S4", "ForSequenceClassification", num_labels=12), Job(), SEQUENCE)
    assert html.count('class="bar"') == 10 and "All 12 classes" in html and html.count("<tr>") == 13
    value = predicting.prediction_html(serve("S4", "ForSequenceClassification", num_labels=1), Job(), SEQUENCE)
    assert 'class="answer"' in value and "<table" not in value
    pair = predicting.prediction_html(
        serve("S4", "ForSequencePairClassification"), Job(), f">a\n{SEQUENCE}\n>b\n{SEQUENCE}"
    )
    assert pair.count('class="bar"') == 2 and "<table" not in pair


def test_the_probability_without_evidence_stands_beside_the_importance(serve: Callable[..., ServedModel]) -> None:
    served = serve("S4", "ForSequenceClassification")
    result = bases.probe(served, Job(), SEQUENCE, "one_shot", "n", bases._PREDICTED)
    result.evidence = replace(result.evidence, beaten=19, excess=(0.5, 0.4, 0.6))
    for last, stays in ((0.1, False), (0.9, True)):
        result.probabilities[:-1], result.probabilities[-1] = 0.96, last
        html = bases.probe_html(served, result)
        answer = re.findall(r'<p class="answer">(.*?)</p>', html)
        assert len(answer) == 1 and answer[0].endswith(f": 96.0%, with all tokens masked {last:.1%}")
        assert ("Not explained: the probability stays at 0.90 with all tokens masked." in html) == stays
        assert "tokens keep nine tenths of the probability. Tested with fresh draws: " in html


def test_probe(serve: Callable[..., ServedModel]) -> None:
    served, job = serve("S4", "ForSequenceClassification"), Job()
    result = bases.probe(served, job, SEQUENCE, "exact", "n", served.class_names[1])
    expected = hf_ssm.MaskingProbe(served.model, served.processor, "n", "exact", allow_wrong=True).run(
        SEQUENCE, 1, progress=False
    )
    assert torch.equal(result.order, expected.order) and job.done == job.total == len(SEQUENCE)
    effects, start = bases.effects(result), result.probabilities[0]
    last = int(result.order[-1])
    assert effects[last] == (start - result.probabilities[-1]).clamp(min=0)
    # The last token of a causal model is predicted from those before it.
    causal = serve("SelectiveSSM", "ForCausalLM")
    result, job = bases.probe(causal, job := Job(), SEQUENCE, "one_shot", "n", 0), job
    assert result.target["position"] == len(SEQUENCE) - 1 and job.done == job.total == len(SEQUENCE) - 1
    with pytest.raises(ValueError, match="positions 1 to 24"):
        bases.probe(causal, Job(), SEQUENCE, "one_shot", "n", 25)
    with pytest.raises(ValueError, match="at most 300"):
        bases.probe(served, Job(), "A" * 301, "exact", "n", bases._PREDICTED)


def test_mutagenesis(serve: Callable[..., ServedModel]) -> None:
    served, job = serve("S4", "ForSequenceClassification"), Job()
    cells, name = variants.mutagenesis(served, job, Record(SEQUENCE, "x"), 3, 6, served.class_names[0])
    assert name == f"The probability of {served.class_names[0]}" and job.done == job.total == len(cells) == 9
    mutant = SEQUENCE[:4] + "A" + SEQUENCE[5:]
    before, after = hf_ssm.predict(served.model, served.processor, [SEQUENCE, mutant])
    column = f"probability_{served.class_names[0]}"
    assert cells[1, "A"] == pytest.approx(after[column] - before[column], abs=1e-7)


def test_positions_of_the_heat_map(serve: Callable[..., ServedModel]) -> None:
    html = variants.variants_html(serve("S4", "ForSequenceClassification"), Job(), SEQUENCE, 3, 5)
    titles = re.findall(r'title="(\d+): (\w)', html)
    assert {(int(place), letter) for place, letter in titles} == {(3, "G"), (4, "T"), (5, "T")}
    assert len(titles) == 3 * 4


def shown_variants(effects: list[float], name: str = "The probability of a", unit: str = "") -> str:
    """The heat map with these effects of the substitutions of A by C at the positions from 1 on."""
    cells = {(place, "C"): effect for place, effect in enumerate(effects)}
    return variants._shown("A" * len(effects), 0, len(effects), cells, name, unit, "lead")


@pytest.mark.parametrize(
    ("name", "unit", "end"),
    [
        ("The probability of a", "", "0.05 (rises)"),
        ("log-likelihood ratio", "nats", "0.1 nats (rises)"),
        ("The predicted value", "", "0.004 (rises)"),
    ],
)
def test_noise_does_not_fill_the_scale_of_the_heat_map(name: str, unit: str, end: str) -> None:
    html = shown_variants([0.004, -0.004] * 5, name, unit)
    assert f"+{end}" in html
    colours = set(re.findall(r'class="cell" style="background:(#\w+)', html))
    assert (colours == {markup.diverging(1), markup.diverging(-1)}) == ("value" in name)


def test_values_beyond_the_scale_are_marked() -> None:
    html = shown_variants([0.1] * 500 + [0.9, -0.9])
    marked = re.findall(r'title="(\d+): A to C: [^"]*">([▲▼])</td>', html)
    assert marked == [("501", "▲"), ("502", "▼")] and "▲ and ▼ a change beyond the scale" in html
    none = shown_variants([0.1, 0.1])
    assert "▲" not in none and "beyond the scale" not in none


def test_the_largest_effects_come_first() -> None:
    sizes = [0.1, -0.3, 0.2, 0.0, 0.25]
    rows = re.findall(r"<tr><td>(\d+)</td>", shown_variants(sizes).partition("The largest changes")[2])
    assert rows == ["2", "5", "3", "1", "4"]
    top = bases._top(list("ACGTA"), torch.tensor(sizes, dtype=torch.float64))
    assert [row[0] for row in top] == [2, 5, 3, 1]


def test_variants_of_a_language_model(serve: Callable[..., ServedModel]) -> None:
    served, job = serve("SelectiveSSM", "ForCausalLM"), Job()
    cells, *_ = variants._likelihoods(served, job, SEQUENCE, 3, 6)
    table = hf_ssm.saturate(served.model, served.processor, SEQUENCE, 3, 6, scores=["llr"])
    expected = {(row["position"] - 3, row["alt"]): row["llr"] for row in table}
    assert cells == pytest.approx(expected) and job.done > 0
    for first, last in ((0, 3), (5, 4), (25, 30)):
        with pytest.raises(ValueError, match="positions 1 to 24"):
            variants.variants_html(served, Job(), SEQUENCE, first or -1, last)


@pytest.mark.parametrize("family", ["S4", "S5", "Hyena"])
def test_response_with_other_alpha_and_beta(make_model: Callable[..., Any], family: str) -> None:
    model = make_model(family, "ForSequenceClassification")
    other = make_model(family, "ForSequenceClassification", sobolev_order=0.5)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name.endswith("A_imag"):
                parameter.mul_(3)
    trained, expected = frequency_responses(model)[0], frequency_responses(other)[0]
    scale = 3.0 if family != "Hyena" else 1.0
    assert torch.allclose(frequency.changed_response(trained, scale, 0.5).response, expected.response)
    assert torch.equal(frequency.changed_response(trained, 1.0, 0.0).response, trained.response)
    # What is shown as trained stays so.
    assert torch.equal(frequency_responses(model)[0].response, trained.response)


def test_captions_of_responses(serve: Callable[..., ServedModel]) -> None:
    served = serve("S4", "ForSequenceClassification", frequency_scale=2.0, sobolev_order=0.25)
    (response, *_) = frequency_responses(served.model)
    html = frequency.response_html(served, response, 1.0, 0.5)
    assert "As trained (α = 2, β = 0.25) and with α = 20, β = 0.75." in html
    implicit = serve("Hyena", "ForSequenceClassification")
    html = frequency.response_html(implicit, frequency_responses(implicit.model)[0], 0.0, 0.0)
    assert "As trained (β = 0)." in html


def test_report_has_the_numbers(serve: Callable[..., ServedModel]) -> None:
    served = serve("S4", "ForSequenceClassification")
    served.num_training = 100
    report = hf_ssm.theory_report(served.model, served.batches(SEQUENCE, 1, 100), num_sequences=100)
    html = theory.report_html(served, Job(), SEQUENCE)
    for layer in report.complexity:
        assert f"<td>{layer.tau:.4g}</td>" in html and f"<td>{layer.measure:.4g}</td>" in html
    assert "n = 100 is the number of training sequences" in html and "The reach of the output of a layer" in html


def test_labels_wider_than_a_figure_are_not_cut() -> None:
    figure = plotting.plot_masking_curves([[1.0, 0.5]])
    figure.axes[0].set_xlabel("a label that is wider than the page, as no line of it is broken, at least not here")
    width = float(re.findall(r'viewBox="0 0 ([\d.]+) ', figure_html(figure, "caption"))[0])
    assert width >= 72 * figure.get_tightbbox().width > 72 * figure.get_figwidth()


def test_a_report_on_few_sequences_compares_nothing(serve: Callable[..., ServedModel]) -> None:
    served = serve("S4", "ForSequenceClassification")
    generalises, few = "generalises better", "a single sequence gives none"
    one = theory.report_html(served, Job(), SEQUENCE)
    assert generalises not in one and few in one and "too few sequences for τ" in one
    rng = np.random.default_rng(0)
    rows = ["".join(rng.choice(list("ACGT"), 24)) for _ in range(16)]
    many = theory.report_html(served, Job(), "\n".join(f">{number}\n{row}" for number, row in enumerate(rows)))
    assert generalises in many and few not in many and "too few" not in many


def test_no_effect_names_its_positions(serve: Callable[..., ServedModel]) -> None:
    served = serve("S4", "ForSequenceClassification")
    with torch.no_grad():
        served.model.classifier.weight.zero_()
    part = variants.variants_html(served, Job(), SEQUENCE, 3, 10)
    assert "No substitution at the positions 3 to 10 changes the prediction by more than" in part
    assert "The other 16 of the 24 positions were not tried." in part and "single base of the" not in part
    whole = variants.variants_html(served, Job(), SEQUENCE, 1, 24)
    assert "does not depend on any single base of the sequence." in whole and "not tried" not in whole
    assert "Positions 1 to 24 of 24." in whole


@pytest.mark.parametrize("value", ["1e25", "-1e30", "3e38"])
def test_numbers_that_overflow(serve: Callable[..., ServedModel], value: str) -> None:
    served = serve("S4", "ForSequenceClassification", num_input_channels=1)
    served.processor.std = [0.1]
    text = f"{value}\n0\n1\n" * 8
    for compute in (predicting.prediction_html, theory.report_html):
        with pytest.raises(ValueError, match=r"on the scale of the training data|too large once they are scaled"):
            compute(served, Job(), text)


def test_texts_of_another_alphabet(make_model: Callable[..., Any]) -> None:
    model = make_model("S4", "ForCausalLM", vocab_size=300)
    served = ServedModel(model, build_byte_tokenizer())
    assert not served.examples and served.has_bases and not served.reads_dna
    assert "<table" in predicting.prediction_html(served, Job(), "some <b>words</b>", 5, 0.0)


def test_end_tokens_are_not_continued(make_model: Callable[..., Any]) -> None:
    model = make_model("S4", "ForCausalLM", vocab_size=12)
    with_end = ServedModel(model, build_dna_tokenizer(add_eos=True))
    without = ServedModel(model, build_dna_tokenizer())
    (record,) = without.records(SEQUENCE)
    assert predicting._next_tokens(with_end, record) == predicting._next_tokens(without, record)
    html = predicting._generated(with_end, record, 3, 0.0)
    assert html == predicting._generated(without, record, 3, 0.0)


def test_no_position_to_fill_in(serve: Callable[..., ServedModel]) -> None:
    served = serve("Hyena", "ForMaskedLM", bidirectional=True)
    with pytest.raises(ValueError, match="positions 1 to 24"):
        predicting.prediction_html(served, Job(), SEQUENCE, None)


def store_fingerprints(folder: Path) -> None:
    """As a run does."""
    splits = load_data(resolve(read_settings_file(folder / "train_config.yaml"), {})).splits
    (folder / "data_fingerprint.json").write_text(json.dumps(fingerprints(splits)))


def test_the_first_example_needs_its_tokens(make_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = build_dna_tokenizer()
    model = make_model("S4", "ForSequenceClassification", vocab_size=len(tokenizer), num_labels=2)
    examples = [Example("stays", "GCTA" * 6), Example("lost", "AAAA" * 6), Example("stays too", "CGTA" * 6)]
    drawn = {example.text: 0.1 if example.label == "lost" else 0.9 for example in examples}
    monkeypatch.setattr(MaskingProbe, "start", lambda self, text: Prediction(0.9, 1, True, drawn[text]))
    assert [e.label for e in app._explained_first(examples, model, tokenizer)] == ["lost", "stays", "stays too"]
    monkeypatch.undo()
    model.config.problem_type = "regression"
    assert app._explained_first(examples, model, tokenizer) == examples


def test_examples_are_rows_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"ACGT" + "".join(word): "ab"[number % 2] for number, word in enumerate(product("ACGT", repeat=3))}
    (tmp_path / "rows.csv").write_text("\n".join(["sequence,label", *map(",".join, rows.items())]))
    settings = tmp_path / "train_config.yaml"
    settings.write_text(f"data:\n  dataset: {tmp_path / 'rows.csv'}\n")
    # A stranger's settings may name a table of this machine, but not what is in it.
    assert app._examples(str(tmp_path)) == []
    store_fingerprints(tmp_path)
    found = app._examples(str(tmp_path))
    assert len(found) == 4 and all(example.label.endswith(f": {rows[example.text]}") for example in found)
    assert len({rows[example.text] for example in found}) == 2
    (tmp_path / "rows.csv").write_text(
        "\n".join(["sequence,x,y", *(f"{text},{n},{n + 1}" for n, text in enumerate(rows))])
    )
    data = f"data: {{dataset: {tmp_path / 'rows.csv'}, label_column: [x, y]}}"
    settings.write_text(f"{data}\nmodel: {{task: sequence-regression}}\n")
    assert app._examples(str(tmp_path)) == []
    store_fingerprints(tmp_path)
    assert [example.label for example in app._examples(str(tmp_path))] == ["row 1", "row 2", "row 3", "row 4"]
    # The settings of a repository do not open files of this machine.
    monkeypatch.setattr(app, "file_of", lambda checkpoint, name: settings)
    assert app._examples("ada/run") == []


def test_errors_of_the_program_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def work(job: Job) -> str:
        raise RuntimeError("shapes cannot be multiplied")

    *_, (_, _, message, _) = Jobs()._run("Compute", work, "steps", SimpleNamespace(session_hash="x"), ())
    assert "the log of the server" in message and "multiplied" not in message
    assert "shapes cannot be multiplied" in caplog.text


def test_what_runs_for_a_visitor_is_stopped() -> None:
    def work(job: Job) -> str:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            job.check()
            time.sleep(0.01)
        return "done"

    jobs, visitors = Jobs(), [SimpleNamespace(session_hash=name) for name in "xy"]
    running = [jobs._run(label, work, "steps", visitor, ()) for label in ("Upload", "Predict") for visitor in visitors]
    for updates in running:
        next(updates)
        next(updates)
    jobs.stop(visitors[0])
    for of_x in running[::2]:
        assert "Cancelled after" in list(of_x)[-1][2]
    for of_y in running[1::2]:
        assert "Running" in next(of_y)[2]
        of_y.close()
    assert not jobs._running


def test_several_labels_of_a_signal(serve: Callable[..., ServedModel]) -> None:
    kind = {"num_labels": 3, "problem_type": "multi_label_classification"}
    served = serve("S4", "ForSequenceClassification", num_input_channels=1, **kind)
    text = served.examples[0].text
    logits = served.model(**served.batches(text, 1, 1000)[0]).logits[0]
    html = predicting.prediction_html(served, Job(), text)
    assert re.findall(r"<td>([\d.]+)</td>", html) == [f"{share:.4g}" for share in logits.double().sigmoid().tolist()]


def test_html_is_escaped(make_model: Callable[..., Any]) -> None:
    model = make_model("S4", "ForSequenceClassification", vocab_size=12, id2label={0: "<script>", 1: "b"})
    html = predicting.prediction_html(ServedModel(model, build_dna_tokenizer()), Job(), f"><i>\n{SEQUENCE}")
    assert "<script>" not in html and "<i>" not in html and "&lt;script&gt;" in html


def test_too_long(serve: Callable[..., ServedModel]) -> None:
    served = serve("Hyena", "ForSequenceClassification")
    with pytest.raises(ValueError, match="the model takes at most 64"):
        served.batches("A" * 65, 1, 100)
    signals = serve("Hyena", "ForSequenceClassification", num_input_channels=1)
    with pytest.raises(ValueError, match="has 65 positions, and the model takes at most 64"):
        signals.batches("1 " * 65, 1, 100)
    with pytest.raises(ValueError, match="this page takes at most 50"):
        served.batches("A" * 60, 1, 50)


def test_a_job_stops_within_torch() -> None:
    began, ended = threading.Event(), threading.Event()
    model = torch.nn.Linear(2, 2).train()

    def work() -> None:
        try:
            began.set()
            end = time.monotonic() + 30
            while time.monotonic() < end:
                model(torch.ones(2))
        finally:
            # Cleaning up may use torch.
            torch.zeros(2).add(1)
            ended.set()

    job = Job()
    running = job.run(work)
    next(running)
    assert began.wait(10) and not ended.is_set()
    job.stop()
    with pytest.raises(Stopped):
        for _ in running:
            pass
    assert ended.is_set()


def test_a_closed_page_stops_the_job() -> None:
    ended = threading.Event()

    def work() -> None:
        try:
            end = time.monotonic() + 30
            while time.monotonic() < end:
                torch.ones(2).add(1)
        finally:
            ended.set()

    began = time.monotonic()
    running = Job().run(work)
    next(running)
    running.close()
    assert time.monotonic() - began < 20
    assert ended.wait(10) and running.gi_frame is None


def test_results_and_errors_of_a_job() -> None:
    def result(work: Callable[[], Any]) -> Any:
        running = Job().run(work)
        while True:
            try:
                next(running)
            except StopIteration as finished:
                return finished.value

    assert result(lambda: np.ones(2).sum()) == 2
    with pytest.raises(ZeroDivisionError):
        result(lambda: 1 // 0)


def test_command_with_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["app", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"hf-ssm: error: '{tmp_path}'")
