"""Model cards: the README.md of a checkpoint, with metadata that the Hub reads.

The template `card_template.md` lies beside this file and is part of the installed package. It is filled by
`hf-ssm train` with what the run knows (`write_card`), and by `hf_ssm.hub.export` with what a model tells of itself
(`write_default_card`). `hf-ssm report --update-card` puts the theory report into its place later (`update_section`).
"""

import dataclasses
import os
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedConfig

from hf_ssm.models.registry import HEADS

CARD_NAME = "README.md"
# Between these comments stands what `hf-ssm report --update-card` wrote, and may replace.
_BEGIN, _END = "<!-- hf-ssm report: begin -->", "<!-- hf-ssm report: end -->"

# Task of the command -> (Auto class, the Hub's name of the task, what the summary calls it).
_TASKS: dict[str, tuple[str, str | None, str]] = {
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
    "signal-regression": (
        "AutoModelForTimeSeriesPrediction",
        None,
        "regression on signals",
    ),
    "causal-lm": ("AutoModelForCausalLM", "text-generation", "next-token prediction"),
    "masked-lm": ("AutoModelForMaskedLM", "fill-mask", "masked-token prediction"),
    "features": ("AutoModel", "feature-extraction", "features of sequences"),
}
# Our name of a metric -> the Hub's; a metric without one stays out of the metadata.
_HUB_METRICS = {
    "accuracy": "accuracy",
    "f1": "f1",
    "mcc": "matthews_correlation",
    "perplexity": "perplexity",
    "mse": "mse",
    "mae": "mae",
}
_SOME_FOLDER, _SOME_POSITIONS = "path/to/this/folder", 100
# Where the curves of `hf-ssm probe` lie in the folder of a checkpoint, if they do.
_PROBE_PICTURES = ("curve.png", "*/curve.png")
_OF_A_RUN = (
    "Settings that differ from the defaults of the configuration, and those of the optimizer; all of them are in "
    "`train_config.yaml`, and `hf-ssm train --config train_config.yaml --output DIR` repeats the run."
)
_LIMITS_OF_A_RUN = (
    "This card was written by the command that trained the model. It states what was measured in that run and nothing "
    "more: one data set, one seed. Whoever shares the model should add its licence, the licence of the data, and what "
    "the model is not fit for."
)
_LIMITS_OF_AN_EXPORT = (
    "This card was written when the model was exported, and knows neither what it was trained for nor how well it does "
    "that. Whoever shares the model should say so, and add its licence, the licence of the data, and what the model is "
    "not fit for."
)
_METRIC_NAMES = {"f1": "macro F1", "mcc": "Matthews correlation", "token_accuracy": "token accuracy"}


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """What a run knows about itself, and a card says.

    Attributes:
        model_name: heading, and the name in the model index.
        family: "hyena", "s4" or "selective".
        task: as in `hf-ssm train --task`.
        num_parameters: trainable parameters.
        dataset_name: what people call the data: a Hub id, a file name (never a local path), a generator; empty if
            nobody knows.
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
        signal_shape: positions and channels of what the model reads, if that is numbers.
        images: whether these are pixels.
        has_picture: whether `training_log.png` exists.
        movement: relative change of the parameters in training, by what they are.
        response_picture: name of the picture of the frequency responses, if there is one.
        origin: where the weights come from, if they were not fine-tuned; empty if nobody knows.
        theory: Markdown of the theory report, with its heading; empty if there is none yet.
        probe: Markdown of what the importance probe found, such as a picture; empty if there was none.
        training_note: what is said above the table of settings.
        limits: what the card does not say.
        has_processor: whether the tokenizer or feature extractor lies beside the model.
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
    signal_shape: tuple[int, int] | None = None
    images: bool = False
    has_picture: bool = False
    movement: Mapping[str, float] = dataclasses.field(default_factory=dict)
    response_picture: str | None = None
    origin: str = "trained from random weights"
    theory: str = ""
    probe: str = ""
    training_note: str = _OF_A_RUN
    limits: str = _LIMITS_OF_A_RUN
    has_processor: bool = True


def card_metadata(facts: CardFacts) -> ModelCardData:
    """The YAML head of the card: library, task, tags, data, and the results as a model index.

    Raises:
        ValueError: for a task that has no entry on the Hub.
    """
    pipeline_tag = _pipeline_tag(facts)
    last_split, measured = list(facts.results.items())[-1] if facts.results else ("", {})
    known = {name: value for name, value in measured.items() if name in _HUB_METRICS}
    evaluations = [
        EvalResult(
            task_type=pipeline_tag or "other",
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
    auto_class = _task(facts.task)[0]
    metric_names = dict.fromkeys(name for split in facts.results.values() for name in split)
    return ModelCard.from_template(
        card_metadata(facts),
        template_str=files("hf_ssm.hub").joinpath("card_template.md").read_text(encoding="utf-8"),
        model_name=facts.model_name,
        summary=_summary(facts),
        auto_class=auto_class,
        output="last_hidden_state" if auto_class == "AutoModel" else "logits",
        pipeline_tag=_task(facts.task)[1],
        repo_id=facts.repo_id or _SOME_FOLDER,
        example=_example(facts),
        has_processor=facts.has_processor,
        signal_shape=facts.signal_shape,
        images=facts.images,
        data_description=_data_description(facts),
        splits=dict(facts.splits),
        selection_note=facts.selection_note,
        results={name: _display(values) for name, values in facts.results.items()},
        metric_names=[_METRIC_NAMES.get(name, name) for name in metric_names],
        has_picture=facts.has_picture,
        tau={when: list(values) for when, values in facts.tau.items()},
        num_layers=max((len(values) for values in facts.tau.values()), default=0),
        movement=dict(facts.movement),
        response_picture=facts.response_picture,
        settings={name: _cell(value) for name, value in facts.settings.items()},
        environment=facts.environment,
        theory_report=f"{_BEGIN}\n{(facts.theory or _no_report(facts)).strip()}\n{_END}",
        probe=facts.probe,
        training_note=facts.training_note,
        limits=facts.limits,
    )


def write_card(folder: str | Path, facts: CardFacts) -> Path:
    """Write the card of a run into `folder` and return its path."""
    path = Path(folder) / CARD_NAME
    build_card(facts).save(path)
    return path


def write_default_card(folder: str | Path, model: Any, tokenizer: Any = None, *, name: str | None = None) -> Path:
    """Write the card of a model of which no more is known than it tells itself; one that is there stays as it is.

    Args:
        folder: of the checkpoint.
        model: of hf_ssm, with any head.
        tokenizer: its tokenizer, if it has one.
        name: heading; USER/NAME is also what the code on the card loads. By default the name of the folder.

    Returns:
        The path of the card.
    """
    path = Path(folder) / CARD_NAME
    if path.exists():
        return path
    config = model.config
    channels = config.num_input_channels
    head = next(head for head in reversed(HEADS) if type(model).__name__.endswith(head))
    name = name or Path(folder).resolve().name
    facts = CardFacts(
        model_name=name.rpartition("/")[2],
        family=config.model_type.removeprefix("hf_ssm_"),
        task=next(task for task, (auto_class, *_) in _TASKS.items() if auto_class == HEADS[head]),
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        dataset_name="",
        splits={},
        results={},
        settings={f"model.{key}": value for key, value in _chosen(config).items()},
        repo_id=name if "/" in name else None,
        dna=_reads_dna(tokenizer),
        signal_shape=None if channels is None else (config.longest_input or _SOME_POSITIONS, channels),
        origin="",
        probe=probe_section(folder),
        training_note="Settings that differ from the defaults of the configuration.",
        limits=_LIMITS_OF_AN_EXPORT,
        has_processor=tokenizer is not None,
    )
    return write_card(folder, facts)


def addressed(card: str, repo_id: str) -> str:
    """The text of a card whose code loads a repository, where it loaded "path/to/this/folder"."""
    return card.replace(f'("{_SOME_FOLDER}"', f'("{repo_id}"')


def probe_section(folder: str | Path) -> str:
    """The pictures that `hf-ssm probe --output` left in the folder of a checkpoint, as Markdown; empty without any."""
    found = sorted({path for pattern in _PROBE_PICTURES for path in Path(folder).glob(pattern)})
    if not found:
        return ""
    pictures = [f"![Probability against masked tokens]({path.relative_to(folder).as_posix()})" for path in found]
    return "\n\n".join(
        ["What the model says of a sequence as its tokens are masked, the least important first.", *pictures]
    )


def update_section(folder: str | Path, section: str) -> Path:
    """Put a section between marker comments into the card of a folder, in the place of the one that is there.

    Everything outside the markers stays as it is. Where there are none, the section comes last; where there is no card,
    it gets one with a heading.

    Args:
        folder: with the card, or without one.
        section: Markdown.

    Returns:
        The path of the card.

    Raises:
        ValueError: one marker stands without the other, or they come twice or in the wrong order.
        OSError: if the card cannot be read or written; it then is as it was.
    """
    path = Path(folder) / CARD_NAME
    before, after = _around_section(path)
    newline = "\r\n" if "\r\n" in before + (after or "") else "\n"
    block = f"{_BEGIN}\n{section.strip()}\n{_END}".replace("\n", newline)
    if after is None:
        ends = before.endswith("\n")
        before, after = f"{before}{newline if ends else 2 * newline}", newline
    part = path.with_name(f".{CARD_NAME}.part")
    try:
        # Bytes, as text would change the ends of the lines.
        part.write_bytes((before + block + after).encode("utf-8"))
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def check_section(folder: str | Path) -> None:
    """Refuse a folder on whose card `update_section` could not put a section; raises what that would."""
    _around_section(Path(folder) / CARD_NAME)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{str(Path(folder) / CARD_NAME)!r} cannot be replaced: its folder is read-only")


def _around_section(path: Path) -> tuple[str, str | None]:
    """What stands before and after the section of a card; `None` where it has no section."""
    text = path.read_bytes().decode("utf-8") if path.exists() else f"# {path.resolve().parent.name}\n"
    if _BEGIN not in text and _END not in text:
        return text, None
    before, _, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end or text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise ValueError(
            f"{str(path)!r} must have the line {_BEGIN!r} and, below it, {_END!r}, each once: put them in order, "
            "or take them out to have the section added at the end"
        )
    return before, after


def _pipeline_tag(facts: CardFacts) -> str | None:
    """The Hub's name of the task; it has none for signals that are no images."""
    tag = _task(facts.task)[1]
    if facts.signal_shape is None:
        return tag
    return "image-classification" if facts.images and facts.task == "sequence-classification" else None


def _task(task: str) -> tuple[str, str | None, str]:
    if task not in _TASKS:
        raise ValueError(f"task must be one of {', '.join(_TASKS)}, got {task!r}")
    return _TASKS[task]


def _summary(facts: CardFacts) -> str:
    article = "An" if facts.family == "s4" else "A"
    origin = f"fine-tuned from {facts.base_model}" if facts.base_model else facts.origin
    what = f"{facts.family.capitalize()} state space model of the package `hf_ssm` for {_task(facts.task)[2]}"
    return f"{article} {what}{', ' if origin else ''}{origin}. It has {facts.num_parameters:,} parameters."


def _example(facts: CardFacts) -> str:
    if facts.task == "masked-lm":
        return "ACG[MASK]TGCA" if facts.dna else "some [MASK] text"
    return "ACGTTGCA" if facts.dna else "some text"


def _no_report(facts: CardFacts) -> str:
    data = "" if facts.dataset_name else " --dataset SOURCE"
    return f"## Theory report\n\nNot measured yet: `hf-ssm report {_SOME_FOLDER}{data} --update-card` writes it here."


def _chosen(config: Any) -> dict[str, Any]:
    """Fields of a configuration that are not what they are by default."""
    plain, theirs = type(config)(), {field.name for field in dataclasses.fields(PreTrainedConfig)}
    names = [field.name for field in dataclasses.fields(config) if field.name not in theirs]
    chosen = {name: getattr(config, name) for name in names if not name.endswith("_token_id")}
    return {name: value for name, value in chosen.items() if value != getattr(plain, name)}


def _reads_dna(tokenizer: Any) -> bool:
    return tokenizer is not None and tokenizer.convert_tokens_to_ids(["A", "C", "G", "T"]) == [7, 8, 9, 10]


def _display(values: Mapping[str, float]) -> dict[str, float]:
    return {_METRIC_NAMES.get(name, name): float(value) for name, value in values.items()}


def _cell(value: Any) -> str:
    """A value as it stands in a table: a bar would end the cell, a line break the row."""
    return "`" + " ".join(str(value).split()).replace("|", "\\|") + "`"


def _data_description(facts: CardFacts) -> str:
    if not facts.dataset_name:
        return "Not known to whoever wrote this card."
    name = f"`{facts.dataset_name}`"
    if facts.dataset_id:
        name = f"[{facts.dataset_name}](https://huggingface.co/datasets/{facts.dataset_id}) on the Hub"
    return f"{name}. {facts.dataset_description}".strip()
