"""Executes notebooks in an empty folder, each in a new process, and writes them back with their outputs.

    python tests/docs/run_notebooks.py docs/tutorials/*.ipynb

What changes from run to run is left out: times, versions, progress bars. What the tutorials write is deleted.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

TIMEOUT = 600  # seconds per cell
SETTINGS = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    # tqdm warns where ipywidgets is missing, although no bar is drawn.
    "PYTHONWARNINGS": "ignore:IProgress not found",
}
# The Trainer's progress bar, above its table of losses.
_PROGRESS = re.compile(r"<div>\s*<progress.*?</div>\s*", re.DOTALL)


def execute(path: Path, folder: Path) -> Any:
    """Run a notebook in a folder, with `hf_ssm` and the command `hf-ssm` of this interpreter; returns the new one.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **SETTINGS, "HF_HOME": str(folder / ".cache"), "PATH": search}
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        # The number of pieces of a stream depends on the time.
        coalesce_streams=True,
        # Otherwise it warns that its sockets are not encrypted.
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    return cleaned(notebook)


def cleaned(notebook: Any) -> Any:
    """The notebook without what changes in every run."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number}"
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(_without_progress, cell.outputs) if output is not None]
    return notebook


def _without_progress(output: Any) -> Any:
    """The output without a progress bar; `None` if nothing is left."""
    html = output.get("data", {}).get("text/html")
    # A finished bar without a table leaves an empty output.
    if html is None or (html.strip() and "<progress" not in html):
        return output
    html = _PROGRESS.sub("", html).strip()
    if "<td>" not in html:
        return None
    output.data = {"text/html": html, "text/plain": output.data["text/plain"]}
    return output


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            nbformat.write(execute(Path(name), Path(scratch)), name)
        print(name)
