"""`hf-ssm predict`."""

import argparse
from itertools import chain

import pyarrow as pa
from transformers.utils import logging

from hf_ssm.cli.checkpoints import warn_of_chance
from hf_ssm.cli.sequences import is_own_model, load_sequence_model, model_words, reader_of, sequence_column
from hf_ssm.cli.summary import command, suggest
from hf_ssm.inference.estimate import estimate
from hf_ssm.inference.parts import write_in_parts
from hf_ssm.inference.predict import Predictor, Unit, letters_of

_OPTIONS = ("window", "stride", "aggregate", "both_strands")


def run_predict(args: argparse.Namespace) -> None:
    options = {name: getattr(args, name) for name in _OPTIONS}
    column = sequence_column(args)
    model = load_sequence_model(args)
    predictor = Predictor(model, **options)
    records, facts = reader_of(args, column, model)
    if is_own_model(args.checkpoint):
        warn_of_chance(args.checkpoint, model.tokenizer)
    # Before anything is computed, all of the input is read once: errors come early.
    total = predictor.survey(records())
    if args.estimate:
        units = chain.from_iterable(predictor.groups(records()))
        print(estimate(units, lambda units: predictor.table_of_groups([units]), total, "letters", size=letters_of))
        return
    with logging.tqdm(total=total, unit="letter", unit_scale=True) as progress:

        def count(groups: list[list[Unit]]) -> None:
            progress.update(sum(map(letters_of, groups[0])))

        def compute(groups: list[list[Unit]]) -> pa.Table:
            table = predictor.table_of_groups(groups)
            count(groups)
            return table

        groups = predictor.groups(records())
        write_in_parts(
            args.output, groups, compute, options | facts, part_size=1, overwrite=args.overwrite_output, skipped=count
        )
    print(f"predictions: {args.output}")
    if note := predictor.unknown.note("predictions (column unknown_letters)"):
        print(note)
    words: list[object] = [] if args.genome is None else ["--genome", args.genome]
    words += [] if args.sequence_column is None else ["--sequence-column", args.sequence_column]
    words += [] if predictor.longest_window is None else ["--window", predictor.longest_window]
    words += ["--keep-case"] if args.keep_case else []
    line = command("embed", args.checkpoint, args.input, *words, *model_words(args), "--output", "embeddings.parquet")
    suggest((line, "hidden states of the same sequences"))
