"""Rows of a file in the Arrow cache of `datasets`: made once, by any process, and mapped into memory by all."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, Features
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher

from hf_ssm.data.files import opened
from hf_ssm.utils.files import write_text_atomically

FORMAT = 1
"""A part of every key of the cache: increase it when the same arguments make other rows."""

_FACTS = "facts.json"
_MOST_ROWS = 1000


def content_hash(path: Path) -> str:
    """A hash of the bytes of a file: a changed file of the same name, size and time has another one.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file cannot be read.
    """
    with opened(path, "rb"):  # for its errors: the bytes are hashed as they are, compressed or not
        pass
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def batch_size(data: Dataset, most_bytes: int = 2**24) -> int:
    """Number of rows, of average size, that have `most_bytes` together; from 1 to 1000."""
    row_bytes = data.data.nbytes / max(data.data.num_rows, 1)
    return max(1, min(_MOST_ROWS, int(most_bytes / max(row_bytes, 1))))


def values_of(data: Dataset, column: str) -> Iterator[Any]:
    """The values of a column, read in batches of bounded size."""
    chosen = data.select_columns([column])
    return (value for batch in chosen.iter(batch_size(chosen)) for value in batch[column])


def cache_folder(kind: str, key: str) -> Path:
    """A folder in the cache of `datasets`, for files that are not Arrow tables."""
    return Path(datasets.config.HF_DATASETS_CACHE) / "hf_ssm" / f"{kind}-{key}"


def cached_rows(
    rows: Callable[[dict[str, Any]], Iterable[dict[str, Any]]], features: Features, key: Any, row_bytes: int
) -> tuple[Dataset, dict[str, Any]]:
    """The rows of a generator as a file of the cache, which is written in batches and then only mapped.

    Processes that ask for the same rows wait for the first one, and an interrupted one leaves nothing that counts as
    complete: both are a matter of `datasets`.

    Args:
        rows: Yields the rows; stores in its argument what else there is to know of them, such as counts. It is not
            called if the rows are in the cache.
        features: The columns.
        key: All that determines the rows.
        row_bytes: Size of the largest row; a batch of the writer has at most 16 MiB.

    Returns:
        The rows, and the facts that the generator stored.

    Raises:
        Exception: The error of the generator.
    """
    facts: dict[str, Any] = {}
    try:
        data = Dataset.from_generator(
            lambda: rows(facts),
            features=features,
            # Without it, a hash of the pickled generator is the key.
            fingerprint=Hasher.hash((FORMAT, key)),
            writer_batch_size=max(1, min(_MOST_ROWS, 2**24 // row_bytes)),
        )
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None
    path = Path(data.cache_files[0]["filename"]).with_name(_FACTS)
    if facts:
        write_text_atomically(path, json.dumps(facts))
    elif path.is_file():
        facts = json.loads(path.read_text(encoding="utf-8"))
    return data, facts
