"""Sequences that are read while a model trains: shards of tables or FASTA files, or a data set of the Hub."""

import dataclasses
import glob
import inspect
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet
from datasets import ClassLabel, Dataset, Features, IterableDataset, List, Value, load_dataset

from hf_ssm.data.checks import check_integer, check_sequences
from hf_ssm.data.columns import check_columns, usual_columns
from hf_ssm.data.fasta import FASTA_SUFFIXES, stream_windows
from hf_ssm.data.files import bare_suffix, opened
from hf_ssm.data.labels import label_columns, merged_name
from hf_ssm.data.tables import SPLIT_COLUMN, read_rows, row_noun

SHARD_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", *FASTA_SUFFIXES)
"""Files that can be read as a stream; all but parquet, which is compressed inside, may be compressed."""

_WILDCARDS = frozenset("*?[")
_FILES = 10  # from which the buffer of the order is filled


def stream_sequences(
    source: str | os.PathLike[str],
    sequence_column: str = "sequence",
    label_column: str | list[str] | None = None,
    *,
    pair_column: str | None = None,
    classes: Sequence[str] | None = None,
    targets: bool = False,
    shuffle_buffer: int = 0,
    seed: int = 0,
    split: str = "train",
    split_column: str | None = SPLIT_COLUMN,
    window: int = 1024,
    min_window: int | None = None,
    keep_case: bool = False,
    column_names: Sequence[str] | None = None,
    quoted: bool = True,
    config_name: str | None = None,
    revision: str | None = None,
) -> IterableDataset:
    """Sequences, and labels if there are any, that are read row by row and are never all in memory.

    Only the first row is read in advance. The columns are those of the sequences, of `pair_column` and of the labels;
    all others are left out. `SSMTrainer` shares the rows among processes and workers.

    Args:
        source: A file, a glob of files ("shards/*.jsonl.gz"; `**` stands for folders of any depth), or the id of a Hub
            data set, "user/name". Files are csv, tsv, jsonl or FASTA, also compressed (`.gz`, `.bz2`, `.xz`, `.zst`),
            or parquet.
        sequence_column: Column of the sequences.
        label_column: Column of the labels; with `targets`, a list of columns gives a list for each row. None (the
            default) for language models. Not used for FASTA.
        pair_column: Column of a second text per row.
        classes: Names of the classes in the order of their ids. The default, None, takes those of the data set
            (`ClassLabel`, in the parquet files of `datasets` and on the Hub).
        targets: Whether the labels are regression targets, a number or a list of numbers.
        shuffle_buffer: Rows from which the next row is drawn, filled from up to ten files at a time; 0 (the default)
            keeps the order of the files. These rows are in memory, as texts.
        seed: Seed of that order, which is another one in each pass.
        split: Hub: the split.
        split_column: Column that marks splits, which a stream cannot sort: data with that column are refused. None
            ignores it.
        window, min_window, keep_case, column_names, quoted, config_name, revision: As in `load_sequences`.

    Returns:
        The stream, with `features`.

    Raises:
        FileNotFoundError: No file, or no data set of the Hub, has that name.
        ValueError: An argument or the first row is invalid, or the classes are unknown. Further rows are checked when
            they are read; the message names the file and the row.
    """
    check_integer("shuffle_buffer", shuffle_buffer, 0)
    check_integer("window", window, 1)
    least = max(1, window // 2) if min_window is None else min_window
    check_integer("min_window", least, 1, window)
    reading = _Reading(
        texts={"sequence_column": sequence_column, **({} if pair_column is None else {"pair_column": pair_column})},
        labels=tuple(label_column) if isinstance(label_column, list) else label_column,
        targets=targets,
        classes=None if classes is None else tuple(map(str, classes)),
        split_column=split_column,
        column_names=None if column_names is None else tuple(column_names),
        quoted=quoted,
        windows=(window, least, keep_case),
    )
    if is_local(source):
        stream = _stream_files(shard_files(source), reading)
    else:
        stream = _stream_hub(os.fspath(source), config_name, revision, split, reading)
    if not shuffle_buffer:
        return stream
    options: dict[str, int] = {}
    # Before version 5, `datasets` fills the buffer from one file at a time; since then it reads several by threads.
    if "max_buffer_input_shards" in inspect.signature(stream.shuffle).parameters:
        options["max_buffer_input_shards"] = min(_FILES, stream.num_shards)
    return stream.shuffle(seed, buffer_size=shuffle_buffer, **options)


def is_local(source: str | os.PathLike[str]) -> bool:
    """Whether a source is a file or a glob of files, and not the id of a data set on the Hub."""
    path = Path(source).expanduser()
    is_id = not path.is_absolute() and len(path.parts) == 2
    return is_glob(source) or bare_suffix(path) in SHARD_SUFFIXES or path.exists() or not is_id


def is_glob(source: str | os.PathLike[str]) -> bool:
    """Whether a source has wildcards."""
    return bool(_WILDCARDS.intersection(os.fspath(source)))


def shard_files(source: str | os.PathLike[str]) -> list[Path]:
    """The files of a path or glob, sorted by name.

    Raises:
        FileNotFoundError: There is none.
        ValueError: One of them has a format that cannot be streamed.
    """
    name = os.path.expanduser(os.fspath(source))
    names = sorted(glob.glob(name, recursive=True)) if is_glob(name) and not Path(name).is_file() else [name]
    paths = [path for path in map(Path, names) if path.is_file()]
    if not paths and not Path(name).is_dir():
        raise FileNotFoundError(f"source={name!r}: there is no such file; check the path.")
    for path in paths or [Path(name)]:
        if bare_suffix(path) not in SHARD_SUFFIXES:
            raise ValueError(
                f"source={name!r}: {path.name!r} cannot be read as a stream; the suffix must be one of "
                f"{', '.join(SHARD_SUFFIXES)} (for a folder, give a glob such as 'folder/*.jsonl')."
            )
    return paths


def stored_num_rows(source: str | os.PathLike[str], stream: IterableDataset) -> int | None:
    """The number of rows that parquet files or the Hub state, without reading the rows; None if they do not."""
    if not is_local(source):
        split = (stream.info.splits or {}).get(str(stream.split))
        return None if split is None else split.num_examples or None
    paths = shard_files(source)
    if any(bare_suffix(path) != ".parquet" for path in paths):
        return None
    count = 0
    for path in paths:
        with opened(path, "rb") as file:
            count += pyarrow.parquet.read_metadata(file).num_rows
    return count


def first_rows(stream: IterableDataset, count: int | None = None) -> Dataset:
    """The first rows of a stream, or all of them, in memory."""
    return Dataset.from_list(list(islice(stream, count)), features=stream.features)


@dataclasses.dataclass(frozen=True)
class _Reading:
    """How rows of files or of the Hub become rows of the stream.

    Attributes:
        texts: Argument name to column of text.
        labels: Column, or columns, of the labels.
        windows: Arguments of `stream_windows`.
        targets, classes, split_column, column_names, quoted: As in `stream_sequences`.
        holds_ids: Whether the labels are ids of the classes, and not their names.
    """

    texts: dict[str, str]
    labels: str | tuple[str, ...] | None
    targets: bool
    classes: tuple[str, ...] | None
    split_column: str | None
    column_names: tuple[str, ...] | None
    quoted: bool
    windows: tuple[int, int, bool]
    holds_ids: bool = False

    @property
    def label_name(self) -> str:
        """Column of the labels in the stream."""
        return merged_name(self.labels or "label")

    def columns(self, held: Sequence[str], source: str) -> dict[str, str]:
        """Name in the stream -> column of the data, which may be one of a usual name."""
        needed = self.texts | label_columns(self.labels)
        standard = {name: column for column, name in usual_columns(needed, held).items()}
        check_columns(needed, {column: [] for column in (*held, *standard)}, source)
        if self.split_column is not None and self.split_column in held:
            raise ValueError(
                f"split_column={self.split_column!r}: the rows of a stream are not sorted into splits; write the "
                "rows of each split into separate files (validation_file, test_file) and set split_column=None, or "
                "do not stream."
            )
        return {name: standard.get(name, name) for name in needed.values()}

    def row(self, raw: Mapping[str, Any], columns: Mapping[str, str], place: str) -> dict[str, Any]:
        """The checked texts and the label of a row; `place` names it in messages."""
        row: dict[str, Any] = {}
        for argument, name in self.texts.items():
            row[name] = raw.get(columns[name])
            check_sequences(name, [row[name]], "the stream", lambda _: place, argument)
        if isinstance(self.labels, tuple):
            row[self.label_name] = [self._label(raw.get(columns[name]), place) for name in self.labels]
        elif self.labels is not None:
            row[self.label_name] = self._label(raw.get(columns[self.labels]), place)
        return row

    def features(self, first: Mapping[str, Any]) -> Features:
        """The types of the columns of the stream, given its first row."""
        features: dict[str, Any] = {name: Value("string") for name in first}
        if self.label_name in first and self.labels is not None:
            number = Value("float32")
            is_list = isinstance(first[self.label_name], list)
            features[self.label_name] = (
                (List(number) if is_list else number) if self.classes is None else ClassLabel(names=list(self.classes))
            )
        return Features(features)

    def with_classes(self, feature: Any) -> "_Reading":
        """The same with the classes of a label column, if its type names them; an error for unknown classes."""
        if self.labels is None or self.targets or self.classes is not None:
            return self
        if not isinstance(feature, ClassLabel):
            raise ValueError(
                f"label_column={self.labels!r}: a stream is not read in advance, so its classes are unknown: name "
                "the classes with the argument classes (command: --set 'data.classes=[a, b]'), or do not stream."
            )
        return dataclasses.replace(self, classes=tuple(feature.names), holds_ids=True)

    def file_rows(self, paths: Iterable[str]) -> Iterator[dict[str, Any]]:
        """The rows of some files, one file after the other."""
        for path in map(Path, paths):
            if bare_suffix(path) in FASTA_SUFFIXES:
                yield from ({"sequence": window} for window in stream_windows(path, *self.windows))
            else:
                yield from self._table_rows(path)

    def _table_rows(self, path: Path) -> Iterator[dict[str, Any]]:
        columns: dict[str, str] = {}
        if bare_suffix(path) == ".parquet":
            schema = _schema(path)
            columns = self.columns(schema.names, path.name)
            self._check_classes(schema, columns, path)
        for number, raw in read_rows(path, self.column_names, self.quoted, list(columns.values()) or None):
            columns = columns or self.columns(list(raw), path.name)
            yield self.row(raw, columns, f"{row_noun(path)} {number} of {path.name}")

    def _check_classes(self, schema: Any, columns: Mapping[str, str], path: Path) -> None:
        """Raise a `ValueError` if the ids in a parquet file stand for other classes than those of the first file."""
        if self.holds_ids and isinstance(self.labels, str):
            names = getattr(Features.from_arrow_schema(schema)[columns[self.labels]], "names", None)
            if names != list(self.classes or ()):
                raise ValueError(
                    f"label_column={self.labels!r}: the classes of {path.name} are {names}, but those of the first "
                    f"file are {list(self.classes or ())}: write all files with the same classes in the same order."
                )

    def _label(self, value: Any, place: str) -> Any:
        if self.classes is None:
            numbers = value if isinstance(value, list) else [value]
            try:
                numbers = [float(number) for number in numbers]
            except (TypeError, ValueError):
                numbers = []
            if not numbers or not all(map(math.isfinite, numbers)):
                raise ValueError(f"label_column={self.labels!r}: {value!r} in {place} is not a finite number.")
            return numbers if isinstance(value, list) else numbers[0]
        names: Sequence[Any] = range(len(self.classes)) if self.holds_ids else self.classes
        entry = value if self.holds_ids else str(value)
        if entry not in names:
            raise ValueError(
                f"label_column={self.labels!r}: {value!r} in {place} is not one of the classes {list(names)}; "
                "complete the argument classes (command: --set 'data.classes=[a, b]'), or remove the row."
            )
        return names.index(entry)


def _rows_of_files(paths: list[str], reading: _Reading) -> Iterator[dict[str, Any]]:
    # A function of the module, which worker processes load by its name; `datasets` shares the list among shards.
    yield from reading.file_rows(paths)


def _stream_files(paths: list[Path], reading: _Reading) -> IterableDataset:
    of_fasta = [bare_suffix(path) in FASTA_SUFFIXES for path in paths]
    if any(of_fasta) and not all(of_fasta):
        raise ValueError(
            f"source: {paths[of_fasta.index(True)].name!r} is a FASTA file, but "
            f"{paths[of_fasta.index(False)].name!r} is a table: give a glob of files of one kind, such as "
            "'folder/*.fa.gz'."
        )
    if all(of_fasta):
        reading = dataclasses.replace(reading, texts={"sequence_column": "sequence"}, labels=None)
    feature = None
    if isinstance(reading.labels, str) and bare_suffix(paths[0]) == ".parquet":
        schema = _schema(paths[0])
        column = reading.columns(schema.names, paths[0].name)[reading.labels]
        feature = Features.from_arrow_schema(schema)[column]
    reading = reading.with_classes(feature)
    files = [str(path) for path in paths]
    first = next(reading.file_rows(files), None)
    if first is None:
        raise ValueError(f"source={files[0]!r}: the files have no rows (FASTA: no window of known bases).")
    return IterableDataset.from_generator(
        _rows_of_files, features=reading.features(first), gen_kwargs={"paths": files, "reading": reading}
    )


def _schema(path: Path) -> Any:
    """The columns of a parquet file."""
    with opened(path, "rb") as file:
        return pyarrow.parquet.read_schema(file)


def _stream_hub(
    name: str, config_name: str | None, revision: str | None, split: str, reading: _Reading
) -> IterableDataset:
    splits = load_dataset(name, config_name, revision=revision, streaming=True)
    if split not in splits:
        raise ValueError(f"split={split!r}: {name!r} has the splits {list(splits)}; choose one of them.")
    stream = splits[split]
    first = next(iter(stream))
    columns = reading.columns(list(first), repr(name))
    if isinstance(reading.labels, str):
        reading = reading.with_classes((stream.features or {}).get(columns[reading.labels]))
    convert = _Conversion(reading, columns)
    row = convert(first, 0)
    unused = [column for column in first if column not in row]
    return stream.map(convert, with_indices=True, remove_columns=unused, features=reading.features(row))


@dataclasses.dataclass(frozen=True)
class _Conversion:
    """Argument of `IterableDataset.map`: a row of the Hub to a row of the stream."""

    reading: _Reading
    columns: dict[str, str]

    def __call__(self, raw: dict[str, Any], index: int) -> dict[str, Any]:
        return self.reading.row(raw, self.columns, f"row {index + 1}")
