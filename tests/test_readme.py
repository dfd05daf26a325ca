"""The Python code of the README runs, on less data."""

from pathlib import Path

import pytest
from transformers import PreTrainedModel

import hf_ssm

README = Path(__file__).parents[1] / "README.md"


# The README uses the default TrainingArguments, with which torch warns if there is no accelerator.
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_quick_start(tmp_path, monkeypatch):
    code = README.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) <= 15
    for whole, small in (
        ('("planted-motifs")', '("planted-motifs", num_train=16, num_validation=8, num_test=8, length=40)'),
        ("num_train_epochs=3", "num_train_epochs=1, disable_tqdm=True"),
        ("hidden_size=64", "hidden_size=8"),
    ):
        assert whole in code
        code = code.replace(whole, small)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, str(README), "exec"), names)
    model = names["model"]
    assert isinstance(model, PreTrainedModel)
    assert model.config.rescaled is True


def run_section(heading: str) -> dict:
    """Run the first Python code after a heading, and return what it has defined."""
    code = README.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("```python\n")[1].split("```")[0]
    names: dict = {"hf_ssm": hf_ssm}
    exec(compile(code, str(README), "exec"), names)
    return names


def test_predict():
    table = run_section("Predict")["table"]
    assert table.column_names == ["name", "prediction", "probability_LABEL_0", "probability_LABEL_1"]
    assert len(table) == 2


def test_packed_rows():
    assert run_section("Packed rows")["loss"].isfinite()


def test_both_strands():
    assert run_section("Both strands of DNA")["one"].shape == (1, 5, 12)


def test_videos():
    names = run_section("Videos")
    assert names["loss"].isfinite() and names["future"].shape == (2, 5, 16, 16, 3)


def test_generation():
    names = run_section("Generate")
    assert names["more"].shape == (2, 80)
    assert (names["more"][:, :50] == names["first"].sequences).all()


def test_embed():
    names = run_section("Embed")
    assert names["table"].column_names == ["label", "embedding_0", "embedding_4"]
    assert names["scores"]["embedding_0"]["accuracy"]["mean"] == 1


def test_effects_of_variants():
    names = run_section("Effects of variants")
    assert names["scores"].column_names == ["llr", "next_token", "reason"]
    assert len(names["heat_map"]) == 60
    assert len(names["likelihoods"]) == 2
