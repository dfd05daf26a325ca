"""The benchmark of saturation mutagenesis: a tiny run, and agreement of the scores."""

import pytest


@pytest.mark.slow
def test_tiny(run_script, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_script("score.py", "--tiny", "--models", "SSD")
    assert "invalid choice: 'SSD'" in capsys.readouterr().err
    models = ("S4", "Mamba-2")
    run_script("score.py", "--tiny", "--models", *models)
    header, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert header == "| model | horizon | tokens | time |"
    assert [row.split(" | ")[0] for row in rows] == [f"| {name}" for name in models]


def test_different_scores_are_an_error(script, make_model, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text, region = make_model("S4", "ForCausalLM"), "ACGTTGACCTGATTAGCAAC", range(8, 12)
    tokens, _ = script.compare("S4", model, text, region, 1, window=8, horizon=4)
    assert tokens[0] > 1
    measured = script.measured

    def wrong(model, text, region, share, **options):
        return measured(model, text.replace("A", "G", int(share)), region, share, **options)

    monkeypatch.setattr(script, "measured", wrong)
    with pytest.raises(RuntimeError, match="S4: llr differs by"):
        script.compare("S4", model, "A" + text[1:], region, 1, window=32, horizon=4)
