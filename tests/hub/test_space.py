"""The page of a checkpoint as a Space."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, SpaceCard

from hf_ssm.hub import push_space, save_space

pytest.importorskip("gradio")


def test_space_of_a_folder(folder: Path, tmp_path: Path) -> None:
    space = save_space(folder, tmp_path / "space", title="Promoters: yes or no?")
    settings = SpaceCard.load(space / "README.md").data.to_dict()
    assert settings["sdk"] == "gradio" and settings["sdk_version"].count(".") == 2
    assert settings["title"] == "Promoters: yes or no?" and settings["app_file"] == "app.py"
    assert "models" not in settings
    program = (space / "app.py").read_text()
    ast.parse(program)
    assert 'main(["app", "model/run", "--host", "0.0.0.0"])' in program
    assert (space / "model" / "run" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert (space / "hf_ssm" / "app" / "page.py").is_file()
    assert not list(space.rglob("__pycache__"))
    lines = (space / "requirements.txt").read_text().splitlines()
    names = {re.split("[<>=]", line)[0] for line in lines}
    assert {"torch", "transformers", "matplotlib"} <= names
    # Neither the package itself, nor what the settings of the Space install, nor other extras.
    assert not names & {"hf_ssm", "gradio", "pytest", "numba"}
    with pytest.raises(FileExistsError, match="not empty"):
        save_space(folder, space)


def test_space_of_a_repository(tmp_path: Path) -> None:
    space = save_space("ada/promoters", tmp_path / "space", package="hf_ssm[app]==9.9")
    assert SpaceCard.load(space / "README.md").data.to_dict()["models"] == ["ada/promoters"]
    assert 'main(["app", "ada/promoters",' in (space / "app.py").read_text()
    assert (space / "requirements.txt").read_text().splitlines()[1:] == ["hf_ssm[app]==9.9"]
    assert sorted(path.name for path in space.iterdir()) == ["README.md", "app.py", "requirements.txt"]


def test_no_space_of_something_else(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match="USER/NAME"):
        save_space("no folder", tmp_path / "space")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="weights"):
        save_space(folder, tmp_path / "space")
    assert not (tmp_path / "space").exists()


def test_a_hidden_file_leaves_no_folder(tmp_path: Path, folder: Path) -> None:
    (folder / ".env").write_text("x")
    with pytest.raises(ValueError, match="hidden file"):
        save_space(folder, tmp_path / "space")
    assert not (tmp_path / "space").exists()


def test_pushed_space(hub: Any, folder: Path) -> None:
    folder = folder.rename(folder.with_name('a "run" \U0001f9ec'))
    # Files of the Hub that a folder of a run or a download has.
    for name in (".eval_results/hf_ssm.yaml", ".gitattributes"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("[{dataset: {id: a/b, task_id: default}, value: 1}]")
    url = push_space(folder, "ada/page")
    assert url.endswith("/spaces/ada/page")
    api = HfApi()
    names = set(api.list_repo_files("ada/page", repo_type="space"))
    assert {
        "README.md",
        "app.py",
        "requirements.txt",
        "hf_ssm/__init__.py",
        f"model/{folder.name}/config.json",
    } <= names
    assert not [name for name in names if "/." in name]
    program = ast.parse(Path(api.hf_hub_download("ada/page", "app.py", repo_type="space")).read_text("utf-8"))
    assert f"model/{folder.name}" in [node.value for node in ast.walk(program) if isinstance(node, ast.Constant)]
    head = api.repo_info("ada/page", repo_type="space").sha
    # The same again changes nothing; another source replaces what is stale.
    push_space(folder, "ada/page")
    assert api.repo_info("ada/page", repo_type="space").sha == head
    push_space("ada/promoters", "ada/page", package="hf_ssm[app]")
    names = set(api.list_repo_files("ada/page", repo_type="space"))
    assert names - {".gitattributes"} == {"README.md", "app.py", "requirements.txt"}
