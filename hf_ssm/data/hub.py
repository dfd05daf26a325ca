"""Data sets of the Hugging Face Hub."""

import logging
from collections.abc import Mapping

from datasets import ClassLabel, Dataset, DatasetDict, Image, List, load_dataset
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from hf_ssm.data.checks import RowName, check_column, check_no_missing, check_sequences
from hf_ssm.data.images import ImageOptions, images_to_pixels
from hf_ssm.data.labels import classes_in, label_kind, read_labels
from hf_ssm.data.signals import check_signals, is_signal
from hf_ssm.data.splits import split_name

logger = logging.getLogger(__name__)

_REACH_SECONDS = 10.0


def load_hub(
    source: str,
    text_columns: Mapping[str, str],
    label_column: str | None,
    config_name: str | None,
    revision: str | None,
    images: ImageOptions,
    targets: bool = False,
) -> dict[str, Dataset]:
    """Load and check a data set of the Hub, its splits named "train", "validation" and "test".

    Splits of other names, and splits whose labels are all -1 (hidden), are left out, and a warning says so.

    Args:
        source: Its id, "user/name".
        text_columns: Argument of the caller to the column of texts that it names, such as `sequence_column` to "text".
        label_column: Column of the labels, or None.
        config_name: Which of its configurations; None for the only one.
        revision: Branch, tag or commit; None for the newest.
        images: How images become pixels.
        targets: Whether the labels are numbers to predict; see `read_labels`.

    Raises:
        ConnectionError: the Hub cannot be reached; said at once, without retries. With the environment
            variable HF_HUB_OFFLINE=1 a copy in the local cache is used instead.
        ValueError: there is no such data set, or one may not read it; it has no "train" split; or its rows
            are not fit to train on (see `hf_ssm.data.checks`).
    """
    loaded = fetch(source, config_name, revision)
    return prepare(source, loaded, text_columns, label_column, images, targets)


def prepare(
    source: str,
    loaded: DatasetDict,
    text_columns: Mapping[str, str],
    label_column: str | None,
    images: ImageOptions,
    targets: bool,
) -> dict[str, Dataset]:
    """Splits by our names, checked, with pixels for images; the arguments and errors are those of `load_hub`."""
    splits = _named_splits(source, loaded)
    columns = splits["train"].column_names
    for argument, column in text_columns.items():
        check_column(argument, column, columns, source)
    if label_column is not None:
        check_column("label_column", label_column, columns, source)
        splits = splits if targets else _without_hidden_labels(source, splits, label_column)
        splits = _with_clean_labels(source, splits, label_column, targets)
    for argument, column in text_columns.items():
        if argument == "sequence_column" and isinstance(splits["train"].features[column], Image):
            splits = images_to_pixels(splits, column, images, source)
        elif argument == "sequence_column" and is_signal(splits["train"].features[column]):
            values = (value for split in splits.values() for value in split.with_format("numpy")[column])
            kind = check_signals(column, values, source, _row_name(splits))
            splits = {name: split.cast_column(column, kind) for name, split in splits.items()}
        else:
            for name, split in splits.items():
                check_sequences(column, list(split[column]), source, _row_name({name: split}), argument)
    return splits


def fetch(source: str, config_name: str | None, revision: str | None) -> DatasetDict:
    """`datasets.load_dataset` with errors of one line."""
    _check_reachable(source)
    try:
        loaded = load_dataset(source, config_name, revision=revision)
    except DatasetNotFoundError as error:
        raise ValueError(f"source={source!r}: {error} Check the id; for a private one, log in first.") from error
    except ConnectionError as error:
        raise _unreachable(source, error) from error
    if not isinstance(loaded, DatasetDict):
        raise ValueError(f"source={source!r} is a {type(loaded).__name__}; choose a data set with splits.")
    return loaded


def _named_splits(source: str, loaded: DatasetDict) -> dict[str, Dataset]:
    named: dict[str, Dataset] = {}
    for name, split in loaded.items():
        target = split_name(name)
        if target is None or target in named:
            logger.warning("%s: left out %d rows of split %r.", source, split.num_rows, name)
        else:
            named[target] = split
    if "train" not in named:
        raise ValueError(f"source={source!r} has the splits {list(loaded)} and no 'train'; choose another data set.")
    return named


def _without_hidden_labels(source: str, splits: dict[str, Dataset], label_column: str) -> dict[str, Dataset]:
    kept = {}
    for name, split in splits.items():
        hidden = label_kind(split, label_column) == "class" and set(split[label_column]) == {-1}
        if name != "train" and hidden:
            logger.warning("%s: left out split %r, whose labels are hidden (-1).", source, name)
        else:
            kept[name] = split
    return kept


def _with_clean_labels(source: str, splits: dict[str, Dataset], label_column: str, targets: bool) -> dict[str, Dataset]:
    """Check the labels over all splits; strings become a `ClassLabel`, other numbers `int`, targets `float32`."""
    values = [value for split in splits.values() for value in split[label_column]]
    feature = splits["train"].features[label_column]
    names = feature.feature if isinstance(feature, List) else feature
    if isinstance(names, ClassLabel) and not targets:
        check_no_missing(label_column, values, source, _row_name(splits))
        found = {label for split in splits.values() for label in classes_in(split, label_column)}
        outside = sorted(found.difference(range(names.num_classes)))
        if outside:
            raise ValueError(
                f"label_column={label_column!r}: {source} has the labels {outside} outside its "
                f"{names.num_classes} classes (-1 means hidden); choose another data set, or "
                "label_column=None."
            )
        return splits
    labels, kind = read_labels(label_column, values, source, _row_name(splits), targets)
    cleaned = {}
    start = 0
    for name, split in splits.items():
        part = labels[start : start + split.num_rows]
        start += split.num_rows
        cleaned[name] = split.remove_columns(label_column).add_column(label_column, part)
        cleaned[name] = cleaned[name].cast_column(label_column, kind)
    return cleaned


def _row_name(splits: dict[str, Dataset]) -> RowName:
    """Names rows of the splits laid end to end: "17 of 'test'", counted from 1."""

    def name_of(index: int) -> str:
        for name, split in splits.items():
            if index < split.num_rows:
                return f"{index + 1} of {name!r}"
            index -= split.num_rows
        raise IndexError(index)

    return name_of


def _check_reachable(source: str) -> None:
    """Ask for the data set once: `load_dataset` would try for 23 seconds, with ten lines of warnings."""
    try:
        HfApi().dataset_info(source, timeout=_REACH_SECONDS)
    except (HfHubHTTPError, OfflineModeIsEnabled):
        return  # the Hub answered, or the user wants the cache: load_dataset knows what to say
    except Exception as error:  # whatever the HTTP client of the day raises when it gets no answer
        raise _unreachable(source, error) from error


def _unreachable(source: str, error: Exception) -> ConnectionError:
    return ConnectionError(
        f"source={source!r}: the Hugging Face Hub cannot be reached ({type(error).__name__}: {error}); check "
        "the connection, set HF_HUB_OFFLINE=1 to use a copy already in the cache, or give a local file."
    )
