"""What a suite is: tasks, their data, columns and metric."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_ssm.suites.metrics import METRICS
from hf_ssm.utils.hints import closest_name

__all__ = ["KINDS", "ORIENTATIONS", "Suite", "Task"]

KINDS = ("classification", "variants")
ORIENTATIONS = ("signed", "absolute", "distance")


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of a suite.

    Attributes:
        name: Its name in tables and of its files.
        dataset: Id of a data set of the Hub, a folder with the files of one, or a table (csv, tsv, json, jsonl,
            optionally gzipped; for variants also parquet, or a tab-separated file with a header, `.bed`).
        config: Configuration of a data set of the Hub.
        revision: Branch, tag or commit of a data set of the Hub.
        where: Rows of a data set of the Hub that belong to the task: column to its value.
        kind: `"classification"` of sequences, with the splits train and test, and validation, which is otherwise cut
            from train; or `"variants"`, which are scored without training.
        metric: What the table shows, one of `hf_ssm.suites.metrics.METRICS`; all are stored.
        sequence_column, label_column, split_column: Columns; that of the splits is read in tables without files for
            each split.
        columns: For variants: column of the data to one of `chrom`, `pos` (1-based), `start` (0-based), `ref`, `alt`.
        split: For variants: the split that is scored.
        by: For variants: a column, such as `chrom` or a group of matched variants; the metric is the mean over its
            values, weighted by their numbers of variants.
        orientation: For variants, what a high risk is: `"signed"`, a low log-likelihood ratio; `"absolute"`, a large
            one of either sign; `"distance"`, a large cosine distance of the hidden states at the variant.
        window: For variants: bases of a window.
        genome: For variants: FASTA file of the reference; default: that of the call.
        keep_case: Whether lower-case (soft-masked) letters stay so; by default they are read as capitals.

    Raises:
        ValueError: An unknown kind, metric or orientation; a name that is no file name.
    """

    name: str
    dataset: str
    config: str | None = None
    revision: str | None = None
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = "classification"
    metric: str = "accuracy"
    sequence_column: str = "sequence"
    label_column: str = "label"
    split_column: str | None = "split"
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    split: str = "test"
    by: str | None = None
    orientation: str = "signed"
    window: int = 512
    genome: str | None = None
    keep_case: bool = False

    def __post_init__(self) -> None:
        for field, choices in (("kind", KINDS), ("metric", METRICS), ("orientation", ORIENTATIONS)):
            value = getattr(self, field)
            if value not in choices:
                raise ValueError(f"task {self.name!r}: `{field}`={value!r} must be one of {', '.join(choices)}")
        if self.kind == "variants" and self.metric not in ("auroc", "auprc"):
            raise ValueError(f"task {self.name!r}: the `metric` of variants must be auroc or auprc, got {self.metric}")
        if not self.name or Path(self.name).name != self.name or self.name.startswith("."):
            raise ValueError(f"`name`={self.name!r} of a task must be usable as a file name")

    def to_dict(self) -> dict[str, Any]:
        """The attributes that differ from their defaults, in JSON types."""
        plain = {field.name: field.default for field in dataclasses.fields(self)}
        values = {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()}
        return {name: value for name, value in values.items() if value != plain[name] and value != {}}


@dataclasses.dataclass(frozen=True)
class Suite:
    """A list of tasks.

    Attributes:
        name: Its name in files.
        tasks: The tasks.
        source: Where the tasks and the metric are described.
        needs: What a user has to provide, such as a genome; "" if nothing.
    """

    name: str
    tasks: tuple[Task, ...]
    source: str = ""
    needs: str = ""

    def choose(self, names: list[str] | None) -> "Suite":
        """The suite with some of its tasks, in the order of the suite; all for `None`.

        Raises:
            ValueError: There is no task of a name.
        """
        known = [task.name for task in self.tasks]
        for name in names or ():
            if name not in known:
                closest = closest_name(name, known)
                hint = f"did you mean {closest!r}?" if closest else f"choose from {', '.join(known)}"
                raise ValueError(f"the suite {self.name!r} has no task {name!r}; {hint}")
        return (
            self
            if names is None
            else dataclasses.replace(self, tasks=tuple(task for task in self.tasks if task.name in names))
        )
