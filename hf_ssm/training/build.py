"""What a run is made of, built from its settings: tokenizer, token ids, model, collator, metrics."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import DatasetDict
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_ssm.data import GENERATORS, label_names, load_sequences, tokenize
from hf_ssm.tokenization import build_byte_tokenizer, build_dna_tokenizer
from hf_ssm.training import metrics
from hf_ssm.training.settings import MODEL_TYPE_PREFIX, RunSettings, config_class, nearest

_BUILDERS: dict[str, Callable[..., PreTrainedTokenizerBase]] = {
    "dna": build_dna_tokenizer,
    "byte": build_byte_tokenizer,
}


@dataclasses.dataclass(frozen=True)
class Task:
    """How a task is trained and judged.

    Attributes:
        auto_class: makes and loads the model.
        labelled: whether the data must have labels.
        best_metric: the metric of the validation split that chooses the checkpoint.
        greater_is_better: whether a larger value of it is better.
        compute_metrics: for the Trainer.
        preprocess: the Trainer's `preprocess_logits_for_metrics`, if any.
    """

    auto_class: Any
    labelled: bool
    best_metric: str
    greater_is_better: bool
    compute_metrics: Callable[..., dict[str, float]]
    preprocess: Callable[..., Any] | None = None


TASKS: dict[str, Task] = {
    "sequence-classification": Task(
        AutoModelForSequenceClassification, True, "accuracy", True, metrics.classification_metrics
    ),
    "causal-lm": Task(
        AutoModelForCausalLM,
        False,
        "perplexity",
        False,
        metrics.language_modeling_metrics,
        metrics.token_statistics(shift=True),
    ),
    "masked-lm": Task(
        AutoModelForMaskedLM,
        False,
        "perplexity",
        False,
        metrics.language_modeling_metrics,
        metrics.token_statistics(shift=False),
    ),
}


def load_tokenizer(settings: RunSettings) -> PreTrainedTokenizerBase:
    """The tokenizer of `data.tokenizer`: "dna", "byte", a folder or Hub id, or else that of the checkpoint.

    Raises:
        ValueError: for an unknown name, or a tokenizer without the special tokens that the task needs.
        OSError: if a folder or Hub id holds no tokenizer.
    """
    name = settings.data["tokenizer"] or settings.model["checkpoint"]
    if name in _BUILDERS:
        tokenizer = _BUILDERS[name](model_max_length=settings.data["max_length"])
    elif settings.data["tokenizer"] and not Path(name).is_dir() and "/" not in name:
        raise ValueError(
            f"data.tokenizer {name!r} is neither a folder, a Hub id, nor a name: {nearest(name, _BUILDERS)}"
        )
    else:
        tokenizer = AutoTokenizer.from_pretrained(name)
    needed = ["pad_token", *(["mask_token"] if settings.task == "masked-lm" else [])]
    for token in needed:
        if getattr(tokenizer, token) is None:
            raise ValueError(f"tokenizer {name!r} has no {token}, which {settings.task} needs: set it")
    return tokenizer


@dataclasses.dataclass(frozen=True)
class RunData:
    """The data of a run.

    Attributes:
        tokens: `input_ids` (and `labels`) per split.
        classes: names of the classes, or None if the task has none.
        description: what a generator says about its data; empty for other sources.
    """

    tokens: DatasetDict
    classes: list[str] | None
    description: str

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of any split."""
        return max(len(row) for split in self.tokens.values() for row in split["input_ids"])


def load_data(settings: RunSettings, tokenizer: PreTrainedTokenizerBase) -> RunData:
    """Load and tokenize the data of the settings.

    Raises:
        ValueError: for unreadable or unsuitable data; see `load_sequences` and `tokenize`.
        OSError: if a file is missing or the Hub cannot be reached.
    """
    source, arguments = settings.data["dataset"], settings.loader_arguments
    sequence_column = arguments.get("sequence_column", "sequence")
    label_column = arguments.get("label_column", "label") if TASKS[settings.task].labelled else None
    if source not in GENERATORS:
        arguments["label_column"] = label_column
    data = load_sequences(source, **arguments)
    return RunData(
        tokens=tokenize(data, tokenizer, sequence_column, label_column, settings.data["max_length"]),
        classes=None if label_column is None else label_names(data, label_column),
        description=data["train"].info.description if source in GENERATORS else "",
    )


def build_model(
    settings: RunSettings,
    tokenizer: PreTrainedTokenizerBase,
    data: RunData,
    resume_from: Path | None = None,
) -> PreTrainedModel:
    """A fresh model, one to fine-tune, or the one of a checkpoint of this very run.

    Args:
        settings: of the run.
        tokenizer: its vocabulary and special tokens enter the configuration of a fresh model.
        data: a fresh model takes sequences as long as its longest, and has its classes.
        resume_from: checkpoint of this run to go on from.

    Raises:
        ValueError: if configuration, data, tokenizer and checkpoint do not fit together.
        OSError: if a checkpoint cannot be read.
    """
    auto_class = TASKS[settings.task].auto_class
    if resume_from is not None:
        model = auto_class.from_pretrained(resume_from)
    elif settings.model["checkpoint"] is not None:
        model = _load_for_fine_tuning(settings, data.classes)
    else:
        model = auto_class.from_config(_fresh_config(settings, tokenizer, data))
    if model.config.vocab_size < len(tokenizer):
        raise ValueError(
            f"the model has vocab_size={model.config.vocab_size} but the tokenizer has {len(tokenizer)} "
            "tokens: leave model.vocab_size out, or use the tokenizer of the checkpoint"
        )
    limit = model.config.longest_input
    if limit is not None and data.longest > limit:
        raise ValueError(
            f"the longest sequence has {data.longest} tokens but the model takes {limit}: cut the sequences "
            f"with --max-length {limit}, or make model.max_position_embeddings larger"
        )
    return model


def _fresh_config(settings: RunSettings, tokenizer: PreTrainedTokenizerBase, data: RunData) -> Any:
    config_type = config_class(str(settings.model["family"]))
    aliases = config_type.attribute_map
    fields = {aliases.get(name, name): value for name, value in settings.config_fields.items()}
    fields.setdefault("vocab_size", len(tokenizer))
    for token in ("pad", "bos", "eos"):
        fields.setdefault(f"{token}_token_id", getattr(tokenizer, f"{token}_token_id"))
    if any(field.name == "max_position_embeddings" for field in dataclasses.fields(config_type)):
        fields.setdefault("max_position_embeddings", settings.data["max_length"] or data.longest)
    classes = data.classes
    if classes is not None:
        if fields.pop("num_labels", len(classes)) != len(classes):
            raise ValueError(
                f"model.num_labels={settings.model['num_labels']} but the data has {len(classes)} classes "
                f"({', '.join(classes)}): leave it out"
            )
        fields.update(_class_names(classes))
    return config_type(**fields)


def _load_for_fine_tuning(settings: RunSettings, classes: list[str] | None) -> PreTrainedModel:
    checkpoint = settings.model["checkpoint"]
    config = AutoConfig.from_pretrained(checkpoint)
    family = config.model_type.removeprefix(MODEL_TYPE_PREFIX)
    if family == config.model_type:
        raise ValueError(f"--model {checkpoint!r} is a {config.model_type!r} model, not one of hf_ssm")
    if settings.model["family"] not in (None, family):
        raise ValueError(f"--model {checkpoint!r} is of family {family!r}: leave --family out")
    known = {field.name for field in dataclasses.fields(config)} | set(config.attribute_map)
    for name, value in settings.config_fields.items():
        if name not in known:
            raise ValueError(f"model: unknown key {name!r}: {nearest(name, known)}")
        setattr(config, name, value)
    config.check()
    if classes is not None:
        for name, value in _class_names(classes).items():
            setattr(config, name, value)
    # A head for other classes is made anew; anything else of another shape is a mistake in the settings.
    model, info = TASKS[settings.task].auto_class.from_pretrained(
        checkpoint, config=config, ignore_mismatched_sizes=True, output_loading_info=True
    )
    changed = [str(entry[0]) for entry in info["mismatched_keys"]]
    wrong = [name for name in changed if not name.startswith("classifier.")]
    if wrong:
        raise ValueError(
            f"--model {checkpoint!r} does not fit the model settings: {', '.join(wrong[:3])} have another "
            "shape; leave the sizes out of the settings"
        )
    return model


def _class_names(classes: list[str]) -> dict[str, dict[Any, Any]]:
    return {
        "id2label": dict(enumerate(classes)),
        "label2id": {name: index for index, name in enumerate(classes)},
    }


def build_collator(settings: RunSettings, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[Any]], Any]:
    """The collator of the task; masks are drawn from the seed of the run."""
    if TASKS[settings.task].labelled:
        return DataCollatorWithPadding(tokenizer)
    return DataCollatorForLanguageModeling(
        tokenizer, mlm=settings.task == "masked-lm", seed=int(settings.training["seed"])
    )
