"""The generation benchmark: tiny run, and agreement of the generated tokens."""

import re

import pytest
import torch


@pytest.mark.slow
def test_tiny(run_script, capsys) -> None:
    run_script("generation.py", "--tiny")
    *_, header, rule, first, second = capsys.readouterr().out.strip().splitlines()
    assert header == "| new tokens | selective | S4D | Hyena |"
    assert rule == "|---|---|---|---|"
    cell = r"\d+\.\d \(\d+\.\d to \d+\.\d\)"
    for row, length in ((first, 4), (second, 8)):
        assert re.fullmatch(rf"\| {length} \| {cell} \| {cell} \| {cell} \|", row)


def test_different_tokens_are_an_error(script, make_model) -> None:
    model = make_model("S4", "ForCausalLM")
    generate = model.generate
    # A wrong cache: it changes the tokens.
    model.generate = lambda *args, use_cache, **kwargs: generate(*args, **kwargs) + int(use_cache)
    with pytest.raises(RuntimeError, match="different tokens with and without cache"):
        script.compare(model, torch.randint(0, 12, (1, 4)), 3, 1)
