"""The output folder: which checkpoint is the last, what may be removed, and a log that is JSON."""

import json

import pytest

from hf_ssm import S4Config
from hf_ssm.models.bundle import bundle
from hf_ssm.training import folder


def checkpoint(parent, name, whole=True):
    (parent / name).mkdir()
    if whole:
        (parent / name / "trainer_state.json").write_text("{}")


def test_last_checkpoint_is_the_one_of_most_steps_that_is_whole(tmp_path):
    for name in ("checkpoint-9", "checkpoint-100", "checkpoint-best"):
        checkpoint(tmp_path, name)
    checkpoint(tmp_path, "checkpoint-200", whole=False)
    assert folder.last_checkpoint(tmp_path).name == "checkpoint-100"


def test_no_checkpoint(tmp_path):
    checkpoint(tmp_path, "checkpoint-200", whole=False)
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ValueError, match="holds no checkpoint"):
            folder.last_checkpoint(place)


def test_clearing_leaves_what_no_run_wrote(tmp_path):
    checkpoint(tmp_path, "checkpoint-3")
    checkpoint(tmp_path, "checkpoint-of-mine", whole=False)
    for name in ("model.safetensors", "README.md", "data.csv", "model.py"):
        (tmp_path / name).write_text("x")
    for name, source in bundle(S4Config).items():
        (tmp_path / name).write_text(source)
    folder.clear_output(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-of-mine", "data.csv", "model.py"]


def test_log_is_json_also_when_a_value_is_not_finite(tmp_path):
    folder.write_log(tmp_path, [{"step": 1, "loss": float("nan"), "tau": float("inf"), "epoch": 0.5}])
    text = (tmp_path / folder.LOG_NAME).read_text()
    assert json.loads(text, parse_constant=pytest.fail) == [{"step": 1, "loss": None, "tau": None, "epoch": 0.5}]


def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(PermissionError, match=r"nothing can be written in .*file'; choose another folder"):
        folder.check_output(tmp_path / "file" / "run", overwrite=False)
    folder.check_output(tmp_path / "deep" / "run", overwrite=False)
    assert not (tmp_path / "deep").exists()
