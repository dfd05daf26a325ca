"""Data that are loaded once: by the first rank of a machine, whose files the others map."""

import json
import random
from pathlib import Path

import pytest
from launching import run_workers

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
