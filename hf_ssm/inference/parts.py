"""Output tables that are written in parts, so that an interrupted run continues where it stopped.

Finished parts are Arrow files in a hidden folder beside the output, each written in one step. When all rows are done,
the parts are joined to the output, again in one step, and the folder is removed.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from datasets import Dataset
from filelock import FileLock

from hf_ssm.data.records import Record
from hf_ssm.utils.files import lock_file, replacing, unlock_file, write_text_atomically

__all__ = [
    *("TABLE_OUTPUTS", "Parts", "check_table_output", "file_facts", "join_table", "table_of"),
    *("with_input_columns", "write_in_parts"),
]

T = TypeVar("T")

TABLE_OUTPUTS = (".csv", ".tsv", ".parquet")
_SETTINGS = "settings.json"
# Size and time of change of the joined output.
_JOINED = "joined.json"
# Key in the file of the settings: the facts of an earlier output, which stays until the new one replaces it.
_REPLACES = "output that is replaced"


def table_of(items: Iterable[T], function: Callable[[list[T]], pa.Table], part_size: int = 1024) -> Dataset:
    """The table of all items in memory.

    Args:
        items: What the rows are computed from.
        function: Computes the table of a list of items, which may have more or fewer rows than items.
        part_size: Number of items of one call.
    """
    tables = [function(part) for part in _parts_of(iter(items), part_size)]
    if not tables:
        raise ValueError("`inputs` is empty: give at least one sequence.")
    return Dataset(pa.concat_tables(tables, promote_options="permissive").combine_chunks())


def write_in_parts(
    output: Path,
    items: Iterable[T],
    function: Callable[[list[T]], pa.Table],
    settings: Mapping[str, Any],
    *,
    part_size: int = 1024,
    overwrite: bool = False,
    join: Callable[[Iterator[pa.Table], Path], None] | None = None,
    skipped: Callable[[list[T]], None] = lambda items: None,
) -> None:
    """Write the table of all items to a file; a call with the same arguments continues after an interruption.

    Args:
        output: The file; its suffix, one of `TABLE_OUTPUTS`, determines the format.
        items: What the rows are computed from; the same ones, in the same order, at each call.
        function: As for `table_of`; all tables have the same columns.
        settings: All that the table depends on, in JSON types.
        part_size: Number of items of a part.
        overwrite: Replace an existing output, which stays until the new one is complete, and delete the parts of
            another run.
        join: Writes the tables of all parts to a temporary path; default `join_table`.
        skipped: Called with the items of each part that an earlier call has finished.

    Raises:
        ValueError: Another suffix, an existing output, parts of a run with other settings, or no items.
        BlockingIOError: Another process writes this output.
    """
    if join is None:
        check_table_output(output)
        join = join_table
    with Parts(output, settings, overwrite) as parts:
        if parts.is_joined:
            return
        done = 0
        for part in _parts_of(iter(items), part_size):
            if done < parts.count:
                skipped(part)
            else:
                parts.add(function(part))
            done += 1
        if not done:
            raise ValueError("the input holds no sequence.")
        parts.join(join)


def with_input_columns(records: Sequence[Record], counts: Sequence[int], results: Mapping[str, Any]) -> pa.Table:
    """A table of results after the columns of the inputs, with each value as often as its sequence has rows.

    Args:
        records: The sequences.
        counts: Number of rows of each.
        results: The columns of the results.

    Raises:
        ValueError: An input has a column with the name of a result.
    """
    names = dict.fromkeys(name for record in records for name in record.columns)
    for name in names:
        if name in results:
            raise ValueError(f"{records[0].where}: the input has a column {name!r}, which the output needs: rename it.")
    rows = [record.columns for record, count in zip(records, counts, strict=True) for _ in range(count)]
    return pa.table({name: [row.get(name) for row in rows] for name in names} | dict(results))


def check_table_output(output: Path) -> None:
    """Raise `ValueError` unless the suffix is one of `TABLE_OUTPUTS`."""
    if output.suffix not in TABLE_OUTPUTS:
        raise ValueError(f"output {str(output)!r}: the suffix must be one of {', '.join(TABLE_OUTPUTS)}.")


def join_table(tables: Iterator[pa.Table], path: Path) -> None:
    """Write tables one after the other to a csv, tsv or parquet file."""
    first = next(tables)
    if path.suffix == ".parquet":
        with pyarrow.parquet.ParquetWriter(path, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table)
        return
    separator = "," if path.suffix == ".csv" else "\t"
    with path.open("w", encoding="utf-8", newline="") as file:
        for number, table in enumerate(chain([first], tables)):
            # Of Arrow's types, whole numbers stay whole where some are missing.
            frame = table.to_pandas(types_mapper=pd.ArrowDtype)
            frame.to_csv(file, sep=separator, index=False, header=number == 0)


def file_facts(path: Path) -> list[Any]:
    """Name, size and time of change of a file, by which a continued run recognises its input."""
    facts = path.stat()
    return [path.name, facts.st_size, facts.st_mtime_ns]


class Parts:
    """The finished parts of an output; a context manager that holds the output against other processes.

    Attributes:
        count: Number of finished parts.
        is_joined: Whether an interrupted call has already written the output.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any], overwrite: bool = False):
        self.output = output
        self.folder = output.with_name(f".{output.name}.parts")
        self._settings = json.loads(json.dumps(dict(settings)))
        self._overwrite = overwrite
        self._lock: FileLock | None = None
        self.count = 0
        self.is_joined = False

    def __enter__(self) -> "Parts":
        if self.output.is_dir():
            raise ValueError(f"output {str(self.output)!r} is a folder: give a file.")
        self.output.parent.mkdir(parents=True, exist_ok=True)
        lock = self.output.with_name(f".{self.output.name}.lock")
        self._lock = lock_file(lock, f"output {str(self.output)!r} is being written by another process.")
        try:
            self._open()
        except BaseException:
            unlock_file(self._lock)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self.count == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
        assert self._lock is not None
        unlock_file(self._lock)

    def _open(self) -> None:
        remedy = "choose another file, or replace it (--overwrite-output)"
        if self.folder.is_symlink() or self.folder.is_file():
            raise FileExistsError(
                f"output {str(self.output)!r}: {str(self.folder)!r}, where its parts are stored, is not a folder: "
                "delete it, or choose another file."
            )
        if self._overwrite and self.folder.exists():
            shutil.rmtree(self.folder)
        stored = self._stored_settings()
        replaces = None if stored is None else stored.pop(_REPLACES, None)
        earlier = file_facts(self.output) if self.output.exists() else None
        # An output that these parts are to replace is not their result.
        is_kept = earlier is not None and earlier == replaces
        if not self._path(0).exists() and (earlier is None or is_kept):
            # Nothing would be lost.
            stored = None
        if stored is not None and stored != self._settings:
            changed = [name for name, value in self._settings.items() if stored.get(name) != value]
            raise ValueError(
                f"output {str(self.output)!r}: {str(self.folder)!r} holds parts of a run with other settings "
                f"({', '.join(changed)}): {remedy}, or repeat the earlier command."
            )
        if earlier is not None and stored is None and not self._overwrite:
            raise ValueError(f"output {str(self.output)!r} exists: {remedy}.")
        if stored is None:
            if self.folder.exists():
                shutil.rmtree(self.folder)
            self.folder.mkdir()
            content = self._settings | ({} if earlier is None else {_REPLACES: earlier})
            write_text_atomically(self.folder / _SETTINGS, json.dumps(content))
        elif earlier is not None and not is_kept:
            if self._joined_facts() != earlier[1:]:
                raise ValueError(f"output {str(self.output)!r} is not that of the interrupted command: {remedy}.")
            self._delete()
            self.is_joined = True
        while self._path(self.count).exists():
            self.count += 1

    def _stored_settings(self) -> dict[str, Any] | None:
        path = self.folder / _SETTINGS
        if not path.is_file():
            return None
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError):
            # A damaged file is that of no settings.
            return {}

    def _joined_facts(self) -> Any:
        """Size and time of change of the output that was written from these parts; `None` if there is none."""
        try:
            return json.loads((self.folder / _JOINED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.arrow"

    def add(self, table: pa.Table) -> None:
        """Store the next part."""
        with self._written_whole(self._path(self.count)) as path, pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
        self.count += 1

    def tables(self) -> Iterator[pa.Table]:
        """The parts, read one after the other, with the same types."""
        # A part whose cells are all missing has columns without a type.
        schema = pa.unify_schemas(
            [self._read(number).schema for number in range(self.count)], promote_options="permissive"
        )
        for number in range(self.count):
            yield self._read(number).cast(schema)

    def _read(self, number: int) -> pa.Table:
        with pa.memory_map(str(self._path(number))) as file:
            return pa.ipc.open_file(file).read_all()

    def join(self, join: Callable[[Iterator[pa.Table], Path], None]) -> None:
        """Write the output from all parts, and remove them."""
        with self._written_whole(self.output) as path:
            join(self.tables(), path)
            # Before the output has its name, so that the next call knows it, if this one is killed afterwards.
            (self.folder / _JOINED).write_text(json.dumps(file_facts(path)[1:]), encoding="utf-8")
        self._delete()

    def _delete(self) -> None:
        """Remove the parts of a finished output."""
        # Those that the next call reads last, if this one is killed here.
        for number in range(self.count):
            self._path(number).unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    def _written_whole(self, path: Path) -> AbstractContextManager[Path]:
        # The suffix determines the format.
        return replacing(path, self.folder / f".{path.stem}.tmp{path.suffix}")


def _parts_of(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while part := list(islice(items, size)):
        yield part
