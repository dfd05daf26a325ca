"""From loaded splits to checked ones: names of the splits, labels, sequences, pixels."""

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from datasets import ClassLabel, Dataset, Image, List

from hf_ssm.data.cache import values_of
from hf_ssm.data.checks import RowName, check_column, check_sequences
from hf_ssm.data.columns import find_columns
from hf_ssm.data.images import ImageOptions, images_to_pixels
from hf_ssm.data.labels import (
    check_no_missing,
    classes_in,
    label_columns,
    label_kind,
    label_kind_of,
    merged_name,
    read_labels,
)
from hf_ssm.data.signals import check_signals, is_signal
from hf_ssm.data.splits import rows_of_splits, split_name
from hf_ssm.data.tables import PLACE, SPLIT_COLUMN

logger = logging.getLogger(__name__)

_SHOWN = 100  # rows from which the column of the sequences is guessed


def prepare(
    source: str,
    loaded: Mapping[str, Dataset],
    text_columns: Mapping[str, str],
    label_column: str | Sequence[str] | None,
    images: ImageOptions,
    kind: Mapping[str, bool],
) -> dict[str, Dataset]:
    """Check the rows of a data set and convert labels, signals and images.

    Splits with other names than train, validation and test (or "valid", "val", "dev"), and splits whose labels are
    all -1 (hidden), are dropped with a warning.

    Args:
        source: Name of the data in messages.
        loaded: The splits; rows with a column `PLACE` have this name in messages.
        text_columns: Argument name to column name. Columns must hold text; that of `sequence_column` may hold signals
            or images.
        label_column: As in `load_sequences`.
        images: Conversion of images to pixels.
        kind: Arguments of `read_labels`.

    Raises:
        ValueError: There is no split "train", a column is missing, or rows are unfit for training.
    """
    splits = _named_splits(source, loaded)
    train = splits["train"]
    # Images would be decoded.
    shown = train.select_columns([name for name, feature in train.features.items() if not isinstance(feature, Image)])
    needed = {**text_columns, **label_columns(label_column)}
    renamed = find_columns(needed, {name: [] for name in train.column_names} | shown[:_SHOWN], source)
    splits = {key: split.rename_columns(renamed) for key, split in splits.items()}
    if label_column is not None:
        if isinstance(label_column, str) and not kind["targets"]:
            splits = _without_hidden_labels(source, splits, label_column)
        splits = _with_clean_labels(source, splits, label_column, kind, text_columns["sequence_column"])
    for argument, column in text_columns.items():
        feature = splits["train"].features[column]
        if argument == "sequence_column" and isinstance(feature, Image):
            splits = images_to_pixels(splits, column, images)
        elif argument == "sequence_column" and is_signal(feature):
            values = (value for split in splits.values() for value in split.with_format("numpy")[column])
            signal = check_signals(column, values, source, _row_name(splits))
            splits = {name: split.cast_column(column, signal) for name, split in splits.items()}
        else:
            for name, split in splits.items():
                check_sequences(column, values_of(split, column), source, _row_name({name: split}), argument)
    return {name: split.remove_columns([*{PLACE} & {*split.column_names}]) for name, split in splits.items()}


def split_rows(stored: Mapping[str, Dataset], split_column: str | None, source: str) -> dict[str, Dataset]:
    """The splits of files, whose rows of "train" may belong to other splits by a column.

    Raises:
        ValueError: A split has a file and rows of another one, or a column other than "split" is missing.
    """
    train = stored["train"]
    if split_column is None or (split_column == SPLIT_COLUMN and split_column not in train.column_names):
        return dict(stored)
    check_column("split_column", split_column, train.column_names, source)
    parts = {name: train.select(rows) for name, rows in rows_of_splits(train[split_column], source).items()}
    for name in stored.keys() & parts.keys() - {"train"}:
        raise ValueError(
            f"{name}_file=...: the column {split_column!r} of {source} already marks {name} rows; set "
            f"split_column=None or omit {name}_file."
        )
    splits = {**stored, **parts}
    return {name: rows.remove_columns([*{split_column} & {*rows.column_names}]) for name, rows in splits.items()}


def _named_splits(source: str, loaded: Mapping[str, Dataset]) -> dict[str, Dataset]:
    named: dict[str, Dataset] = {}
    for name, split in loaded.items():
        target = split_name(name)
        if target is None or target in named:
            logger.warning("%s: dropped %d rows of split %r.", source, split.num_rows, name)
        else:
            named[target] = split
    if "train" not in named:
        raise ValueError(
            f"source={source!r} has the splits {list(loaded)}, but no split 'train'; choose another data set."
        )
    return named


def _without_hidden_labels(source: str, splits: dict[str, Dataset], label_column: str) -> dict[str, Dataset]:
    kept = {}
    for name, split in splits.items():
        if name != "train" and label_kind(split, label_column) == "class" and set(split[label_column]) == {-1}:
            logger.warning("%s: dropped split %r, whose labels are hidden (-1).", source, name)
        else:
            kept[name] = split
    return kept


def _with_clean_labels(
    source: str,
    splits: dict[str, Dataset],
    label_column: str | Sequence[str],
    kind: Mapping[str, bool],
    sequence_column: str,
) -> dict[str, Dataset]:
    """Check labels over all splits and give them one feature; several columns become one of lists."""
    row_name, merged = _row_name(splits), merged_name(label_column)
    if not isinstance(label_column, str):
        columns = [[value for split in splits.values() for value in split[name]] for name in label_column]
        values: list[Any] = [list(row) for row in zip(*columns, strict=True)]
        labels, feature = read_labels(merged, values, source, row_name, **kind)
        if not kind["targets"] and label_kind_of(feature) != "flags":
            raise ValueError(
                f"label_column={list(label_column)!r}: several label columns are labels of 0 and 1, but {source} has "
                f"{values[0]} in {row_name(0)}; for numbers: --task sequence-regression."
            )
        return _with_labels(splits, list(label_column), merged, labels, feature)
    values = [value for split in splits.values() for value in split[label_column]]
    feature = splits["train"].features[label_column]
    names = feature.feature if isinstance(feature, List) else feature
    if isinstance(names, ClassLabel) and not kind["targets"]:
        check_no_missing(label_column, values, source, row_name)
        classes = {label for split in splits.values() for label in classes_in(split, label_column)}
        outside = sorted(classes.difference(range(names.num_classes)))
        if outside:
            raise ValueError(
                f"label_column={label_column!r}: {source} has the labels {outside} outside of its "
                f"{names.num_classes} classes (-1 means that a label is hidden); choose another data set, or set "
                "label_column=None."
            )
        return splits
    if kind["multi_label"] and all(isinstance(value, list) for value in values):
        # Lists as long as the sequences are classes of positions.
        lengths = [len(text or ()) for split in splits.values() for text in values_of(split, sequence_column)]
        kind = {**kind, "multi_label": lengths != list(map(len, values))}
    labels, feature = read_labels(label_column, values, source, row_name, **kind)
    return _with_labels(splits, [label_column], label_column, labels, feature)


def _with_labels(
    splits: dict[str, Dataset], old: list[str], new: str, labels: Sequence[Any], feature: Any
) -> dict[str, Dataset]:
    """Replace the columns `old` by the column `new`, in the place of the first one."""
    cleaned, rest = {}, iter(labels)
    for name, split in splits.items():
        of_split = list(islice(rest, split.num_rows))
        added = split.remove_columns(old).add_column(new, of_split, feature=feature)
        order = dict.fromkeys(new if column in old else column for column in split.column_names)
        cleaned[name] = added.select_columns(list(order))
    return cleaned


def _row_name(splits: Mapping[str, Dataset]) -> RowName:
    """Names of the rows of concatenated splits: those of the column `PLACE`, or "row 17 of 'test'", counted from 1."""

    def name_of(index: int) -> str:
        for name, split in splits.items():
            if index < split.num_rows:
                return str(split[index][PLACE]) if PLACE in split.column_names else f"row {index + 1} of {name!r}"
            index -= split.num_rows
        raise IndexError(index)

    return name_of
