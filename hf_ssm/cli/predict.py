"""`hf-ssm predict`."""

import argparse
from collections.abc import Iterator

import pyarrow as pa
from transformers.utils import logging

from hf_ssm.cli.checkpoints import warn_of_chance
from hf_ssm.cli.sequences import (
    checkpoint_facts,
    is_own_model,
    keeps_case,
    load_sequence_model,
    model_words,
    sequence_column,
)
from hf_ssm.cli.summary import command, suggest
from hf_ssm.data.records import Record, read_records
from hf_ssm.inference.parts import file_facts, write_in_parts
from hf_ssm.inference.predict import Predictor, Unit, letters_of

_OPTIONS = ("window", "stride", "aggregate", "both_strands")


def run_predict(args: argparse.Namespace) -> None:
    options = {name: getattr(args, name) for name in _OPTIONS}
    column = sequence_column(args)
    model = load_sequence_model(args)
    predictor = Predictor(model, **options)
    # A tokenizer for which the case makes no difference needs no line about it.
    keep_case = keeps_case(args) or not model.needs_capitals
    if is_own_model(args.checkpoint):
        warn_of_chance(args.checkpoint, model.tokenizer)

    def records() -> Iterator[Record]:
        return read_records(args.input, column, args.genome, keep_case)

    # Before anything is computed, all of the input is read once: errors come early.
    total = predictor.survey(records())
    settings = {
        **options,
        "sequence_column": column,
        "keep_case": keep_case,
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
    if note := predictor.unknown.note("predictions (column unknown_letters)"):
        print(note)
    words: list[object] = [] if args.genome is None else ["--genome", args.genome]
    words += [] if args.sequence_column is None else ["--sequence-column", args.sequence_column]
    words += [] if predictor.longest_window is None else ["--window", predictor.longest_window]
    words += ["--keep-case"] if args.keep_case else []
    what = command("embed", args.checkpoint, args.input, *words, *model_words(args), "--output", "embeddings.parquet")
    suggest((what, "hidden states of the same sequences"))
