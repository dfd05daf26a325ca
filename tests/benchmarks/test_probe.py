"""The benchmark of the probe runs in its tiny setting, compares orders, and extrapolates the plain loop."""

import re

import pytest
import torch


@pytest.mark.slow
def test_tiny(script, capsys) -> None:
    script.main(["--tiny"])
    title, _, header, rule, *rows = capsys.readouterr().out.strip().splitlines()
    assert title.endswith("length 10, hidden size 8, 2 layers; plain loop whole")
    assert header == "| family | reads | CPU time | wall time | tokens |"
    assert rule == "|---|---|---|---|---|"
    names = [(family, head) for family in ("S4", "Hyena", "SelectiveSSM") for head in ("causal", "last", "mean")]
    for row, (family, head) in zip(rows, names, strict=True):
        assert re.fullmatch(rf"\| {family} \| {head} \| \d+\.\d \| \d+\.\d \| \d\.\d \|", row)


def test_a_part_of_the_plain_loop_is_extrapolated(script, monkeypatch) -> None:
    """Each call takes a second; one step of 4 candidates is 4 of the 10 calls."""
    seconds = iter([0.0, 4.0])
    monkeypatch.setattr(script, "clocks", lambda: (now := next(seconds), 2 * now))
    model = script.build_model("S4", "last", 8, 4)
    cost, order = script.plain_loop(model, torch.tensor([7, 8, 9, 10]), 1, 1)
    assert cost == (10.0, 20.0, 40.0)
    assert len(order) == 1


def test_another_order_is_an_error(script, monkeypatch) -> None:
    exact = script.exact
    monkeypatch.setattr(script, "exact", lambda *args: (exact(*args)[0], [0, 0, 0, 0]))
    model = script.build_model("S4", "last", 8, 4)
    with pytest.raises(RuntimeError, match="order differs from the plain loop"):
        script.compare(model, torch.tensor([7, 8, 9, 10]), 1, False, 4)


def test_tiny_draws(script, capsys) -> None:
    script.main(["--tiny", "--draws"])
    out = capsys.readouterr().out
    assert re.search(r"^\| 16( \| \d+\.\d\d){5} \|$", out, re.MULTILINE)
    assert re.search(r"^300 bases: \d\.\d\d times the exact search", out, re.MULTILINE)
    assert script.jaccard({1, 2, 3}, {2, 3, 4, 5}) == 0.4
