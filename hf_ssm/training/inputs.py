"""What a model reads in a run: token ids of texts or numbers of signals, their labels, and how rows become batches."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
)

from hf_ssm.data import GENERATORS, SignalFeatureExtractor, label_names, load_sequences, tokenize
from hf_ssm.data.checks import check_column
from hf_ssm.data.features import SignalCollator, default_normalization, fit_extractor
from hf_ssm.data.labels import label_kind
from hf_ssm.data.signals import is_pixels, is_signal, num_channels, row_lengths, signal_inputs
from hf_ssm.data.tokenized import align_labels
from hf_ssm.tokenization import build_byte_tokenizer, build_dna_tokenizer, build_listops_tokenizer
from hf_ssm.training.settings import RunSettings, nearest
from hf_ssm.training.tasks import TASKS

_BUILDERS: dict[str, Callable[..., PreTrainedTokenizerBase]] = {
    "dna": build_dna_tokenizer,
    "byte": build_byte_tokenizer,
    "listops": build_listops_tokenizer,
}
_DEFAULT_TOKENIZER = "dna"
_KINDS = {
    "class": "one class for each row",
    "classes": "a list of classes for each row",
    "number": "one number for each row",
    "numbers": "a list of numbers for each row",
}


@dataclasses.dataclass(frozen=True)
class RunData:
    """The data of a run.

    Attributes:
        splits: `input_ids` or `input_values`, and `labels` where the task has them, per split.
        processor: what made the inputs, and is saved with the model: a tokenizer for texts, else a feature extractor.
        classes: names of the classes, or None if the task has none.
        label_kind: what a row's label is (see `hf_ssm.data.labels.label_kind`); None if the task has none.
        description: what a generator says about its data; empty for other sources.
        max_length: longest row, in tokens or positions, that a batch may have; None for no limit.
        settled: settings of the section `data` that were left open, and what they came to be.
    """

    splits: DatasetDict
    processor: PreTrainedTokenizerBase | SignalFeatureExtractor
    classes: list[str] | None
    label_kind: str | None
    description: str
    max_length: int | None
    settled: dict[str, Any]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer; None where the data are numbers."""
        return None if isinstance(self.processor, SignalFeatureExtractor) else self.processor

    @property
    def extractor(self) -> SignalFeatureExtractor:
        """The feature extractor of numbers; an error where the data are texts."""
        if not isinstance(self.processor, SignalFeatureExtractor):
            raise TypeError("the data are texts: they have a tokenizer and no feature extractor")
        return self.processor

    @property
    def num_channels(self) -> int | None:
        """Numbers at each position; None where the data are texts."""
        return None if self.tokenizer is not None else num_channels(self.splits["train"], "input_values")

    @property
    def images(self) -> bool:
        """Whether the sequences are pixels."""
        return self.tokenizer is None and is_pixels(self.splits["train"], "input_values")

    @property
    def longest(self) -> int:
        """Tokens or positions of the longest sequence of any split."""
        column = "input_values" if self.tokenizer is None else "input_ids"
        found = max(int(row_lengths(split, column).max()) for split in self.splits.values())
        return found if self.max_length is None else min(found, self.max_length)

    @property
    def signal_shape(self) -> tuple[int, int] | None:
        """Positions and channels of the longest sequence of numbers; None where the data are texts."""
        return None if self.num_channels is None else (self.longest, self.num_channels)

    def batch(self, rows: Dataset) -> dict[str, Any]:
        """The inputs of some rows as one padded batch, without labels."""
        plain: Any = rows.select_columns(["input_values" if self.tokenizer is None else "input_ids"])
        if self.tokenizer is not None:
            return dict(DataCollatorWithPadding(self.tokenizer)(list(plain)))
        return SignalCollator(self.extractor, self.max_length)(list(plain))


def load_tokenizer(settings: RunSettings) -> PreTrainedTokenizerBase:
    """The tokenizer of `data.tokenizer`: "dna", "byte", "listops", a folder or Hub id, or else that of the checkpoint.

    With neither, it is that for DNA.

    Raises:
        ValueError: for an unknown name, a folder or Hub id without a tokenizer, or a tokenizer without the special
            tokens that the task needs.
        OSError: if a Hub id cannot be read.
    """
    name = settings.data["tokenizer"] or settings.model["checkpoint"] or _DEFAULT_TOKENIZER
    if name in _BUILDERS:
        # Whoever asks for a masked byte writes [MASK] into a text.
        options = {"special_tokens_in_text": True} if (name, settings.task) == ("byte", "masked-lm") else {}
        tokenizer = _BUILDERS[name](model_max_length=settings.data["max_length"], **options)
    elif settings.data["tokenizer"] and not Path(name).is_dir() and "/" not in name:
        raise ValueError(
            f"data.tokenizer {name!r} is neither a folder, a Hub id, nor a name: {nearest(name, _BUILDERS)}"
        )
    else:
        tokenizer = _stored_tokenizer(name)
    needed = ["pad_token", *(["mask_token"] if settings.task == "masked-lm" else [])]
    for token in needed:
        if getattr(tokenizer, token) is None:
            raise ValueError(f"tokenizer {name!r} has no {token}, which {settings.task} needs: set it")
    return tokenizer


def _stored_tokenizer(name: str) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(name)
    except ValueError as error:  # transformers speaks of sentencepiece
        raise ValueError(
            f"{name!r} has no tokenizer that can be loaded, and the data are texts: choose a model that was trained on "
            "texts, or say data.tokenizer"
        ) from error


def load_data(settings: RunSettings) -> RunData:
    """Load the data of the settings, and tokenize them if they are texts.

    Raises:
        ValueError: for unreadable or unsuitable data; see `load_sequences` and `tokenize`.
        OSError: if a file is missing or the Hub cannot be reached.
    """
    source, arguments, task = settings.data["dataset"], settings.loader_arguments, TASKS[settings.task]
    sequence_column = arguments.get("sequence_column", "sequence")
    label_column = arguments.get("label_column", "label") if task.labelled else None
    if task.labelled and label_column is None:
        raise ValueError(f"model.task={settings.task!r} needs labels: name their column with data.label_column")
    # A wrong name shall not be found out after a download.
    tokenizer = load_tokenizer(settings) if settings.data["tokenizer"] else None
    if source not in GENERATORS:
        arguments.update(label_column=label_column, targets=task.predicts_numbers)
    data = load_sequences(source, **arguments)
    kind = None
    if label_column is not None:
        check_column("label_column", label_column, data["train"].column_names, "the data")
        kind = label_kind(data["train"], label_column)
        _check_label_kind(settings, kind)
    loaded = RunData(
        splits=data,
        processor=SignalFeatureExtractor(),
        classes=None if label_column is None or task.predicts_numbers else label_names(data, label_column),
        label_kind=kind,
        description=data["train"].info.description if source in GENERATORS else "",
        max_length=settings.data["max_length"],
        settled={},
    )
    check_column("sequence_column", sequence_column, data["train"].column_names, "the data")
    if is_signal(data["train"].features[sequence_column]):
        return _with_signals(loaded, settings, sequence_column, label_column)
    return _with_tokens(loaded, settings, tokenizer, sequence_column, label_column)


def _with_signals(loaded: RunData, settings: RunSettings, sequence_column: str, label_column: str | None) -> RunData:
    _refuse_for_numbers(settings)
    splits = signal_inputs(loaded.splits, sequence_column, label_column)
    if loaded.label_kind == "classes":
        check_label_for_each_position(splits)
    normalization = settings.data["normalization"]
    checkpoint = settings.model["checkpoint"]
    if checkpoint is not None and normalization is None:
        extractor, settled = _extractor_of(checkpoint), {}
    else:
        extractor = fit_extractor(splits["train"], "input_values", normalization)
        chosen = normalization or default_normalization(is_pixels(splits["train"], "input_values"))
        settled = {"normalization": chosen}
    return dataclasses.replace(loaded, splits=splits, processor=extractor, settled=settled)


def _extractor_of(checkpoint: str) -> SignalFeatureExtractor:
    try:
        return SignalFeatureExtractor.from_pretrained(checkpoint)
    except OSError as error:
        raise ValueError(
            f"--model {checkpoint!r} has no preprocessor_config.json, which says how numbers become its inputs: choose "
            "a model that was trained on images or numbers, or say data.normalization"
        ) from error


def _with_tokens(
    loaded: RunData,
    settings: RunSettings,
    tokenizer: PreTrainedTokenizerBase | None,
    sequence_column: str,
    label_column: str | None,
) -> RunData:
    _refuse_for_texts(settings)
    settled = {}
    if tokenizer is None:
        tokenizer = load_tokenizer(settings)
        settled = {} if settings.model["checkpoint"] else {"tokenizer": _DEFAULT_TOKENIZER}
    limit, pairs = settings.data["max_length"], settings.loader_arguments.get("pair_column")
    splits = tokenize(loaded.splits, tokenizer, sequence_column, label_column, limit, pairs)
    if loaded.label_kind == "classes":
        splits = align_labels(splits, tokenizer, limit)
    return dataclasses.replace(loaded, splits=splits, processor=tokenizer, settled=settled)


def _check_label_kind(settings: RunSettings, kind: str) -> None:
    wanted = TASKS[settings.task].labels
    if kind in wanted:
        return
    fitting = [name for name, task in TASKS.items() if kind in task.labels]
    raise ValueError(
        f"model.task={settings.task!r} needs {' or '.join(_KINDS[label] for label in wanted)}, but the labels of "
        f"{settings.data['dataset']!r} are {_KINDS[kind]}: choose --task {' or '.join(fitting)}, or another "
        "data.label_column"
    )


def _refuse_for_numbers(settings: RunSettings) -> None:
    source = settings.data["dataset"]
    if TASKS[settings.task].reads == "text":
        fitting = [name for name, task in TASKS.items() if task.reads != "text"]
        raise ValueError(
            f"model.task={settings.task!r} predicts tokens, but {source!r} holds images or numbers: choose --task "
            f"{' or '.join(fitting)}"
        )
    for key in ("tokenizer", "reverse_complement", "pair_column"):
        if settings.data.get(key):
            raise ValueError(
                f"data.{key}={settings.data[key]!r} is for texts, but {source!r} holds images or numbers: leave it out"
            )


def _refuse_for_texts(settings: RunSettings) -> None:
    source = settings.data["dataset"]
    if TASKS[settings.task].reads == "numbers":
        raise ValueError(
            f"model.task={settings.task!r} reads numbers, but {source!r} holds texts: choose another task, or name the "
            "column of the numbers with data.sequence_column"
        )
    if settings.data["normalization"] is not None:
        raise ValueError(
            f"data.normalization={settings.data['normalization']!r} is for images and numbers, but {source!r} holds "
            "texts: leave it out"
        )
    if settings.data["reverse_complement"] and settings.data.get("pair_column"):
        raise ValueError(
            "data.reverse_complement would carry letters from one text of a pair to the other: leave it out"
        )
    if settings.task == "token-classification":
        for key in ("reverse_complement", "pair_column"):
            if settings.data.get(key):
                raise ValueError(
                    f"data.{key} would part tokens from their labels in token-classification: leave it out"
                )


def check_label_for_each_position(splits: DatasetDict) -> None:
    """Refuse lists of labels that are not as long as the signals.

    Raises:
        ValueError: naming the first such row.
    """
    for name, split in splits.items():
        positions, labels = row_lengths(split, "input_values"), row_lengths(split, "labels")
        wrong = (positions != labels).nonzero()[0]
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"split {name!r}, row {row + 1}: {labels[row]} labels for {positions[row]} positions; give one for "
                "each (or, for one vector of numbers from the whole sequence, set model.pooling=mean)"
            )


def build_collator(settings: RunSettings, data: RunData) -> Callable[[list[Any]], Any]:
    """The collator of the task; masks are drawn from the seed of the run."""
    if data.tokenizer is None:
        return SignalCollator(data.extractor, data.max_length)
    if settings.task == "token-classification":
        return DataCollatorForTokenClassification(data.tokenizer)
    if TASKS[settings.task].labelled:
        return DataCollatorWithPadding(data.tokenizer)
    return DataCollatorForLanguageModeling(
        data.tokenizer, mlm=settings.task == "masked-lm", seed=int(settings.training["seed"])
    )
