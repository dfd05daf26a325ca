"""The benchmark of throughput: a tiny run, and agreement of the numbers."""

import pytest


@pytest.mark.slow
def test_tiny(run_script, capsys) -> None:
    pytest.importorskip("pysam", reason="pysam is not installed")
    run_script("inference.py", "--tiny", "--models", "S4D", "Llama")
    header, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert header == "| task | model | loop / hf_ssm | per second |"
    names = [tuple(row.split(" | ")[:2]) for row in rows]
    assert names == [(f"| {task}", model) for task in ("predict", "embed", "score") for model in ("S4D", "Llama")]


def test_different_numbers_are_an_error(script, make_model) -> None:
    model = make_model("S4", "ForCausalLM")
    calls = script.embed_call(model, ["ACGTACGT", "GATTACAG"])
    assert len(script.compare(calls, 1)[0]) == 1
    wrong = {**calls, "hf_ssm": script.embed_call(model, ["ACGTACGT", "GATTACAC"])["hf_ssm"]}
    with pytest.raises(RuntimeError, match="result 0 of hf_ssm differs from loop"):
        script.compare(wrong, 1)
