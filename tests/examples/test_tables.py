"""The tables of the documents are those of the stored results, and the numbers in their text are few."""

import json
import re
import statistics
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = tuple(sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/experiments/*.md")))
NAMES = (
    "README.md",
    "docs/index.md",
    "benchmarks/README.md",
    "model_cards/README.md",
    "docs/how-to/checkpoints.md",
    "docs/how-to/cost.md",
    "docs/how-to/generate.md",
    "docs/how-to/kernels.md",
    "docs/how-to/quantisation.md",
    *PAGES,
)
# Pages with tables of scripts that were removed, which are the record.
RECORDS = {"docs/experiments/real-dna.md", "docs/experiments/tuning.md"}
# Words that name the trivial baseline of each table of the experiments, in the table.
TRIVIAL = {
    "attribution_scoreboard": "| `random` | 0 |",
    "bimodal": "| always to the nearer mode |",
    "compression": "| most frequent class |",
    "denoising": "1 for a copy of the input",
    "denoising_photographs": "1 for a copy of the input",
    "forecasting": "| seasonal naive |",
    "gated_convolution": "| constant |",
    "gated_convolution_causes": "| constant |",
    "gaussian_process": "| constant | 0.01 |",
    "gaussian_process_training": "| constant |",
    "imdb_length": "the most frequent class 0.500",
    "imdb_length_full": "| most frequent class: test |",
    "in_context_neighbours": "| 3 | 1.000 |",
    "length_generalization": "Each byte predicted by its frequency",
    "listops": "| the most frequent answer |",
    "lra_listops": "| most frequent answer |",
    "lra_mnist": "| most frequent class |",
    "lra": "| equally likely classes |",
    "lra_small": "| equally likely classes |",
    "masking_enhancers": "the most frequent class 0.500",
    "masking_longer": "| most frequent class |",
    "masking_next_token": "equally likely bases 4.00",
    "masking_planted": "the most frequent class 0.500",
    "irregular_oscillations": "| most frequent class |",
    "motif_variants": "| Markov chain, order 0 (counts of bases) |",
    "moving_mnist": "| still |",
    "parameter_change": "| most frequent class |",
    "planted_motifs": "| most frequent class |",
    "regulariser_trend_images": "| most frequent class |",
    "regulariser_trend_listops": "| most frequent answer |",
    "recall_learning_rates": "| constant |",
    "rc_equivariance": "| most frequent class |",
    "real_dna": "| most frequent class |",
    "regularisers": "| constant predictor |",
    "sequential_images": "most frequent class 0.114",
    "sequential_images_s5": "| most frequent class |",
    "sparse_majority": "| most frequent class |",
    "start_scales": "| constant |",
    "state_tracking": "| constant |",
    "synthetic_tasks": "| constant |",
    "waves": "| guessing the mean |",
    "zero_shot_needle": "(chance 0.25)",
    "zero_shot_pairs": "A guess prefers half",
    "zero_shot_recovery": "| most frequent base |",
    "zero_shot_variants": "| Markov chain, order 0 (counts of bases) |",
}
# Scales before training, costs of searches, lengths of data: no task that something trivial can do.
WITHOUT_TASK = {"initial_scale", "length_data", "masking_search"}
# Errors of layers.
WITHOUT_TASK |= {"compression_bounds"}
# Settings, which may stand in the text of the pages.
SETTINGS = {"0.01", "0.1", "0.95", "1.0", "2.0"}
# Numbers of theorems (Nishikawa & Suzuki).
THEOREMS = {"4.2", "4.4"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def stored(name: str) -> Any:
    return json.loads(read(f"examples/results/{name}.json"))


@pytest.mark.parametrize("name", NAMES)
def test_documents_equal_the_stored_results(script: ModuleType, name: str) -> None:
    assert name in script.DOCUMENTS
    assert read(name) == script.filled(read(name)), "run `python examples/tables.py`"


def test_each_table_is_in_a_document(script: ModuleType) -> None:
    marked = [name for document in NAMES for name in re.findall(r"<!-- table: (\S+) -->", read(document))]
    assert set(marked) == set(script.TABLES)
    assert all(read(name).count("<!-- table: ") == read(name).count("<!-- end of table -->") for name in NAMES)


def test_each_table_of_the_experiments_has_a_trivial_baseline(script: ModuleType) -> None:
    tables = {name: text for page in PAGES for name, _, text in script.BLOCK.findall(read(page))}
    assert set(tables) == set(TRIVIAL) | WITHOUT_TASK
    assert not set(TRIVIAL) & WITHOUT_TASK
    shown = {name: " ".join(text.split()) for name, text in tables.items()}
    stored = [name for name, text in shown.items() if sys.modules["_tables"].NOT_RUN not in text]
    assert [name for name in TRIVIAL if name in stored and TRIVIAL[name] not in shown[name]] == []


def test_a_changed_digit_is_found(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(read(name), encoding="utf-8")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    script.main(["--check"])
    page = "docs/experiments/real-dna.md"
    changed = read(page).replace("| 0.9596 ± 0.0039 |", "| 0.9597 ± 0.0039 |")
    assert changed != read(page)
    (tmp_path / page).write_text(changed, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"^docs/experiments/real-dna\.md: run `python examples/tables\.py`$"):
        script.main(["--check"])
    script.main([])
    assert (tmp_path / page).read_text(encoding="utf-8") == read(page)


def test_an_unknown_table_is_an_error(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="there is no table 'wave'; choose from"):
        script.filled("<!-- table: wave -->\n<!-- end of table -->\n")


@pytest.mark.parametrize("name", sorted({*NAMES} - RECORDS))
def test_no_measured_table_is_typed(script: ModuleType, name: str) -> None:
    """No cell outside of the markers starts with a decimal number."""
    text = script.BLOCK.sub("", read(name))
    assert re.findall(r"(?m)^\|.*\| *[-+]?\d[\d,]*\.\d.*$", text) == []


@pytest.mark.parametrize("name", sorted({*PAGES} - RECORDS))
def test_text_has_settings_and_no_results(script: ModuleType, name: str) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", script.BLOCK.sub("", read(name)), flags=re.DOTALL)
    assert set(re.findall(r"\d+\.\d+", text)) <= SETTINGS | THEOREMS


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_readable(name: str) -> None:
    """Rows of tables and lines of commands fit the width of a page; the index lists the page."""
    text = read(name)
    assert all(len(line) <= 190 for line in text.splitlines() if line.startswith("|"))
    for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL):
        assert max(map(len, block.splitlines())) <= 120
    assert name.endswith("index.md") or f"({Path(name).name})" in read("docs/experiments/index.md")


def test_numbers_by_hand() -> None:
    """Read independently of the script."""
    text = "\n".join(map(read, PAGES))
    found = stored("gaussian_process")["table_1"]["w (8)"]
    for b, paper in (("1", 0.22), ("0.1", 0.87), ("0.01", 3.59)):
        (row,) = re.findall(rf"\| w \(8\) \| {re.escape(b)} \| ([^|]*) \| ([\d.]+) ", text)
        assert float(row[0]) == paper
        assert float(row[1]) == pytest.approx(statistics.mean(found[b]["test MSE"]), abs=5.1e-3)
    for family, name in (("hyena", "Hyena"), ("s4", "S4D-LegS"), ("selective", "Mamba blocks")):
        (rank,) = re.findall(rf"\| next base, {name} \|(?:[^|]*\|){{4}} [^|]*, ([\d.]+) \|", text)
        agreement = stored(f"masking_next_token_{family}")["agreement_with_exact"]["screened"]
        assert float(rank) == pytest.approx(agreement["spearman"], abs=5.1e-3)
    accuracy = {(run["alpha"], run["beta"]): sum(run["accuracy"]) for run in stored("sequential_images")["accuracy"]}
    alpha = max((a for a, b in accuracy if b == 0), key=lambda a: accuracy[a, 0])
    beta = max((b for a, b in accuracy if a == 1), key=lambda b: accuracy[1, b])
    assert f"the best α is {alpha} (paper: 4); at α = 1 the best β is {beta:+} (paper: -0.5)" in " ".join(text.split())


def made_up(script: ModuleType, monkeypatch: pytest.MonkeyPatch, **results: Any) -> None:
    """Results in place of the stored ones."""
    for module in ("_tables_of_arena", "_tables_of_papers"):
        monkeypatch.setattr(sys.modules[module], "is_stored", results.__contains__)
        monkeypatch.setattr(sys.modules[module], "load", results.__getitem__)


def test_tables_of_runs_that_are_not_there_or_not_finished(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(script, monkeypatch)
    names = ("lra_listops", "lra_mnist", "parameter_change", "denoising_photographs")
    assert {script.TABLES[name]() for name in names} == {f"{sys.modules['_tables'].NOT_RUN}\n"}
    curve = [{"epoch": 0.125, "accuracy": 0.25, "loss": 2.0}]
    runs = {"8": {"complete": False, "curve": curve}, "neither": {"complete": False, "curve": []}}
    runs["7, 8"] = {"complete": True, "curve": curve, "test accuracy": 0.5}
    paper = {"epochs": 40, "accuracy": dict.fromkeys(runs, 0.5645)}
    arena = {"runs": runs, "paper": paper, "baselines": {"a guess": 0.125}, "arguments": {"epochs": 2}}
    made_up(script, monkeypatch, lra_listops=arena, lra_mnist=arena, denoising_photographs={"runs": {}})
    text = script.TABLES["lra_listops"]()
    assert "| S4D, regulariser (8) | 0.125 of 40 | 0.250 | not finished | 0.565 |" in text
    assert "| S4D, neither | 0 of 40 | nan | not finished | 0.565 |" in text
    assert "| a guess |  |  | 0.125 |  |" in text
    assert "Not finished, so that the curve is all there is: regulariser (8), neither." in " ".join(text.split())
    assert "| 0.500 | other data |" in script.TABLES["lra_mnist"]()
    assert sys.modules["_tables"].NOT_RUN in script.TABLES["denoising_photographs"]()


def test_table_of_changed_parameters(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    change = {"A_real": 2.0, "A_imag": 0.25, "BC": 1.5, "D": 0.5}
    run = {"elements": change, "norms": {**change, "A_imag": 0.125}, "test accuracy": 0.75, "epochs": 20.0}
    made_up(
        script,
        monkeypatch,
        parameter_change={"runs": [run, run], "others": {"mnist_neither_seed0": run}, "paper": change},
    )
    monkeypatch.setattr(sys.modules["_tables_of_arena"], "trivial", lambda name: {"most frequent class": [0.1, 0.2]})
    text = script.TABLES["parameter_change"]()
    assert "| 14 x 14 pixels | elements | 2 | 0.25 | 1.5 | 0.5 | 0.750 |" in text
    assert "| 32 x 32 pixels | norms | 2 | 0.125 | 1.5 | 0.5 | 0.750 |" in text
    assert "| most frequent class |  |  |  |  |  | 0.150 |" in text
    assert "means of 2 seeds after 20 epochs" in " ".join(text.split())
