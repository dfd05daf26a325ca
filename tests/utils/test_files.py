"""Files appear whole, and inputs are not replaced."""

import os
from pathlib import Path

import pytest

from hf_ssm.utils.files import check_not_input, staged_files


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
