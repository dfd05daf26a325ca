"""From loaded splits to checked ones: names of the splits, labels, sequences, pixels."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import ClassLabel, Dataset, Image, List

from hf_ssm.data.cache import values_of
from hf_ssm.data.checks import RowName, check_sequences
from hf_ssm.data.columns import check_columns, usual_columns
from hf_ssm.data.images import ImageOptions, images_to_pixels
from hf_ssm.data.labels import check_no_missing, classes_in, label_columns, label_kind, merged_name, read_labels
from hf_ssm.data.signals import check_signals, is_signal
from hf_ssm.data.splits import split_name

logger = logging.getLogger(__name__)

_SHOWN = 100  # rows from which the column of the sequences is guessed


def prepare(
    source: str,
    loaded: Mapping[str, Dataset],
    text_columns: Mapping[str, str],
    label_column: str | Sequence[str] | None,
    images: ImageOptions,
    targets: bool,
    places: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Dataset]:
    """Check the rows of a data set and convert labels, signals and images.

    Splits with other names than train, validation and test (or "valid", "val", "dev"), and splits whose labels are
    all -1 (hidden), are dropped with a warning.

    Args:
        source: Name of the data in messages.
        loaded: The splits.
        text_columns: Argument name to column name. Columns must hold text; that of `sequence_column` may hold signals
            or images.
        label_column, targets: As in `load_sequences`.
        images: Conversion of images to pixels.
        places: Split name to the names of its rows in messages; by default "row 17 of 'test'".

    Raises:
        ValueError: There is no split "train", a column is missing, or rows are unfit for training.
    """
    splits = _named_splits(source, loaded)
    needed = {**text_columns, **label_columns(label_column)}
    train = splits["train"]
    for column, name in usual_columns(needed, train.column_names).items():
        logger.warning("%s: the column %r is read as %r.", source, column, name)
        splits = {key: split.rename_column(column, name) for key, split in splits.items()}
    train = splits["train"]
    if not set(needed.values()).issubset(train.column_names):
        # Images would be decoded.
        shown = train.select_columns([name for name, kind in train.features.items() if not isinstance(kind, Image)])
        check_columns(needed, {name: [] for name in train.column_names} | shown[:_SHOWN], source)
    if label_column is not None:
        if isinstance(label_column, str) and not targets:
            splits = _without_hidden_labels(source, splits, label_column)
        splits = _with_clean_labels(source, splits, label_column, targets, places)
    for argument, column in text_columns.items():
        feature = splits["train"].features[column]
        if argument == "sequence_column" and isinstance(feature, Image):
            splits = images_to_pixels(splits, column, images)
        elif argument == "sequence_column" and is_signal(feature):
            values = (value for split in splits.values() for value in split.with_format("numpy")[column])
            kind = check_signals(column, values, source, _row_name(splits, places))
            splits = {name: split.cast_column(column, kind) for name, split in splits.items()}
        else:
            for name, split in splits.items():
                check_sequences(column, values_of(split, column), source, _row_name({name: split}, places), argument)
    return splits


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
    targets: bool,
    places: Mapping[str, Sequence[str]] | None,
) -> dict[str, Dataset]:
    """Check labels over all splits and give them one feature; several columns become one of lists."""
    row_name = _row_name(splits, places)
    if not isinstance(label_column, str):
        columns = [[value for split in splits.values() for value in split[name]] for name in label_column]
        values: list[Any] = [list(row) for row in zip(*columns, strict=True)]
        labels, kind = read_labels(merged_name(label_column), values, source, row_name, targets)
        return _with_labels(splits, list(label_column), merged_name(label_column), labels, kind)
    values = [value for split in splits.values() for value in split[label_column]]
    feature = splits["train"].features[label_column]
    names = feature.feature if isinstance(feature, List) else feature
    if isinstance(names, ClassLabel) and not targets:
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
    labels, kind = read_labels(label_column, values, source, row_name, targets)
    return _with_labels(splits, [label_column], label_column, labels, kind)


def _with_labels(
    splits: dict[str, Dataset], old: list[str], new: str, labels: Sequence[Any], kind: Any
) -> dict[str, Dataset]:
    """Replace the columns `old` by the column `new`, in the place of the first one."""
    cleaned, start = {}, 0
    for name, split in splits.items():
        split_labels = labels[start : start + split.num_rows]
        start += split.num_rows
        added = split.remove_columns(old).add_column(new, split_labels, feature=kind)
        order = dict.fromkeys(new if column in old else column for column in split.column_names)
        cleaned[name] = added.select_columns(list(order))
    return cleaned


def _row_name(splits: Mapping[str, Dataset], places: Mapping[str, Sequence[str]] | None) -> RowName:
    """Names of the rows of concatenated splits: "row 17 of 'test'", counted from 1, unless `places` has names."""

    def name_of(index: int) -> str:
        for name, split in splits.items():
            if index < split.num_rows:
                return f"row {index + 1} of {name!r}" if places is None else places[name][index]
            index -= split.num_rows
        raise IndexError(index)

    return name_of
