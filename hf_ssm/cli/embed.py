"""`hf-ssm embed`."""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from hf_ssm.cli.checkpoints import check_positive, public_name
from hf_ssm.cli.options.sequences import SCORE_WINDOW
from hf_ssm.cli.sequences import (
    checkpoint_facts,
    keeps_case,
    load_sequence_model,
    reader_of,
    sequence_column,
    stored_data,
    with_progress,
)
from hf_ssm.cli.summary import command, suggest
from hf_ssm.cli.variants import print_changed_contigs, print_reasons
from hf_ssm.data.checks import check_column
from hf_ssm.data.columns import usual_column
from hf_ssm.data.files import bare_suffix
from hf_ssm.data.genome import Genome
from hf_ssm.data.records import read_records, table_columns
from hf_ssm.data.tables import TABLE_SUFFIXES, read_cells
from hf_ssm.data.variants import read_variants
from hf_ssm.hub.committing import is_weights
from hf_ssm.inference.array_files import check_array_columns, import_anndata, write_h5ad, write_npz
from hf_ssm.inference.embed import Embedder
from hf_ssm.inference.embed_variants import VariantEmbedder
from hf_ssm.inference.estimate import estimate
from hf_ssm.inference.linear_probe import check_labels, linear_probe, probe_table
from hf_ssm.inference.model import UnknownLetters
from hf_ssm.inference.parts import file_facts, join_table, write_in_parts
from hf_ssm.inference.tensor_file import write_tensor_file
from hf_ssm.tokenization import reads_only_dna
from hf_ssm.utils.files import check_not_input, write_text_atomically

_OUTPUTS = (".parquet", ".safetensors", ".npz", ".h5ad")
_OPTIONS = ("layers", "pooling", "both_strands")
_NUMBER = re.compile(r"-?\d+")
# Columns of tables of variants, and of sequences.
_VARIANTS, _SEQUENCES = (("chrom", "pos", "ref", "alt"), ("ref_sequence", "alt_sequence")), ("sequence", "seq", "text")

Writer = Callable[[Iterator[pa.Table], Path], None]


def run_embed(args: argparse.Namespace) -> None:
    """`hf-ssm embed`: write the hidden states of sequences or of the alleles of variants."""
    if args.output.suffix not in _OUTPUTS:
        raise ValueError(f"--output {str(args.output)!r}: the suffix must be one of {', '.join(_OUTPUTS)}")
    folders = (Path(name).expanduser() for name in (args.checkpoint, args.tokenizer) if name)
    files = (path for folder in folders for path in folder.glob("*.safetensors"))
    check_not_input(args.output, *(path for path in files if is_weights(path.name)))
    if args.output.suffix == ".h5ad":
        import_anndata()
    args.layers = [int(layer) if _NUMBER.fullmatch(layer) else layer for layer in args.layers]
    if _has_variants(args):
        _embed_variants(args)
    else:
        _embed_sequences(args)


def _has_variants(args: argparse.Namespace) -> bool:
    """Whether the input is a VCF file, or a table of variants without a column of sequences."""
    columns = {name.lower().lstrip("#") for name in table_columns(args.input)}
    is_table = not columns.isdisjoint(_SEQUENCES) or args.sequence_column is not None
    return bare_suffix(args.input) == ".vcf" or (not is_table and any(map(columns.issuperset, _VARIANTS)))


def _embed_variants(args: argparse.Namespace) -> None:
    """A row for each allele, with the hidden states of both windows."""
    for name, value in (("--stride", args.stride), ("--linear-probe", args.linear_probe)):
        if value is not None:
            raise ValueError(f"{name} is for sequences, and {args.input.name} holds variants: leave {name} out")
    args.window = SCORE_WINDOW if args.window is None else args.window
    args.keep_case = keeps_case(args)
    options = {name: getattr(args, name) for name in (*_OPTIONS, "window", "keep_case", "max_tokens_per_batch")}
    with ExitStack() as stack:
        genome = None if args.genome is None else stack.enter_context(Genome(args.genome))
        model = load_sequence_model(args)
        embedder = VariantEmbedder(model.model, model.tokenizer, genome, **options)
        total, columns, contigs = 0, set[str](), dict[str, None]()
        for variant in read_variants(args.input):
            contigs[variant.chrom] = None
            if not columns.issuperset(variant.columns):
                columns.update(variant.columns)
                embedder.check_columns(variant.columns)
                check_array_columns(args.output, variant.columns)
            total += 1
        print_changed_contigs(contigs, args.input, genome)
        if args.estimate:
            print(estimate(read_variants(args.input), embedder.table, total, "variants"))
            return
        files = [file_facts(path) for path in (args.input, args.genome) if path is not None]

        def join(tables: Iterator[pa.Table], path: Path) -> None:
            all_tables = list(tables)
            count = sum(pc.sum(pc.equal(table["reason"], "")).as_py() or 0 for table in all_tables)
            print(f"{args.output} holds {total} alleles, {count} of them with hidden states.")
            reasons = (why for table in all_tables for why in table["reason"].to_pylist() if why)
            print_reasons(reasons, "alleles without hidden states")
            _writer(args, embedder.names)(iter(all_tables), path)

        write_in_parts(
            args.output,
            embedder.groups(with_progress(read_variants(args.input), "variants", total)),
            embedder.table_of_groups,
            options | {"checkpoint": checkpoint_facts(args, model.model), "files": files},
            part_size=1,
            overwrite=args.overwrite_output,
            join=join,
        )


def _embed_sequences(args: argparse.Namespace) -> None:
    """A row for each sequence, window or token, and the scores of a linear probe."""
    column = sequence_column(args)
    labels = None if args.linear_probe is None else _read_labels(args, column)
    options = {name: getattr(args, name) for name in (*_OPTIONS, "window", "stride", "max_tokens_per_batch")}
    model = load_sequence_model(args)
    embedder = Embedder(model.model, model.tokenizer, **options)
    records, facts = reader_of(args, column, model)
    scores = args.output.with_suffix(".linear_probe.json")
    check_not_input(scores, args.input, args.genome, args.linear_probe)
    unknown, total = UnknownLetters(reads_only_dna(model.tokenizer)), 0
    for record in records():
        check_array_columns(args.output, record.columns)
        unknown.add(record.sequence)
        total += 1
    if args.estimate:
        lengths = (len(record.sequence) for group in embedder.groups(records()) for record in group)
        pieces = chain.from_iterable(embedder.groups(records()))
        print(estimate(pieces, embedder.table, sum(lengths), "letters", size=lambda record: len(record.sequence)))
        return
    write_in_parts(
        args.output,
        embedder.groups(with_progress(records(), "sequences", total)),
        embedder.table_of_groups,
        options | facts,
        part_size=1,
        overwrite=args.overwrite_output,
        join=_join(_writer(args, embedder.names), labels, args.folds, scores, args.overwrite_output),
    )
    if note := unknown.note("hidden states"):
        print(note)
    if labels is not None:
        print(probe_table(json.loads(scores.read_text(encoding="utf-8"))))
    print(
        f"{args.output} holds the hidden states"
        + (f", and {scores} holds the scores of the linear probe" if labels is not None else "")
    )
    if labels is None and args.pooling != "token":
        columns = table_columns(args.input)
        stored = stored_data(args.checkpoint).get("label_column") if columns else None
        label = (stored if stored in columns else usual_column("label_column", columns)) or "LABELS"
        words = [word for word in args.words[1:] if word != "--overwrite-output"]
        what = command("embed", *words, "--overwrite-output", "--linear-probe", label)
        kind = "a column of the input" if columns else "a table with the columns name and label"
        suggest((what, f"how well a linear classifier reads {label}, {kind}"))


def _join(write: Writer, labels: list[Any] | None, folds: int, scores: Path, overwrite: bool) -> Writer:
    """Writes the output, and before it the scores: they exist whenever the output does."""

    def join(tables: Iterator[pa.Table], path: Path) -> None:
        if labels is not None:
            # Mapped to memory, so that the second use costs none.
            all_tables = list(tables)
            data = Dataset(pa.concat_tables(all_tables))
            row_labels = labels if "record" not in data.column_names else [labels[number] for number in data["record"]]
            write_text_atomically(scores, json.dumps(linear_probe(data, row_labels, folds=folds), indent=2) + "\n")
            tables = iter(all_tables)
        elif overwrite:
            # Scores of the earlier embeddings.
            scores.unlink(missing_ok=True)
        write(tables, path)

    return join


def _writer(args: argparse.Namespace, names: list[str]) -> Writer:
    """Writes tables with the vectors of these names in the format of the output."""
    facts = {"model": public_name(args.checkpoint), **{name: getattr(args, name) for name in (*_OPTIONS, "window")}}
    facts["layers"] = [str(layer) for layer in args.layers]

    def write(tables: Iterator[pa.Table], path: Path) -> None:
        if path.suffix == ".parquet":
            join_table(tables, path)
        elif path.suffix == ".safetensors":
            write_tensor_file(tables, path, names)
        else:
            (write_npz if path.suffix == ".npz" else write_h5ad)(tables, path, names, facts)

    return write


def _read_labels(args: argparse.Namespace, column: str) -> list[Any]:
    """The label of each sequence of the input, before anything is computed."""
    check_positive(args, "folds")
    if args.pooling == "token":
        raise ValueError("--linear-probe needs one vector for each sequence: choose --pooling mean or --pooling last")
    # Labels do not depend on the case of the letters.
    records = read_records(args.input, column, args.genome, keep_case=True)
    is_table = bare_suffix(Path(args.linear_probe)) in TABLE_SUFFIXES
    label_of = _labels_by_name(Path(args.linear_probe)) if is_table else {}
    key = "name" if is_table else args.linear_probe
    labels, seen = [], set[str]()
    for record in records:
        check_column("--linear-probe", key, list(record.columns), args.input.name)
        label = record.columns[key]
        if is_table:
            name = str(label)
            if name in seen:
                raise ValueError(
                    f"{record.where}: the name {name!r} occurs twice, so the label of this sequence is not known: "
                    "rename the sequence"
                )
            if name not in label_of:
                raise ValueError(f"{record.where}: {args.linear_probe!r} has no label for the name {name!r}")
            seen.add(name)
            label = label_of[name]
        labels.append(label)
    check_labels(labels, args.folds)
    return labels


def _labels_by_name(path: Path) -> dict[str, Any]:
    table = read_cells(path)[0]
    for column in ("name", "label"):
        check_column("--linear-probe", column, list(table), path.name)
    label_of: dict[str, Any] = {}
    for name, label in zip(table["name"], table["label"], strict=True):
        if str(name) in label_of:
            raise ValueError(f"--linear-probe {str(path)!r}: the name {name!r} occurs twice; remove one of its rows")
        label_of[str(name)] = label
    return label_of
