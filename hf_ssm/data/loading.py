"""One loader for everything to train on: Hub data sets, tables, FASTA files, generators."""

import inspect
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, List

from hf_ssm.data.checks import check_column, nearest
from hf_ssm.data.fasta import fasta_windows
from hf_ssm.data.files import bare_suffix
from hf_ssm.data.hub import load_hub, prepare
from hf_ssm.data.images import ImageOptions, holds_images, is_idx, is_pathfinder, load_folder, load_idx, load_pathfinder
from hf_ssm.data.labels import classes_in, label_kind
from hf_ssm.data.majority import sparse_majority
from hf_ssm.data.motifs import planted_motifs
from hf_ssm.data.signals import is_signal, row_keys
from hf_ssm.data.splits import SPLITS, check_fractions, cut
from hf_ssm.data.synthetic import associative_recall, induction_heads, selective_copying, smooth_function
from hf_ssm.data.table_splits import SPLIT_COLUMN, load_tables

logger = logging.getLogger(__name__)

GENERATORS: dict[str, Callable[..., DatasetDict]] = {
    "planted-motifs": planted_motifs,
    "majority": sparse_majority,
    "associative-recall": associative_recall,
    "induction-heads": induction_heads,
    "selective-copying": selective_copying,
    "smooth-function": smooth_function,
}
"""Name, as `load_sequences` takes it, to the generator."""

_TABLE_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl")
_FASTA_SUFFIXES = (".fa", ".fasta", ".fna")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def load_sequences(
    source: str | os.PathLike[str],
    sequence_column: str = "sequence",
    label_column: str | None = "label",
    split_column: str | None = SPLIT_COLUMN,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
    seed: int = 0,
    window: int = 1024,
    min_window: int | None = None,
    config_name: str | None = None,
    revision: str | None = None,
    pair_column: str | None = None,
    validation_file: str | os.PathLike[str] | None = None,
    test_file: str | os.PathLike[str] | None = None,
    column_names: Sequence[str] | None = None,
    quoted: bool = True,
    grayscale: bool = False,
    image_size: int | None = None,
    targets: bool = False,
    **generator_options: Any,
) -> DatasetDict:
    """Load sequences, with labels where there are any, in splits.

    **What `source` may be**, in the order it is looked at: the name of a generator ("planted-motifs"); a file
    in `.csv`, `.tsv`, `.json`, `.jsonl` (tables) or `.fa`, `.fasta`, `.fna`, each also with `.gz`; a file
    "...images-idx3-ubyte" (MNIST), its labels beside it; a folder of images, in folders by class, or one of
    the Long Range Arena's Pathfinder; the id of a Hub data set, "user/name".

    **Numbers and images.** The sequences of a json table or of a Hub data set may be lists of numbers, or lists
    of equally long lists: signals of several channels. An image is the sequence of its pixels, row by row, bytes
    from 0 to 255, in one channel or three. `SignalFeatureExtractor` makes inputs for a model of either.

    **Splits.** Where the data has splits (a Hub data set's own, the table's `split_column`, a file for each), they
    hold; "valid", "val" and "dev" mean validation, and rows of any other value are left out with a warning. A
    validation or test split that the data lacks is cut from the training rows by chance, keeping the shares
    of the labels, with equal sequences on one side; a fraction of 0 leaves it out. A warning says how many
    test or validation sequences also stand among the training rows.

    **Labels.** Whole numbers stay; strings become a `ClassLabel` with the names sorted. The classes must be
    0, 1, ... without a gap over all rows used, at least two of them. A list of them has the class of each
    position, and -100 where there is none. A Hub split whose labels are all -1 (hidden) is left out with a warning.

    **FASTA** has no labels: each record is cut into windows, for language modelling.

    Files are read afresh every time; nothing of them is cached.

    Args:
        source: See above.
        sequence_column: Column of the sequences (or texts, signals, images), of one kind in every row.
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
        pair_column: Column of a second text in each row, where two texts are classified together.
        validation_file, test_file: Tables: further files of the same columns, all of whose rows are that split.
        column_names: Tables: the columns of csv and tsv files that have no header line.
        quoted: Tables: whether cells of csv and tsv files may stand in quotes; false where a quote is a letter
            like any other.
        grayscale: Images: whether colours become gray.
        image_size: Images: side to resize them to, square; None leaves them as they are.
        targets: Whether the labels are numbers to predict, or lists of them, and not classes.
        **generator_options: Arguments of the generator, such as `length=400`.

    Returns:
        "train", and "validation" and "test" where there are any. All columns are kept but the split column;
        FASTA gives `sequence`, `name` and `start`; idx files and Pathfinder name their columns as they are asked
        for here, and a folder of images its column of images, while its classes are called `label`.

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
    images = ImageOptions(grayscale, image_size)
    path = Path(name).expanduser()
    suffix = bare_suffix(path)
    labels = label_column
    texts = {"sequence_column": sequence_column}
    if pair_column is not None:
        texts["pair_column"] = pair_column
    files = _split_files(validation_file=validation_file, test_file=test_file)
    if suffix not in _TABLE_SUFFIXES:
        _refuse_table_options(name, files, column_names, quoted)
    if suffix in _FASTA_SUFFIXES:
        texts, labels = {"sequence_column": "sequence"}, None
        splits = _load_fasta(path, window, min_window)
    elif suffix in _TABLE_SUFFIXES:
        splits = load_tables(path, files, texts, label_column, split_column, column_names, quoted, targets)
    elif is_idx(path):
        splits = load_idx(path, sequence_column, label_column, images)
    elif path.is_dir() and is_pathfinder(path):
        splits = load_pathfinder(path, sequence_column, label_column, images)
    elif path.is_dir() and holds_images(path):
        loaded = load_folder(path, sequence_column)
        splits = prepare(path.name, loaded, texts, label_column, images, targets)
    elif _HUB_ID.fullmatch(name) and not path.exists():
        splits = load_hub(name, texts, label_column, config_name, revision, images, targets)
    else:
        raise _unknown_source(name, path)
    shares = {"validation": validation_fraction, "test": test_fraction}
    return _cut_missing_splits(splits, list(texts.values()), labels, shares, seed, name)


def label_names(data: DatasetDict, label_column: str = "label") -> list[str]:
    """Names of the classes: those of the column's `ClassLabel`, else "0", "1", ... up to the largest label.

    The labels may be lists, of the classes of positions.

    Raises:
        ValueError: the training split has no such column.
    """
    check_column("label_column", label_column, data["train"].column_names, "the training split")
    feature = data["train"].features[label_column]
    feature = feature.feature if isinstance(feature, List) else feature
    if isinstance(feature, ClassLabel):
        return list(feature.names)
    return [str(index) for index in range(1 + max(max(classes_in(split, label_column)) for split in data.values()))]


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


def _split_files(**files: str | os.PathLike[str] | None) -> dict[str, Path]:
    """Split name to the table given for it; the keywords are the arguments of `load_sequences`."""
    given = {argument: Path(file).expanduser() for argument, file in files.items() if file is not None}
    for argument, file in given.items():
        if bare_suffix(file) not in _TABLE_SUFFIXES:
            raise ValueError(
                f"{argument}={str(file)!r}: give a table ({', '.join(_TABLE_SUFFIXES)}, or these with .gz)."
            )
    return {argument.removesuffix("_file"): file for argument, file in given.items()}


def _refuse_table_options(
    source: str, files: dict[str, Path], column_names: Sequence[str] | None, quoted: bool
) -> None:
    given = {f"{split}_file": str(file) for split, file in files.items()}
    if column_names is not None:
        given["column_names"] = str(column_names)
    if not quoted:
        given["quoted"] = str(quoted)
    for argument, value in given.items():
        raise ValueError(f"{argument}={value!r} is for tables, but source={source!r} is none; leave it out.")


def _cut_missing_splits(
    splits: dict[str, Dataset],
    text_columns: Sequence[str],
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
            known = set(_texts(train, text_columns))
            seen = sum(text in known for text in _texts(splits[name], text_columns))
            if seen:
                logger.warning("%s: %d sequences of split %r also stand in 'train'.", source, seen, name)
    if label_column is not None:
        untrained = {label for split in splits.values() for label in classes_in(split, label_column)}
        untrained -= classes_in(train, label_column)
        if untrained:
            logger.warning("%s: the classes %s have no training row.", source, sorted(untrained))
    if wanted:
        labels = None
        if label_column is not None and label_kind(train, label_column) == "class":
            labels = list(train[label_column])
        for name, rows in cut(_texts(train, text_columns), labels, wanted, seed).items():
            splits[name] = train.select(rows)
    return DatasetDict({name: splits[name] for name in SPLITS if name in splits})


def _texts(split: Dataset, columns: Sequence[str]) -> list[Any]:
    """What a row is about, for each row: its sequence (a key of it, if numbers), or a pair of texts."""
    texts = [
        row_keys(split, column) if is_signal(split.features[column]) else list(split[column]) for column in columns
    ]
    return texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))


def _unknown_source(name: str, path: Path) -> Exception:
    """The error for a source that is neither a generator, nor a file of a known kind, nor a Hub id."""
    known = f"files end in {', '.join(_TABLE_SUFFIXES + _FASTA_SUFFIXES)} (or these with .gz)"
    if path.is_dir():
        return ValueError(f"source={name!r} is a folder without images; give one file in it ({known}).")
    if path.exists():
        return ValueError(f"source={name!r}: its name does not tell its format; {known}.")
    if os.sep in name or path.suffix:
        return FileNotFoundError(f"source={name!r}: there is no such file, and it is no Hub id; {known}.")
    return ValueError(
        f"source={name!r}: there is no generator of that name{nearest(name, GENERATORS)}. Generators: "
        f"{list(GENERATORS)}; Hub ids read 'user/name'; {known}."
    )
