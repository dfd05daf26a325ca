"""Results of an experiment that is continued after an interruption."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _experiment import environment, write_json

from hf_ssm.training import folder
from hf_ssm.training.run import train
from hf_ssm.training.settings import RunSettings, check_same_run, read_settings_file


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
            write_json(self.path, self.content)


def stored_results(args: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The content of `--output`, as of `write_results`; empty if there is no file.

    Args:
        args: The arguments.
        names: Arguments that the results depend on. A file with others is an error.
    """
    if args.output is None or not args.output.is_file():
        return {}
    content: dict[str, Any] = json.loads(args.output.read_text(encoding="utf-8"))
    for name in names:
        stored, given = content["arguments"].get(name), json.loads(json.dumps(getattr(args, name)))
        if stored != given:
            raise SystemExit(
                f"{str(args.output)!r} holds results of another setting ({name}={stored!r}, now {given!r}): use "
                "another --output."
            )
    return content


def train_or_continue(settings: RunSettings, output: Path, choose: bool = False) -> None:
    """Train, or continue from the newest checkpoint, unless the run is complete.

    Args:
        settings: Those of the run; a complete run with others is an error.
        output: Its folder.
        choose: As of `hf_ssm.training.run.train`.
    """
    if (output / folder.LOG_NAME).is_file():
        _check_complete(settings, output)
        return
    try:
        resume = folder.last_checkpoint(output) is not None
    except ValueError:
        resume = False
    print(f"{output}: {'continued' if resume else 'started'}", flush=True)
    train(settings, output, resume=resume, overwrite=True, choose=choose)


def _check_complete(settings: RunSettings, output: Path) -> None:
    """Refuse a complete run of another model, other data or another number of epochs."""
    stored = read_settings_file(output / folder.SETTINGS_NAME)
    try:
        check_same_run(settings, stored)
    except ValueError as error:
        raise SystemExit(f"{str(output)!r} is complete, with other settings: use another --runs. {error}") from error
    epochs = [float(section.get("num_train_epochs", 0)) for section in (stored["training"], settings.training)]
    if epochs[0] != epochs[1]:
        raise SystemExit(
            f"{str(output)!r} is complete, with {epochs[0]:g} epochs instead of {epochs[1]:g}: use another --runs."
        )
