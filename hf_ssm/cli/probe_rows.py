"""The rows that `hf-ssm probe` reads, and the target of each."""

import argparse
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import ClassLabel, Dataset
from torch import Tensor

from hf_ssm.cli.checkpoints import SEED, check_fit, rows_of
from hf_ssm.cli.options.analysis import LABEL, PREDICTED
from hf_ssm.data import label_names
from hf_ssm.data.checks import check_column
from hf_ssm.data.labels import merged_name
from hf_ssm.data.options import ReadOptions
from hf_ssm.data.records import check_letters, read_records
from hf_ssm.data.signals import is_signal
from hf_ssm.data.tracks import import_pybigwig
from hf_ssm.probes import MaskingProbe
from hf_ssm.probes.targets import head_of
from hf_ssm.tokenization import reads_only_dna
from hf_ssm.training import inputs
from hf_ssm.training.settings import RunSettings

# A tokenizer with at most this many tokens, each of one letter, is one of DNA, RNA or proteins.
_MOST_LETTERS = 32
# Training sequences of which tokens are counted.
_READ_ROWS = 2000
# Rows read per row that is probed, in search of those whose answer needs tokens.
_SPARE = 5
_MOTIF_COLUMN = "motif_positions"
# transformers represents "no limit" as int(1e30).
_NO_LIMIT = 10**12


@dataclass(frozen=True)
class Example:
    """A row to probe: its number in the split, its ids `(L,)`, and its target, an argument of the probe."""

    row: int
    ids: Tensor
    target: Any


@dataclass(frozen=True)
class Rows:
    """The rows of a split, their columns, the limit of their length in tokens, the names of the classes, other rows.

    Attributes:
        train: The training split of the same data, of which the columns are the same, if there is one.
        unknown_bases: Largest share of the bases of a training sequence that N replaced.
    """

    rows: Dataset
    column: str
    pair_column: str | None
    label_column: str | None
    limit: int | None
    classes: list[str] | None
    train: Dataset | None = None
    unknown_bases: float = 0.0

    def encoded(self, row: int, tokenizer: Any, **options: Any) -> Any:
        """The output of the tokenizer for a row."""
        texts = [self.rows[row][name] for name in (self.column, self.pair_column) if name is not None]
        limit = tokenizer.model_max_length if self.limit is None else self.limit
        cut = {"truncation": True, "max_length": limit} if limit < _NO_LIMIT else {}
        return tokenizer(*texts, **cut, **options, verbose=False)


def check_target(args: argparse.Namespace, model: Any) -> None:
    """Raise a ValueError if the head of the model does not predict the target of the options."""
    what, head = type(model).__name__, head_of(model)
    if head is None:
        raise ValueError(
            f"{args.checkpoint!r} holds a {what}, which predicts neither classes nor tokens: choose another checkpoint"
        )
    if head == "class" and args.position is not None:
        raise ValueError(
            f"--position is for models with a prediction for each token: leave --position out for a {what}"
        )
    if head != "class" and args.position is None:
        raise ValueError(
            f"a {what} has a prediction for each token: give --position, the token whose prediction is probed"
        )
    if head in ("causal", "masked") and args.target is not None:
        raise ValueError(f"--target {args.target}: a {what} predicts tokens and not classes; leave --target out")
    if _predicts_values(model) and args.minimum_probability:
        raise ValueError(
            f"--minimum-probability is for classes and tokens: leave --minimum-probability out for a {what} of "
            "regression"
        )
    if head == "tokens" and args.target == LABEL:
        raise ValueError(f"--target {LABEL} is for classes of sequences: give a class, or {PREDICTED}")


def _wants_labels(args: argparse.Namespace, model: Any) -> bool:
    return head_of(model) == "class" and args.target in (None, LABEL) and not _predicts_values(model)


def _predicts_values(model: Any) -> bool:
    return bool(head_of(model) == "class" and model.config.problem_type == "regression")


class _Value:
    """A value that a model of regression predicts for a sequence, as the target of a probe."""

    def __init__(self, index: int, name: str):
        self.index = index
        # By this name results and figures call the target.
        self.__qualname__ = name

    def __call__(self, logits: Tensor) -> Tensor:
        return logits[:, self.index]


def load_rows(args: argparse.Namespace, settings: RunSettings, model: Any) -> Rows:
    """The rows of --split with all their columns, split as in training."""
    column, stored_column = settings.sequence_column, settings.data.get("label_column", "label")
    label_column: Any = None if stored_column is None else merged_name(stored_column)
    is_labelled = _wants_labels(args, model)
    if is_labelled and label_column is None:
        raise ValueError(f"--target {LABEL} needs labels: name their column (--set data.label_column=NAME)")
    # The split depends on the labels, so these are read even if the probe does not need them.
    splits = inputs.load_rows(settings)
    rows = rows_of(splits, args.split)
    if is_signal(rows.features[column]):
        raise ValueError(
            f"{settings.data['dataset']!r} holds images or numbers, but a probe masks the tokens of texts: give a "
            "table of texts"
        )
    if is_labelled:
        check_column("label_column", label_column, rows.column_names, "the data")
    has_classes = is_labelled or isinstance(rows.features.get(label_column), ClassLabel)
    classes = label_names(splits, label_column) if has_classes else None
    kept = label_column if label_column in rows.column_names and classes is not None else None
    pair_column, limit = settings.data.get("pair_column"), settings.data["max_length"]
    return Rows(rows, column, pair_column, kept, limit, classes, splits.get("train"), settings.data["unknown_bases"])


def load_intervals(args: argparse.Namespace, settings: RunSettings, model: Any) -> Rows:
    """The intervals of the BED file of --dataset, with the letters of --genome; by default, predicted classes."""
    import_pybigwig()
    if args.target == LABEL:
        raise ValueError(f"--target {LABEL}: a BED file has no labels; give a class, or {PREDICTED}")
    if _wants_labels(args, model):
        args.target = PREDICTED
    records = read_records(Path(settings.data["dataset"]), ReadOptions.of_training(settings.data), args.genome)
    rows = Dataset.from_list([{**record.columns, "sequence": record.sequence} for record in records])
    return Rows(rows, "sequence", None, None, settings.data["max_length"], None)


def background_of(data: Rows, tokenizer: Any, vocab_size: int) -> Tensor:
    """The count of each token in training rows, `(vocab_size,)`."""
    rows = data.rows if data.train is None else data.train
    texts = [str(text) for text in rows[data.column][:_READ_ROWS]]
    ids = [token for row in tokenizer(texts, verbose=False)["input_ids"] for token in row]
    return torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=vocab_size)


def is_small_alphabet(tokenizer: Any) -> bool:
    """Whether the tokens are few single letters, as of DNA, RNA or proteins."""
    tokens = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    letters = {token for token in tokens if not (token.startswith("[") and token.endswith("]"))}
    return len(letters) <= _MOST_LETTERS and all(len(token) == 1 for token in letters)


def replacement_note(probe: MaskingProbe, data: Rows) -> str:
    """A sentence about the replacement of masked tokens: whether the model read it in training."""
    token, name = probe.replacement.token_id, probe.replacement.name
    if probe.replacement.is_drawn:
        how = {"background": "by their counts in training data", "composition": "by their counts in the row"}
        way = how.get(name, f"by {name}")
        return f"Masked tokens are drawn {way}, {probe.draws} times; the probability is the mean."
    text = "a zero embedding" if token is None else probe.tokenizer.convert_ids_to_tokens(token)
    if token is not None and token == probe.tokenizer.mask_token_id and probe.head == "masked":
        return f"Tokens are masked by {text}, with which masked language models are trained."
    if token is None or token in probe.tokenizer.all_special_ids:
        return f"Tokens are masked by {text}, which replaces no token in the training of this model."
    if data.unknown_bases and text == "N":
        return f"Tokens are masked by {text}, which replaced up to {data.unknown_bases:.0%} of the bases in training."
    if data.train is None or not is_small_alphabet(probe.tokenizer):
        return f"Tokens are masked by {text}."
    count = sum(text in sequence.upper() for sequence in data.train[data.column][:_READ_ROWS])
    of = f"{count} of {min(len(data.train), _READ_ROWS)} training sequences"
    if count:
        return f"Tokens are masked by {text}, which occurs in {of}."
    return f"Tokens are masked by {text}, which occurs in none{of[1:]}: the model answers outside of its training data."


def chosen_examples(args: argparse.Namespace, probe: MaskingProbe, data: Rows) -> tuple[list[Example], dict[str, int]]:
    """Random rows that can be probed, in their order, and the number of rows left out by reason.

    Rows that keep more than half of their probability with all tokens drawn are taken only where others are too few,
    those that keep least first: tokens explain little of them.
    """
    short, wrong, unlikely, stays = (
        *("too short for --position", "predicted wrongly", "less likely than --minimum-probability"),
        "whose answer hardly needs tokens",
    )
    left_out = dict.fromkeys((short, wrong, unlikely, stays), 0)
    examples: list[Example] = []
    spare: list[tuple[float, Example]] = []
    for example in _drawn(args, probe, data):
        if example is None:
            left_out[short] += 1
            continue
        start = probe.start(example.ids, example.target)
        # Values of a regression are no probabilities.
        probability = math.inf if callable(example.target) else start.probability
        if not (start.right or args.allow_wrong):
            left_out[wrong] += 1
        elif probability < args.minimum_probability:
            left_out[unlikely] += 1
        elif start.all_drawn > probability / 2:
            spare.append((start.all_drawn / max(probability, 1e-12), example))
        else:
            examples.append(example)
        if len(examples) == args.rows or len(examples) + len(spare) == _SPARE * args.rows:
            break
    missing = args.rows - len(examples)
    examples += [example for _, example in sorted(spare, key=lambda kept: kept[0])[:missing]]
    left_out[stays] = len(spare[missing:])
    left_out = {why: count for why, count in left_out.items() if count}
    if not examples:
        whys = ", ".join(f"{count} {why}" for why, count in left_out.items())
        remedies = {wrong: "--allow-wrong includes such rows", unlikely: "lower it", short: "choose another"}
        raise ValueError(
            f"no row of split {args.split!r} can be probed: {whys}; {', or '.join(remedies[why] for why in left_out)}"
        )
    return sorted(examples, key=lambda example: example.row), left_out


def _drawn(args: argparse.Namespace, probe: MaskingProbe, data: Rows) -> Iterator[Example | None]:
    """All rows in random order; `None` for a row without a token at --position."""
    dna, target_of = reads_only_dna(probe.tokenizer), _targets(args, probe, data)
    for row in random.Random(SEED).sample(range(len(data.rows)), len(data.rows)):
        if dna:
            check_letters(str(data.rows[row][data.column]), f"row {row} of split {args.split!r}", "remove the row")
        ids = torch.tensor(data.encoded(row, probe.tokenizer)["input_ids"], dtype=torch.int64)
        if len(ids) == 0:
            raise ValueError(f"row {row} of split {args.split!r} gives no token: remove this row")
        check_fit(probe.model.config, len(ids))
        place = args.position
        if place is None:
            yield Example(row, ids, target_of(row))
        elif not -len(ids) <= place < len(ids):
            yield None
        else:
            # The target of a language model is the token itself.
            place %= len(ids)
            yield Example(row, ids, (place, target_of(row)) if probe.head == "tokens" else place)


def _targets(args: argparse.Namespace, probe: MaskingProbe, data: Rows) -> Callable[[int], Any]:
    """The class or the value of a row by its number, as the probe takes it; `None` for the predicted class."""
    id2label, name = probe.model.config.id2label or {}, args.target
    if _predicts_values(probe.model):
        values = list(id2label.values())
        named = [number for number, value in enumerate(values) if name in (value, str(number))]
        if not named and (name is not None or len(values) > 1):
            value = "" if name is None else f" {name}"
            raise ValueError(f"--target{value}: give one of the values that the model predicts ({', '.join(values)})")
        index = named[0] if named else 0
        return lambda row: _Value(index, values[index])
    class_ids = {label: int(number) for number, label in id2label.items()}
    if not _wants_labels(args, probe.model):
        if name in (None, PREDICTED):
            return lambda row: None
        if name not in class_ids and not name.removeprefix("-").isdecimal():
            raise ValueError(
                f"--target {name!r}: give the number of a class, its name in the model, {LABEL} or {PREDICTED}"
            )
        return lambda row: class_ids[name] if name in class_ids else int(name)
    names = data.classes or []

    def label_of(row: int) -> int:
        label = data.rows[row][data.label_column]
        if not isinstance(label, int):
            raise ValueError(f"row {row} of split {args.split!r} has the label {label!r}, which is not a class")
        # The classes may have another order in the model than in the data.
        return class_ids[names[label]] if set(names) <= set(class_ids) else label

    return label_of


def annotations_of(probe: MaskingProbe, data: Rows, example: Example) -> tuple[int, list[tuple[int, int, str]]]:
    """Index of the token of the first letter of a row, and the spans of its motifs if the data contain them."""
    if data.pair_column is not None or not probe.tokenizer.is_fast:
        return 0, []
    offsets = data.encoded(example.row, probe.tokenizer, return_offsets_mapping=True)["offset_mapping"]
    # Index of a letter -> index of its token.
    token_of = {start: token for token, (start, stop) in enumerate(offsets) if stop > start}
    row = data.rows[example.row]
    name = data.classes[row[data.label_column]] if data.classes and data.label_column else ""
    # The names of generated classes are their motifs.
    label, length = (name, len(name)) if name and set(name) <= set("ACGTN") else ("motif", 1)
    starts = row.get(_MOTIF_COLUMN) or []
    spans = [[token_of[at] for at in range(start, start + length) if at in token_of] for start in starts]
    return min(token_of.values(), default=0), [(min(span), max(span) + 1, label) for span in spans if span]
