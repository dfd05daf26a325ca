"""Parts that the commands from sequences to tables share: the model, the reader, the job."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoTokenizer

from hf_ssm.cli.checkpoints import (
    check_positive,
    file_of,
    load_config,
    load_model,
    on_accelerator,
    stored_settings,
    stored_value,
    warn_of_chance,
)
from hf_ssm.data.columns import usual_column
from hf_ssm.data.files import bare_suffix, opened
from hf_ssm.data.genome import Genome, changed_contigs, listed
from hf_ssm.data.options import ReadOptions
from hf_ssm.data.records import Record, read_records, table_columns
from hf_ssm.hub.sources import check_source
from hf_ssm.inference.model import SequenceModel
from hf_ssm.inference.table_job import Join, TableJob, file_facts
from hf_ssm.models.registry import FAMILIES, HEADS
from hf_ssm.tokenization import build_byte_tokenizer, build_dna_tokenizer
from hf_ssm.training.folder import FINGERPRINT_NAME
from hf_ssm.training.loading import model_type_of, read_tokenizer, reading

_TOKENIZERS: dict[str, Callable[[], Any]] = {"dna": build_dna_tokenizer, "byte": build_byte_tokenizer}
# Suffixes of class names, and the Auto class that loads them.
_AUTO_CLASSES = {"LMHeadModel": "AutoModelForCausalLM", **HEADS}

_OWN_TYPES = frozenset(entry.config_class.model_type for entry in FAMILIES.values())


def load_sequence_model(args: argparse.Namespace, *, warns_of_chance: bool = False) -> SequenceModel:
    """The model of the options of `add_model_options`, in evaluation mode, with its tokenizer.

    Args:
        args: The options.
        warns_of_chance: Whether a line on stderr says so if the model has learnt nothing.
    """
    check_positive(args, "max_tokens_per_batch")
    if is_own_model(args.checkpoint):
        model: Any = load_model(args.checkpoint, load_config(args.checkpoint), **_dtype_options(args))
    else:
        model = on_accelerator(_load_foreign(args))
    tokenizer = load_tokenizer(args)
    if warns_of_chance and is_own_model(args.checkpoint):
        warn_of_chance(args.checkpoint, tokenizer)
    return SequenceModel(model.eval(), tokenizer, args.max_tokens_per_batch, read_options(args))


def read_options(args: argparse.Namespace) -> ReadOptions:
    """How the training of the checkpoint read its sequences, as far as the options do not say otherwise."""
    stored = stored_data(args.checkpoint)
    longest = None
    if stored:
        longest = stored_value(args.checkpoint, FINGERPRINT_NAME, lambda splits: int(splits["train"]["longest"]), None)
    lengths = {"max_length": stored.get("max_length") or longest}
    return ReadOptions.of_training(stored | lengths, keep_case=getattr(args, "keep_case", False) or None)


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


def model_words(args: argparse.Namespace) -> list[object]:
    """The options of `add_model_options` that were given, for another command with the same model."""
    words: list[object] = []
    if args.tokenizer is not None:
        words += ["--tokenizer", args.tokenizer]
    if getattr(args, "dtype", "auto") != "auto":
        words += ["--dtype", args.dtype]
    return [*words, "--trust-remote-code"] if args.trust_remote_code else words


def reader_of(args: argparse.Namespace, column: str, model: SequenceModel) -> Callable[[], Iterator[Record]]:
    """A function that reads the sequences of INPUT as the model reads them."""
    options = ReadOptions(model.reads.keep_case, column)
    return lambda: read_records(args.input, options, args.genome)


def write_job(
    args: argparse.Namespace,
    job: TableJob[Any],
    model: Any,
    settings: Mapping[str, Any],
    join: Join | None = None,
) -> None:
    """Write the table of a job to `--output`, where an interrupted command with the same settings continues.

    Args:
        args: Options of `add_model_options` and `add_table_options`, and the files that are read.
        job: The table.
        model: The loaded model.
        settings: Other options that the table depends on.
        join: As for `TableJob.write`.
    """
    names = [name for name in (args.checkpoint, getattr(args, "tokenizer", None)) if name is not None]
    files = [path for name in names if Path(name).is_dir() for path in sorted(Path(name).iterdir()) if path.is_file()]
    inputs = (getattr(args, name, None) for name in ("input", "variants", "genome", "regions"))
    facts = {
        # The files of folders, or the commit on the Hub.
        "checkpoint": [*names, getattr(model.config, "_commit_hash", None), args.dtype, *map(file_facts, files)],
        "files": [path and file_facts(path) for path in inputs],
        "feature": getattr(args, "feature", None),
    }
    job.write(args.output, {**settings, **facts}, overwrite=args.overwrite_output, join=join)


_CONTIG = re.compile(r"##contig=<(?=[^>]*\bID=([^,>]+))[^>]*\blength=(\d+)")


def print_contig_notes(names: Iterable[str], path: Path, genome: Genome | None) -> None:
    """Print on stderr which contigs have another name in the genome, and which another length, by the header of a VCF.

    Args:
        names: Contigs of the variants.
        path: The file of the variants.
        genome: The reference; None for variants that need none.
    """
    if genome is None:
        return
    if note := changed_contigs(names, path.name, genome):
        print(note, file=sys.stderr)
    differing = []
    if bare_suffix(path) == ".vcf":
        with opened(path) as file:
            for match in map(_CONTIG.match, takewhile(lambda line: line.startswith("#"), file)):
                contig = match and genome.contig(match[1])
                if match and contig and genome.length(contig) != int(match[2]):
                    differing.append(f"{match[1]} has {int(match[2]):,} bases, not {genome.length(contig):,}")
    if differing:
        print(
            f"By its header, {path.name} belongs to another genome than {genome.path.name}: {listed(differing)}.",
            file=sys.stderr,
        )


def print_reasons(reasons: Iterable[str], what: str) -> None:
    """Print why alleles have no result: for each kind of reason the number of alleles, and the first reason in full.

    Args:
        reasons: The reasons of the alleles without a result.
        what: Name of such alleles, for several.
    """
    kinds: dict[str, list[str]] = {}
    for reason in reasons:
        # Reasons of a kind differ in names, letters and numbers.
        kinds.setdefault(re.sub(r"'.*?'| at [^ ]+:|\d+", "", reason), []).append(reason)
    for texts in sorted(kinds.values(), key=len, reverse=True):
        print(f"  1 allele: {texts[0]}" if len(texts) == 1 else f"  {len(texts)} {what}, the first: {texts[0]}")
