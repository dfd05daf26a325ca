"""Options of `hf-ssm predict`, `embed` and `score`."""

import argparse
from pathlib import Path

from hf_ssm.cli.options import SVG_HELP, add_model_options, add_sequence_column, add_table_options

INPUT_FORMATS = "csv, tsv, json, jsonl, parquet, FASTA, BED"
AGGREGATIONS = ("mean", "max")
POOLINGS = ("mean", "last", "token")
SCORES = ("llr", "next_token", "masked_log_odds", "embedding_distance")
SCORE_WINDOW = 1024
"""Bases of a window around a variant, by default."""
SATURATION_HORIZON = 128
"""Bases from a substitution on that count with --saturate, by default."""
KEEP_CASE_HELP = "keep lower-case (soft-masked) bases, which are read as capitals by default"


def _add_input(parser: argparse.ArgumentParser) -> None:
    what = f"sequences ({INPUT_FORMATS}), which may be gzipped"
    parser.add_argument("input", metavar="INPUT", type=Path, help=what)
    add = parser.add_argument_group("input").add_argument
    add_sequence_column(add)
    add("--genome", metavar="FILE", type=Path, help="FASTA of the genome in which BED intervals are looked up")
    add("--keep-case", action="store_true", help=f"{KEEP_CASE_HELP} (FASTA, BED)")


def add_predict(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    _add_input(parser)
    add = parser.add_argument_group("prediction").add_argument
    add("--window", metavar="W", type=int, help="cut sequences into windows of W letters; default: only if too long")
    add("--stride", metavar="S", type=int, help="letters from one window to the next (default: W)")
    add("--aggregate", choices=AGGREGATIONS, help="one row per sequence: mean or maximum of its windows")
    add("--both-strands", action="store_true", help="average the sequence and its reverse complement")
    add_table_options(parser, "csv, tsv or parquet")


def add_embed(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    _add_input(parser)
    add = parser.add_argument_group("embedding").add_argument
    layers = "0: the embedding, -1: the last (default)"
    add("--layers", metavar="N", type=int, nargs="+", default=[-1], help=layers)
    add("--pooling", choices=POOLINGS, default="mean", help="mean of the tokens (default), the last, or each token")
    add("--both-strands", action="store_true", help="average over the DNA sequence and its reverse complement")
    add("--window", metavar="LETTERS", type=int, help="cut each sequence into windows, one row each")
    add("--stride", metavar="LETTERS", type=int, help="from the start of a window to the next (default: --window)")
    labels = "cross-validated logistic regression on the embeddings; a column of INPUT, or a table with name and label"
    add("--linear-probe", metavar="LABELS", help=labels)
    add("--folds", metavar="N", type=int, default=5, help="folds of --linear-probe (default: %(default)s)")
    add_table_options(parser, "parquet or safetensors")


def add_score(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    variants = "VCF, or a table with chrom, pos, ref, alt or with ref_sequence, alt_sequence (csv, tsv, json, jsonl, "
    parser.add_argument("variants", metavar="VARIANTS", nargs="?", type=Path, help=f"{variants}parquet)")
    add = parser.add_argument_group("scores").add_argument
    add("--genome", metavar="FASTA", type=Path, help="the reference")
    add("--saturate", metavar="CONTIG:FIRST-LAST", nargs="+", help="score every substitution of regions (1-based)")
    dependencies = "how each substitution of a region changes the predictions of all its bases (.npz, .csv, .parquet)"
    add("--dependencies", metavar="CONTIG:FIRST-LAST", help=dependencies)
    scores = f"{', '.join(SCORES)} (default: llr and next_token, or masked_log_odds)"
    add("--scores", metavar="SCORE", nargs="+", choices=SCORES, help=scores)
    window = "bases of a window around a variant (default: %(default)s)"
    add("--window", metavar="BASES", type=int, default=SCORE_WINDOW, help=window)
    horizon = "bases from the variant on that count (default: the second half of the window; with --saturate "
    add("--horizon", metavar="BASES", type=int, help=f"{horizon}{SATURATION_HORIZON})")
    add("--keep-case", action="store_true", help=KEEP_CASE_HELP)
    add("--one-strand", action="store_true", help="do not average with the reverse complement")
    add = parser.add_argument_group("evaluation").add_argument
    add("--label-column", metavar="NAME", help="column of VARIANTS, or INFO field: measure how the scores separate it")
    add("--positive", metavar="LABEL", help="the label of the positive class (default: 1 or True)")
    add("--by", metavar="NAME", help="average the metrics over groups, such as chrom, weighted by their variants")
    add("--svg", action="store_true", help=f"{SVG_HELP} (with --saturate, --dependencies)")
    add_table_options(parser, "csv, tsv or parquet")
