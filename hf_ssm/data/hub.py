"""Data sets of the Hugging Face Hub."""

import logging

from datasets import ClassLabel, Dataset, DatasetDict, Value, load_dataset
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from hf_ssm.data.checks import RowName, check_column, check_no_missing, check_sequences, clean_labels
from hf_ssm.data.splits import split_name

logger = logging.getLogger(__name__)

_REACH_SECONDS = 10.0


def load_hub(
    source: str, sequence_column: str, label_column: str | None, config_name: str | None, revision: str | None
) -> dict[str, Dataset]:
    """Load and check a data set of the Hub, its splits named "train", "validation" and "test".

    Splits of other names, and splits whose labels are all -1 (hidden), are left out, and a warning says so.

    Args:
        source: Its id, "user/name".
        sequence_column: Column of the sequences.
        label_column: Column of the labels, or None.
        config_name: Which of its configurations; None for the only one.
        revision: Branch, tag or commit; None for the newest.

    Raises:
        ConnectionError: the Hub cannot be reached; said at once, without retries. With the environment
            variable HF_HUB_OFFLINE=1 a copy in the local cache is used instead.
        ValueError: there is no such data set, or one may not read it; it has no "train" split; or its rows
            are not fit to train on (see `hf_ssm.data.checks`).
    """
    splits = _named_splits(source, fetch(source, config_name, revision))
    columns = splits["train"].column_names
    check_column("sequence_column", sequence_column, columns, source)
    if label_column is not None:
        check_column("label_column", label_column, columns, source)
        splits = _without_hidden_labels(source, splits, label_column)
    for name, split in splits.items():
        check_sequences(sequence_column, list(split[sequence_column]), source, _row_name({name: split}))
    return splits if label_column is None else _with_clean_labels(source, splits, label_column)


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
        if name != "train" and set(split[label_column]) == {-1}:
            logger.warning("%s: left out split %r, whose labels are hidden (-1).", source, name)
        else:
            kept[name] = split
    return kept


def _with_clean_labels(source: str, splits: dict[str, Dataset], label_column: str) -> dict[str, Dataset]:
    """Check the labels over all splits; strings become a `ClassLabel`, other numbers `int`."""
    values = [value for split in splits.values() for value in split[label_column]]
    feature = splits["train"].features[label_column]
    if isinstance(feature, ClassLabel):
        check_no_missing(label_column, values, source, _row_name(splits))
        outside = sorted(set(values).difference(range(feature.num_classes)))
        if outside:
            raise ValueError(
                f"label_column={label_column!r}: {source} has the labels {outside} outside its "
                f"{feature.num_classes} classes (-1 means hidden); choose another data set, or "
                "label_column=None."
            )
        return splits
    ids, names = clean_labels(label_column, values, source, _row_name(splits))
    kind = Value("int64") if names is None else ClassLabel(names=names)
    cleaned = {}
    start = 0
    for name, split in splits.items():
        part = ids[start : start + split.num_rows]
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
