"""Options of `hf-ssm marginalize`, `motifs` and `modisco`."""

import argparse
from collections.abc import Callable
from pathlib import Path

from hf_ssm.cli.options import SVG_HELP, add_model_options, add_sequence_column, add_table_options
from hf_ssm.cli.options.sequences import INPUT_FORMATS

ATTRIBUTION_METHODS = ("deep_lift", "in_silico_mutagenesis")
_GENOME_HELP = "FASTA of the genome in which BED intervals are looked up"


def _add_length(add: Callable[..., object]) -> None:
    add("--length", metavar="BASES", type=int, help="the middle of each sequence; needed if lengths differ")


def add_marginalize(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    motifs = "a MEME or JASPAR file, or letters such as TGASTCA, several with commas"
    parser.add_argument("motifs", metavar="MOTIFS", help=motifs)
    add = parser.add_argument_group("backgrounds").add_argument
    what = f"sequences of one length ({INPUT_FORMATS}), which may be gzipped"
    add("--backgrounds", metavar="FILE", dest="input", type=Path, required=True, help=what)
    add_sequence_column(add)
    add("--genome", metavar="FILE", type=Path, help=_GENOME_HELP)
    _add_length(add)
    add("--shuffle", metavar="N", type=int, help="N shuffles of each sequence instead, with its dinucleotides")
    add("--seed", metavar="N", type=int, default=0, help="of shuffles and samples (default: %(default)s)")
    add = parser.add_argument_group("motifs").add_argument
    add("--position", metavar="BASES", type=int, help="bases before the motif (default: the middle)")
    add("--scan", metavar="STEP", type=int, help="the effect at every STEP-th position")
    samples = "draw N sequences from the motif for each background (default: the most probable bases)"
    add("--samples", metavar="N", type=int, help=samples)
    add("--reverse-complement", action="store_true", help="also the reverse complement of each motif")
    add = parser.add_argument_group("outputs").add_argument
    add("--target", metavar="CLASS", help="name or number of a class or value (default: class 1 of two, or all)")
    add("--both-strands", action="store_true", help="average the sequence and its reverse complement")
    add("--svg", action="store_true", help=SVG_HELP)
    add_table_options(parser, "csv, tsv or parquet")


def add_motifs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("motifs", metavar="MOTIFS", help="a MEME or JASPAR file, or letters such as TGASTCA")
    table = "scores of bases: output of hf-ssm score --saturate, or tokens.tsv of hf-ssm probe"
    parser.add_argument("input", metavar="TABLE", type=Path, help=table)
    add = parser.add_argument_group("occurrences").add_argument
    add("--score", metavar="NAME", help="column of the score (default: llr, masked_log_odds, effect, ...)")
    add("--threshold", metavar="P", type=float, default=1e-4, help="largest p-value (default: %(default)s)")
    add_table_options(parser, "csv, tsv or parquet")


def add_modisco(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    what = f"DNA sequences without N ({INPUT_FORMATS}), which may be gzipped"
    parser.add_argument("input", metavar="INPUT", type=Path, help=what)
    add = parser.add_argument_group("input").add_argument
    add_sequence_column(add)
    add("--genome", metavar="FILE", type=Path, help=_GENOME_HELP)
    _add_length(add)
    add = parser.add_argument_group("attributions").add_argument
    add("--target", metavar="N", type=int, help="number of a class or value (default: class 1 of two)")
    add("--method", choices=ATTRIBUTION_METHODS, default="deep_lift", help="default: %(default)s")
    references = "shuffles of each sequence as references of deep_lift (default: %(default)s)"
    add("--references", metavar="N", type=int, default=20, help=references)
    add("--seed", metavar="N", type=int, default=0, help="of the shuffles (default: %(default)s)")
    add = parser.add_argument_group("output").add_argument
    add("--output", metavar="DIR", type=Path, required=True, help="folder for ohe.npz, shap.npz, completeness.csv")
    add("--overwrite-output", action="store_true", help="replace these files")
