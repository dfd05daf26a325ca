"""Parts that the commands from sequences to tables share: options, the model, progress."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import transformers
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging

from hf_ssm.cli.checkpoints import (
    check_positive,
    file_of,
    load_config,
    load_model,
    on_accelerator,
    stored_settings,
)
from hf_ssm.data.columns import usual_column
from hf_ssm.data.options import ReadOptions
from hf_ssm.data.records import Record, read_records, table_columns
from hf_ssm.hub.sources import check_source
from hf_ssm.inference.model import SequenceModel
from hf_ssm.inference.parts import file_facts
from hf_ssm.models.registry import FAMILIES, HEADS
from hf_ssm.tokenization import build_byte_tokenizer, build_dna_tokenizer
from hf_ssm.training.loading import model_type_of, read_tokenizer, reading

T = TypeVar("T")

_TOKENIZERS: dict[str, Callable[[], Any]] = {"dna": build_dna_tokenizer, "byte": build_byte_tokenizer}
# Suffixes of class names, and the Auto class that loads them.
_AUTO_CLASSES = {"LMHeadModel": "AutoModelForCausalLM", **HEADS}

_OWN_TYPES = frozenset(entry.config_class.model_type for entry in FAMILIES.values())


def load_sequence_model(args: argparse.Namespace) -> SequenceModel:
    """The model of the options of `add_model_options`, in evaluation mode, with its tokenizer."""
    check_positive(args, "max_tokens_per_batch")
    if is_own_model(args.checkpoint):
        model: Any = load_model(args.checkpoint, load_config(args.checkpoint), **_dtype_options(args))
    else:
        model = on_accelerator(_load_foreign(args))
    return SequenceModel(model.eval(), load_tokenizer(args), args.max_tokens_per_batch)


def is_own_model(checkpoint: str) -> bool:
    """Whether a checkpoint holds a model of hf_ssm; an error if there is none."""
    check_source(checkpoint)
    if Path(checkpoint).is_dir() and not Path(checkpoint, "config.json").is_file():
        # The errors of hf_ssm's own checkpoints name adapters and other folders.
        load_config(checkpoint)
    return model_type_of(checkpoint) in _OWN_TYPES


def _dtype_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of `from_pretrained` for the precision of the weights, by default that of the checkpoint."""
    dtype = getattr(args, "dtype", "auto")
    return {} if dtype == "auto" else {"dtype": dtype}


def _load_foreign(args: argparse.Namespace) -> Any:
    """A model of transformers with the head that its configuration names."""
    checkpoint, trust_remote_code = args.checkpoint, args.trust_remote_code
    with reading(f"the model of {checkpoint!r}"):
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=trust_remote_code)
        architecture = (config.architectures or [""])[0]
        name = next((auto for suffix, auto in _AUTO_CLASSES.items() if architecture.endswith(suffix)), "AutoModel")
        model, info = getattr(transformers, name).from_pretrained(
            checkpoint, trust_remote_code=trust_remote_code, output_loading_info=True, **_dtype_options(args)
        )
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"{checkpoint!r} is not a complete {architecture or name}: it lacks {', '.join(missing[:3])}")
    return model


def load_tokenizer(args: argparse.Namespace) -> Any:
    """The tokenizer of the options of `add_model_options`."""
    name = args.tokenizer or args.checkpoint
    if name in _TOKENIZERS:
        return _TOKENIZERS[name]()
    if args.tokenizer is None and not any(file_of(name, file) for file in ("tokenizer.json", "tokenizer_config.json")):
        raise ValueError(f"{name!r} has no tokenizer: give --tokenizer (dna, byte, a folder or a Hub id)")
    if args.trust_remote_code:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=True)
    return read_tokenizer(name)


def stored_data(checkpoint: str) -> dict[str, Any]:
    """The settings of the data of the run that made a checkpoint of hf_ssm; empty if they cannot be read."""
    # Files of this name in other repositories have another content.
    if not is_own_model(checkpoint):
        return {}
    try:
        return dict(stored_settings(checkpoint).get("data", {}))
    except ValueError as error:
        print(f"hf-ssm: the settings of the training cannot be read and are not used: {error}", file=sys.stderr)
        return {}


def sequence_column(args: argparse.Namespace) -> str:
    """The column of the sequences in INPUT: that of the option, of the training, or one of a usual name."""
    if args.sequence_column is not None:
        return str(args.sequence_column)
    columns = table_columns(args.input)
    stored = stored_data(args.checkpoint).get("sequence_column") if columns else None
    chosen = stored if stored in columns else usual_column("sequence_column", columns)
    if chosen is not None and chosen != "sequence":
        print(f"Sequences are read from the column {chosen!r} of {args.input.name}.", file=sys.stderr)
    column = str(chosen or stored or "sequence")
    if columns and column not in columns:
        # Raises the error before the model is loaded.
        next(read_records(args.input, ReadOptions(sequence_column=column)))
    return column


def keeps_case(args: argparse.Namespace) -> bool:
    """Whether lower-case bases stay so: by the option, or because the model was trained on them."""
    return bool(args.keep_case or stored_data(args.checkpoint).get("keep_case"))


def model_words(args: argparse.Namespace) -> list[object]:
    """The options of `add_model_options` that were given, for another command with the same model."""
    words: list[object] = []
    if args.tokenizer is not None:
        words += ["--tokenizer", args.tokenizer]
    if getattr(args, "dtype", "auto") != "auto":
        words += ["--dtype", args.dtype]
    return [*words, "--trust-remote-code"] if args.trust_remote_code else words


def reader_of(
    args: argparse.Namespace, column: str, model: SequenceModel
) -> tuple[Callable[[], Iterator[Record]], Any]:
    """A function that reads the sequences of INPUT, and what identifies the input and the model."""
    # A tokenizer for which the case makes no difference needs no line about it.
    keep_case = keeps_case(args) or not model.needs_capitals
    facts = {
        "sequence_column": column,
        "keep_case": keep_case,
        "checkpoint": checkpoint_facts(args, model.model),
        "input": file_facts(args.input),
        "genome": args.genome and file_facts(args.genome),
    }
    options = ReadOptions(keep_case, column)
    return lambda: read_records(args.input, options, args.genome), facts


def checkpoint_facts(args: argparse.Namespace, model: Any) -> list[Any]:
    """Facts that identify the model and tokenizer of a command that continues: files of folders, commit of the Hub."""
    names = [name for name in (args.checkpoint, args.tokenizer) if name is not None]
    files = [path for name in names if Path(name).is_dir() for path in sorted(Path(name).iterdir()) if path.is_file()]
    commit = getattr(model.config, "_commit_hash", None)
    return [*names, commit, getattr(args, "dtype", "auto"), *map(file_facts, files)]


def with_progress(items: Iterable[T], unit: str, total: int | None = None) -> Iterator[T]:
    """The items, with a progress bar on stderr."""
    yield from logging.tqdm(items, unit=unit, total=total)
