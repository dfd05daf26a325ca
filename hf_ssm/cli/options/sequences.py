"""Options of `hf-ssm predict`, `embed` and `score`."""

import argparse
from collections.abc import Callable
from pathlib import Path

from hf_ssm.cli.options import (
    SVG_HELP,
    add_model_options,
    add_sequence_column,
    add_series_columns,
    add_table_options,
)

INPUT_FORMATS = "csv, tsv, json, jsonl, parquet, txt, FASTA, BED"
AGGREGATIONS = ("mean", "max")
POOLINGS = ("mean", "max", "first", "last", "center", "token")
DTYPES = ("auto", "float32", "bfloat16", "float64")
SCORES = (
    *("llr", "ref_llr", "alt_llr", "abs_llr", "mean_llr", "next_token", "masked_log_odds"),
    *("pseudo_llr", "ref_pseudo_llr", "alt_pseudo_llr", "abs_pseudo_llr", "mean_pseudo_llr"),
    *("unmasked_llr", "ref_unmasked_llr", "alt_unmasked_llr", "abs_unmasked_llr", "mean_unmasked_llr"),
    "embedding_distance",
)
BASE_TRACKS = ("likelihood", "entropy")
EFFECT_TRACKS = ("mean", "min", "max")
SCORE_WINDOW = 1024
"""Bases of a window around a variant, by default."""
SATURATION_HORIZON = 128
"""Bases from a substitution on that count with --saturate, by default."""
INFO_PREFIX = "HFSSM"
KEEP_CASE_HELP = "keep lower-case (soft-masked) bases, which are read as capitals by default"


def _add_run(parser: argparse.ArgumentParser) -> None:
    """How the model is run."""
    add = parser.add_argument_group("run").add_argument
    dtype = "precision of the weights (default: auto, the precision of CHECKPOINT); bfloat16 is faster on GPUs"
    add("--dtype", choices=DTYPES, default="auto", help=dtype)


def _add_input(parser: argparse.ArgumentParser) -> None:
    what = f"sequences ({INPUT_FORMATS}), which may be gzipped"
    parser.add_argument("input", metavar="INPUT", type=Path, help=what)
    add = parser.add_argument_group("input").add_argument
    add_sequence_column(add)
    add(
        "--genome",
        metavar="FILE",
        type=Path,
        help="FASTA file of the genome to which the intervals of a BED file belong",
    )
    add("--keep-case", action="store_true", help=f"{KEEP_CASE_HELP} (FASTA, BED)")


def _add_region_options(add: Callable[..., object], what: str) -> None:
    add("--regions", metavar="FILE", type=Path, help=f"BED file, or GTF or GFF3 file, whose genes are used: {what}")
    types = "features of the GTF or GFF3 file, such as exon (default: genes, pseudogenes and genes of RNA)"
    add("--feature", metavar="TYPE", nargs="+", help=types)
    statistics = "also write mean, maximum and sum of the tracks of each region of --regions (csv, tsv or parquet)"
    add("--by-region", metavar="FILE", type=Path, help=statistics)
    session = "also write a file that opens the tracks in a genome browser: .xml (IGV) or .json (igv.js)"
    add("--session", metavar="FILE", type=Path, help=session)


def add_predict(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    _add_input(parser)
    add = parser.add_argument_group("prediction").add_argument
    add(
        "--window",
        metavar="W",
        type=int,
        help="cut sequences into windows of W letters (default: cut only sequences that are too long)",
    )
    add(
        "--stride",
        "--step",
        metavar="S",
        type=int,
        help="number of letters from the start of a window to the next (default: W)",
    )
    add("--aggregate", choices=AGGREGATIONS, help="write one row per sequence: the mean or maximum of its windows")
    add(
        "--both-strands",
        action="store_true",
        help="average the predictions for the sequence and its reverse complement",
    )
    add = parser.add_argument_group("tracks of BED intervals").add_argument
    formats = ".bw, .bigwig, .bedgraph or .bedgraph.gz"
    add(
        "--track",
        metavar="FILE",
        type=Path,
        help=f"also write a track: the mean of the windows of each base ({formats})",
    )
    _add_region_options(add, "leave out windows that overlap no region")
    _add_forecast(parser)
    _add_run(parser)
    add_table_options(parser, "csv, tsv or parquet", required=False)


def _add_forecast(parser: argparse.ArgumentParser) -> None:
    """Options for models that forecast series."""
    add = parser.add_argument_group("forecasts of numeric series (csv, tsv, json, jsonl, parquet)").add_argument
    add(
        "--horizon",
        metavar="H",
        type=int,
        help="number of steps to forecast (default: that of the model, or one patch)",
    )
    add("--context", metavar="L", type=int, help="read only the last L values of a series (default: all that fit)")
    add(
        "--quantiles", metavar="Q", type=float, nargs="+", help="write only these quantiles of the model (default: all)"
    )
    add_series_columns(add)
    scale = "season that the model was trained on, divided by the season of the series (default: that of the model)"
    add("--scale-factor", metavar="S", type=float, help=scale)
    add(
        "--hold-out",
        action="store_true",
        help="forecast the last H values, and compare these forecasts with seasonal-naive forecasts",
    )
    add("--season", metavar="N", type=int, help="number of steps of a season, for --hold-out (default: 1)")


def add_embed(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    _add_input(parser)
    add = parser.add_argument_group("embedding").add_argument
    layers = (
        "layers by number (0: the embedding, -1: the last layer, the default), all, last, middle, or names of modules"
    )
    add("--layers", metavar="LAYER", nargs="+", default=["-1"], help=layers)
    add(
        "--pooling",
        choices=POOLINGS,
        default="mean",
        help="pooling of the tokens (default: mean); token: one row for each token",
    )
    add("--both-strands", action="store_true", help="average over the DNA sequence and its reverse complement")
    window = (
        "cut each sequence into windows, with one row for each; for variants, the size of their windows (default: "
        f"{SCORE_WINDOW})"
    )
    add("--window", metavar="LETTERS", type=int, help=window)
    add(
        "--stride",
        metavar="LETTERS",
        type=int,
        help="number of letters from the start of a window to the next (default: --window)",
    )
    _add_run(parser)
    add_table_options(parser, "parquet or npz")


def _add_effects(add: Callable[..., object]) -> None:
    target = "score the effects on these classes or values of a classifier or regressor, or on `all`; not with --scores"
    add("--target", metavar="CLASS", nargs="+", help=target)
    add(
        "--shifts",
        metavar="N",
        type=int,
        nargs="+",
        default=[0],
        help="average the scores of windows that are moved by N bases (default: 0)",
    )
    flank = "for classifiers of tokens: number of bases beside the alleles whose tokens count (default: the window)"
    add("--flank", metavar="BASES", type=int, help=flank)
    add("--per-strand", action="store_true", help="add a column of each score for each strand")
    prefix = "start of the names of the INFO fields of a VCF output (default: %(default)s)"
    add("--info-prefix", metavar="NAME", default=INFO_PREFIX, help=prefix)


def add_score(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    variants = (
        "VCF file, or a table with the columns chrom, pos, ref, alt or ref_sequence, alt_sequence (csv, tsv, json, "
        "jsonl, parquet)"
    )
    parser.add_argument("variants", metavar="VARIANTS", nargs="?", type=Path, help=variants)
    add = parser.add_argument_group("scores").add_argument
    add("--genome", metavar="FASTA", type=Path, help="FASTA file of the reference genome")
    add(
        "--saturate",
        metavar="CONTIG:FIRST-LAST",
        nargs="+",
        help="score every substitution of these regions (positions count from 1)",
    )
    dependencies = (
        "measure how each substitution of a region changes the predictions of all its bases (.npz, .csv, .parquet)"
    )
    add("--dependencies", metavar="CONTIG:FIRST-LAST", help=dependencies)
    scores = f"{', '.join(SCORES)} (default: llr and next_token, or masked_log_odds)"
    add("--scores", metavar="SCORE", nargs="+", choices=SCORES, help=scores)
    _add_effects(add)
    window = "number of bases of a window around a variant (default: %(default)s)"
    add("--window", metavar="BASES", type=int, default=SCORE_WINDOW, help=window)
    horizon = (
        "number of bases from the variant on that count (default: the second half of the window; with --saturate: "
        f"{SATURATION_HORIZON})"
    )
    add("--horizon", metavar="BASES", type=int, help=horizon)
    add("--keep-case", action="store_true", help=KEEP_CASE_HELP)
    add("--one-strand", action="store_true", help="do not average with the reverse complement")
    add = parser.add_argument_group("tracks and regions").add_argument
    tracks = (
        f"tracks to write: {' or '.join(BASE_TRACKS)} of each base of the genome; with --saturate: "
        f"{', '.join(EFFECT_TRACKS)} effect"
    )
    add("--track", metavar="TRACK", nargs="+", choices=(*BASE_TRACKS, *EFFECT_TRACKS), help=tracks)
    _add_region_options(add, "leave out variants and bases outside of the regions")
    add = parser.add_argument_group("evaluation").add_argument
    add(
        "--label-column",
        metavar="NAME",
        help="column of VARIANTS, or INFO field, with labels: measure how well the scores separate the labels",
    )
    add("--positive", metavar="LABEL", help="the label of the positive class (default: 1 or True)")
    add(
        "--by",
        metavar="NAME",
        help="average the metrics over the groups of this column, such as chrom, weighted by their number of variants",
    )
    match = (
        "column of groups of a positive variant and its controls: also measure accuracy of pairs and reciprocal rank"
    )
    add("--match-group", metavar="NAME", help=match)
    add("--svg", action="store_true", help=f"{SVG_HELP} (with --saturate, --dependencies)")
    _add_run(parser)
    formats = "csv, tsv or parquet; for a VCF file also vcf or vcf.gz; for --track: bw, bigwig, bedgraph or bedgraph.gz"
    add_table_options(parser, formats)
