"""Instruction counts: parsing, differences, and the messages without valgrind."""

import importlib
import platform
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def instructions(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("instructions")


def test_without_valgrind_a_message_is_printed(instructions, monkeypatch, capsys) -> None:
    monkeypatch.setattr(instructions.shutil, "which", lambda name: None)
    instructions.main([])
    assert capsys.readouterr().out == "Instructions are not counted: valgrind is not installed.\n"


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="client requests need Linux on x86-64"
)
def test_client_requests_have_no_effect_without_valgrind(instructions) -> None:
    valgrind = instructions.Valgrind()
    assert not valgrind.is_there
    valgrind.zero(), valgrind.start(), valgrind.dump("name"), valgrind.stop()


def test_the_count_of_an_empty_call_is_subtracted(instructions, tmp_path) -> None:
    for number, (name, total) in enumerate([("nothing", 100), ("forward|ours|32", 1100), ("first", 900)]):
        text = f"version: 1\ndesc: Trigger: Client Request: {name}\nevents: Ir\n\nfn=(1)\n1 5\n\ntotals: {total}\n"
        (tmp_path / f"counts.{number}").write_text(text)
    (tmp_path / "counts").write_text("desc: Trigger: Program termination\ntotals: 0\n")
    assert instructions.read_counts(tmp_path) == {"forward|ours|32": 1000}


def test_missing_counts_are_an_error(instructions, tmp_path) -> None:
    (tmp_path / "counts").write_text("totals: 0\n")
    with pytest.raises(RuntimeError, match=r"callgrind left no counts in .*: it has \['counts'\]"):
        instructions.read_counts(tmp_path)


def test_instructions_per_state_are_the_difference_of_two_lengths(instructions) -> None:
    counts = {"forward|b|16": 2000, "forward|b|32": 6000, "forward|a|16": 500, "forward|a|32": 900}
    rows = instructions.summarize(counts, {"batch": 1, "channels": 5, "states": 5}, (16, 32))
    assert rows == [
        {"what": "forward", "contender": "a", "per_call": 900, "per_state": 1.0},
        {"what": "forward", "contender": "b", "per_call": 6000, "per_state": 10.0},
    ]
