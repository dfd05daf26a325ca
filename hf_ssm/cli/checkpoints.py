"""What the commands that read a checkpoint and data share."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_ssm.training.inputs import RunData
    from hf_ssm.training.settings import RunSettings

SEED = 0
"""Rows are drawn with it, so that a report can be repeated."""

OVERWRITE_MEND = "choose another folder, or replace the report in it (--overwrite-output)"
"""What to do about an --output that is not empty."""


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


def check_fit(config: Any, data: "RunData") -> None:
    """Refuse sequences that are longer than what the model takes."""
    limit = config.longest_input
    if limit is not None and data.longest > limit:
        raise ValueError(
            f"the longest sequence has {data.longest} tokens but the model takes {limit}: cut the sequences "
            f"with --max-length {limit}"
        )


def chosen_rows(data: "RunData", split: str, count: int) -> Any:
    """Some rows of a split, drawn by chance, in their order."""
    if split not in data.splits:
        raise ValueError(f"--split {split!r}: the data have the splits {', '.join(data.splits)}")
    rows = data.splits[split]
    if len(rows) == 0:
        raise ValueError(f"--split {split!r} holds no sequence")
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
