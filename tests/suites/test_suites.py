"""Suites: data in the formats of published ones, results against plain implementations, continuation."""

import dataclasses
import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from suite_stand_ins import WORDS, plain_area, plain_metric, plain_regression, sequences, variants
from transformers import set_seed

from hf_ssm import S4Config, S4ForSequenceClassification, build_dna_tokenizer
from hf_ssm.data.genome import Genome
from hf_ssm.data.records import reverse_complement
from hf_ssm.inference.model import SequenceModel
from hf_ssm.suites import SUITES, Contender, read_suite, run_suite, runner, supervised
from hf_ssm.suites.data import Limits, load_task
from hf_ssm.suites.metrics import METRICS, measure, standard_error
from hf_ssm.suites.report import table_lines, write_results
from hf_ssm.suites.supervised import embeddings, kmer_classifier, linear_classifier
from hf_ssm.suites.task import Suite, Task
from hf_ssm.suites.variants import word_scores

close = pytest.approx


@pytest.fixture(autouse=True)
def short_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of six letters take seconds."""
    monkeypatch.setattr(supervised, "WORD_LENGTHS", (2, 3))


def task_of(suite: str, name: str) -> Task:
    return SUITES[suite].choose([name]).tasks[0]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("metric", METRICS)
def test_metrics(metric: str, classes: int) -> None:
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, 80)
    scores = np.round(rng.random((80, classes)), 2)  # with ties
    expected = plain_metric(metric, labels.tolist(), scores.tolist())
    assert measure(metric, labels, scores) == close(expected, rel=1e-12)
    # The standard error of a share is known.
    if metric == "accuracy":
        assert standard_error(metric, labels, scores) == close(math.sqrt(expected * (1 - expected) / 80), rel=0.2)


@pytest.mark.parametrize(
    ("suite", "name", "metric", "rows", "classes"),
    [
        ("genomic-benchmarks", "demo_human_or_worm", "accuracy", {"train": 72, "validation": 8, "test": 40}, 2),
        ("nucleotide-transformer", "H2AFZ", "mcc", {"train": 72, "validation": 8, "test": 40}, 2),
        ("gue", "virus_covid", "f1", {"train": 90, "validation": 30, "test": 45}, 3),
    ],
)
def test_formats_of_published_suites(
    mirror: Path, tmp_path: Path, suite: str, name: str, metric: str, rows: dict[str, int], classes: int
) -> None:
    task = task_of(suite, name)
    data = load_task(task, tmp_path, mirror)
    assert (task.metric, data.rows, data.classes) == (metric, rows, tuple(map(str, range(classes))))
    splits = data.splits()
    assert {split: len(labels) for split, (_, labels) in splits.items()} == rows
    # Capitals, N kept; the validation rows are cut from the training rows of both classes.
    texts = [text for split, _ in splits.values() for text in split]
    assert all(text.isupper() and set(text) <= set("ACGTN") for text in texts) and any("N" in text for text in texts)
    assert set(splits["validation"][1]) == set(range(classes))
    assert not set(splits["validation"][0]) & (set(splits["train"][0]) | set(splits["test"][0]))


def test_stored_rows_are_used_again_unless_the_task_or_the_table_changes(mirror: Path, tmp_path: Path) -> None:
    task = task_of("gue", "emp_H3")
    data = load_task(task, tmp_path, mirror)
    before = data.path.stat().st_mtime_ns
    assert load_task(task, tmp_path, mirror) == data and data.path.stat().st_mtime_ns == before
    few = load_task(task, tmp_path, mirror, Limits(max_rows=10, max_length=30))
    assert few.rows == {"train": 10, "validation": 10, "test": 10} and few.digest != data.digest
    assert {len(text) for text in few.splits()["train"][0]} == {30}
    few.path.write_bytes(b"damaged")
    assert load_task(task, tmp_path, mirror).digest == data.digest
    # An edited table is read again.
    own = Task("own", str(own_table(tmp_path, {"train": 40, "test": 20})), **COLUMNS)
    first = load_task(own, tmp_path / "own")
    own_table(tmp_path, {"train": 40, "test": 24})
    second = load_task(own, tmp_path / "own")
    assert (first.rows["test"], second.rows["test"]) == (20, 24) and first.digest != second.digest


def own_table(folder: Path, counts: dict[str, int], classes: int = 2, seed: int = 1) -> Path:
    rng = random.Random(seed)
    lines = ["dna,kind,part"]
    for split, count in counts.items():
        rows = sequences(rng, count, classes)
        lines += [f"{text},{label},{split}" for text, label in zip(rows["sequence"], rows["label"], strict=True)]
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


COLUMNS = {"sequence_column": "dna", "label_column": "kind", "split_column": "part"}


def plain_mean(model: Any, tokenizer: Any, text: str) -> torch.Tensor:
    """Mean of the last hidden states over the letters, `(D,)`."""
    ids = torch.tensor([tokenizer.convert_tokens_to_ids(list(text))])
    with torch.no_grad():
        return sum(model.model(ids).last_hidden_state[0]) / len(text)


@pytest.mark.parametrize(("classes", "metric"), [(2, "auroc"), (3, "auprc")])
def test_linear_probe(reader: SequenceModel, tmp_path: Path, classes: int, metric: str) -> None:
    """Means of hidden states and the minimum of the regression, both from their definitions."""
    path = own_table(tmp_path, {"train": 60, "val": 24, "test": 36}, classes)
    data = load_task(Task("own", str(path), metric=metric, **COLUMNS), tmp_path / "data")
    splits = data.splits()
    reader.model.double()
    vectors, expected = {}, {}
    for split, (texts, _) in splits.items():
        vectors[split] = embeddings(reader, texts)
        expected[split] = torch.stack([plain_mean(reader.model, reader.tokenizer, text) for text in texts]).numpy()
        np.testing.assert_allclose(vectors[split], expected[split], rtol=1e-6, atol=1e-9)
    center, scale = expected["train"].mean(0), expected["train"].std(0)
    inputs = {split: (values - center) / scale for split, values in expected.items()}
    best, value = -1.0, None
    for penalty in (0.001, 0.01, 0.1, 1.0):
        predicted = {
            split: plain_regression(inputs["train"], splits["train"][1], inputs[split], penalty)
            for split in ("validation", "test")
        }
        chosen = plain_metric(metric, splits["validation"][1].tolist(), predicted["validation"].round(6).tolist())
        if chosen > best:
            best, value = chosen, plain_metric(metric, splits["test"][1].tolist(), predicted["test"].tolist())
    result = linear_classifier(data, vectors)
    assert result["value"] == close(value, rel=1e-6) and result["validation"] == close(best, rel=1e-6)
    constant = [[float(kind == np.bincount(splits["train"][1]).argmax()) for kind in range(classes)]] * 36
    assert result["chance"] == close(plain_metric(metric, splits["test"][1].tolist(), constant), rel=1e-6)


def test_kmers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of words by dictionaries, the regression from its objective; both settings chosen by validation rows."""
    monkeypatch.setattr(supervised, "WORD_LENGTHS", (1, 2))
    monkeypatch.setattr(supervised, "PENALTIES", (0.02, 0.5))
    path = own_table(tmp_path, {"train": 60, "val": 24, "test": 36})
    data = load_task(Task("own", str(path), metric="auroc", keep_case=True, **COLUMNS), tmp_path / "data")
    splits = data.splits()
    assert any(text.islower() for text in splits["train"][0])
    best, value, settings_of_best = -1.0, None, {}
    for k, penalty in itertools.product((1, 2), (0.02, 0.5)):
        words = ["".join(letters) for letters in itertools.product("ACGT", repeat=k)]
        counts = {
            split: np.array(
                [[[t.upper()[i : i + k] for i in range(len(t))].count(word) for word in words] for t in texts]
            )
            for split, (texts, _) in splits.items()
        }
        predicted = {
            split: plain_regression(counts["train"].astype(float), splits["train"][1], counts[split], penalty)
            for split in ("validation", "test")
        }
        chosen = plain_metric("auroc", splits["validation"][1].tolist(), predicted["validation"].tolist())
        if chosen > best:
            best, settings_of_best = chosen, {"k": k, "C": penalty}
            value = plain_metric("auroc", splits["test"][1].tolist(), predicted["test"].tolist())
    result = kmer_classifier(data)
    assert result["chosen"] == settings_of_best and result["value"] == close(value, rel=1e-6)


def test_long_sequences_are_read_in_windows(make_model: Any, reader: SequenceModel) -> None:
    model = make_model("Hyena", "ForCausalLM", vocab_size=16).double()
    text = "".join(random.Random(0).choice("ACGTN") for _ in range(150))
    parts = [plain_mean(model, reader.tokenizer, text[start : start + 64]) for start in (0, 64, 128)]
    expected = (64 * parts[0] + 64 * parts[1] + 22 * parts[2]) / 150
    found = embeddings(SequenceModel(model, reader.tokenizer), ["ACGT", text])
    np.testing.assert_allclose(found[1], expected.numpy(), rtol=1e-6)
    np.testing.assert_allclose(found[0], plain_mean(model, reader.tokenizer, "ACGT").numpy(), rtol=1e-6)


def plain_word_scores(rows: list[dict[str, Any]], genome: Genome, window: int, k: int) -> list[float]:
    """A Markov chain in dictionaries, of substitutions."""
    half, pairs = window // 2, []
    for row in rows:
        text = genome.fetch(f"chr{row['chrom']}", 0, genome.length(f"chr{row['chrom']}")).upper()
        place = row["pos"] - 1
        both = [text, text[:place] + row["alt"] + text[place + 1 :]]
        turned = len(text) - 1 - place
        forward = [one[max(0, place - half) : place + window - half] for one in both]
        reverse = [reverse_complement(one)[max(0, turned - half) : turned + window - half] for one in both]
        pairs.append((forward, reverse))
    counts: dict[str, int] = {"".join(word): 1 for word in itertools.product("ACGT", repeat=k)}
    for (ref, _), _ in pairs:
        for strand in (ref, reverse_complement(ref)):
            for start in range(len(strand) - k + 1):
                word = strand[start : start + k]
                if word in counts:
                    counts[word] += 1

    def log_likelihood(text: str) -> float:
        total = 0.0
        for start in range(len(text) - k + 1):
            word = text[start : start + k]
            if word in counts:
                total += math.log(counts[word] / sum(counts[word[:-1] + letter] for letter in "ACGT"))
        return total

    return [sum(log_likelihood(alt) - log_likelihood(ref) for ref, alt in strands) / 2 for strands in pairs]


def test_words_around_variants(mirror: Path) -> None:
    rng = random.Random(5)
    with Genome(mirror / "genome.fa") as genome:
        contigs = {name: genome.fetch(name, 0, length) for name, length in genome.contigs.items()}
        rows = variants(rng, contigs, 40)
        assert any(contigs[f"chr{row['chrom']}"][row["pos"] - 1].islower() for row in rows)
        found = word_scores(Dataset.from_list(rows), genome, 64, 3)
        np.testing.assert_allclose(found, plain_word_scores(rows, genome, 64, 3), rtol=1e-9, atol=1e-12)
        without = word_scores(Dataset.from_list([{"chrom": "7", "pos": 3, "ref": "A", "alt": "C"}]), genome, 64, 3)
        assert without == [None]


@pytest.mark.parametrize("orientation", ["signed", "absolute"])
def test_variants_without_training(reader: SequenceModel, mirror: Path, tmp_path: Path, orientation: str) -> None:
    """TraitGym's main metric: mean over chromosomes of the average precision, weighted by their variants."""
    task = Task(
        "traits", "songlab/TraitGym", config="mendelian_traits", kind="variants", metric="auprc", by="chrom",
        orientation=orientation, window=40,
    )  # fmt: skip
    reader.model.double()
    (baseline, run) = run_suite(
        Suite("s", (task,)), [Contender("m", lambda: reader)], tmp_path, with_random=False, mirror=mirror,
        genome=mirror / "genome.fa",
    )  # fmt: skip
    data = load_task(task, tmp_path / "data", mirror)
    rows = list(data.variants())
    with Genome(mirror / "genome.fa") as genome:
        texts = {name: genome.fetch(name, 0, 1500).upper() for name in genome.contigs}

    def log_likelihood(text: str) -> float:
        ids = torch.tensor([reader.tokenizer.convert_tokens_to_ids(list(text))])
        with torch.no_grad():
            logits = reader.model(ids).logits[0]
        return sum(logits[at].log_softmax(-1)[ids[0, at + 1]].item() for at in range(len(text) - 1))

    scores: list[float | None] = []
    for row in rows:
        text = texts[f"chr{row['chrom']}"]
        place, turned = row["pos"] - 1, 1500 - row["pos"]
        other = text[:place] + row["alt"] + text[place + 1 :]
        ratios = []
        for ref, alt, at in ((text, other, place), (*map(reverse_complement, (text, other)), turned)):
            span = slice(max(0, at - 20), at + 20)
            if sum(letter == "N" for letter in ref[span]) <= len(ref[span]) / 2:
                ratios.append(log_likelihood(alt[span]) - log_likelihood(ref[span]))
        llr = sum(ratios) / len(ratios) if ratios else None
        scores.append(None if llr is None else abs(llr) if orientation == "absolute" else -llr)
    expected, total = 0.0, 0
    for chrom in ("1", "2", "X"):
        kept = [
            (row["label"], s) for row, s in zip(rows, scores, strict=True) if row["chrom"] == chrom and s is not None
        ]
        if 0 < sum(label for label, _ in kept) < len(kept):
            expected += len(kept) * plain_area("auprc", [bool(label) for label, _ in kept], [s for _, s in kept])
            total += len(kept)
    assert total > 40 and run.results[0]["variants"] == total
    assert run.value == close(expected / total, rel=1e-6)
    assert run.how == "zero-shot" and baseline.how == "words" and 0 < baseline.value < 1


def test_bed_files_of_bend(mirror: Path, tmp_path: Path) -> None:
    task = task_of("bend-variants", "variant_effects_disease")
    data = load_task(task, tmp_path, mirror)
    with Genome(mirror / "genome.fa") as genome:
        for row in data.variants():
            assert genome.fetch(row["chrom"], row["pos"] - 1, row["pos"]).upper() == row["ref"]
    with pytest.raises(FileNotFoundError, match=r"no file 'bend/variant_effects_disease\.bed'"):
        load_task(task, tmp_path / "other")


def test_distances_of_bend(mirror: Path, tmp_path: Path, reader: SequenceModel) -> None:
    """The cosine distance at the variant, 256 bases (here 20) on each side, from the states of whole windows."""
    task = dataclasses.replace(task_of("bend-variants", "variant_effects_disease"), window=41)
    assert task_of("bend-variants", "variant_effects_disease").window == 513
    reader.model.double()
    (_, run) = run_suite(
        Suite("s", (task,)), [Contender("m", lambda: reader)], tmp_path, with_random=False, mirror=mirror,
        genome=mirror / "genome.fa",
    )  # fmt: skip
    labels, distances = [], []
    with Genome(mirror / "genome.fa") as genome:
        for row in load_task(task, tmp_path / "data", mirror).variants():
            text, place = genome.fetch(row["chrom"], 0, 1500).upper(), row["pos"] - 1
            states = []
            for letters in (text, text[:place] + row["alt"] + text[place + 1 :]):
                window = letters[max(0, place - 20) : place + 21]
                ids = torch.tensor([reader.tokenizer.convert_tokens_to_ids(list(window))])
                with torch.no_grad():
                    states.append(reader.model.model(ids).last_hidden_state[0, min(20, place)])
            if window.count("N") <= len(window) / 2:
                labels.append(bool(row["label"]))
                distances.append(1 - torch.cosine_similarity(*states, dim=0).item())
    assert len(distances) == run.results[0]["variants"] > 20
    assert run.results[0]["chosen"] == {"score": "cosine_distance"}
    assert run.value == close(plain_area("auroc", labels, distances), rel=1e-6)


def settings(**model: Any) -> dict[str, Any]:
    size = {"family": "s4", "hidden_size": 4, "num_hidden_layers": 1, "state_size": 4, "bidirectional": True}
    return {"model": size | model, "training": {"num_train_epochs": 1, "per_device_train_batch_size": 16}}


def without_times(runs: list[Any]) -> Any:
    return [
        [{key: value for key, value in result.items() if key != "seconds"} for result in run.results] for run in runs
    ]


def test_killed_and_continued(
    reader: SequenceModel, mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call measures what the first one has not, and the results are those of an uninterrupted call."""
    suite = SUITES["gue"].choose(["virus_covid"])
    contenders = [Contender("lm", lambda: reader, facts="lm"), Contender("fresh", settings=settings(), facts="fresh")]
    whole = run_suite(suite, contenders, tmp_path / "whole", seeds=2, mirror=mirror)
    calls: list[str] = []
    real = runner.fine_tune

    def dies(data: Any, layer: Any, seed: int, *rest: Any) -> Any:
        calls.append(f"{data.task.name} {seed}")
        if calls == ["virus_covid 0", "virus_covid 1"]:
            raise KeyboardInterrupt
        return real(data, layer, seed, *rest)

    monkeypatch.setattr(runner, "fine_tune", dies)
    with pytest.raises(KeyboardInterrupt):
        run_suite(suite, contenders, tmp_path / "killed", seeds=2, mirror=mirror)
    files = {path: path.read_bytes() for path in (tmp_path / "killed").rglob("cells/*/*.json")}
    assert len(files) == 5
    continued = run_suite(suite, contenders, tmp_path / "killed", seeds=2, mirror=mirror)
    assert calls == ["virus_covid 0", "virus_covid 1", "virus_covid 1"]
    assert all(path.read_bytes() == content for path, content in files.items())
    assert without_times(continued) == without_times(whole)
    names = [(run.task, run.model, run.how, run.seeds) for run in whole]
    rows = [
        ("k-mers", "words", ()),
        ("lm", "linear probe", ()),
        ("lm (random weights)", "linear probe", (0, 1)),
        ("fresh", "trained", (0, 1)),
        ("fresh (random weights)", "linear probe", (0, 1)),
    ]
    assert names == [("virus_covid", *row) for row in rows]
    # Other facts of a model: only its results are measured again.
    calls.clear()
    other = [contenders[0], Contender("fresh", settings=settings(state_size=2), facts="fresh")]
    run_suite(suite, other, tmp_path / "killed", seeds=1, mirror=mirror)
    assert calls == ["virus_covid 0"]


def test_random_weights_of_settings(tmp_path: Path) -> None:
    """Fresh models of the configuration that the settings train, by means of hidden states; nothing is trained."""
    path = own_table(tmp_path, {"train": 60, "val": 24, "test": 36})
    task = Task("own", str(path), metric="auroc", **COLUMNS)
    contender = Contender("fresh", settings=settings(rc_conjoin="eval"))
    runs = run_suite(Suite("mine", (task,)), [contender], tmp_path / "out", seeds=2)
    data, random_run = load_task(task, tmp_path / "out" / "data"), runs[-1]
    assert random_run.model == "fresh (random weights)" and random_run.is_random and runs[1].how == "trained"
    values = []
    for seed, result in enumerate(random_run.results):
        set_seed(seed)
        config = S4Config(hidden_size=4, num_hidden_layers=1, state_size=4, bidirectional=True, num_labels=2)
        plain = S4ForSequenceClassification(config).eval()
        tokenizer = build_dna_tokenizer()
        vectors = {
            split: torch.stack([plain_mean(plain, tokenizer, text) for text in texts]).double().numpy()
            for split, (texts, _) in data.splits().items()
        }
        expected = linear_classifier(data, vectors)
        assert result["value"] == close(expected["value"], rel=1e-6)
        assert result["chosen"] == expected["chosen"] and result["parameters"] == plain.num_parameters()
        values.append(vectors["test"])
    assert not np.allclose(*values)
    without = run_suite(Suite("mine", (task,)), [contender], tmp_path / "out", seeds=2, with_random=False)
    assert [run.model for run in without] == ["k-mers", "fresh"]


def test_report(reader: SequenceModel, mirror: Path, tmp_path: Path) -> None:
    """A model that cannot be measured has a note; entries for the Hub exist where the data are there."""

    def broken() -> SequenceModel:
        raise ValueError("no weights\nhere")

    own = Task("own", str(own_table(tmp_path, {"train": 40, "test": 20})), **COLUMNS)
    suite = Suite("mine", (task_of("gue", "emp_H3"), own), "a paper")
    contenders = [Contender("user/lm", lambda: reader), Contender("bad", broken)]
    runs = run_suite(suite, contenders, tmp_path / "out", seeds=2, mirror=mirror)
    lines = table_lines(runs)
    assert [line.split(" | ")[1] for line in lines[2:7]] == [
        "k-mers", "user/lm", "user/lm (random weights)", "bad", "bad (random weights)",
    ]  # fmt: skip
    assert lines[-1] == "- own, bad (random weights): no weights here"
    # Numbers of a sample of the rows are none of the data set.
    assert not write_results(suite, runs, tmp_path / "out", Limits(max_rows=10))
    assert not (tmp_path / "out" / "eval_results").exists()
    (path,) = write_results(suite, runs, tmp_path / "out")
    assert path == tmp_path / "out" / "eval_results" / "user_lm" / ".eval_results" / "mine.yaml"
    from huggingface_hub import parse_eval_result_entries
    from yaml import safe_load

    (entry,) = parse_eval_result_entries(safe_load(path.read_text()))
    assert (entry.dataset_id, entry.task_id) == ("leannmlindsey/GUE", "emp_H3")
    assert entry.value == round(runs[1].value, 6) and "mcc, linear probe, test rows: 45" in entry.notes
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert stored["tasks"]["own"]["label_column"] == "kind"
    assert [run["value"] for run in stored["runs"]] == [None if run.problem else run.value for run in runs]
    deviation = np.std([result["value"] for result in runs[2].results], ddof=1)
    assert stored["runs"][2]["deviation"] == close(deviation, rel=1e-12)
    assert f"| {deviation:.4f} |" in lines[4]


SUITE = """
name: lab
defaults: {metric: mcc, sequence_column: dna, label_column: kind, split_column: part}
tasks:
  - {name: words, dataset: table.csv}
  - {name: again, dataset: table.csv, metric: auroc}
"""


def test_suite_of_a_lab(tmp_path: Path) -> None:
    own_table(tmp_path, {"train": 40, "test": 20})
    (tmp_path / "lab.yaml").write_text(SUITE)
    suite = read_suite(tmp_path / "lab.yaml")
    assert [(task.name, task.metric) for task in suite.tasks] == [("words", "mcc"), ("again", "auroc")]
    (run,) = run_suite(suite.choose(["again"]), [], tmp_path / "out")
    assert run.rows == {"train": 36, "validation": 4, "test": 20} and WORDS[0] in "".join(
        load_task(suite.tasks[0], tmp_path / "data").splits()["train"][0]
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tasks: []", "must have `tasks`"),
        ("[1]", "must be a mapping, got list"),
        ("tasks: [{name: a}]", "lacks the key `dataset`"),
        ("tasks: [{name: a, dataset: b, metrik: f1}]", "did you mean 'metric'"),
        ("tasks: [{name: a, dataset: b, metric: f2}]", "`metric`='f2' must be one of accuracy, f1"),
        ("tasks: [{name: a, dataset: b, kind: variants}]", "must be auroc or auprc"),
        ("tasks: [{name: ../a, dataset: b}]", "usable as a file name"),
        ("tasks: [{name: a, dataset: b}, {name: a, dataset: b}]", "two tasks of the same name"),
        ("tasks: [", "is not a YAML file"),
    ],
)
def test_suites_that_are_none(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "lab.yaml").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_suite(tmp_path / "lab.yaml")


def test_wrong_arguments(reader: SequenceModel, mirror: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'traitgym'"):
        read_suite("traitgmy")
    with pytest.raises(ValueError, match="no task 'emp_h3'; did you mean 'emp_H3'"):
        SUITES["gue"].choose(["emp_h3"])
    variants_of, lm = SUITES["traitgym"], Contender("lm", lambda: reader)
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="has variants: give their reference genome"):
        run_suite(variants_of, [lm], out, mirror=mirror)
    with pytest.raises(ValueError, match="'fresh' would be trained: give a checkpoint"):
        run_suite(variants_of, [Contender("fresh", settings=settings())], out, genome=mirror / "genome.fa")
    with pytest.raises(ValueError, match="named 'lm'"):
        run_suite(SUITES["gue"], [lm, lm], out, mirror=mirror)
    assert not out.exists()
    path = own_table(tmp_path, {"train": 20})
    with pytest.raises(ValueError, match="has no test split; its splits are train, validation"):
        load_task(Task("own", str(path), **COLUMNS), out)
    with pytest.raises(ValueError, match=r"no row of .* has \{'task': 'H2AFX'\}"):
        load_task(Task("x", task_of("nucleotide-transformer", "H2AFZ").dataset, where={"task": "H2AFX"}), out, mirror)
