"""Which files of a folder a push leaves out or refuses, and links that leave the folder."""

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from hf_ssm.hub import committing, pushing
from hf_ssm.hub.verifying import check_folder, verify

NAME = "ada/motifs"
UNSAFE = ("evil.pkl", "evil.PKL", "x.pyc", "notes.PYC", "a.so", "data.npz", "more.zip", "sub/pytorch_model.bin", "a.sh")


def uploaded(hub: Any) -> set[str]:
    return set(hub.repo(NAME).files()) - {".gitattributes"}


class TestAllowList:
    def test_other_suffixes_are_left_out_and_named(self, hub, folder, proofs, caplog):
        names = {path.name for path in folder.iterdir()}
        payload = pickle.dumps(print)
        for name in (*UNSAFE, "pytorch_model.bin", "PYTORCH_MODEL.BIN", "pytorch_model.bin.index.json"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(payload)
        (folder / "pytorch_model.bin.index.json").write_text("{}")
        caplog.set_level(logging.WARNING)
        pushing.push_folder(folder, NAME)
        assert uploaded(hub) == names
        (line,) = [record.getMessage() for record in caplog.records if "not uploaded" in record.getMessage()]
        assert "\n" not in line and "evil.PKL" in line
        assert "pytorch_model.bin (pickled weights beside safetensors)" in line

    def test_suffixes_are_compared_without_case(self, hub, folder, proofs):
        for name in ("A.JSON", "Notes.MD", "LICENSE", "curve.PNG", "probe/curve.png", "merges.txt"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("{}")
        pushing.push_folder(folder, NAME)
        assert uploaded(hub) >= {"A.JSON", "Notes.MD", "LICENSE", "curve.PNG", "probe/curve.png", "merges.txt"}

    @pytest.mark.parametrize("name", ["evil.PY", "sub/evil.Py"])
    def test_code_in_capitals_is_foreign_code(self, hub, folder, proofs, name):
        """A file system that ignores case imports it."""
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("import os\n")
        with pytest.raises(ValueError, match=f"{name}: is foreign code"):
            pushing.push_folder(folder, NAME)
        assert name in [problem.path for problem in verify(folder).problems]
        assert hub.requests == []

    def test_pickled_weights_without_safetensors(self, tmp_path):
        (tmp_path / "pytorch_model.bin").write_bytes(b"x")
        assert committing.folder_files(tmp_path).keys() == {"pytorch_model.bin"}
        (tmp_path / "model.safetensors").write_bytes(b"x")
        assert committing.folder_files(tmp_path).keys() == {"model.safetensors"}


LINKS = {
    "file out": ("other.json", "../outside.json"),
    "weights out": ("model.safetensors", "../outside.json"),
    "folder out": ("up", ".."),
    "to nothing": ("a.json", "nowhere.json"),
}


@pytest.mark.parametrize("kind", LINKS)
def test_links_that_leave_the_folder(hub, folder, proofs, kind):
    name, target = LINKS[kind]
    (folder.parent / "outside.json").write_text('{"a": 1}')
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    (problem,) = verify(folder).problems
    assert problem.path == name and "is a symbolic link out of the folder or to nothing" in problem.what
    with pytest.raises(ValueError, match=f"{name}.* is a symbolic link out of the folder"):
        pushing.push_folder(folder, NAME)
    with pytest.raises(ValueError, match=rf"{name} \(a symbolic link out of the folder"):
        committing.folder_files(folder)
    assert hub.requests == []


def test_links_inside_a_folder(folder):
    (folder / "copy.md").symlink_to("README.md")
    (folder / "here").symlink_to(".")
    assert verify(folder).problems == ()


class TestLinksOfTheCache:
    def snapshot(self, folder: Path, cache: Path, shared: bool = False) -> Path:
        """The files of a folder as `huggingface_hub` stores a repository; `shared`: in the store of all."""
        repository = cache / "models--ada--motifs"
        snapshot, blobs = repository / "snapshots" / ("0" * 40), repository / "blobs"
        snapshot.mkdir(parents=True)
        blobs.mkdir()
        for number, path in enumerate(sorted(folder.iterdir())):
            blob = blobs / f"{number:040}"
            if shared:
                store = cache / "blobs" / "00"
                store.mkdir(parents=True, exist_ok=True)
                path.rename(store / f"{number:064}")
                blob.symlink_to(Path("../../blobs/00") / f"{number:064}")
            else:
                path.rename(blob)
            (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
        return snapshot

    @pytest.mark.parametrize("shared", [False, True])
    def test_blobs_are_inside(self, folder, tmp_path, shared):
        names = {path.name for path in folder.iterdir()}
        snapshot = self.snapshot(folder, tmp_path / "cache", shared)
        assert verify(snapshot).problems == () and verify(snapshot).checked == len(names)
        assert committing.folder_files(snapshot, also=["*.py"]).keys() == names

    def test_other_files_of_the_cache_are_outside(self, folder, tmp_path):
        snapshot = self.snapshot(folder, tmp_path / "cache")
        other = tmp_path / "cache" / "models--eve--x" / "blobs"
        other.mkdir(parents=True)
        (other / "a").write_text("{}")
        (snapshot / "other.json").symlink_to(other / "a")
        assert [problem.path for problem in check_folder(snapshot)] == ["other.json"]
