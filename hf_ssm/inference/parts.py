"""Output tables that are written in parts, so that an interrupted run continues where it stopped.

Finished parts are Arrow files in a hidden folder beside the output, each written in one step. When all rows are done,
the parts are joined to the output, again in one step, and the folder is removed. The processes of a launch each compute
a share of the parts.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from datasets import Dataset
from filelock import FileLock

from hf_ssm.data.records import Record
from hf_ssm.inference.sharing import Workers, launched_workers
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
# A process of the launch has failed, and the others stop.
_FAILED = "failed"
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
    may_be_empty: bool = False,
) -> None:
    """Write the table of all items to a file; a call with the same arguments continues after an interruption.

    The processes of `accelerate launch` or `torchrun` all call this with the same arguments: each computes a share of
    the parts that are missing, and the first one joins them. The output does not depend on the number of processes.

    Args:
        output: The file; its suffix, one of `TABLE_OUTPUTS`, determines the format.
        items: What the rows are computed from; the same ones, in the same order, at each call.
        function: As for `table_of`; all tables have the same columns.
        settings: All that the table depends on, in JSON types.
        part_size: Number of items of a part.
        overwrite: Replace an existing output, which stays until the new one is complete, and delete the parts of
            another run.
        join: Writes the tables of all parts to a temporary path; default `join_table`.
        skipped: Called with the items of each part that an earlier call has finished, or that another process computes.
        may_be_empty: Whether no items are a table without rows, that of an empty list, and not an error.

    Raises:
        ValueError: Another suffix, an existing output, parts of a run with other settings, or no items.
        BlockingIOError: Another process writes this output.
    """
    if join is None:
        check_table_output(output)
        join = join_table
    joined_by = join
    # The number of a part means the same items only as long as the parts have one size.
    workers, parts = launched_workers(), Parts(output, {**settings, "part_size": part_size}, overwrite)
    with ExitStack() as stack:
        finished = workers.by_first(lambda: stack.enter_context(parts).finished)
        if finished is None:
            return
        with workers.together(parts.mark_failed):
            all_items = _parts_of(iter(items), part_size)
            if may_be_empty:
                all_items = chain([next(all_items, [])], all_items)
            total = _compute_share(workers, parts, finished, all_items, function, skipped)
        workers.by_first(lambda: parts.join(joined_by, total))


def _compute_share(
    workers: Workers,
    parts: "Parts",
    finished: frozenset[int],
    all_items: Iterable[list[T]],
    function: Callable[[list[T]], pa.Table],
    skipped: Callable[[list[T]], None],
) -> int:
    """Compute those missing parts that this process has to; the number of all parts."""
    total, missing = 0, 0
    for number, items in enumerate(all_items):
        is_missing = number not in finished
        if is_missing and missing % workers.count == workers.rank:
            if parts.has_failed:
                break
            parts.add(number, function(items))
        else:
            skipped(items)
        missing += is_missing
        total += 1
    if not total and not parts.has_failed:
        raise ValueError("the input holds no sequence.")
    return total


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
            raise ValueError(
                f"{records[0].where}: the input has a column {name!r}, but the output needs this name: rename the "
                "column."
            )
    rows = [record.columns for record, count in zip(records, counts, strict=True) for _ in range(count)]
    return pa.table({name: [row.get(name) for row in rows] for name in names} | dict(results))


def check_table_output(output: Path, formats: tuple[str, ...] = TABLE_OUTPUTS) -> None:
    """Raise `ValueError` unless the suffix is one of `formats`."""
    if not output.suffix or not output.name.endswith(formats):
        raise ValueError(f"output {str(output)!r}: the suffix must be one of {', '.join(formats)}.")


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
    """The parts of an output; a context manager that holds the output against other commands.

    Of the processes of a launch, the first one enters it.

    Attributes:
        finished: Numbers of the parts that existed when the context was entered; `None` if an interrupted call has
            already written the output.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any], overwrite: bool = False):
        self.output = output
        self.folder = output.with_name(f".{output.name}.parts")
        self._settings = json.loads(json.dumps(dict(settings)))
        self._overwrite = overwrite
        self._lock: FileLock | None = None
        self.finished: frozenset[int] | None = frozenset()

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
        if not self._numbers() and not (self.folder / _JOINED).exists():
            shutil.rmtree(self.folder, ignore_errors=True)
        assert self._lock is not None
        unlock_file(self._lock)

    def _open(self) -> None:
        remedy = "choose another file, or replace this one (--overwrite-output)"
        if self.folder.is_symlink() or self.folder.is_file():
            raise FileExistsError(
                f"output {str(self.output)!r}: {str(self.folder)!r}, where its parts are stored, is not a folder: "
                "delete this file, or choose another output."
            )
        if self._overwrite and self.folder.exists():
            shutil.rmtree(self.folder)
        stored = self._stored_settings()
        replaces = None if stored is None else stored.pop(_REPLACES, None)
        earlier = file_facts(self.output) if self.output.exists() else None
        # An output that these parts are to replace is not their result.
        is_kept = earlier is not None and earlier == replaces
        if not self._numbers() and (earlier is None or is_kept):
            # Nothing would be lost.
            stored = None
        if stored is not None and stored != self._settings:
            changed = [name for name, value in self._settings.items() if stored.get(name) != value]
            raise ValueError(
                f"output {str(self.output)!r}: {str(self.folder)!r} holds parts of a run with other settings "
                f"({', '.join(changed)}): {remedy}, or repeat the earlier command with its settings."
            )
        if earlier is not None and stored is None and not self._overwrite:
            if not self._numbers():
                # What a command left that was killed after its output, while it removed the folder.
                shutil.rmtree(self.folder, ignore_errors=True)
            raise ValueError(f"output {str(self.output)!r} exists: {remedy}.")
        if stored is None:
            if self.folder.exists():
                shutil.rmtree(self.folder)
            self.folder.mkdir()
            content = self._settings | ({} if earlier is None else {_REPLACES: earlier})
            write_text_atomically(self.folder / _SETTINGS, json.dumps(content))
        elif earlier is not None and not is_kept:
            if self._joined_facts() != earlier[1:]:
                raise ValueError(f"output {str(self.output)!r} is not the output of the interrupted command: {remedy}.")
            self._delete()
            self.finished = None
            return
        (self.folder / _FAILED).unlink(missing_ok=True)
        self.finished = frozenset(self._numbers())

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

    def _numbers(self) -> list[int]:
        """Numbers of the parts that exist."""
        return sorted(int(path.stem) for path in self.folder.glob("[0-9]*.arrow"))

    @property
    def has_failed(self) -> bool:
        """Whether a process of the launch has called `mark_failed`."""
        return (self.folder / _FAILED).exists()

    def mark_failed(self) -> None:
        """Let the other processes of the launch stop before their next part."""
        with suppress(OSError):
            (self.folder / _FAILED).touch()

    def add(self, number: int, table: pa.Table) -> None:
        """Store a part."""
        with self._written_whole(self._path(number)) as path, pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)

    def tables(self, total: int) -> Iterator[pa.Table]:
        """So many parts, read one after the other, with the same types."""
        # A part whose cells are all missing has columns without a type.
        schema = pa.unify_schemas([self._read(number).schema for number in range(total)], promote_options="permissive")
        for number in range(total):
            yield self._read(number).cast(schema)

    def _read(self, number: int) -> pa.Table:
        try:
            with pa.memory_map(str(self._path(number))) as file:
                return pa.ipc.open_file(file).read_all()
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(
                f"{str(self._path(number))!r} is damaged ({error}): delete this file and repeat the command, which "
                "computes the part again"
            ) from error

    def join(self, join: Callable[[Iterator[pa.Table], Path], None], total: int) -> None:
        """Write the output from all parts, of which there are so many, and remove them."""
        with self._written_whole(self.output) as path:
            join(self.tables(total), path)
            # Before the output has its name, so that the next call knows it, if this one is killed afterwards.
            (self.folder / _JOINED).write_text(json.dumps(file_facts(path)[1:]), encoding="utf-8")
        self._delete()

    def _delete(self) -> None:
        """Remove the parts of a finished output."""
        # Those that the next call reads last, if this one is killed here.
        for number in self._numbers():
            self._path(number).unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    def _written_whole(self, path: Path) -> AbstractContextManager[Path]:
        # The suffix determines the format.
        return replacing(path, self.folder / f".{path.stem}.tmp{path.suffix}")


def _parts_of(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while part := list(islice(items, size)):
        yield part
