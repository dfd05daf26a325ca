"""The scoreboard of attributions: a tiny run, resuming, rows with a known truth, and the measures by hand."""

import argparse
import json
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("captum", reason="captum is not installed (the extra `genomics`)")


@pytest.fixture
def args(script: ModuleType) -> argparse.Namespace:
    return script.parse(["--tiny"])


def test_tiny(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    output, picture = tmp_path / "result.json", tmp_path / "figure.png"
    arguments = ["--tiny", "--tasks", "motif", "--models", "S4", "ModernBERT"]
    arguments += ["--output", str(output), "--picture", str(picture)]
    script.main(arguments)
    content = json.loads(output.read_text())
    assert [(run["model"], run["seed"]) for run in content["runs"]] == [("S4", 0), ("ModernBERT", 0)]
    methods = {(own["strategy"], *own["options"].values()): own for own in content["runs"][0]["methods"]}
    passes = {name: methods[name]["passes"] for name in [("one_shot",), ("exact",), ("occlusion",), ("deep_lift",)]}
    # 12 tokens; forward and backward of two rows for DeepLIFT, and of four steps, the passes of `one_shot`, below.
    assert list(passes.values()) == [12, 78, 13, 6]
    assert methods["integrated_gradients", 4]["passes"] == 12 and methods["in_silico_mutagenesis",]["passes"] == 37
    assert picture.stat().st_size > 1000
    assert "| one_shot  | 12 |" in capsys.readouterr().out

    # A second call trains nothing.
    monkeypatch.setattr(script, "train", None)
    script.main(arguments)
    assert json.loads(output.read_text())["runs"] == content["runs"]
    with pytest.raises(SystemExit, match="another setting"):
        script.main([*arguments, "--batch-size", "3"])


def test_the_truth_determines_the_class(script: ModuleType, args: argparse.Namespace) -> None:
    tokenizer, (rows, _, _) = script.motif_rows(0, args)
    motifs = {tuple(ids[truth].tolist()) for ids, truth in zip(rows.ids, rows.truth, strict=True) if truth.any()}
    assert len(motifs) == 1 and (rows.truth.sum(1) == args.motif * rows.labels).all()
    tokenizer, (rows, _, _) = script.smooth_rows(0, args)
    assert (rows.truth.sum(1) == 2).all()
    letters = [tokenizer.convert_ids_to_tokens(ids.tolist()) for ids in rows.ids]
    assert [[letter.isupper() for letter in row] for row in letters] == rows.truth.tolist()
    # cos z is positive in the outer bins and negative in the middle: the sum of two tells the sign where both agree.
    for row, label in zip(letters, rows.labels.tolist(), strict=True):
        capitals = {letter for letter in row if letter.isupper()}
        if capitals <= set("AH"):
            assert label == 1
        if capitals <= set("DE"):
            assert label == 0
