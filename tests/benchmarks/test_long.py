"""The benchmark of long sequences runs, and its routes agree."""

import re

import pytest
import torch


@pytest.mark.slow
def test_tiny(script, capsys) -> None:
    script.main(["--tiny", "--families", "S4D", "--routes", "usual", "layers", "shared"])
    lines = re.findall(r"^\| S4D \| 512 \| (\w+) \| (.*) \|$", capsys.readouterr().out, flags=re.MULTILINE)
    assert [route for route, _ in lines] == ["usual", "layers", "shared"]
    cells = lines[1][1].split(" | ")
    assert cells[0].endswith("KiB") == script.can_measure("cpu") and float(cells[3]) > 0


@pytest.mark.parametrize("family", ["S5", "Mamba, two-sided"])
def test_routes_take_the_same_step(script, family) -> None:
    sizes = {"hidden_size": 8, "layers": 1, "device": "cpu"}
    expected, found = (script.build(family, route, 130, sizes)() for route in script.ROUTES[:2])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
