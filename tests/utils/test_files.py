"""Files and folders appear whole, what killed processes leave behind is deleted, and inputs are not replaced."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hf_ssm.utils.files import TEMPORARY_PREFIX, check_not_input, lock_file, scratch_folder, staged_files, unlock_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("output", "source", "relation"),
    [
        ("in.csv", "in.csv", "is"),
        ("link.csv", "in.csv", "is"),
        ("in.csv", "link.csv", "is"),
        ("hard.csv", "in.csv", "is"),
        ("sub/../in.csv", "in.csv", "is"),
        ("sub", "sub/inner/data.csv", "contains"),
        ("sub", "linked/data.csv", "contains"),
        (".", "in.csv", "contains"),
        ("sub", "sub", "is"),
        ("sub", "sub/outward.csv", "contains"),
    ],
)
@pytest.mark.parametrize("absolute", [True, False])
def test_an_output_that_is_an_input_is_refused(tmp_path, monkeypatch, output, source, relation, absolute):
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("x")
    Path("link.csv").symlink_to("in.csv")
    os.link("in.csv", "hard.csv")
    Path("sub/inner").mkdir(parents=True)
    Path("sub/inner/data.csv").write_text("x")
    Path("sub/outward.csv").symlink_to(tmp_path / "in.csv")
    Path("linked").symlink_to("sub/inner")
    with pytest.raises(
        ValueError,
        match=rf"^--output '[^']*' {relation} the input '[^']*'(, which would be lost)?: choose another name",
    ):
        check_not_input(tmp_path / output if absolute else output, None, "user/name", source)


def test_other_outputs_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("x")
    Path("model").mkdir()
    Path("model/old.csv").write_text("x")
    for output in ("new.csv", "model/old.csv", "model/new"):
        check_not_input(output, "in.csv", "model", "absent.csv", None, "x" * 5000, "with\0null")


KILLED = """
import os, signal, sys
from hf_ssm.utils.files import scratch_folder

with scratch_folder(sys.argv[1]) as folder:
    (folder / "half").write_text("half")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_folders_of_killed_processes_are_deleted_and_others_stay(tmp_path):
    (tmp_path / f"{TEMPORARY_PREFIX}file0000").write_text("mine")
    (tmp_path / "target").mkdir()
    (tmp_path / f"{TEMPORARY_PREFIX}link0000").symlink_to(tmp_path / "target")
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"ready\n"
        with scratch_folder(tmp_path) as folder:
            used = {name for name in names(tmp_path) if (tmp_path / name / "half").exists()}
            assert len(used) == 1 and folder.is_dir()
        other.send_signal(signal.SIGKILL)
    assert used < set(names(tmp_path))
    with staged_files(tmp_path) as folder:
        (folder / "new").write_text("new")
        assert not used & set(names(tmp_path))
    assert names(tmp_path) == [f"{TEMPORARY_PREFIX}file0000", f"{TEMPORARY_PREFIX}link0000", "new", "target"]


def test_outdated_files_are_deleted_after_the_new_ones_are_there(tmp_path, monkeypatch):
    (tmp_path / "old.png").write_text("old")
    (tmp_path / "kept.json").write_text("old")

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(Path, "replace", fail)
        with staged_files(tmp_path, replaces=["*.png", "*.json"]) as folder:
            (folder / "kept.json").write_text("new")
    assert names(tmp_path) == ["kept.json", "old.png"]
    with staged_files(tmp_path, replaces=["*.png", "*.json"]) as folder:
        (folder / "kept.json").write_text("new")
    assert names(tmp_path) == ["kept.json"] and (tmp_path / "kept.json").read_text() == "new"


def test_a_lock_file_is_not_a_link(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError, match=r"lock'.* is a link or a folder: delete it"):
        lock_file(tmp_path / "lock", "busy")
    assert (tmp_path / "victim").read_text() == "precious"
    (tmp_path / "lock").unlink()
    unlock_file(lock_file(tmp_path / "lock", "busy"))
    assert names(tmp_path) == ["victim"]
