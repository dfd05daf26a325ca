"""The Python code of the README runs, on less data."""

from pathlib import Path

import pytest
from transformers import PreTrainedModel

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


def test_generation():
    code = README.read_text(encoding="utf-8").split("```python\n")[2].split("```")[0]
    names: dict = {}
    exec(compile(code, str(README), "exec"), names)
    assert names["more"].shape == (2, 80)
    assert (names["more"][:, :50] == names["first"].sequences).all()
