"""The output folder: which checkpoint is complete, what is deleted, and a log that is valid JSON."""

import json

import pytest
import torch
from safetensors.torch import save_file

from hf_ssm import S4Config
from hf_ssm.checkpoint import HEADER, bundle
from hf_ssm.training import folder
from hf_ssm.utils.files import TEMPORARY_PREFIX, staged_files, write_text_atomically

STATES = {
    "optimizer.pt": ("state", "param_groups"),
    "scheduler.pt": ("state", "last_epoch"),
    "rng_state.pth": ("state", "python", "numpy", "cpu"),
    "scaler.pt": ("state", "scale"),
}


def checkpoint(parent, name, complete=True):
    """A folder with the kinds of files of a checkpoint."""
    path = parent / name
    path.mkdir()
    save_file({"weight": torch.zeros(4)}, path / "model.safetensors")
    for file, keys in STATES.items():
        torch.save({key: torch.zeros(4) for key in keys}, path / file)
    (path / "config.json").write_text('{"model_type": "hf_ssm_s4"}')
    (path / "modeling_s4.py").write_text(HEADER)
    if complete:
        (path / "trainer_state.json").write_text(
            json.dumps({"global_step": int(name.rpartition("-")[2]) if name[-1].isdigit() else 0})
        )
    return path


def test_last_checkpoint_is_the_complete_one_of_most_steps(tmp_path):
    for name in ("checkpoint-9", "checkpoint-100", "checkpoint-best"):
        checkpoint(tmp_path, name)
    checkpoint(tmp_path, "checkpoint-200", complete=False)
    assert folder.last_checkpoint(tmp_path).name == "checkpoint-100"


FILES = ["model.safetensors", "config.json", *STATES, "trainer_state.json"]


def flip_a_byte(content):
    """Another byte where a file of torch holds data, not padding."""
    place = content.index(b"state") if b"state" in content else len(content) // 2
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


DAMAGES = {
    # A run without mixed precision has no scaler.
    "missing": [name for name in FILES if name != "scaler.pt"],
    "empty": FILES,
    "truncated": FILES,
    # Weights have no checksum.
    "flipped": [name for name in FILES if name != "model.safetensors"],
}


@pytest.mark.parametrize(("damage", "name"), [(damage, name) for damage, names in DAMAGES.items() for name in names])
def test_a_damaged_checkpoint_is_named_once_and_the_one_before_is_taken(tmp_path, caplog, name, damage):
    checkpoint(tmp_path, "checkpoint-1")
    file = checkpoint(tmp_path, "checkpoint-2") / name
    content = file.read_bytes()
    file.unlink()
    changes = {"empty": lambda: b"", "truncated": lambda: content[:-1], "flipped": lambda: flip_a_byte(content)}
    if damage != "missing":
        file.write_bytes(changes[damage]())
    assert folder.last_checkpoint(tmp_path).name == "checkpoint-1"
    folder.discard_incomplete(tmp_path)
    what = "it lacks" if damage == "missing" else ""
    assert len(caplog.messages) == 1 and f"checkpoint-2' is incomplete: {what}" in caplog.messages[0]
    assert name in caplog.messages[0] and "\n" not in caplog.messages[0]
    # The weights are of use for more than this run.
    kept = [] if name in ("model.safetensors", "config.json") else ["damaged-checkpoint-2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", *kept]
    assert not kept or (tmp_path / kept[0] / "model.safetensors").is_file()


def test_the_state_of_another_step_and_a_missing_shard_are_noticed(tmp_path):
    path = checkpoint(tmp_path, "checkpoint-2")
    (path / "trainer_state.json").write_text('{"global_step": 1}')
    assert "trainer_state.json is damaged (the file holds the state of step 1)" in folder.checkpoint_problem(path)
    (path / "trainer_state.json").write_text("{}")
    assert "trainer_state.json is damaged ('global_step')" in folder.checkpoint_problem(path)
    (path / "trainer_state.json").write_text('{"global_step": 2}')
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert "the folder lacks model-00002-of-00002.safetensors" in folder.checkpoint_problem(path)


def test_checkpoints_of_several_processes_are_whole(tmp_path):
    path = checkpoint(tmp_path, "checkpoint-2")
    (path / "rng_state.pth").rename(path / "rng_state_0.pth")
    assert folder.checkpoint_problem(path) is None
    (path / "optimizer.pt").rename(path / "optimizer.bin")
    assert folder.checkpoint_problem(path) is None


def test_no_complete_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="contains no checkpoint"):
        folder.last_checkpoint(tmp_path / "absent")
    checkpoint(tmp_path, "checkpoint-200", complete=False)
    (checkpoint(tmp_path, "checkpoint-100") / "optimizer.pt").write_bytes(b"PK")
    names = (
        r"only incomplete checkpoints \(checkpoint-200 .* lacks trainer_state.json; checkpoint-100 .*optimizer.pt is"
    )
    with pytest.raises(ValueError, match=names):
        folder.last_checkpoint(tmp_path)


def test_leftovers_of_a_save_are_deleted_and_nothing_else(tmp_path):
    (tmp_path / "modeling_s4.py").write_text("")
    (tmp_path / "configuration_s4.py").write_text(HEADER[:10])
    (tmp_path / "mine.py").write_text("print()")
    (tmp_path / f"{TEMPORARY_PREFIX}abcdefgh").mkdir()
    (tmp_path / f"{TEMPORARY_PREFIX}abcdefgh" / "half.json").write_text("{")
    folder.discard_incomplete(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_clearing_deletes_the_run_whatever_its_checkpoints_hold_and_nothing_else(tmp_path):
    checkpoint(tmp_path, "checkpoint-3")
    (checkpoint(tmp_path, "checkpoint-4", complete=False) / "modeling_s4.py").write_text("")
    checkpoint(tmp_path, "checkpoint-of-mine", complete=False)
    (tmp_path / "runs" / "Nov22_host").mkdir(parents=True)
    log = "runs/Nov22_host/events.out.tfevents.1.host.2.0"
    for name in ("model.safetensors", "README.md", "data.csv", "model.py", log, "runs/mine.txt"):
        (tmp_path / name).write_text("x")
    for name, source in bundle(S4Config()).items():
        (tmp_path / name).write_text(source)
    (tmp_path / "truncated.py").write_text(HEADER[:5])
    (tmp_path / f"{TEMPORARY_PREFIX}abcdefgh").mkdir()
    folder.clear_output(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-of-mine", "data.csv", "model.py", "runs"]
    assert [path.name for path in (tmp_path / "runs").rglob("*") if path.is_file()] == ["mine.txt"]


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
