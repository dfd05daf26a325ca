"""Model cards: the README.md of a checkpoint, with metadata that the Hub reads.

The template `card_template.md` lies beside this file and is part of the installed package.
"""

import dataclasses
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

CARD_NAME = "README.md"

# Task of the command -> (Auto class, the Hub's name of the task, what the summary calls it, an input to try).
_TASKS = {
    "sequence-classification": (
        "AutoModelForSequenceClassification",
        "text-classification",
        "sequence classification",
    ),
    "token-classification": (
        "AutoModelForTokenClassification",
        "token-classification",
        "token classification",
    ),
    "causal-lm": ("AutoModelForCausalLM", "text-generation", "next-token prediction"),
    "masked-lm": ("AutoModelForMaskedLM", "fill-mask", "masked-token prediction"),
}
# Our name of a metric -> the Hub's; a metric without one stays out of the metadata.
_HUB_METRICS = {
    "accuracy": "accuracy",
    "f1": "f1",
    "mcc": "matthews_correlation",
    "perplexity": "perplexity",
}
_METRIC_NAMES = {"f1": "macro F1", "mcc": "Matthews correlation", "token_accuracy": "token accuracy"}


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """What a run knows about itself, and a card says.

    Attributes:
        model_name: heading, and the name in the model index.
        family: "hyena", "s4" or "selective".
        task: as in `hf-ssm train --task`.
        num_parameters: trainable parameters.
        dataset_name: what people call the data: a Hub id, a file name (never a local path), a generator.
        dataset_description: more about it, one paragraph; empty if there is nothing to say.
        dataset_id: the id on the Hub, if it comes from there; only then it stands in the metadata.
        splits: number of sequences per split, in the order to be shown.
        results: for each split, its metrics; the last split is the one the metadata reports.
        settings: what stands in the table of settings.
        tau: τ per layer under headings such as "at initialisation"; empty if it was not measured.
        selection_note: on which split the checkpoint was chosen.
        environment: versions and hardware, one sentence.
        repo_id: USER/NAME if the model goes to the Hub, else None.
        base_model: the checkpoint that was fine-tuned, if any.
        dna: whether the tokens are nucleotides.
        has_picture: whether `training_log.png` exists.
    """

    model_name: str
    family: str
    task: str
    num_parameters: int
    dataset_name: str
    splits: Mapping[str, int]
    results: Mapping[str, Mapping[str, float]]
    settings: Mapping[str, Any]
    dataset_description: str = ""
    dataset_id: str | None = None
    tau: Mapping[str, list[float]] = dataclasses.field(default_factory=dict)
    selection_note: str = ""
    environment: str = ""
    repo_id: str | None = None
    base_model: str | None = None
    dna: bool = False
    has_picture: bool = False


def card_metadata(facts: CardFacts) -> ModelCardData:
    """The YAML head of the card: library, task, tags, data, and the results as a model index.

    Raises:
        ValueError: for a task that has no entry on the Hub.
    """
    _, pipeline_tag, _ = _task(facts.task)
    last_split, measured = list(facts.results.items())[-1] if facts.results else ("", {})
    known = {name: value for name, value in measured.items() if name in _HUB_METRICS}
    evaluations = [
        EvalResult(
            task_type=pipeline_tag,
            dataset_type=facts.dataset_id or "other",
            dataset_name=facts.dataset_name,
            dataset_split=last_split,
            metric_type=_HUB_METRICS[name],
            metric_name=_METRIC_NAMES.get(name, name),
            metric_value=round(float(value), 6),
        )
        for name, value in known.items()
    ]
    return ModelCardData(
        library_name="transformers",
        pipeline_tag=pipeline_tag,
        tags=["hf_ssm", "state-space-model", facts.family, *(["biology", "dna"] if facts.dna else [])],
        datasets=[facts.dataset_id] if facts.dataset_id else None,
        base_model=facts.base_model,
        metrics=[_HUB_METRICS[name] for name in known] or None,
        model_name=facts.model_name,
        eval_results=evaluations or None,
    )


def build_card(facts: CardFacts) -> ModelCard:
    """The card of a run.

    Raises:
        ValueError: for a task that has no entry on the Hub.
    """
    auto_class, _, task_name = _task(facts.task)
    origin = f"fine-tuned from {facts.base_model}" if facts.base_model else "trained from random weights"
    metric_names = dict.fromkeys(name for split in facts.results.values() for name in split)
    return ModelCard.from_template(
        card_metadata(facts),
        template_str=files("hf_ssm.hub").joinpath("card_template.md").read_text(encoding="utf-8"),
        model_name=facts.model_name,
        summary=(
            f"A {facts.family.capitalize()} state space model of the package `hf_ssm` for {task_name}, "
            f"{origin}. It has {facts.num_parameters:,} parameters."
        ),
        auto_class=auto_class,
        repo_id=facts.repo_id or "path/to/this/folder",
        example="ACGTTGCA" if facts.dna else "some text",
        data_description=_data_description(facts),
        splits=dict(facts.splits),
        selection_note=facts.selection_note,
        results={name: _display(values) for name, values in facts.results.items()},
        metric_names=[_METRIC_NAMES.get(name, name) for name in metric_names],
        has_picture=facts.has_picture,
        tau={when: list(values) for when, values in facts.tau.items()},
        num_layers=max((len(values) for values in facts.tau.values()), default=0),
        settings={name: _cell(value) for name, value in facts.settings.items()},
        environment=facts.environment,
    )


def write_card(folder: str | Path, facts: CardFacts) -> Path:
    """Write the card of a run into `folder` and return its path."""
    path = Path(folder) / CARD_NAME
    build_card(facts).save(path)
    return path


def _task(task: str) -> tuple[str, str, str]:
    if task not in _TASKS:
        raise ValueError(f"task must be one of {', '.join(_TASKS)}, got {task!r}")
    return _TASKS[task]


def _display(values: Mapping[str, float]) -> dict[str, float]:
    return {_METRIC_NAMES.get(name, name): float(value) for name, value in values.items()}


def _cell(value: Any) -> str:
    """A value as it stands in a table: a bar would end the cell, a line break the row."""
    return "`" + " ".join(str(value).split()).replace("|", "\\|") + "`"


def _data_description(facts: CardFacts) -> str:
    name = f"`{facts.dataset_name}`"
    if facts.dataset_id:
        name = f"[{facts.dataset_name}](https://huggingface.co/datasets/{facts.dataset_id}) on the Hub"
    return f"{name}. {facts.dataset_description}".strip()
