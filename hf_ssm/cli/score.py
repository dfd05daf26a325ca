"""`hf-ssm score`."""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from datasets import Dataset

from hf_ssm import plotting
from hf_ssm.cli.checkpoints import can_draw, warn_of_chance
from hf_ssm.cli.dependencies import check_dependencies, write_dependencies
from hf_ssm.cli.options.sequences import SATURATION_HORIZON, SCORE_WINDOW
from hf_ssm.cli.sequences import (
    checkpoint_facts,
    is_own_model,
    keeps_case,
    load_sequence_model,
    model_words,
    with_progress,
)
from hf_ssm.cli.summary import command, suggest
from hf_ssm.data.genome import Genome
from hf_ssm.data.variants import Variant, read_variants
from hf_ssm.inference.evaluation import check_evaluation, evaluate_scores
from hf_ssm.inference.model import SequenceModel
from hf_ssm.inference.parts import check_table_output, file_facts, join_table, write_in_parts
from hf_ssm.inference.saturation import Saturation
from hf_ssm.inference.score import REASONS, VariantScorer
from hf_ssm.utils.evaluation import evaluating
from hf_ssm.utils.files import check_not_input, write_text_atomically

_REGION = re.compile(r"(?P<contig>.+):(?P<first>[\d,]+)-(?P<last>[\d,]+)")
_SETTINGS = ("scores", "window", "horizon", "one_strand", "keep_case", "label_column", "by")
# Columns of each record of a VCF file.
_VCF_COLUMNS = ("chrom", "pos", "id", "ref", "alt")
# Suffix of the metrics beside the scores.
_METRICS = ".metrics.json"
# Variants of a part of the output.
_PART = 64

Region = tuple[str, int, int]


def run_score(args: argparse.Namespace) -> None:
    """`hf-ssm score`: a table of the scores of variants, or of all substitutions of regions, or a dependency map."""
    if sum(given is not None for given in (args.variants, args.saturate, args.dependencies)) != 1:
        raise ValueError("give either VARIANTS, a file, or --saturate or --dependencies CONTIG:FIRST-LAST")
    option = "--saturate" if args.dependencies is None else "--dependencies"
    texts = args.saturate if args.dependencies is None else [args.dependencies]
    if texts is not None and args.genome is None:
        raise ValueError(f"{option} needs the sequence: give --genome FASTA")
    if args.label_column is None and (args.positive is not None or args.by is not None):
        raise ValueError("--positive and --by need the labels: give --label-column")
    if args.svg and texts is None:
        raise ValueError("--svg is for the figures of --saturate and --dependencies: leave it out")
    if args.dependencies is not None:
        check_dependencies(args)
    else:
        check_table_output(args.output)
    check_not_input(args.output.with_suffix(_METRICS), args.variants)
    with ExitStack() as stack:
        genome = None if args.genome is None else stack.enter_context(Genome(args.genome))
        regions = None if texts is None else _regions(texts, genome, option)
        args.keep_case = keeps_case(args)
        model = load_sequence_model(args)
        stack.enter_context(evaluating(model.model))
        if is_own_model(args.checkpoint):
            warn_of_chance(args.checkpoint, model.tokenizer)
        settings = {
            **{name: getattr(args, name) for name in _SETTINGS},
            "regions": regions,
            "checkpoint": checkpoint_facts(args, model),
            "files": [file_facts(path) for path in (args.variants, args.genome) if path is not None],
        }
        if regions is not None:
            assert genome is not None
            if args.dependencies is None:
                _saturate(args, model, genome, regions, settings)
            else:
                write_dependencies(args, model, genome, regions[0], settings | {"kind": "dependencies"})
        else:
            _score(args, model, genome, settings)
            if args.genome is not None:
                region = ("--saturate", "CONTIG:FIRST-LAST", "--genome", args.genome, "--output", "region.csv")
                # The model reads half a window, the region and the horizon at once.
                horizon = max(1, args.window // 4) if args.horizon is None else args.horizon
                window = [] if args.window == SCORE_WINDOW else ["--window", args.window, "--horizon", horizon]
                line = command("score", args.checkpoint, *region, *window, *model_words(args))
                suggest((line, "every substitution of a region, with a figure"))


def _score(args: argparse.Namespace, model: SequenceModel, genome: Genome | None, settings: dict[str, Any]) -> None:
    scorer = VariantScorer(model, genome, horizon=args.horizon, **_options(args))
    info = [name for name in (args.label_column, args.by) if name not in (None, *_VCF_COLUMNS)]
    total = _checked(args, scorer, read_variants(args.variants, info))
    variants = with_progress(read_variants(args.variants, info), "variants", total)

    def join(tables: Iterator[pa.Table], path: Path) -> None:
        # Before the output: it exists only with its metrics.
        table = Dataset(pa.concat_tables(tables))
        _summarise(args, table)
        join_table(iter([table.data.table]), path)

    write_in_parts(
        args.output, variants, scorer.table, settings, part_size=_PART, overwrite=args.overwrite_output, join=join
    )


def _options(args: argparse.Namespace) -> dict[str, Any]:
    names = ("scores", "window", "keep_case")
    return {"both_strands": not args.one_strand, **{name: getattr(args, name) for name in names}}


def _checked(args: argparse.Namespace, scorer: VariantScorer, variants: Iterable[Variant]) -> int:
    """Number of variants, after a check of all that the table and the metrics need besides the scores."""
    names = [name for name in (args.label_column, args.by) if name is not None]
    read: dict[str, list[Any]] = {name: [] for name in names}
    count, columns = 0, set[str]()
    for variant in variants:
        count += 1
        if not columns.issuperset(variant.columns):
            columns.update(variant.columns)
            scorer.check_columns(variant.columns)
        for name in names:
            read[name].append(variant.columns.get(name))
    if names and count:
        missing = [name for name in names if name not in columns]
        if missing:
            raise ValueError(f"{args.variants.name} has no column {missing[0]!r}; it has {', '.join(sorted(columns))}")
        check_evaluation(pd.DataFrame(read, dtype=object), args.label_column, args.positive, args.by)
    return count


def _summarise(args: argparse.Namespace, table: Dataset) -> None:
    reasons, missing = (Counter(re.sub(r"'.*?'|\d+", "...", why) for why in table[name] if why) for name in REASONS)
    usable = len(table) - reasons.total() - missing.total()
    print(f"{args.output} holds {len(table)} alleles, {usable} of them with all scores.")
    for reason, count in reasons.most_common():
        print(f"  {count} without: {reason}")
    for reason, count in missing.most_common():
        print(f"  {count} without {reason}")
    if args.label_column is not None:
        _print_metrics(args, table)


def _print_metrics(args: argparse.Namespace, table: Dataset) -> None:
    try:
        rows = evaluate_scores(table, args.label_column, args.positive, args.by).to_list()
    except ValueError as error:
        # The scores themselves are complete.
        print(f"hf-ssm: no metrics: {error}", file=sys.stderr)
        return
    print(f"| score | metric | value | standard error | chance | variants |\n| {' | '.join(['---'] * 6)} |")
    for row in rows:
        spread = "" if row["standard_error"] is None else f"{row['standard_error']:.4f}"
        cells = row["score"], row["metric"], f"{row['value']:.4f}", spread, f"{row['chance']:.4f}", row["variants"]
        print(f"| {' | '.join(map(str, cells))} |")
    path = args.output.with_suffix(_METRICS)
    write_text_atomically(path, json.dumps(rows, indent=1) + "\n")
    print(f"{path} holds these metrics.")


def _saturate(
    args: argparse.Namespace, model: SequenceModel, genome: Genome, regions: list[Region], settings: dict[str, Any]
) -> None:
    horizon = SATURATION_HORIZON if args.horizon is None else args.horizon
    saturation = Saturation(model, horizon=horizon, **_options(args))

    def compute(one_region: list[Region]) -> pa.Table:
        ((contig, first, last),) = one_region
        reach = max(args.window, horizon)
        begin, end = max(0, first - reach), min(genome.length(contig), last + reach)
        scored = saturation.table(genome.fetch(contig, begin, end), first - begin, last - begin)
        positions = [begin + place + 1 for place in scored["position"].to_pylist()]
        place = {"chrom": pa.array([contig] * len(scored), pa.string()), "pos": pa.array(positions, pa.int64())}
        return pa.table(place | {name: scored[name] for name in scored.column_names if name != "position"})

    def join(tables: Iterator[pa.Table], path: Path) -> None:
        table = pa.concat_tables(tables)
        with plotting.also_svg(args.svg):
            for picture in _pictures(args.output, table, regions, saturation.columns):
                print(f"{picture} shows the scores.")
        join_table(iter([table]), path)
        print(f"{args.output} holds the scores of {len(table)} substitutions.")

    with_bar = with_progress(regions, "regions", len(regions))
    write_in_parts(args.output, with_bar, compute, settings, part_size=1, overwrite=args.overwrite_output, join=join)


def _pictures(output: Path, table: pa.Table, regions: list[Region], scores: tuple[str, ...]) -> Iterator[Path]:
    if not can_draw("pictures"):
        return
    frame = table.to_pandas().rename(columns={"pos": "position"})
    for number, (contig, first, last) in enumerate(regions, start=1):
        inside = (frame["chrom"] == contig) & (frame["position"] > first) & (frame["position"] <= last)
        for score in scores if inside.any() else ():
            ending = f"{number}.{score}" if len(regions) > 1 else score
            path = output.with_name(f"{output.stem}.{ending}.png")
            plotting.plot_saturation(frame[inside], score, path, title=f"{contig}:{first + 1}-{last}")
            yield path


def _regions(texts: list[str], genome: Any, option: str) -> list[Region]:
    """Contig, first base counted from 0, and the one after the last."""
    regions = []
    for text in texts:
        parsed = _REGION.fullmatch(text)
        if parsed is None:
            raise ValueError(f"{option} {text!r}: give CONTIG:FIRST-LAST, such as chr1:1,001-2,000")
        first, last = (int(parsed[name].replace(",", "") or 0) for name in ("first", "last"))
        size = genome.length(parsed["contig"])
        if not 1 <= first <= last <= size:
            raise ValueError(f"{option} {text!r}: {parsed['contig']!r} has the positions 1 to {size}")
        regions.append((parsed["contig"], first - 1, last))
    return regions
