"""Runs of `tuning_benchmark.py`, which are stored, and their errors."""

import gc
import hashlib
import json
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_ssm.training.inputs import RunData, load_data
from hf_ssm.training.run import RunProgress, train
from hf_ssm.training.settings import SECTIONS, RunSettings
from hf_ssm.tuning import Outcome, outcome_of
from hf_ssm.tuning.runs import diverged
from hf_ssm.utils.files import write_text_atomically

# Limit of a validation error in units of that of the constant prediction, in means over tasks.
MOST = 10.0

Record = dict[str, Any]


def error_of(metric: str, value: float) -> float:
    """A metric as an error: 1 - accuracy, nats (the logarithm of the perplexity), or the value itself."""
    return {"accuracy": lambda: 1 - value, "perplexity": lambda: math.log(value)}.get(metric, lambda: value)()


@dataclass
class Runs:
    """Runs of one task and split, each of which is stored in a file named by the hash of its settings."""

    folder: Path
    data: list[RunData] = field(default_factory=list)

    def record(self, settings: RunSettings) -> Record:
        """The outcome of a run, and its test metric: both from the file if there is one."""
        content = {section: dict(getattr(settings, section)) for section in SECTIONS}
        content["data"]["dataset"] = Path(settings.data["dataset"]).name  # the folder may be moved
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]
        path = self.folder / f"{digest}.json"
        if path.is_file():
            stored: Record = json.loads(path.read_text(encoding="utf-8"))
            return stored
        found = self._run(settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, json.dumps({**found, "settings": content}) + "\n")
        return found

    def __call__(self, settings: RunSettings, output: Path) -> Outcome:
        """As `hf_ssm.tuning.Runner`."""
        del output  # nothing but the outcome is kept
        return Outcome.from_dict(self.record(settings)["outcome"])

    def loaded(self, settings: RunSettings) -> RunData:
        """The data, which all runs share."""
        if not self.data:
            self.data.append(load_data(settings))
        return self.data[0]

    def _run(self, settings: RunSettings) -> Record:
        is_first, data = not self.data, self.loaded(settings)
        # Processor time, which other processes do not lengthen.
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = train(settings, Path(folder), progress=RunProgress(), choose=True, data=data)
            except FloatingPointError as error:
                failed = diverged(settings, str(error), time.process_time() - started)
                return {"outcome": failed.to_dict(), "test": None, "chance": None}
        outcome = replace(outcome_of(result), seconds=time.process_time() - started)
        chance = {split: values[outcome.metric] for split, values in result.chance.items()}
        test = result.results["test"][outcome.metric]
        if is_first:
            del result
            pass_over_present_objects()
        return {"outcome": outcome.to_dict(), "test": test, "chance": chance}


def validation_error(record: Record) -> float:
    """The error of the validation split; infinite for a run that diverged."""
    outcome = record["outcome"]
    return math.inf if outcome["score"] is None else error_of(outcome["metric"], outcome["score"])


def relative_errors(records: Sequence[Record]) -> list[float]:
    """Validation errors in units of that of the constant prediction, at most 10, which is also that of a divergence."""
    known = next((record for record in records if record["chance"]), None)
    if known is None:
        return [MOST] * len(records)
    constant = error_of(known["outcome"]["metric"], known["chance"]["validation"])
    return [min(validation_error(record) / constant, MOST) for record in records]


def pass_over_present_objects() -> None:
    """Let the collector of garbage pass over the objects of imports and data.

    accelerate collects garbage after each run, which is a good part of the time of a short one.
    """
    gc.collect()
    gc.freeze()
