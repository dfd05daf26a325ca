"""`hf-ssm predict`."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from transformers.utils import logging

from hf_ssm.cli.sequences import add_model_options, add_table_options, checkpoint_facts, load_sequence_model
from hf_ssm.data.records import INPUT_FORMATS, Record, read_records
from hf_ssm.inference.parts import file_facts, write_in_parts
from hf_ssm.inference.predict import AGGREGATIONS, Predictor, Unit, letters_of

_OPTIONS = ("window", "stride", "aggregate", "both_strands")


def add_predict(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_model_options(parser)
    add("input", metavar="INPUT", type=Path, help=f"sequences ({INPUT_FORMATS}), which may be gzipped")
    add("--sequence-column", metavar="NAME", default="sequence", help="column of a table (default: %(default)s)")
    add("--genome", metavar="FILE", type=Path, help="FASTA of the genome in which BED intervals are looked up")
    add("--window", metavar="W", type=int, help="cut sequences into windows of W letters; default: only if too long")
    add("--stride", metavar="S", type=int, help="letters from one window to the next (default: W)")
    add("--aggregate", choices=AGGREGATIONS, help="one row per sequence: mean or maximum of its windows")
    add("--both-strands", action="store_true", help="average the sequence and its reverse complement")
    add_table_options(parser, "csv, tsv or parquet")


def run_predict(args: argparse.Namespace) -> None:
    options = {name: getattr(args, name) for name in _OPTIONS}
    model = load_sequence_model(args)
    predictor = Predictor(model, **options)

    def records() -> Iterator[Record]:
        return read_records(args.input, args.sequence_column, args.genome)

    # Before anything is computed, all of the input is read once: errors come early.
    total = predictor.survey(records())
    settings = {
        **options,
        "sequence_column": args.sequence_column,
        "checkpoint": checkpoint_facts(args, model),
        "input": file_facts(args.input),
        "genome": args.genome and file_facts(args.genome),
    }
    with logging.tqdm(total=total, unit="letter", unit_scale=True) as progress:

        def count(groups: list[list[Unit]]) -> None:
            progress.update(sum(map(letters_of, groups[0])))

        def compute(groups: list[list[Unit]]) -> pa.Table:
            table = predictor.table_of_groups(groups)
            count(groups)
            return table

        groups = predictor.groups(records())
        write_in_parts(
            args.output, groups, compute, settings, part_size=1, overwrite=args.overwrite_output, skipped=count
        )
    print(f"predictions: {args.output}")
