"""Data that are loaded once: by the first rank of a machine, whose files the others map, or for several runs."""

import json
import random
from pathlib import Path

import pytest
from launching import run_workers

from hf_ssm.training import run
from hf_ssm.training.inputs import load_data
from hf_ssm.training.settings import resolve

HERE = Path(__file__).parent


@pytest.mark.slow
def test_one_rank_reads_and_tokenizes(tmp_path) -> None:
    rng = random.Random(0)
    (tmp_path / "genome.fa").write_text(">a\n" + "".join(rng.choices("ACGT", k=4000)) + "\n")
    run_workers(HERE / "data_worker.py", tmp_path, 2)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    # A batch for each of the three splits.
    assert first["counts"] == {"files": 1, "batches": 3}
    assert second["counts"] == {"files": 0, "batches": 0}
    assert first["rows"] == second["rows"] and len(first["rows"]["train"]) == 51
    assert first["files"] == second["files"]
    assert all(file.startswith(str(tmp_path / "cache")) for file in first["files"])


@pytest.mark.slow
def test_runs_share_loaded_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolve(
        {
            "model": {"family": "s4", "hidden_size": 4, "num_hidden_layers": 1, "state_size": 4},
            "data": {"dataset": "planted-motifs", "num_train": 8, "num_validation": 8, "num_test": 8, "length": 30},
            "training": {"max_steps": 1, "eval_strategy": "no", "disable_tqdm": True},
        }
    )
    data = load_data(settings)
    first = run.train(settings, tmp_path / "first")
    monkeypatch.setattr(run, "load_data", None)
    second = run.train(settings, tmp_path / "second", data=data)
    assert second.results == first.results and second.tau == first.tau
    assert second.settings == first.settings
