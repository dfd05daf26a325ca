"""`hf-ssm score`."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from datasets import Dataset

from hf_ssm.cli.checkpoints import warn_of_chance
from hf_ssm.cli.dependencies import MAP_OUTPUTS, write_dependencies
from hf_ssm.cli.effects import scorer_options
from hf_ssm.cli.options.sequences import BASE_TRACKS, EFFECT_TRACKS, INFO_PREFIX, SCORE_WINDOW
from hf_ssm.cli.saturate import parse_regions, saturate_regions
from hf_ssm.cli.sequences import (
    checkpoint_facts,
    is_own_model,
    keeps_case,
    load_sequence_model,
    model_words,
    with_progress,
)
from hf_ssm.cli.summary import command, suggest
from hf_ssm.cli.tracks import run_base_tracks
from hf_ssm.cli.variants import print_changed_contigs, print_reasons
from hf_ssm.data.genome import Genome
from hf_ssm.data.regions import Regions, in_regions, read_regions
from hf_ssm.data.variants import Variant, read_variants
from hf_ssm.data.vcf import VCF_OUTPUTS, AnnotatedVcf, is_vcf
from hf_ssm.inference.evaluation import check_evaluation, evaluate_scores
from hf_ssm.inference.model import SequenceModel
from hf_ssm.inference.parts import TABLE_OUTPUTS, check_table_output, file_facts, join_table, write_in_parts
from hf_ssm.inference.score import REASONS, VariantScorer
from hf_ssm.utils.evaluation import evaluating
from hf_ssm.utils.files import check_not_input, write_text_atomically

_SETTINGS = (
    *("scores", "window", "horizon", "one_strand", "keep_case", "label_column", "by", "match_group"),
    *("target", "shifts", "flank", "per_strand", "info_prefix"),
)
_VARIANTS, _SATURATE, _TRACK, _MAP = "VARIANTS", "--saturate", "--track", "--dependencies"
# Options for some uses of the command.
_USES = {
    **dict.fromkeys(("label_column", "positive", "by", "match_group", "info_prefix"), (_VARIANTS,)),
    **dict.fromkeys(("scores", "target", "horizon", "shifts", "flank", "per_strand"), (_VARIANTS, _SATURATE)),
    **dict.fromkeys(("session", "by_region"), (_SATURATE, _TRACK)),
    "regions": (_VARIANTS, _SATURATE, _TRACK),
    "svg": (_SATURATE, _MAP),
}
_DEFAULTS = {"shifts": [0], "info_prefix": INFO_PREFIX, "per_strand": False, "svg": False}
# Columns of each record of a VCF file.
_VCF_COLUMNS = ("chrom", "pos", "id", "ref", "alt")
# Suffix of the metrics beside the scores.
_METRICS = ".metrics.json"
# Variants of a part of the output; of those that are read once for each token, a sixteenth.
_PART = 64


def run_score(args: argparse.Namespace) -> None:
    """`hf-ssm score`: scores of variants, of all substitutions of regions, a dependency map, or tracks."""
    use = _use(args)
    if use == _TRACK:
        run_base_tracks(args)
        return
    texts = {_SATURATE: args.saturate, _MAP: [args.dependencies]}.get(use)
    formats = {_VARIANTS: (*TABLE_OUTPUTS, *VCF_OUTPUTS), _MAP: MAP_OUTPUTS}.get(use, TABLE_OUTPUTS)
    check_table_output(args.output, formats)
    check_not_input(args.output.with_suffix(_METRICS), args.variants)
    with ExitStack() as stack:
        genome = None if args.genome is None else stack.enter_context(Genome(args.genome))
        regions = None if texts is None else parse_regions(texts, genome, use)
        within = None if args.regions is None or genome is None else read_regions(args.regions, genome)
        args.keep_case = keeps_case(args)
        model = load_sequence_model(args)
        stack.enter_context(evaluating(model.model))
        if is_own_model(args.checkpoint):
            warn_of_chance(args.checkpoint, model.tokenizer)
        settings = {
            **{name: getattr(args, name) for name in _SETTINGS},
            "regions": regions,
            "checkpoint": checkpoint_facts(args, model.model),
            "files": [file_facts(path) for path in (args.variants, args.genome, args.regions) if path is not None],
        }
        if regions is not None:
            assert genome is not None
            if args.dependencies is None:
                saturate_regions(args, model, genome, regions, settings, within)
            else:
                write_dependencies(args, model, genome, regions[0], settings | {"kind": "dependencies"})
        else:
            _score(args, model, genome, settings, within)
            can_saturate = args.target is not None or model.head in ("causal", "masked")
            if args.genome is not None and can_saturate:
                region = ("--saturate", "CONTIG:FIRST-LAST", "--genome", args.genome, "--output", "region.csv")
                # The model reads half a window, the region and the horizon at once.
                horizon = max(1, args.window // 4) if args.horizon is None else args.horizon
                window = [] if args.window == SCORE_WINDOW else ["--window", args.window, "--horizon", horizon]
                target = [] if args.target is None else ["--target", *args.target]
                window = window[:2] if target else window
                line = command("score", args.checkpoint, *region, *window, *target, *model_words(args))
                suggest((line, "every substitution of a region, with a figure"))


def _use(args: argparse.Namespace) -> str:
    """The use of the command, after a check that the options suit it."""
    is_given = {
        _VARIANTS: args.variants is not None,
        _SATURATE: args.saturate is not None,
        _TRACK: args.track is not None and args.saturate is None,
        _MAP: args.dependencies is not None,
    }
    if sum(is_given.values()) != 1:
        raise ValueError(
            "give one of these: the file VARIANTS, --saturate CONTIG:FIRST-LAST, --track likelihood, or "
            "--dependencies CONTIG:FIRST-LAST"
        )
    use = next(name for name, is_use in is_given.items() if is_use)
    for name, uses in _USES.items():
        if use not in uses and getattr(args, name) != _DEFAULTS.get(name):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} is for {' and '.join(uses)}, not for {use}: leave {option} out")
    if args.genome is None and (use != _VARIANTS or args.regions is not None):
        raise ValueError(f"{use if use != _VARIANTS else '--regions'} needs the sequence: give --genome FASTA")
    for track in args.track or ():
        if track not in (BASE_TRACKS if use == _TRACK else EFFECT_TRACKS):
            purpose = "without" if track in BASE_TRACKS else "with"
            raise ValueError(f"--track {track} is for a command {purpose} --saturate: choose another track")
    if args.label_column is None and any(value is not None for value in (args.positive, args.by, args.match_group)):
        raise ValueError("--positive, --by and --match-group need the labels: give --label-column")
    if args.target is not None and args.scores is not None:
        raise ValueError("--target and --scores exclude each other: give one of them")
    if args.target is None and args.flank is not None:
        raise ValueError("--flank is for --target with a classifier of tokens: leave --flank out")
    if args.target is None and use == _SATURATE and (args.per_strand or args.shifts != [0]):
        raise ValueError("--per-strand and --shifts are for VARIANTS or --target: leave them out with --saturate")
    if args.info_prefix != INFO_PREFIX and not is_vcf(args.output):
        raise ValueError(
            f"--info-prefix is for an --output .vcf or .vcf.gz, not for {str(args.output)!r}: leave --info-prefix out"
        )
    if args.regions is not None and use == _SATURATE and args.by_region is None:
        raise ValueError("--regions with --saturate is for --by-region: give --by-region, or leave --regions out")
    if args.regions is not None and is_vcf(args.output):
        raise ValueError(
            "--regions leaves out variants, but a VCF output keeps all variants: give a csv, tsv or parquet file "
            "as --output"
        )
    return use


def _score(
    args: argparse.Namespace,
    model: SequenceModel,
    genome: Genome | None,
    settings: dict[str, Any],
    within: Regions | None,
) -> None:
    scorer = VariantScorer(model, genome, **scorer_options(args))
    info = [name for name in (args.label_column, args.by, args.match_group) if name not in (None, *_VCF_COLUMNS)]

    def read() -> Iterator[Variant]:
        variants = read_variants(args.variants, info)
        return variants if within is None else in_regions(variants, within)

    total = _checked(args, scorer, read())
    if within is not None and not total:
        raise ValueError(f"--regions {str(args.regions)!r}: no variant of {args.variants.name} lies in a region")
    variants = with_progress(read(), "variants", total)
    write = join_table
    if is_vcf(args.output):
        texts = {name: f"{text} (model {args.checkpoint})" for name, text in scorer.descriptions.items()} | REASONS
        write = AnnotatedVcf(args.variants, args.output, texts, genome, args.info_prefix).write

    def join(tables: Iterator[pa.Table], path: Path) -> None:
        # Before the output: it exists only with its metrics.
        table = Dataset(pa.concat_tables(tables))
        _summarise(args, table, scorer.evaluated)
        write(iter([table.data.table]), path)

    is_slow = any("pseudo" in name for name in args.scores or ())
    size = max(1, _PART // 16) if is_slow else _PART
    write_in_parts(
        args.output, variants, scorer.table, settings, part_size=size, overwrite=args.overwrite_output, join=join
    )


def _checked(args: argparse.Namespace, scorer: VariantScorer, variants: Iterable[Variant]) -> int:
    """Number of variants, after a check of all that the table and the metrics need besides the scores."""
    names = [name for name in (args.label_column, args.by, args.match_group) if name is not None]
    read: dict[str, list[Any]] = {name: [] for name in names}
    count, columns, contigs = 0, set[str](), dict[str, None]()
    for variant in variants:
        count += 1
        contigs[variant.chrom] = None
        if not columns.issuperset(variant.columns):
            columns.update(variant.columns)
            scorer.check_columns(variant.columns)
        for name in names:
            read[name].append(variant.columns.get(name))
    print_changed_contigs(contigs, args.variants, scorer.genome)
    if names and count:
        missing = [name for name in names if name not in columns]
        if missing:
            raise ValueError(
                f"{args.variants.name} has no column {missing[0]!r}; its columns are {', '.join(sorted(columns))}"
            )
        check_evaluation(pd.DataFrame(read, dtype=object), args.label_column, args.positive, args.by, args.match_group)
    return count


def _summarise(args: argparse.Namespace, table: Dataset, scores: Sequence[str]) -> None:
    reasons, missing = ([why for why in table[name] if why] for name in REASONS)
    usable = len(table) - len(reasons) - len(missing)
    print(f"{args.output} holds {len(table)} alleles, {usable} of them with all scores.")
    print_reasons(reasons, "alleles without scores")
    print_reasons(missing, "alleles without a score")
    if args.label_column is not None:
        _print_metrics(args, table, scores)


def _print_metrics(args: argparse.Namespace, table: Dataset, scores: Sequence[str]) -> None:
    try:
        options = {"by": args.by, "match_group": args.match_group}
        rows = evaluate_scores(table, args.label_column, args.positive, scores=scores, **options).to_list()
    except ValueError as error:
        # The scores themselves are complete.
        print(f"hf-ssm: the metrics cannot be computed: {error}", file=sys.stderr)
        return
    print(f"| score | metric | value | standard error | chance | variants |\n| {' | '.join(['---'] * 6)} |")
    for row in rows:
        spread = "" if row["standard_error"] is None else f"{row['standard_error']:.4f}"
        cells = row["score"], row["metric"], f"{row['value']:.4f}", spread, f"{row['chance']:.4f}", row["variants"]
        print(f"| {' | '.join(map(str, cells))} |")
    path = args.output.with_suffix(_METRICS)
    write_text_atomically(path, json.dumps(rows, indent=1) + "\n")
    print(f"{path} holds these metrics.")
