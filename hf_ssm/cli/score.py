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
from hf_ssm.cli.dependencies import check_dependencies, write_dependencies
from hf_ssm.cli.effects import check_effects, scorer_options
from hf_ssm.cli.options.sequences import SCORE_WINDOW
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
from hf_ssm.cli.tracks import check_score_tracks, run_base_tracks
from hf_ssm.cli.variants import print_changed_contigs, print_reasons
from hf_ssm.data.genome import Genome
from hf_ssm.data.regions import Regions, in_regions, read_regions
from hf_ssm.data.variants import Variant, read_variants
from hf_ssm.data.vcf import VCF_OUTPUTS, AnnotatedVcf, is_vcf
from hf_ssm.inference.estimate import estimate
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
# Columns of each record of a VCF file.
_VCF_COLUMNS = ("chrom", "pos", "id", "ref", "alt")
# Suffix of the metrics beside the scores.
_METRICS = ".metrics.json"
# Variants of a part of the output; of those that are read once for each token, a sixteenth.
_PART = 64


def run_score(args: argparse.Namespace) -> None:
    """`hf-ssm score`: scores of variants, of all substitutions of regions, a dependency map, or tracks."""
    check_score_tracks(args)
    evaluation = (args.label_column, args.positive, args.by, args.match_group)
    if args.variants is None and any(value is not None for value in evaluation):
        raise ValueError("--label-column, --positive, --by and --match-group are for VARIANTS: leave them out")
    track = args.track if args.saturate is None else None
    if sum(given is not None for given in (args.variants, args.saturate, args.dependencies, track)) != 1:
        raise ValueError(
            "give one of these: the file VARIANTS, --saturate CONTIG:FIRST-LAST, --track likelihood, or "
            "--dependencies CONTIG:FIRST-LAST"
        )
    if track is not None:
        run_base_tracks(args)
        return
    option = "--saturate" if args.dependencies is None else "--dependencies"
    texts = args.saturate if args.dependencies is None else [args.dependencies]
    if texts is not None and args.genome is None:
        raise ValueError(f"{option} needs the sequence: give --genome FASTA")
    if args.label_column is None and any(value is not None for value in evaluation):
        raise ValueError("--positive, --by and --match-group need the labels: give --label-column")
    if args.svg and texts is None:
        raise ValueError("--svg is for the figures of --saturate and --dependencies: leave --svg out")
    check_effects(args)
    if args.dependencies is not None:
        check_dependencies(args)
    else:
        check_table_output(args.output, (*TABLE_OUTPUTS, *VCF_OUTPUTS) if args.saturate is None else TABLE_OUTPUTS)
    check_not_input(args.output.with_suffix(_METRICS), args.variants)
    with ExitStack() as stack:
        genome = None if args.genome is None else stack.enter_context(Genome(args.genome))
        regions = None if texts is None else parse_regions(texts, genome, option)
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
            if args.genome is not None and can_saturate and not args.estimate:
                region = ("--saturate", "CONTIG:FIRST-LAST", "--genome", args.genome, "--output", "region.csv")
                # The model reads half a window, the region and the horizon at once.
                horizon = max(1, args.window // 4) if args.horizon is None else args.horizon
                window = [] if args.window == SCORE_WINDOW else ["--window", args.window, "--horizon", horizon]
                target = [] if args.target is None else ["--target", *args.target]
                window = window[:2] if target else window
                line = command("score", args.checkpoint, *region, *window, *target, *model_words(args))
                suggest((line, "every substitution of a region, with a figure"))


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
    if args.estimate:
        print(estimate(read(), scorer.table, total, "variants"))
        return
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
