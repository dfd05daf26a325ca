"""`hf-ssm embed`."""

import argparse
import re
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hf_ssm.cli.options.sequences import SCORE_WINDOW
from hf_ssm.cli.sequences import (
    checkpoint_facts,
    keeps_case,
    load_sequence_model,
    reader_of,
    sequence_column,
    with_progress,
)
from hf_ssm.cli.variants import print_changed_contigs, print_reasons
from hf_ssm.data.files import bare_suffix
from hf_ssm.data.genome import Genome
from hf_ssm.data.records import table_columns
from hf_ssm.data.variants import read_variants
from hf_ssm.inference.embed import Embedder
from hf_ssm.inference.embed_variants import VariantEmbedder
from hf_ssm.inference.model import UnknownLetters
from hf_ssm.inference.parts import file_facts, join_table, write_in_parts
from hf_ssm.tokenization import reads_only_dna

_OUTPUTS = (".parquet", ".npz")
_OPTIONS = ("layers", "pooling", "both_strands")
_NUMBER = re.compile(r"-?\d+")
# Columns of tables of variants, and of sequences.
_VARIANTS, _SEQUENCES = (("chrom", "pos", "ref", "alt"), ("ref_sequence", "alt_sequence")), ("sequence", "seq", "text")


def run_embed(args: argparse.Namespace) -> None:
    """`hf-ssm embed`: write the hidden states of sequences or of the alleles of variants."""
    if args.output.suffix not in _OUTPUTS:
        raise ValueError(f"--output {str(args.output)!r}: the suffix must be one of {', '.join(_OUTPUTS)}")
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
    if args.stride is not None:
        raise ValueError(f"--stride is for sequences, and {args.input.name} holds variants: leave --stride out")
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
            total += 1
        print_changed_contigs(contigs, args.input, genome)
        files = [file_facts(path) for path in (args.input, args.genome) if path is not None]

        def join(tables: Iterator[pa.Table], path: Path) -> None:
            all_tables = list(tables)
            count = sum(pc.sum(pc.equal(table["reason"], "")).as_py() or 0 for table in all_tables)
            print(f"{args.output} holds {total} alleles, {count} of them with hidden states.")
            reasons = (why for table in all_tables for why in table["reason"].to_pylist() if why)
            print_reasons(reasons, "alleles without hidden states")
            _write(iter(all_tables), path, embedder.names)

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
    """A row for each sequence, window or token."""
    column = sequence_column(args)
    options = {name: getattr(args, name) for name in (*_OPTIONS, "window", "stride", "max_tokens_per_batch")}
    model = load_sequence_model(args)
    embedder = Embedder(model.model, model.tokenizer, **options)
    records, facts = reader_of(args, column, model)
    unknown, total = UnknownLetters(reads_only_dna(model.tokenizer)), 0
    for record in records():
        unknown.add(record.sequence)
        total += 1
    write_in_parts(
        args.output,
        embedder.groups(with_progress(records(), "sequences", total)),
        embedder.table_of_groups,
        options | facts,
        part_size=1,
        overwrite=args.overwrite_output,
        join=lambda tables, path: _write(tables, path, embedder.names),
    )
    if note := unknown.note("hidden states"):
        print(note)
    print(f"{args.output} holds the hidden states")


def _write(tables: Iterator[pa.Table], path: Path, names: list[str]) -> None:
    """Write a parquet file, or an `.npz` archive with an array for each column, `(rows, D)` for the vectors `names`.

    `numpy.load` reads the archive without pickle. Missing texts are "", missing numbers NaN.
    """
    if path.suffix == ".parquet":
        join_table(tables, path)
        return
    table = pa.concat_tables(tables)
    # `numpy.savez` has no columns with the names of its arguments, such as "file".
    with zipfile.ZipFile(path, "w") as archive:
        for name in table.column_names:
            values = table[name].combine_chunks()
            if name in names:
                array = values.flatten().to_numpy().reshape(len(table), -1)
            else:
                array = values.to_numpy(zero_copy_only=False)
            if array.dtype == object:
                array = np.array(["" if value is None else str(value) for value in array], dtype=str)
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
