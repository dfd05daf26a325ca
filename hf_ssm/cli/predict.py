"""`hf-ssm predict`."""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from transformers.utils import logging

from hf_ssm.cli.checkpoints import load_config, warn_of_chance
from hf_ssm.cli.forecast import check_no_series, run_forecast
from hf_ssm.cli.screen import print_rows, summary_of
from hf_ssm.cli.sequences import is_own_model, load_sequence_model, model_words, reader_of, sequence_column
from hf_ssm.cli.summary import command, suggest
from hf_ssm.cli.tracks import TrackFiles, entries_of_rows
from hf_ssm.data.genome import Genome
from hf_ssm.data.regions import Regions, read_regions
from hf_ssm.data.tracks import check_track, track_paths
from hf_ssm.inference.parts import check_table_output, file_facts, join_table, table_of, write_in_parts
from hf_ssm.inference.predict import Predictor, Unit, letters_of
from hf_ssm.inference.sharing import launched_workers

_TRACK_OPTIONS = ("track", "regions", "by_region", "session")
_OPTIONS = ("window", "stride", "aggregate", "both_strands")


def run_predict(args: argparse.Namespace) -> None:
    """`hf-ssm predict`: a table of predictions, and tracks of them; or of forecasts."""
    if is_own_model(args.checkpoint) and load_config(args.checkpoint).reads_series:
        run_forecast(args)
        return
    check_no_series(args)
    with ExitStack() as stack:
        genome = None
        if any(getattr(args, name) is not None for name in _TRACK_OPTIONS):
            if args.genome is None:
                raise ValueError("--track and --regions need intervals: give a BED file as INPUT, and --genome FASTA")
            genome = stack.enter_context(Genome(args.genome))
        _predict(args, genome)


def _predict(args: argparse.Namespace, genome: Genome | None) -> None:
    _check_output(args)
    options = {name: getattr(args, name) for name in _OPTIONS}
    column = sequence_column(args)
    regions = None if args.regions is None or genome is None else read_regions(args.regions, genome)
    model = load_sequence_model(args)
    predictor = Predictor(model, **options, regions=regions)
    tracks = None if genome is None else _tracks(args, genome, regions, predictor)
    records, facts = reader_of(args, column, model)
    facts["regions"] = args.regions and file_facts(args.regions)
    if is_own_model(args.checkpoint):
        warn_of_chance(args.checkpoint, model.tokenizer)
    # Before anything is computed, all of the input is read once: errors come early.
    total = predictor.survey(records())
    if regions is not None and not total:
        raise ValueError(f"--regions {str(args.regions)!r}: no interval of {args.input.name} overlaps a region")
    with logging.tqdm(total=total, unit="letter", unit_scale=True) as progress:

        def count(groups: list[list[Unit]]) -> None:
            progress.update(sum(map(letters_of, groups[0])))

        def compute(groups: list[list[Unit]]) -> pa.Table:
            table = predictor.table_of_groups(groups)
            count(groups)
            return table

        def join(tables: Iterator[pa.Table], path: Path) -> None:
            parts = list(tables)
            table = pa.concat_tables(parts)
            print(summary_of(table, predictor))
            if tracks is not None and genome is not None:
                columns = entries_of_rows(table, predictor.value_columns, genome.contigs)
                tracks.write(columns, _locus(table))
            join_table(iter(parts), path)

        groups = predictor.groups(records())
        if args.output is None:
            shown = table_of(groups, compute, part_size=1).data.table
        else:
            # The first process of a launch joins the parts of all.
            replace = {"part_size": 1, "overwrite": args.overwrite_output, "skipped": count, "join": join}
            write_in_parts(args.output, groups, compute, options | facts, **replace)
    if args.output is None:
        print(summary_of(shown, predictor))
        places = [name for name in ("start", "end") if name in shown.column_names]
        print_rows(shown, [*places, *(["prediction"] if predictor.classes else []), *predictor.value_columns])
    else:
        print(f"predictions: {args.output}")
    if note := predictor.unknown.note("predictions (column unknown_letters)"):
        print(note)
    words: list[object] = [] if args.genome is None else ["--genome", args.genome]
    words += [] if args.sequence_column is None else ["--sequence-column", args.sequence_column]
    words += [] if predictor.longest_window is None else ["--window", predictor.longest_window]
    words += ["--keep-case"] if args.keep_case else []
    line = command("embed", args.checkpoint, args.input, *words, *model_words(args), "--output", "embeddings.parquet")
    suggest((line, "hidden states of the same sequences"))


def _check_output(args: argparse.Namespace) -> None:
    if args.output is not None:
        check_table_output(args.output)
        return
    for name in (*_TRACK_OPTIONS, "overwrite_output"):
        if getattr(args, name) not in (None, False):
            raise ValueError(f"--{name.replace('_', '-')} needs a file for the predictions: give --output FILE")
    if launched_workers().count > 1:
        raise ValueError("several processes write their predictions to one file: give --output FILE")


def _tracks(args: argparse.Namespace, genome: Genome, regions: Regions | None, predictor: Predictor) -> TrackFiles:
    names = predictor.value_columns
    if args.track is None:
        return TrackFiles(args, genome, regions, dict.fromkeys(names))
    check_track(args.track, "--track")
    return TrackFiles(args, genome, regions, track_paths(args.track, names))


def _locus(table: pa.Table) -> str:
    chrom, start, end = (table[name][0].as_py() for name in ("chrom", "chrom_start", "chrom_end"))
    return f"{chrom}:{start + 1}-{end}"
