"""Results of an experiment that is continued after an interruption."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _experiment import environment


class FinishedRuns:
    """Finished runs by name, written to a file after each run.

    Args:
        path: JSON file of the runs; `None` keeps them in memory only.
        settings: What the runs depend on, other than their names. A file with other settings is an error.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]):
        self.path = path
        self.content: dict[str, Any] = {
            "settings": json.loads(json.dumps(settings)),
            **environment(),
            "runs": {},
        }
        if path is not None and path.is_file():
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["settings"] != self.content["settings"]:
                raise SystemExit(f"{str(path)!r} holds runs with other settings: use another --output.")
            self.content = stored

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """The stored result of a run, or that of `measure`."""
        runs = self.content["runs"]
        if name not in runs:
            runs[name] = measure()
            print(f"{name}: {runs[name]}", flush=True)
            self.write()
        return runs[name]

    def write(self, **other: Any) -> None:
        """Write the runs, and other entries of the file."""
        self.content |= other
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            scratch = self.path.with_suffix(".part")
            scratch.write_text(json.dumps(self.content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            scratch.replace(self.path)
