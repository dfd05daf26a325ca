"""The output folder: which checkpoint is complete, what is deleted, and a log that is valid JSON."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from hf_ssm import S4Config
from hf_ssm.hub.committing import folder_files
from hf_ssm.models.bundle import HEADER, bundle
from hf_ssm.training import folder
from hf_ssm.utils.files import TEMPORARY_PREFIX, staged_files, write_text_atomically


def checkpoint(parent, name, complete=True):
    """A folder with the kinds of files of a checkpoint."""
    path = parent / name
    path.mkdir()
    save_file({"weight": torch.zeros(4)}, path / "model.safetensors")
    torch.save({"state": torch.zeros(4)}, path / "optimizer.pt")
    (path / "config.json").write_text('{"model_type": "hf_ssm_s4"}')
    (path / "modeling_s4.py").write_text(HEADER)
    if complete:
        (path / "trainer_state.json").write_text('{"global_step": 1}')
    return path


def test_last_checkpoint_is_the_complete_one_of_most_steps(tmp_path):
    for name in ("checkpoint-9", "checkpoint-100", "checkpoint-best"):
        checkpoint(tmp_path, name)
    checkpoint(tmp_path, "checkpoint-200", complete=False)
    assert folder.last_checkpoint(tmp_path).name == "checkpoint-100"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "config.json", "trainer_state.json"])
@pytest.mark.parametrize("size", [0, -1])
def test_checkpoint_with_a_truncated_file_is_incomplete_and_deleted(tmp_path, name, size):
    checkpoint(tmp_path, "checkpoint-1")
    file = checkpoint(tmp_path, "checkpoint-2") / name
    file.write_bytes(file.read_bytes()[:size])
    assert folder.last_checkpoint(tmp_path).name == "checkpoint-1"
    folder.discard_incomplete(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]


def test_no_complete_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="contains no checkpoint"):
        folder.last_checkpoint(tmp_path / "absent")
    checkpoint(tmp_path, "checkpoint-200", complete=False)
    with pytest.raises(ValueError, match=r"only incomplete checkpoints \(checkpoint-200\)"):
        folder.last_checkpoint(tmp_path)


def test_leftovers_of_a_save_are_deleted_and_nothing_else(tmp_path):
    (tmp_path / "modeling_s4.py").write_text("")
    (tmp_path / "configuration_s4.py").write_text(HEADER[:10])
    (tmp_path / "mine.py").write_text("print()")
    (tmp_path / f"{TEMPORARY_PREFIX}abc").mkdir()
    (tmp_path / f"{TEMPORARY_PREFIX}abc" / "half.json").write_text("{")
    folder.discard_incomplete(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_clearing_deletes_the_run_whatever_its_checkpoints_hold_and_nothing_else(tmp_path):
    checkpoint(tmp_path, "checkpoint-3")
    (checkpoint(tmp_path, "checkpoint-4", complete=False) / "modeling_s4.py").write_text("")
    checkpoint(tmp_path, "checkpoint-of-mine", complete=False)
    for name in ("model.safetensors", "README.md", "data.csv", "model.py"):
        (tmp_path / name).write_text("x")
    for name, source in bundle(S4Config).items():
        (tmp_path / name).write_text(source)
    (tmp_path / "truncated.py").write_text(HEADER[:5])
    (tmp_path / f"{TEMPORARY_PREFIX}abc").mkdir()
    folder.clear_output(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-of-mine", "data.csv", "model.py"]


def test_log_is_json_also_when_a_value_is_not_finite(tmp_path):
    folder.write_log(tmp_path, [{"step": 1, "loss": float("nan"), "tau": float("inf"), "epoch": 0.5}])
    text = (tmp_path / folder.LOG_NAME).read_text()
    assert json.loads(text, parse_constant=pytest.fail) == [{"step": 1, "loss": None, "tau": None, "epoch": 0.5}]


def test_folder_that_is_not_writable_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(PermissionError, match=r"file' is not writable; choose another folder"):
        folder.check_output(tmp_path / "file" / "run", overwrite=False)
    folder.check_output(tmp_path / "deep" / "run", overwrite=False)
    assert not (tmp_path / "deep").exists()


HOLD = """
import sys, time
from filelock import FileLock

lock = FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
time.sleep(600)
"""


def test_a_folder_is_held_against_other_processes_until_they_end_or_are_killed(tmp_path):
    output = tmp_path / "run"
    output.mkdir()
    other = subprocess.Popen([sys.executable, "-c", HOLD, output / folder._LOCK_NAME], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError, match=r"run' is in use by another run: wait"), folder.locked(output):
            pass
    finally:
        other.kill()
        other.communicate()
    # The file that the killed process left behind is neither in the way nor pushed.
    folder.check_output(output, overwrite=False)
    assert folder_files(output) == {}
    with folder.locked(output):
        folder.check_output(output, overwrite=False)
        with pytest.raises(BlockingIOError), folder.locked(output):
            pass
    assert list(output.iterdir()) == []


def test_a_new_folder_is_deleted_if_nothing_was_written(tmp_path):
    with pytest.raises(RuntimeError), folder.locked(tmp_path / "a" / "b"):
        raise RuntimeError
    assert not (tmp_path / "a").exists()
    with folder.locked(tmp_path / "a" / "b"):
        (tmp_path / "a" / "file").write_text("")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


def test_files_appear_together_or_not_at_all(tmp_path):
    write_text_atomically(tmp_path / "a.json", "old")
    (tmp_path / "a.png").write_text("outdated")
    with pytest.raises(OSError, match="full"), staged_files(tmp_path, replaces=["*.png"]) as scratch:
        (scratch / "a.json").write_text("ne")
        raise OSError("full")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.json": "old", "a.png": "outdated"}
    with staged_files(tmp_path, replaces=["*.png"]) as scratch:
        (scratch / "a.json").write_text("new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.json": "new"}
