"""Windows of a FASTA file that are read when they are accessed, so that a genome takes no memory."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value
from torch.utils import data as torch_data

from hf_ssm.data.cache import cache_folder, cached_rows, content_hash
from hf_ssm.data.fasta import fasta_rows, log_facts
from hf_ssm.data.genome import Genome
from hf_ssm.data.records import is_dna
from hf_ssm.data.splits import Windows, sequence_keys

__all__ = ["FastaWindows"]

_PLACES = Features(
    {
        "name": Value("string"),
        "start": Value("int64"),
        "end": Value("int64"),
        "key": Value("int64"),
        "is_dna": Value("bool"),
    }
)
_ROWS = Features({"sequence": Value("string"), "name": Value("string"), "start": Value("int64")})


class FastaWindows(torch_data.Dataset[dict[str, Any]]):
    """A map-style data set: the windows of a FASTA file, whose letters are read by an index when a row is accessed.

    In memory are neither letters nor tokens. `load_sequences(path, lazy=True)` makes the splits, which have the rows
    of `load_sequences(path)`, and `tokenize` adds the token ids. The workers of a `DataLoader`
    (`dataloader_num_workers`) read and tokenize in parallel.

    Attributes:
        features: The columns, as of a `datasets.Dataset`.
        longest: Upper bound of the length of a row, in letters or, after `tokenize`, in tokens.
    """

    def __init__(self, genome: Genome, places: Dataset, keep_case: bool):
        self._genome, self._places, self._keep_case = genome, places, keep_case
        # The rows of `places`; its own `select` gathers each row by itself, which takes a kilobyte for each.
        self._chosen = np.arange(len(places))
        self._transforms: list[Callable[[dict[str, list[Any]]], dict[str, list[Any]]]] = []
        self._state: list[str] = []
        self.features, self.longest = _ROWS, int(np.subtract(*self._columns("end", "start")).max())

    @classmethod
    def load(cls, path: Path, window: int, stride: int, min_window: int, keep_case: bool = False) -> "FastaWindows":
        """The windows of `hf_ssm.data.fasta.load_fasta`, with the same arguments and errors.

        The first call reads the file once. It stores the places of the windows in the Arrow cache of `datasets` and,
        unless there is an index beside the file (`samtools faidx`), an index there. A compressed file that is not of
        bgzip has no random access and is decompressed there. The letters that are read later are compared by a hash
        with those of the first time; a `ValueError` tells if they differ.

        Raises:
            ImportError: pysam is not installed.
        """
        arguments = (window, stride, min_window, keep_case)
        content = content_hash(path)
        genome = Genome(path, cache_folder("index", content))
        places, facts = cached_rows(
            lambda facts: _places(fasta_rows(path, *arguments, facts)), _PLACES, ("places", content, *arguments), 100
        )
        log_facts(path, facts)
        return cls(genome, places, keep_case)

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self.features)

    @property
    def fingerprint(self) -> str:
        """A hash of the rows and their order."""
        digest = hashlib.blake2b(repr(self._state).encode(), digest_size=16)
        for column in self._columns("start", "end", "key"):
            digest.update(column.tobytes())
        return digest.hexdigest()

    @property
    def places(self) -> Windows:
        """Where the windows lie."""
        starts, ends, keys = self._columns("start", "end", "key")
        return Windows(np.asarray(self._places["name"][:])[self._chosen], starts, ends, keys)

    @property
    def doubtful(self) -> list[int]:
        """Numbers of the rows that have other letters than those of DNA."""
        (is_of_dna,) = self._columns("is_dna")
        return np.flatnonzero(~is_of_dna).tolist()

    def _columns(self, *names: str) -> list[np.ndarray]:
        columns = self._places.with_format("numpy", columns=list(names))[:]
        return [columns[name][self._chosen] for name in names]

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several rows, as the `DataLoader` reads them."""
        places = self._places[self._chosen[list(indices)].tolist()]
        letters = [
            self._genome.fetch(*place) for place in zip(places["name"], places["start"], places["end"], strict=True)
        ]
        sequences = letters if self._keep_case else [sequence.upper() for sequence in letters]
        changed = np.flatnonzero(sequence_keys(sequences) != np.asarray(places["key"]))
        if len(changed):
            # Of an index beside the file only its age is known; faidx counts the letters of comments (";").
            name, start, end = (places[column][changed[0]] for column in ("name", "start", "end"))
            raise ValueError(
                f"source={str(self._genome.path)!r}: {name}:{start}-{end} has other letters than when the file was "
                "loaded: the file has changed, its index (.fai) belongs to another file (delete the index), or the "
                "file has lines of comments (remove these lines)."
            )
        batch = {"sequence": sequences, "name": places["name"], "start": places["start"]}
        for transform in self._transforms:
            batch = transform(batch)
        return [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def select(self, indices: Sequence[int] | np.ndarray) -> "FastaWindows":
        """Some of the rows."""
        part = copy(self)
        part._chosen = self._chosen[np.asarray(indices, dtype=np.int64)]
        return part

    def with_transform(
        self,
        transform: Callable[[dict[str, list[Any]]], dict[str, list[Any]]],
        features: Features | None = None,
        longest: int | None = None,
        state: str = "",
    ) -> "FastaWindows":
        """The rows with a transform of batches, which runs when rows are read, after the earlier ones.

        Args:
            transform: Column name to values, to the same of the transformed rows.
            features: The columns after the transform; by default the same as before.
            longest: The new bound of the length of a row; by default the same as before.
            state: What the rows depend on, for `fingerprint`.
        """
        changed = copy(self)
        changed._transforms = [*self._transforms, transform]
        changed._state = [*self._state, state]
        changed.features, changed.longest = features or self.features, longest or self.longest
        return changed


def _places(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        start, sequence = row["start"], row["sequence"]
        yield {
            "name": row["name"],
            "start": start,
            "end": start + len(sequence),
            "key": int(sequence_keys([sequence])[0]),
            "is_dna": is_dna(sequence),
        }
