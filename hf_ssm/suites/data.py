"""The rows of a task: loaded once by `datasets`, checked, split, and stored as a table beside the results."""

import csv
import dataclasses
import gzip
import hashlib
import io
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, load_dataset

from hf_ssm.data import label_names, load_sequences
from hf_ssm.data.checks import check_column
from hf_ssm.data.files import bare_suffix
from hf_ssm.data.images import ImageOptions
from hf_ssm.data.loading import cut_missing_splits
from hf_ssm.data.preparation import prepare
from hf_ssm.data.splits import SPLITS, split_name
from hf_ssm.data.tables import TABLE_SUFFIXES
from hf_ssm.inference.parts import file_facts
from hf_ssm.suites.task import Task
from hf_ssm.utils.files import replacing, write_text_atomically

__all__ = ["NO_LIMITS", "VALIDATION_SHARE", "Limits", "TaskData", "load_task"]

VALIDATION_SHARE = 0.1
"""Share of the training rows that is cut off for validation where a task has no validation split."""

_SEED = 0  # of that cut, and of samples of rows: the same for all models


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of the data of all tasks, for a look at a suite that costs little.

    Attributes:
        max_rows: Rows of each split, a random sample; `None` for all.
        max_length: Letters of a sequence, from its start; `None` for all.
    """

    max_rows: int | None = None
    max_length: int | None = None


NO_LIMITS = Limits()
"""All rows, of any length."""


@dataclasses.dataclass(frozen=True)
class TaskData:
    """The rows of a task.

    Attributes:
        task: The task.
        path: The stored table: `sequence`, `label`, `split`; or, for variants, `chrom`, `pos`, `ref`, `alt`, `label`
            and the column of the groups.
        rows: Rows of each split.
        classes: Names of the classes, in the order of the labels; empty for variants.
        digest: A hash of the table.
    """

    task: Task
    path: Path
    rows: dict[str, int]
    classes: tuple[str, ...]
    digest: str

    def splits(self) -> dict[str, tuple[list[str], np.ndarray]]:
        """The sequences and the labels, `(rows,)`, of each split."""
        return _read_splits(self.path, self.digest)

    def variants(self) -> Dataset:
        """The variants."""
        return Dataset.from_parquet(str(self.path), keep_in_memory=True)


def load_task(task: Task, folder: Path, mirror: Path | None = None, limits: Limits = NO_LIMITS) -> TaskData:
    """The rows of a task, from the stored table of an earlier call with the same arguments and files if there is one.

    Args:
        task: The task.
        folder: Where the table is stored.
        mirror: A folder with copies of data sets of the Hub, `USER/NAME` below it, which are read instead.
        limits: Limits of rows and lengths.

    Raises:
        FileNotFoundError, ConnectionError: The data do not exist, or the Hub cannot be reached.
        ValueError: A column or split is missing, no row is left, or rows are unfit.
    """
    is_of_sequences = task.kind == "classification"
    path = folder / f"{task.name}{'.csv.gz' if is_of_sequences else '.parquet'}"
    facts_path = folder / f"{task.name}.json"
    source = _source(task, mirror)
    wanted = {"task": task.to_dict(), "source": source, "files": _files_of(source), **dataclasses.asdict(limits)}
    if path.is_file() and facts_path.is_file():
        facts = json.loads(facts_path.read_text(encoding="utf-8"))
        if facts["data"] == wanted and facts["digest"] == _digest(path):
            return TaskData(task, path, facts["rows"], tuple(facts["classes"]), facts["digest"])
    folder.mkdir(parents=True, exist_ok=True)
    if is_of_sequences:
        splits, classes = _sequences(task, source, limits)
        _write_sequences(splits, path)
        rows = {name: len(split) for name, split in splits.items()}
    else:
        table, classes = _variants(task, source, limits), ()
        with replacing(path, path.with_name(f".{path.name}")) as temporary:
            table.to_parquet(temporary)
        rows = {task.split: len(table)}
    data = TaskData(task, path, rows, classes, _digest(path))
    facts = {"data": wanted, "rows": rows, "classes": classes, "digest": data.digest}
    write_text_atomically(facts_path, json.dumps(facts, indent=1) + "\n")
    return data


@lru_cache(maxsize=1)
def _read_splits(path: Path, digest: str) -> dict[str, tuple[list[str], np.ndarray]]:
    loaded = load_sequences(path, validation_fraction=0.0, test_fraction=0.0)
    return {name: (list(rows["sequence"]), np.array(rows["label"])) for name, rows in loaded.items()}


def _source(task: Task, mirror: Path | None) -> str:
    local = None if mirror is None else mirror / task.dataset
    return str(local) if local is not None and local.exists() else task.dataset


def _files_of(source: str) -> list[list[Any]]:
    """What identifies the content of a table, or of a folder; empty for a data set of the Hub."""
    path = Path(source)
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [file_facts(file) for file in files if file.is_file()]


def _sequences(task: Task, source: str, limits: Limits) -> tuple[DatasetDict, tuple[str, ...]]:
    """The splits with the columns `sequence` and `label`, and the names of the classes."""
    if bare_suffix(Path(source)) in TABLE_SUFFIXES:
        if task.where:
            raise ValueError(
                f"task {task.name!r}: `where` is for data sets of the Hub, not for the table {source!r}: leave "
                "`where` out"
            )
        loaded = load_sequences(
            source,
            task.sequence_column,
            task.label_column,
            task.split_column,
            validation_fraction=VALIDATION_SHARE,
            test_fraction=0.0,
            seed=_SEED,
        )
    else:
        loaded = _hub_splits(task, source)
    if missing := [name for name in SPLITS if name not in loaded]:
        raise ValueError(
            f"task {task.name!r}: {source!r} has no {missing[0]} split; its splits are {', '.join(loaded)}"
        )
    names = label_names(loaded, task.label_column)
    columns = {task.sequence_column: "sequence", task.label_column: "label"}
    rows = {}
    for name in SPLITS:
        split = loaded[name].select_columns(list(columns)).rename_columns({k: v for k, v in columns.items() if k != v})
        sequences, labels = list(split["sequence"]), list(split["label"])
        kept = _sample(len(labels), limits.max_rows)
        letters = [sequences[row][: limits.max_length] for row in kept]
        letters = letters if task.keep_case else [text.upper() for text in letters]
        rows[name] = Dataset.from_dict({"sequence": letters, "label": [labels[row] for row in kept]})
    return DatasetDict(rows), tuple(names)


def _hub_splits(task: Task, source: str) -> DatasetDict:
    loaded = _filtered(task, source)
    texts = {"sequence_column": task.sequence_column}
    splits = prepare(source, loaded, texts, task.label_column, ImageOptions(False, None), False)
    shares = {"validation": VALIDATION_SHARE, "test": 0.0}
    return cut_missing_splits(splits, [task.sequence_column], task.label_column, shares, _SEED, source)


def _filtered(task: Task, source: str) -> DatasetDict:
    """The splits of a data set, or of a table, with the rows of the task."""
    path = Path(source)
    suffix = bare_suffix(path)
    if suffix in (".parquet", ".bed", *TABLE_SUFFIXES):
        kind = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}.get(suffix, "csv")
        options = {"sep": "," if suffix == ".csv" else "\t"} if kind == "csv" else {}
        if not path.is_file():
            raise FileNotFoundError(
                f"task {task.name!r}: there is no file {source!r}: give the folder of the file (--data DIR)"
            )
        loaded = load_dataset(kind, data_files={task.split: str(path)}, keep_in_memory=True, **options)
    else:
        loaded = load_dataset(source, task.config, revision=task.revision)
    for column, value in task.where.items():
        for name, split in loaded.items():
            check_column("where", column, split.column_names, f"{source}, split {name!r},")
        loaded = loaded.filter(lambda entry, value=value: entry == value, input_columns=column)
    if empty := [name for name, split in loaded.items() if not len(split)]:
        raise ValueError(f"task {task.name!r}: no row of {source!r}, split {empty[0]!r}, has {dict(task.where)}")
    return loaded


def _variants(task: Task, source: str, limits: Limits) -> Dataset:
    """The variants with their label and group."""
    loaded = {split_name(name) or name: split for name, split in _filtered(task, source).items()}
    if task.split not in loaded:
        raise ValueError(
            f"task {task.name!r}: {source!r} has no split {task.split!r}; its splits are {', '.join(loaded)}"
        )
    table = loaded[task.split]
    columns = {name: name for name in ("chrom", "pos", "ref", "alt")} if not task.columns else dict(task.columns)
    groups = [] if task.by is None else [{v: k for k, v in columns.items()}.get(task.by, task.by)]
    for name in (*columns, task.label_column, *groups):
        check_column("columns", name, table.column_names, source)
    if {"chrom", "ref", "alt"} - set(columns.values()) or not {"pos", "start"} & set(columns.values()):
        raise ValueError(f"task {task.name!r}: `columns` must name chrom, ref, alt, and pos or start, got {columns}")
    values = {new: list(table[name]) for name, new in columns.items()}
    if "start" in values:
        values["pos"] = [start + 1 for start in values.pop("start")]
    values["chrom"] = list(map(str, values["chrom"]))
    values["label"] = [int(label) for label in table[task.label_column]]
    values |= {task.by: list(map(str, table[groups[0]]))} if task.by is not None and task.by not in values else {}
    kept = _sample(len(table), limits.max_rows)
    return Dataset.from_dict({name: [column[row] for row in kept] for name, column in values.items()})


def _sample(count: int, most: int | None) -> list[int]:
    """Numbers of all rows, or of a random sample, in order."""
    if most is None or most >= count:
        return list(range(count))
    return sorted(np.random.default_rng(_SEED).choice(count, most, replace=False).tolist())


def _write_sequences(splits: Mapping[str, Dataset], path: Path) -> None:
    with (
        replacing(path, path.with_name(f".{path.name}")) as temporary,
        open(temporary, "wb") as raw,
        # Without the time, so that equal rows are equal bytes.
        gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("sequence", "label", "split"))
        for name, rows in splits.items():
            writer.writerows(zip(rows["sequence"], rows["label"], [name] * len(rows), strict=True))


def _digest(path: str | os.PathLike[str]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
