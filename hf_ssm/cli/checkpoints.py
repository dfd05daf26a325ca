"""What the commands that read a checkpoint and data share."""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedModel

    from hf_ssm.training.settings import RunSettings

SEED = 0
"""Rows are drawn with it, so that a report can be repeated."""

OVERWRITE_MEND = "choose another folder, or replace the report in it (--overwrite-output)"
"""What to do about an --output that is not empty."""

# Settings of a run that say how any data are read, not which data.
_OF_ANY_DATA = ("max_length",)
_TASKS = {
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForSignalRegression": "signal-regression",
    "ForCausalLM": "causal-lm",
    "ForMaskedLM": "masked-lm",
}


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """The checkpoint, and data that are by default those it was trained on."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder or Hub id of a model of hf_ssm")
    parser.add_argument(
        "--dataset", metavar="SOURCE", help="as in `hf-ssm train`; default: that of CHECKPOINT/train_config.yaml"
    )


def add_data_options(parser: argparse.ArgumentParser, split: str, rows: int, purpose: str) -> None:
    """Which rows of the data are read, and how.

    Args:
        parser: Of the command.
        split: Default of --split.
        rows: Default of --rows.
        purpose: What the command does with them, in the infinitive.
    """
    others = " or ".join(name for name in ("train", "validation", "test") if name != split)
    parser.add_argument(
        "--tokenizer", metavar="NAME", help="as in `hf-ssm train`; default: that of the checkpoint, if there is one"
    )
    parser.add_argument("--max-length", metavar="TOKENS", type=int, help="cut longer sequences")
    parser.add_argument("--split", metavar="NAME", default=split, help=f"{split} (default), {others}")
    parser.add_argument(
        "--rows", metavar="N", type=int, default=rows, help=f"sequences to {purpose}, drawn by chance (default {rows})"
    )
    parser.add_argument(
        "--set",
        metavar="data.KEY=VALUE",
        action="append",
        default=[],
        dest="assignments",
        help="any other data setting",
    )


def add_output_options(parser: argparse.ArgumentParser, files: str, *, required: bool = False) -> None:
    """The folder for what the command finds; `files` says what that is."""
    parser.add_argument("--output", metavar="DIR", type=Path, required=required, help=f"folder for {files}")
    parser.add_argument("--overwrite-output", action="store_true", help="replace what an earlier run left in --output")


def check_positive(args: argparse.Namespace, *names: str) -> None:
    """Refuse options below 1; `names` are those of the attributes."""
    for name in names:
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be positive, got {getattr(args, name)}")


def load_config(checkpoint: str) -> Any:
    """The configuration of a model of hf_ssm.

    Raises:
        ValueError: It is a file, an adapter alone, or a model of others.
        FileNotFoundError: There is no such folder.
        OSError: There is no such repository, or the Hub cannot be reached.
    """
    from transformers import AutoConfig

    from hf_ssm.training.settings import MODEL_TYPE_PREFIX

    if Path(checkpoint).is_file():
        raise ValueError(f"{checkpoint!r} is a file: give the folder of a checkpoint (`hf-ssm convert` makes one)")
    folder = Path(checkpoint)
    if not checkpoint or (not folder.is_dir() and (checkpoint.count("/") != 1 or checkpoint[0] in "./~")):
        raise FileNotFoundError(f"{checkpoint!r} is neither a folder nor the id of a Hub repository, USER/NAME")
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ValueError(
            f"{checkpoint!r} holds an adapter of PEFT without its model: load both, put them together "
            "(`merge_and_unload`), save that, and give its folder"
        )
    config = AutoConfig.from_pretrained(checkpoint)
    if not config.model_type.startswith(MODEL_TYPE_PREFIX):
        raise ValueError(f"{checkpoint!r} is a {config.model_type!r} model, not one of hf_ssm")
    return config


def load_model(checkpoint: str, config: Any) -> "PreTrainedModel":
    """The model with its own head, on the accelerator where there is one.

    Raises:
        ValueError: Its weights are not all there, or cannot be read.
    """
    import torch
    from safetensors import SafetensorError

    import hf_ssm

    name = (config.architectures or [f"{type(config).__name__.removesuffix('Config')}Model"])[0]
    if name not in hf_ssm.__all__:
        raise ValueError(f"{checkpoint!r} holds a {name}, which hf_ssm does not have")
    try:
        model, info = getattr(hf_ssm, name).from_pretrained(checkpoint, output_loading_info=True)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"the weights of {checkpoint!r} cannot be read: {error}") from error
    lacking = sorted(info["missing_keys"])
    if lacking:
        raise ValueError(f"{checkpoint!r} is no whole {name}: it lacks {', '.join(lacking[:3])}")
    # Moments are counted in double precision, which Apple's accelerator does not have.
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return model.to(accelerator) if accelerator is not None and accelerator.type != "mps" else model


def file_of(checkpoint: str, name: str) -> Path | None:
    """A file of a folder or of a repository on the Hub; `None` where it has none of that name."""
    from transformers.utils import cached_file

    found = cached_file(
        checkpoint,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
    return None if found is None else Path(found)


def check_tokenizer(checkpoint: str, config: Any, settings: "RunSettings") -> None:
    """Refuse a checkpoint that has none where one is needed: transformers would make one up."""
    names = ("tokenizer.json", "tokenizer_config.json")
    if config.num_input_channels is not None or settings.data["tokenizer"]:
        return
    if all(file_of(checkpoint, name) is None for name in names):
        raise ValueError(f"{checkpoint!r} has no tokenizer: give --tokenizer (dna, byte, a folder or a Hub id)")


def check_fit(config: Any, longest: int) -> None:
    """Refuse sequences that are longer than what the model takes."""
    limit = config.longest_input
    if limit is not None and longest > limit:
        raise ValueError(
            f"the longest sequence has {longest} tokens but the model takes {limit}: cut the sequences "
            f"with --max-length {limit}"
        )


def rows_of(splits: "DatasetDict", split: str) -> "Dataset":
    """The rows of --split, which are one at least."""
    if split not in splits:
        raise ValueError(f"--split {split!r}: the data have the splits {', '.join(splits)}")
    if len(splits[split]) == 0:
        raise ValueError(f"--split {split!r} holds no sequence")
    return splits[split]


def chosen_rows(splits: "DatasetDict", split: str, count: int) -> "Dataset":
    """Some rows of a split, drawn by chance, in their order."""
    rows = rows_of(splits, split)
    if count >= len(rows):
        return rows
    return rows.select(sorted(random.Random(SEED).sample(range(len(rows)), count)))


def public_name(source: str) -> str:
    """A Hub id as it is; of a local path, which is nobody's business, its last part."""
    path = Path(source).expanduser()
    return path.resolve().name if path.exists() else source


def data_assignments(texts: Sequence[str], what: str) -> dict[str, Any]:
    """The values of --set, which may be of the section `data` only; `what` is the command, for the message."""
    from hf_ssm.training.settings import parse_assignment

    found: dict[str, Any] = {}
    for text in texts:
        section, key, value = parse_assignment(text)
        if section != "data":
            raise ValueError(f"--set {text}: {what} has settings of the section data only")
        found[key] = value
    return found


def data_settings(args: argparse.Namespace, config: Any, what: str, task: str | None = None) -> "RunSettings":
    """The data of the run that made the checkpoint, of the options and the assignments, the later winning.

    Args:
        args: With the options of `add_checkpoint_options` and `add_data_options`.
        config: Of the checkpoint.
        what: The command, for messages.
        task: How the data are read; default: as in the run, or by the head of the model.
    """
    from hf_ssm.training import folder
    from hf_ssm.training import settings as run_settings

    path = file_of(args.checkpoint, folder.SETTINGS_NAME)
    run = {} if path is None else run_settings.read_settings_file(path)
    stored = dict(run.get("data") or {})
    if args.dataset is not None and args.dataset != stored.get("dataset"):
        stored = {key: value for key, value in stored.items() if key in _OF_ANY_DATA}
    if not args.dataset and not stored.get("dataset"):
        raise ValueError(f"{args.checkpoint!r} has no {folder.SETTINGS_NAME} that names its data: give --dataset")
    # The checkpoint brings its own of these.
    stored = {key: value for key, value in stored.items() if key not in ("tokenizer", "normalization")}
    task = task or (run.get("model") or {}).get("task") or _task_of_head(config)
    given = {"dataset": args.dataset, "tokenizer": args.tokenizer, "max_length": args.max_length}
    options = {key: value for key, value in given.items() if value is not None}
    assignments = data_assignments(args.assignments, what)
    model = {"checkpoint": args.checkpoint, "task": task}
    resolved = run_settings.resolve({"data": stored}, {"model": model, "data": options}, {"data": assignments})
    check_tokenizer(args.checkpoint, config, resolved)
    return resolved


def _task_of_head(config: Any) -> str:
    name = (config.architectures or [""])[0]
    bare = "causal-lm" if config.num_input_channels is None else "sequence-classification"
    return next((task for head, task in _TASKS.items() if name.endswith(head)), bare)
