"""The counts of instructions: how they are read and summed up, and what is said where they cannot be had."""

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


def test_without_valgrind_it_says_so(instructions, monkeypatch, capsys) -> None:
    monkeypatch.setattr(instructions.shutil, "which", lambda name: None)
    instructions.main([])
    assert capsys.readouterr().out == "Instructions are not counted: valgrind is not installed.\n"


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="requests are written for Linux on x86-64"
)
def test_outside_of_valgrind_requests_do_nothing(instructions) -> None:
    valgrind = instructions.Valgrind()
    assert not valgrind.is_there
    valgrind.zero(), valgrind.start(), valgrind.dump("name"), valgrind.stop()


def test_counts_are_read_without_those_of_an_empty_call(instructions, tmp_path) -> None:
    for number, (name, total) in enumerate([("nothing", 100), ("forward|ours|32", 1100), ("first", 900)]):
        text = f"version: 1\ndesc: Trigger: Client Request: {name}\nevents: Ir\n\nfn=(1)\n1 5\n\ntotals: {total}\n"
        (tmp_path / f"counts.{number}").write_text(text)
    (tmp_path / "counts").write_text("desc: Trigger: Program termination\ntotals: 0\n")
    assert instructions.read_counts(tmp_path) == {"forward|ours|32": 1000}


def test_no_counts_are_an_error(instructions, tmp_path) -> None:
    (tmp_path / "counts").write_text("totals: 0\n")
    with pytest.raises(RuntimeError, match=r"callgrind left no counts in .*: it has \['counts'\]"):
        instructions.read_counts(tmp_path)


def test_a_state_costs_what_the_longer_call_needs_more(instructions) -> None:
    counts = {"forward|b|16": 2000, "forward|b|32": 6000, "forward|a|16": 500, "forward|a|32": 900}
    rows = instructions.summarize(counts, {"batch": 1, "channels": 5, "states": 5}, (16, 32))
    assert rows == [
        {"what": "forward", "contender": "a", "per_call": 900, "per_state": 1.0},
        {"what": "forward", "contender": "b", "per_call": 6000, "per_state": 10.0},
    ]
