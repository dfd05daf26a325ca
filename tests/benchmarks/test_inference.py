"""The benchmark of throughput: a tiny run, and agreement of the numbers."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "inference.py"


@pytest.mark.slow
def test_tiny(run_script, capsys) -> None:
    pytest.importorskip("pysam", reason="pysam is not installed")
    run_script("inference.py", "--tiny", "--models", "S4D", "Llama")
    header, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert header == "| task | model | loop / hf_ssm | per second |"
    names = [tuple(row.split(" | ")[:2]) for row in rows]
    assert names == [(f"| {task}", model) for task in ("predict", "embed", "score") for model in ("S4D", "Llama")]


def test_different_numbers_are_an_error(make_model) -> None:
    spec = importlib.util.spec_from_file_location("inference_benchmark", SCRIPT)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    model = make_model("S4", "ForCausalLM")
    calls = benchmark.embed_call(model, ["ACGTACGT", "GATTACAG"])
    assert len(benchmark.compare(calls, 1)[0]) == 1
    wrong = {**calls, "hf_ssm": benchmark.embed_call(model, ["ACGTACGT", "GATTACAC"])["hf_ssm"]}
    with pytest.raises(RuntimeError, match="result 0 of hf_ssm differs from loop"):
        benchmark.compare(wrong, 1)
