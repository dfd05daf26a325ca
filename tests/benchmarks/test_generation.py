"""The generation benchmark: tiny run, and agreement of the generated tokens."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "generation.py"


@pytest.mark.slow
def test_tiny(run_script, capsys) -> None:
    run_script("generation.py", "--tiny")
    *_, header, rule, first, second = capsys.readouterr().out.strip().splitlines()
    assert header == "| new tokens | selective | S4D | Hyena |"
    assert rule == "|---|---|---|---|"
    cell = r"\d+\.\d \(\d+\.\d to \d+\.\d\)"
    for row, length in ((first, 4), (second, 8)):
        assert re.fullmatch(rf"\| {length} \| {cell} \| {cell} \| {cell} \|", row)


def test_different_tokens_are_an_error(make_model) -> None:
    spec = importlib.util.spec_from_file_location("generation_benchmark", SCRIPT)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    model = make_model("S4", "ForCausalLM")
    generate = model.generate
    # A wrong cache: it changes the tokens.
    model.generate = lambda *args, use_cache, **kwargs: generate(*args, **kwargs) + int(use_cache)
    with pytest.raises(RuntimeError, match="different tokens with and without cache"):
        benchmark.compare(model, torch.randint(0, 12, (1, 4)), 3, 1)
