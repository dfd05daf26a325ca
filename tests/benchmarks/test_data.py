"""The benchmark of data: the script runs."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def data(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    # The script sets it for `datasets`, which must not see it here.
    importlib.import_module("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", "")
    return importlib.import_module("data")


@pytest.mark.slow
def test_tiny(data, capsys) -> None:
    data.main(["--tiny"])
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| \d", capsys.readouterr().out, flags=re.MULTILINE)
    assert [what for what, quantity in rows if quantity == "private memory"] == ["first run", "later runs"]
    loaded = [what for what, quantity in rows if quantity == "rows loaded / trained"]
    assert [what.partition(" ")[0] for what in loaded] == [*data.MODELS]


def test_the_file_has_the_size_and_the_letters_that_are_asked_for(data, tmp_path) -> None:
    data.write_genome(tmp_path / "genome.fa", 24_000)
    lines = (tmp_path / "genome.fa").read_text().splitlines()
    assert [line for line in lines if line.startswith(">")] == [">chr1", ">chr2", ">chr3", ">chr4"]
    letters = "".join(line for line in lines if not line.startswith(">"))
    assert len(letters) == 24_000
    assert set(letters) == set("ACGTNacgt")
