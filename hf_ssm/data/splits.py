"""Train, validation and test rows: generated ones, by a column of the data, or by a random split."""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features

from hf_ssm.data.cache import values_of
from hf_ssm.data.checks import check_integer, did_you_mean
from hf_ssm.data.letters import AMBIGUOUS_LETTERS, is_dna, reverse_complement

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
# Of the blocks of a genome by which overlapping windows are split: least and largest length in windows, and the number
# that a genome should have.
_SHORTEST_BLOCK, _LONGEST_BLOCK, _BLOCKS = 4, 16, 100
_BASES = str.maketrans("U" + AMBIGUOUS_LETTERS, "T" + "N" * len(AMBIGUOUS_LETTERS))
_SPELLINGS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}


def generated(
    sizes: tuple[int, int, int],
    streams: Sequence[np.random.SeedSequence],
    columns_of: Callable[[str, int, np.random.Generator], dict[str, Any]],
    features: Features,
    description: str,
    least: int = 1,
) -> DatasetDict:
    """Splits of `sizes` rows, made by `columns_of` from the name, the number of rows and the random stream of a split.

    The test rows come first, so that they do not depend on the number of training rows, which is at least `least`; 0
    omits another split. `description` is for the model card.
    """
    for split, size in zip(SPLITS, sizes, strict=True):
        check_integer(f"num_{split}", size, least if split == "train" else 0)
    splits: dict[str, Dataset] = {}
    for split, size, stream in reversed(list(zip(SPLITS, sizes, streams, strict=True))):
        if size:
            splits[split] = Dataset.from_dict(columns_of(split, size, np.random.default_rng(stream)), features=features)
            splits[split].info.description = description
    return DatasetDict({split: splits[split] for split in SPLITS if split in splits})


def split_name(value: object) -> str | None:
    """The standard name of a split such as "dev", or None if it is unknown."""
    return _SPELLINGS.get(str(value).strip().lower())


def rows_of_splits(values: Sequence[object], source: str) -> dict[str, np.ndarray]:
    """Row indices of each split by the values of a split column, which must mark some rows "train".

    Rows of other values are dropped with a warning.
    """
    names = np.array([split_name(value) or "" for value in values])
    others = Counter(str(value) for value in values if split_name(value) is None)
    for value, count in sorted(others.items()):
        logger.warning("%s: dropped %d rows of split %r.", source, count, value)
    rows = {name: np.flatnonzero(names == name) for name in SPLITS if (names == name).any()}
    if "train" not in rows:
        raise ValueError(
            f"split_column: {source} has no rows of split 'train' (found "
            f"{sorted({str(v)[:40] for v in values})[:10]}); mark the training rows, or pass split_column=None "
            "for a random split."
        )
    return rows


def cut(
    sequences: Sequence[Hashable] | np.ndarray, labels: Sequence[int] | None, fractions: dict[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Split rows randomly into "train" and the splits of `fractions`, stratified by label.

    Rows with equal sequences (or pairs of texts) are in the same split, so that no test sequence is trained on. The
    shares are exact to one row per label if no sequence occurs twice.

    Args:
        sequences: Of each row the sequence, or what stands for it, such as `sequence_keys`.
        labels: Of each row; may be None.
        fractions: Split name to its share of the rows, in [0, 1); splits with a share of 0 are omitted.
        seed: Seed of the random split.

    Returns:
        Split name to ascending row indices.

    Raises:
        ValueError: There are too few rows for one in each split.
    """
    # Groups of equal sequences are counted in the order of their first rows, which the permutations below follow.
    _, first_rows, numbers = np.unique(np.asarray(sequences), return_index=True, return_inverse=True)
    group, leader = np.argsort(np.argsort(first_rows))[numbers], np.sort(first_rows)
    kinds = np.zeros(len(leader), dtype=int) if labels is None else np.asarray(labels)[leader]
    rng = np.random.default_rng(seed)
    place = np.zeros(len(leader), dtype=int)
    names = ["train", *(name for name, share in fractions.items() if share > 0.0)]
    for kind in np.unique(kinds):
        members = rng.permutation(np.flatnonzero(kinds == kind))
        done = 0
        for index, name in enumerate(names[1:], start=1):
            count = round(fractions[name] * len(members))
            place[members[done : done + count]] = index
            done += count
    rows = {name: np.flatnonzero(place[group] == index) for index, name in enumerate(names)}
    for name in (name for name, indices in rows.items() if not len(indices)):
        shares = ", ".join(f"{split}_fraction={share}" for split, share in fractions.items())
        count = 1 if labels is None else len(np.unique(labels))
        if count > 1 and len(sequences) >= len(names) * 10:
            raise ValueError(
                f"{shares}: the {len(sequences)} rows have {count} different labels, too many for a share of each "
                f"in {name!r}: check the label column (--label-column); to predict numbers, use --task "
                "sequence-regression (targets=True)."
            )
        raise ValueError(
            f"{shares}: {len(sequences)} rows are too few to give {name!r} a row; set the fraction to 0, "
            "or give more data."
        )
    return rows


def sequence_keys(texts: Iterable[str | bytes]) -> np.ndarray:
    """Hash each text to 64 bits, which take its place in comparisons of the texts of a large file.

    Texts of DNA or RNA have one hash if they differ only in case, in U for T, in an ambiguous letter or in white
    space, which DNA tokenizers ignore. A sequence and its reverse complement have one hash, too.

    Two different texts of a file with `n` rows have one hash with a probability of n² / 2**65; they would be in the
    same split.
    """
    data = (_canonical(text).encode() if isinstance(text, str) else text for text in texts)
    digests = (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True) for text in data)
    return np.fromiter(digests, dtype=np.int64)


def _canonical(text: str) -> str:
    if not is_dna(text):
        return text
    bases = "".join(text.upper().split()).translate(_BASES)
    return min(bases, reverse_complement(bases))


def cut_windows(
    windows: Dataset, keys: np.ndarray, contigs: Mapping[str, Sequence[str]], fractions: dict[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Split the windows of a genome into "train" and other splits.

    Windows that do not overlap are split by `cut`: equal ones are in the same split. Of windows that do, all that
    start in the same block of the genome are in one split, and those that reach into a block of another split are
    dropped with a warning, so that no base of a validation or test window is trained on.

    Args:
        windows: The columns `name` (of the contig), `start` (first base) and `sequence`.
        keys: `sequence_keys` of the sequences.
        contigs: Split name to the contigs of which it has all windows.
        fractions: Split name to its share of the other windows, or of their blocks; splits of `contigs` are ignored.
        seed: Seed of the random split.

    Returns:
        Split name to ascending row indices.

    Raises:
        ValueError: There is no such contig, a contig is in two splits, or there are too few windows for a split.
    """
    columns = windows.with_format("numpy")
    all_names, all_starts = columns["name"][:], columns["start"][:]
    _check_contigs(contigs, np.unique(all_names).tolist())
    splits = {split: np.flatnonzero(np.isin(all_names, list(members))) for split, members in contigs.items()}
    rest = np.flatnonzero(~np.isin(all_names, [name for members in contigs.values() for name in members]))
    if not len(rest):
        raise ValueError(f"{_arguments(contigs)}: no contig is left for 'train'; omit one contig.")
    wanted = {name: share for name, share in fractions.items() if name not in contigs and share > 0.0}
    lengths = np.fromiter(map(len, values_of(windows, "sequence")), dtype=np.int64)
    names, starts, ends = all_names[rest], all_starts[rest], (all_starts + lengths)[rest]
    is_by_blocks = wanted and bool(((starts[1:] < ends[:-1]) & (names[1:] == names[:-1])).any())
    rows = _cut_blocks(names, starts, ends, wanted, seed) if is_by_blocks else cut(keys[rest], None, wanted, seed)
    splits |= {name: rest[indices] for name, indices in rows.items()}
    return {name: splits[name] for name in SPLITS if name in splits}


def _arguments(contigs: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{split}_contigs={list(names)!r}" for split, names in contigs.items())


def _check_contigs(contigs: Mapping[str, Sequence[str]], existing: list[str]) -> None:
    """Raise an error for contigs that do not exist or are in two splits."""
    chosen = [name for members in contigs.values() for name in members]
    for split, members in contigs.items():
        for name in members:
            if name not in existing:
                raise ValueError(
                    f"{split}_contigs={list(members)!r}: no window belongs to a contig "
                    f"{name!r}{did_you_mean(name, existing)}; the first contigs are {existing[:10]}."
                )
            if chosen.count(name) > 1:
                raise ValueError(f"{_arguments(contigs)}: the contig {name!r} is named twice; name it once.")


def _cut_blocks(
    names: np.ndarray, starts: np.ndarray, ends: np.ndarray, fractions: dict[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Split windows by the blocks of the genome in which they start."""
    window = int((ends - starts).max())
    _, contigs = np.unique(names, return_inverse=True)
    lengths = np.zeros(contigs.max() + 1, dtype=np.int64)
    np.maximum.at(lengths, contigs, ends)
    # Long blocks lose few windows at their ends, and many blocks give exact shares.
    size = window * max(_SHORTEST_BLOCK, min(_LONGEST_BLOCK, int(lengths.sum()) // (_BLOCKS * window)))
    offsets = np.cumsum(lengths // size + 1)
    offsets = np.concatenate([[0], offsets[:-1]])[contigs]
    first_blocks, last_blocks = offsets + starts // size, offsets + (ends - 1) // size
    try:
        split_rows = cut(first_blocks, None, fractions, seed)
    except ValueError as error:
        raise ValueError(
            f"{error} Overlapping windows are split by blocks of {size} bases, and there are "
            f"{len(np.unique(first_blocks))} such blocks: use a smaller window, or whole contigs "
            "(validation_contigs, test_contigs)."
        ) from None
    split_of_block = np.full(last_blocks.max() + 1, -1)
    for number, rows in enumerate(split_rows.values()):
        split_of_block[first_blocks[rows]] = number
    kept = {}
    for number, (name, rows) in enumerate(split_rows.items()):
        reached = split_of_block[last_blocks[rows]]
        kept[name] = rows[(reached == number) | (reached == -1)]
        if not len(kept[name]):
            raise ValueError(
                f"{name}_fraction={fractions.get(name)}: no window of {name!r} lies apart from the windows of "
                "other splits; give a longer genome, or choose whole contigs (validation_contigs, test_contigs)."
            )
    dropped = len(starts) - sum(map(len, kept.values()))
    if dropped:
        logger.warning("dropped %d of %d windows, which overlap windows of another split.", dropped, len(starts))
    return kept


def check_fractions(validation_fraction: float, test_fraction: float) -> None:
    """Raise a `ValueError` unless both fractions are in [0, 1) and leave rows for training."""
    for name, value in (("validation_fraction", validation_fraction), ("test_fraction", test_fraction)):
        if not 0.0 <= value < 1.0:
            raise ValueError(f"{name}={value!r}: give a share of the rows in [0, 1).")
    if validation_fraction + test_fraction >= 1.0:
        raise ValueError(
            f"validation_fraction={validation_fraction!r} and test_fraction={test_fraction!r} leave no rows "
            "to train on; make their sum less than 1."
        )
