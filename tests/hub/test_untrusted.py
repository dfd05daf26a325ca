"""Which files of a folder a push leaves out or refuses, and links that leave the folder."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_ssm.cli import main
from hf_ssm.hub import pushing
from hf_ssm.hub.committing import upload_list
from hf_ssm.hub.verifying import check_folder, verify

NAME = "ada/motifs"


def uploaded(hub: Any) -> set[str]:
    return set(hub.repo(NAME).files()) - {".gitattributes"}


class TestAllowList:
    def test_what_the_package_has_not_written_stays_behind(self, hub, folder, proofs, capsys):
        names = {path.name for path in folder.iterdir()}
        others = {"predictions.csv": "patients", "probe/results.json": "[]", "probe/curve.png": "x", ".env": "hf_x"}
        for name, text in others.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        for name in ("evil.pkl", "sub/pytorch_model.bin", "pytorch_model.bin", "a.sh"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(pickle.dumps(print))
        assert main(["push", str(folder), NAME, "--dry-run"]) == 0
        dry = capsys.readouterr().out
        assert hub.requests == []
        assert main(["push", str(folder), NAME]) == 0
        out = capsys.readouterr().out
        assert uploaded(hub) == names
        left = ".env, a.sh, evil.pkl, predictions.csv, probe/ (2 files), pytorch_model.bin, sub/ (1 files)"
        assert f"Not uploaded: {left} (`hf-ssm push {folder} ... --include NAME` adds" in out
        listed = out.partition("To upload, beside the code of the model: ")[2].partition("\n")[0].split(", ")
        assert set(listed) == {name for name in names if not name.endswith(".py")}
        assert dry.splitlines()[:2] == out.splitlines()[:2] and dry.endswith("Nothing was uploaded.\n")

    def test_included_files_and_pictures_of_the_card(self, hub, folder, proofs):
        for name in ("probe/curve.png", "probe/a/b.csv", "report/tau.png", "table.csv"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("x")
        with (folder / "README.md").open("a") as card:
            card.write("\n![τ](report/tau.png) ![out](../other.png)\n")
        before = {path.name for path in folder.iterdir() if path.is_file()} - {"table.csv"}
        assert main(["push", str(folder), NAME]) == 0
        assert uploaded(hub) == before | {"report/tau.png"}
        assert main(["push", str(folder), NAME, "--include", "probe", "--include", "*.csv"]) == 0
        assert uploaded(hub) == before | {"report/tau.png", "probe/curve.png", "probe/a/b.csv", "table.csv"}

    @pytest.mark.parametrize("pattern", ["nothing.csv", "*.py"])
    def test_includes_that_are_refused(self, hub, folder, proofs, pattern, capsys):
        assert main(["push", str(folder), NAME, "--include", pattern]) == 2
        assert f"--include {pattern!r} " in capsys.readouterr().err and hub.requests == []

    def test_settings_have_no_local_paths(self, hub, folder, proofs, tmp_path):
        (tmp_path / "tokenizer").mkdir()
        data = {
            "dataset": "/home/ada/patients.csv",
            "test_file": "clinic/*.fa",
            "tokenizer": str(tmp_path / "tokenizer"),
        }
        settings = {
            "model": {"checkpoint": "ada/base", "family": "s4"},
            "data": {**data, "validation_file": "~/private/v.csv", "max_length": 5},
            "training": {"logging_dir": "C:\\Users\\ada\\logs", "learning_rate": 1e-3},
        }
        (folder / "train_config.yaml").write_text(yaml.safe_dump(settings))
        pushing.push_folder(folder, NAME)
        pushed = yaml.safe_load(hub.repo(NAME).files()["train_config.yaml"])
        names = {"dataset": "patients.csv", "test_file": "*.fa", "tokenizer": "tokenizer", "validation_file": "v.csv"}
        assert pushed["data"] == {**names, "max_length": 5} and pushed["model"] == settings["model"]
        assert pushed["training"] == {"logging_dir": "logs", "learning_rate": 1e-3}
        assert yaml.safe_load((folder / "train_config.yaml").read_text()) == settings

    @pytest.mark.parametrize("name", ["evil.PY", "sub/evil.Py"])
    def test_code_in_capitals_is_foreign_code(self, hub, folder, proofs, name):
        """A file system that ignores case imports it."""
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("import os\n")
        with pytest.raises(ValueError, match=f"{name}: is foreign code"):
            pushing.push_folder(folder, NAME)
        assert name in [problem.path for problem in verify(folder).problems]
        assert hub.requests == []


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
        assert upload_list(snapshot)[0].keys() == {name for name in names if not name.endswith(".py")}

    def test_other_files_of_the_cache_are_outside(self, folder, tmp_path):
        snapshot = self.snapshot(folder, tmp_path / "cache")
        other = tmp_path / "cache" / "models--eve--x" / "blobs"
        other.mkdir(parents=True)
        (other / "a").write_text("{}")
        (snapshot / "other.json").symlink_to(other / "a")
        assert [problem.path for problem in check_folder(snapshot)] == ["other.json"]
