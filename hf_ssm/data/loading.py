"""One loader for everything to train on: Hub data sets, tables, FASTA files, generators."""

import inspect
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict

from hf_ssm.data.checks import check_column, check_sequences, clean_labels, nearest
from hf_ssm.data.fasta import fasta_windows
from hf_ssm.data.files import bare_suffix
from hf_ssm.data.hub import load_hub
from hf_ssm.data.motifs import planted_motifs
from hf_ssm.data.splits import SPLITS, check_fractions, cut, rows_of_splits
from hf_ssm.data.tables import Columns, read_table

logger = logging.getLogger(__name__)

GENERATORS: dict[str, Callable[..., DatasetDict]] = {"planted-motifs": planted_motifs}
"""Name, as `load_sequences` takes it, to the generator."""

_TABLE_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl")
_FASTA_SUFFIXES = (".fa", ".fasta", ".fna")
_SPLIT_COLUMN = "split"  # may be absent; a column named otherwise was asked for and must be there
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def load_sequences(
    source: str | os.PathLike[str],
    sequence_column: str = "sequence",
    label_column: str | None = "label",
    split_column: str | None = _SPLIT_COLUMN,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
    seed: int = 0,
    window: int = 1024,
    min_window: int | None = None,
    config_name: str | None = None,
    revision: str | None = None,
    **generator_options: Any,
) -> DatasetDict:
    """Load sequences, with labels where there are any, in splits.

    **What `source` may be**, in the order it is looked at: the name of a generator ("planted-motifs"); a file
    in `.csv`, `.tsv`, `.json`, `.jsonl` (tables) or `.fa`, `.fasta`, `.fna`, each also with `.gz`; the id of
    a Hub data set, "user/name".

    **Splits.** Where the data has splits (a Hub data set's own, or the table's `split_column`), they hold;
    "valid", "val" and "dev" mean validation, and rows of any other value are left out with a warning. A
    validation or test split that the data lacks is cut from the training rows by chance, keeping the shares
    of the labels, with equal sequences on one side; a fraction of 0 leaves it out. A warning says how many
    test or validation sequences also stand among the training rows.

    **Labels.** Whole numbers stay; strings become a `ClassLabel` with the names sorted. The classes must be
    0, 1, ... without a gap over all rows used, at least two of them. A Hub split whose labels are all -1
    (hidden) is left out with a warning.

    **FASTA** has no labels: each record is cut into windows, for language modelling.

    Files are read afresh every time; nothing of them is cached.

    Args:
        source: See above.
        sequence_column: Column of the sequences (or texts). Must be text in every row.
        label_column: Column of the labels; None if the labels do not matter (language modelling). Not looked
            at for FASTA.
        split_column: Column that says the split. A table without a column "split" (the default), and any
            table when this is None, is split by chance; a column of another name must be there.
        validation_fraction: Share of the training rows to cut off where there is no validation split.
        test_fraction: Likewise for the test split.
        seed: Seed of the cut, and of a generator.
        window: FASTA: bases a window.
        min_window: FASTA: least bases of a record's last window; None (the default) means half of `window`.
        config_name: Hub: the configuration, where a data set has several.
        revision: Hub: branch, tag or commit.
        **generator_options: Arguments of the generator, such as `length=400`.

    Returns:
        "train", and "validation" and "test" where there are any. All columns are kept but the split column;
        FASTA gives `sequence`, `name` and `start`.

    Raises:
        FileNotFoundError: the file is missing.
        ConnectionError: the Hub cannot be reached.
        ValueError: anything else that is wrong with an argument or the data; the message names the argument,
            its value, the rows, and what to do.
    """
    name = os.fspath(source)
    check_fractions(validation_fraction, test_fraction)
    if name in GENERATORS:
        return _generate(name, seed, generator_options)
    if generator_options:
        unknown = next(iter(generator_options))
        known = list(inspect.signature(load_sequences).parameters)[:-1]
        raise ValueError(
            f"{unknown}={generator_options[unknown]!r}: load_sequences has no such "
            f"argument{nearest(unknown, known)}, and source={name!r} is no generator, which could have it."
        )
    path = Path(name).expanduser()
    suffix = bare_suffix(path)
    labels = label_column
    if suffix in _FASTA_SUFFIXES:
        sequence_column, labels = "sequence", None
        splits = _load_fasta(path, window, min_window)
    elif suffix in _TABLE_SUFFIXES:
        splits = _load_table(path, sequence_column, label_column, split_column)
    elif _HUB_ID.fullmatch(name) and not path.exists():
        splits = load_hub(name, sequence_column, label_column, config_name, revision)
    else:
        raise _unknown_source(name, path)
    shares = {"validation": validation_fraction, "test": test_fraction}
    return _cut_missing_splits(splits, sequence_column, labels, shares, seed, name)


def label_names(data: DatasetDict, label_column: str = "label") -> list[str]:
    """Names of the classes: those of the column's `ClassLabel`, else "0", "1", ... up to the largest label.

    Raises:
        ValueError: the training split has no such column.
    """
    check_column("label_column", label_column, data["train"].column_names, "the training split")
    feature = data["train"].features[label_column]
    if isinstance(feature, ClassLabel):
        return list(feature.names)
    return [str(index) for index in range(1 + max(max(split[label_column]) for split in data.values()))]


def _generate(name: str, seed: int, options: dict[str, Any]) -> DatasetDict:
    generator = GENERATORS[name]
    known = list(inspect.signature(generator).parameters)
    for option, value in options.items():
        if option not in known:
            raise ValueError(
                f"{option}={value!r}: the generator {name!r} has no such option{nearest(option, known)}; its "
                f"options are {known}."
            )
    return generator(seed=seed, **options)


def _load_fasta(path: Path, window: int, min_window: int | None) -> dict[str, Dataset]:
    if window < 1:
        raise ValueError(f"window={window!r}: give a positive number of bases.")
    least = max(1, window // 2) if min_window is None else min_window
    if not 1 <= least <= window:
        raise ValueError(f"min_window={min_window!r}: give a number of bases from 1 to window={window}.")
    return {"train": Dataset.from_dict(fasta_windows(path, window, least))}


def _load_table(
    path: Path, sequence_column: str, label_column: str | None, split_column: str | None
) -> dict[str, Dataset]:
    """Read a table, check its rows, and part them by the split column; without one, all rows are "train"."""
    columns = read_table(path, [sequence_column])
    check_column("sequence_column", sequence_column, list(columns), path.name)
    if label_column is not None:
        check_column("label_column", label_column, list(columns), path.name)
    rows = {"train": np.arange(len(columns[sequence_column]))}
    if split_column is not None and split_column != _SPLIT_COLUMN:
        check_column("split_column", split_column, list(columns), path.name)
    if split_column is not None and split_column in columns:
        rows = rows_of_splits(columns.pop(split_column), path.name)
    used = np.sort(np.concatenate(list(rows.values())))
    columns = {name: [values[row] for row in used] for name, values in columns.items()}

    def row_name(index: int) -> str:
        return str(used[index] + 1)  # counted from 1, the header not included

    check_sequences(sequence_column, columns[sequence_column], path.name, row_name)
    names = None
    if label_column is not None:
        ids, names = clean_labels(label_column, columns[label_column], path.name, row_name)
        columns[label_column] = ids
    table = _dataset(columns, path)
    if label_column is not None and names is not None:
        table = table.cast_column(label_column, ClassLabel(names=names))
    return {name: table.select(np.searchsorted(used, indices)) for name, indices in rows.items()}


def _dataset(columns: Columns, path: Path) -> Dataset:
    try:
        return Dataset.from_dict(columns)
    except (ValueError, TypeError, OverflowError) as error:  # Arrow's errors are of these kinds
        raise ValueError(
            f"source={str(path)!r}: a column mixes kinds of values ({error}); give each column one kind."
        ) from error


def _cut_missing_splits(
    splits: dict[str, Dataset],
    sequence_column: str,
    label_column: str | None,
    shares: dict[str, float],
    seed: int,
    source: str,
) -> DatasetDict:
    """Cut the splits that are not there off "train", and look for overlaps between those that are."""
    train = splits["train"]
    wanted = {name: share for name, share in shares.items() if name not in splits and share > 0.0}
    for name in SPLITS[1:]:
        if name in splits:
            known = set(train[sequence_column])
            seen = sum(sequence in known for sequence in splits[name][sequence_column])
            if seen:
                logger.warning("%s: %d sequences of split %r also stand in 'train'.", source, seen, name)
    if label_column is not None:
        untrained = {label for split in splits.values() for label in split[label_column]}.difference(
            train[label_column]
        )
        if untrained:
            logger.warning("%s: the classes %s have no training row.", source, sorted(untrained))
    if wanted:
        labels = None if label_column is None else list(train[label_column])
        for name, rows in cut(list(train[sequence_column]), labels, wanted, seed).items():
            splits[name] = train.select(rows)
    return DatasetDict({name: splits[name] for name in SPLITS if name in splits})


def _unknown_source(name: str, path: Path) -> Exception:
    """The error for a source that is neither a generator, nor a file of a known kind, nor a Hub id."""
    known = f"files end in {', '.join(_TABLE_SUFFIXES + _FASTA_SUFFIXES)} (or these with .gz)"
    if path.is_dir():
        return ValueError(f"source={name!r} is a folder; give one file in it ({known}).")
    if path.exists():
        return ValueError(f"source={name!r}: its name does not tell its format; {known}.")
    if os.sep in name or path.suffix:
        return FileNotFoundError(f"source={name!r}: there is no such file, and it is no Hub id; {known}.")
    return ValueError(
        f"source={name!r}: there is no generator of that name{nearest(name, GENERATORS)}. Generators: "
        f"{list(GENERATORS)}; Hub ids read 'user/name'; {known}."
    )
