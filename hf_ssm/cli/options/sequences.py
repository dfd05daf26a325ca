"""Options of the commands that compute tables: predict, forecast, embed, score, saturate, tracks."""

import argparse
from collections.abc import Callable
from pathlib import Path

from hf_ssm.cli.options import (
    SVG_HELP,
    add_batch_limit,
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
"""Bases from a substitution on that count in saturation mutagenesis, by default."""
INFO_PREFIX = "HFSSM"

Add = Callable[..., object]


def _add_run(parser: argparse.ArgumentParser) -> None:
    """How the model is run."""
    add = parser.add_argument_group("run").add_argument
    dtype = "precision of the weights (default: auto, the precision of CHECKPOINT); bfloat16 is faster on GPUs"
    add("--dtype", choices=DTYPES, default="auto", help=dtype)


def _add_keep_case(add: Add) -> None:
    add("--keep-case", action="store_true", help="keep lower-case (soft-masked) bases; default: read them as capitals")


def _add_input(parser: argparse.ArgumentParser) -> None:
    what = f"sequences ({INPUT_FORMATS}), which may be gzipped"
    parser.add_argument("input", metavar="INPUT", type=Path, help=what)
    add = parser.add_argument_group("input").add_argument
    add_sequence_column(add)
    genome = "FASTA file of the genome to which the intervals of a BED file belong"
    add("--genome", metavar="FILE", type=Path, help=genome)
    _add_keep_case(add)


def _add_windows(add: Add, window: str) -> None:
    add("--window", metavar="LETTERS", type=int, help=window)
    stride = "number of letters from the start of a window to the next (default: --window)"
    add("--stride", "--step", metavar="LETTERS", type=int, help=stride)


def _add_regions(add: Add, what: str) -> None:
    add("--regions", metavar="FILE", type=Path, help=f"BED file, or GTF or GFF3 file, whose genes are used: {what}")
    types = "features of the GTF or GFF3 file, such as exon (default: genes, pseudogenes and genes of RNA)"
    add("--feature", metavar="TYPE", nargs="+", help=types)


def _add_track_files(add: Add) -> None:
    statistics = "also write mean, maximum and sum of the tracks of each region of --regions (csv, tsv or parquet)"
    add("--by-region", metavar="FILE", type=Path, help=statistics)
    session = "also write a file that opens the tracks in a genome browser: .xml (IGV) or .json (igv.js)"
    add("--session", metavar="FILE", type=Path, help=session)


def add_predict(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    _add_input(parser)
    add = parser.add_argument_group("prediction").add_argument
    _add_windows(add, "cut sequences into windows of so many letters (default: cut only sequences that are too long)")
    add("--aggregate", choices=AGGREGATIONS, help="write one row per sequence: the mean or maximum of its windows")
    strands = "average the predictions for the sequence and its reverse complement"
    add("--both-strands", action="store_true", help=strands)
    add = parser.add_argument_group("tracks of BED intervals, or of the records of a FASTA file").add_argument
    track = "also write a track: the mean of the windows of each base (.bw, .bigwig, .bedgraph or .bedgraph.gz)"
    add("--track", metavar="FILE", type=Path, help=track)
    _add_regions(add, "leave out windows that overlap no region")
    _add_track_files(add)
    _add_run(parser)
    add_table_options(parser, "csv, tsv or parquet", required=False)


def add_forecast(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder or Hub id of a model that forecasts series")
    what = "table of numeric series (csv, tsv, json, jsonl, parquet)"
    parser.add_argument("input", metavar="INPUT", type=Path, help=what)
    add_series_columns(parser.add_argument_group("input").add_argument)
    add = parser.add_argument_group("forecast").add_argument
    horizon = "number of steps to forecast (default: that of the model, or one patch)"
    add("--horizon", metavar="H", type=int, help=horizon)
    add("--context", metavar="L", type=int, help="read only the last L values of a series (default: all that fit)")
    quantiles = "write only these quantiles of the model (default: all)"
    add("--quantiles", metavar="Q", type=float, nargs="+", help=quantiles)
    scale = "season that the model was trained on, divided by the season of the series (default: that of the model)"
    add("--scale-factor", metavar="S", type=float, help=scale)
    held_out = "forecast the last H values, and compare these forecasts with seasonal-naive forecasts"
    add("--hold-out", action="store_true", help=held_out)
    add("--season", metavar="N", type=int, help="number of steps of a season, for --hold-out (default: 1)")
    _add_run(parser)
    add_batch_limit(parser.add_argument_group("model").add_argument)
    add_table_options(parser, "csv, tsv or parquet")


def add_embed(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    _add_input(parser)
    add = parser.add_argument_group("embedding").add_argument
    layers = (
        "layers by number (0: the embedding, -1: the last layer, the default), all, last, middle, or names of modules"
    )
    add("--layers", metavar="LAYER", nargs="+", default=["-1"], help=layers)
    pooling = "pooling of the tokens (default: mean); token: one row for each token"
    add("--pooling", choices=POOLINGS, default="mean", help=pooling)
    add("--both-strands", action="store_true", help="average over the DNA sequence and its reverse complement")
    sizes = "cut each sequence into windows, with one row for each; for variants, the size of their windows (default: "
    _add_windows(add, f"{sizes}{SCORE_WINDOW})")
    _add_run(parser)
    add_table_options(parser, "parquet or npz")


def _add_scores(parser: argparse.ArgumentParser, window: str, horizon: str) -> Add:
    """Options of `score` and `saturate`; the function that adds options to their group."""
    add = parser.add_argument_group("scores").add_argument
    scores = f"{', '.join(SCORES)} (default: llr and next_token, or masked_log_odds)"
    add("--scores", metavar="SCORE", nargs="+", choices=SCORES, help=scores)
    target = "effects on these classes or values of a classifier or regressor (default: all); not with --scores"
    add("--target", metavar="CLASS", nargs="+", help=target)
    add("--window", metavar="BASES", type=int, help=f"number of bases of a window around a variant (default: {window})")
    add("--horizon", metavar="BASES", type=int, help=f"number of bases from the variant on that count ({horizon})")
    shifts = "average the scores of windows that are moved by N bases (default: 0)"
    add("--shifts", metavar="N", type=int, nargs="+", default=[0], help=shifts)
    flank = "for classifiers of tokens: number of bases beside the alleles whose tokens count (default: the window)"
    add("--flank", metavar="BASES", type=int, help=flank)
    add("--per-strand", action="store_true", help="add a column of each score for each strand")
    add("--one-strand", action="store_true", help="do not average with the reverse complement")
    _add_keep_case(add)
    return add


_TRAINED = f"the length of the training sequences for a classifier or regressor, otherwise {SCORE_WINDOW}"


def add_score(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    variants = (
        "VCF file, or a table with the columns chrom, pos, ref, alt or ref_sequence, alt_sequence (csv, tsv, json, "
        "jsonl, parquet)"
    )
    parser.add_argument("variants", metavar="VARIANTS", type=Path, help=variants)
    add = parser.add_argument_group("input").add_argument
    add("--genome", metavar="FASTA", type=Path, help="FASTA file of the reference genome")
    _add_regions(add, "leave out variants outside of the regions")
    _add_scores(parser, _TRAINED, "default: the second half of the window")
    add = parser.add_argument_group("evaluation").add_argument
    labels = "column of VARIANTS, or INFO field, with labels: measure how well the scores separate the labels"
    add("--label-column", metavar="NAME", help=labels)
    add("--positive", metavar="LABEL", help="the label of the positive class (default: 1 or True)")
    by = "average the metrics over the groups of this column, such as chrom, weighted by their number of variants"
    add("--by", metavar="NAME", help=by)
    match = (
        "column of groups of a positive variant and its controls: also measure accuracy of pairs and reciprocal rank"
    )
    add("--match-group", metavar="NAME", help=match)
    _add_run(parser)
    add_table_options(parser, "csv, tsv or parquet; for a VCF file also vcf or vcf.gz")
    prefix = "start of the names of the INFO fields of a VCF output (default: %(default)s)"
    parser.add_argument("--info-prefix", metavar="NAME", default=INFO_PREFIX, help=prefix)


def add_saturate(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    regions = "regions of the genome, such as chr1:1,001-1,200 (positions count from 1)"
    parser.add_argument("places", metavar="CONTIG:FIRST-LAST", nargs="+", help=regions)
    group = parser.add_argument_group("input")
    group.add_argument("--genome", metavar="FASTA", type=Path, required=True, help="FASTA file of the genome")
    add_score_option = _add_scores(
        parser, _TRAINED, f"default: {SATURATION_HORIZON}, and with --target the rest of the window"
    )
    maps = "of one region, write how each substitution changes the predictions of all its bases (npz, csv or parquet)"
    add_score_option("--dependencies", action="store_true", help=maps)
    add = parser.add_argument_group("tracks").add_argument
    track = "also write tracks of the mean, min or max effect of the substitutions of each base (.bw)"
    add("--track", metavar="TRACK", nargs="+", choices=EFFECT_TRACKS, help=track)
    _add_regions(add, "the regions of --by-region")
    _add_track_files(add)
    _add_run(parser)
    add_table_options(parser, "csv, tsv or parquet; with --dependencies also npz")
    parser.add_argument("--svg", action="store_true", help=SVG_HELP)


def add_tracks(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("genome", metavar="GENOME", type=Path, help="FASTA file")
    add = parser.add_argument_group("tracks").add_argument
    track = "what is measured of each base: its log-likelihood, or the entropy of the prediction (default: likelihood)"
    add("--track", metavar="TRACK", nargs="+", choices=BASE_TRACKS, default=["likelihood"], help=track)
    window = f"number of bases that the model reads at once (default: {SCORE_WINDOW})"
    add("--window", metavar="BASES", type=int, default=SCORE_WINDOW, help=window)
    add("--one-strand", action="store_true", help="do not average with the reverse complement")
    _add_keep_case(add)
    _add_regions(add, "leave out bases outside of the regions")
    _add_track_files(add)
    _add_run(parser)
    add_table_options(parser, "bw, bigwig, bedgraph or bedgraph.gz")
