"""Options of `hf-ssm marginalize`, `motifs` and `modisco`."""

import argparse
from collections.abc import Callable
from pathlib import Path

from hf_ssm.cli.options import SVG_HELP, add_model_options, add_sequence_column, add_table_options
from hf_ssm.cli.options.sequences import INPUT_FORMATS

ATTRIBUTION_METHODS = ("deep_lift", "in_silico_mutagenesis")
_MOTIFS_HELP = "a MEME or JASPAR file, or letters such as TGASTCA; separate several motifs by commas"
_GENOME_HELP = "FASTA file of the genome to which the intervals of a BED file belong"


def _add_length(add: Callable[..., object]) -> None:
    add(
        "--length",
        metavar="BASES",
        type=int,
        help="use this number of bases from the middle of each sequence; needed if lengths differ",
    )


def add_marginalize(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("motifs", metavar="MOTIFS", help=_MOTIFS_HELP)
    add = parser.add_argument_group("backgrounds").add_argument
    what = f"sequences of one length ({INPUT_FORMATS}), which may be gzipped"
    add("--backgrounds", metavar="FILE", dest="input", type=Path, required=True, help=what)
    add_sequence_column(add)
    add("--genome", metavar="FILE", type=Path, help=_GENOME_HELP)
    _add_length(add)
    add(
        "--shuffle",
        metavar="N",
        type=int,
        help="use N shuffles of each sequence instead of the sequence; a shuffle keeps the dinucleotides",
    )
    add("--seed", metavar="N", type=int, default=0, help="seed of the shuffles and samples (default: %(default)s)")
    add = parser.add_argument_group("motifs").add_argument
    add(
        "--position",
        metavar="BASES",
        type=int,
        help="number of bases before the motif (default: the motif is in the middle)",
    )
    add("--scan", metavar="STEP", type=int, help="measure the effect at every STEP-th position")
    samples = "draw N sequences from the motif for each background (default: the most probable bases)"
    add("--samples", metavar="N", type=int, help=samples)
    add("--reverse-complement", action="store_true", help="also measure the reverse complement of each motif")
    add = parser.add_argument_group("outputs").add_argument
    add(
        "--target",
        metavar="CLASS",
        help="name or number of a class or value (default: class 1 of two classes, otherwise all)",
    )
    add("--both-strands", action="store_true", help="average the outputs for the sequence and its reverse complement")
    add("--svg", action="store_true", help=SVG_HELP)
    add_table_options(parser, "csv, tsv or parquet")


def add_motifs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("motifs", metavar="MOTIFS", help=_MOTIFS_HELP)
    table = "scores of bases: the output of `hf-ssm score --saturate`, or the tokens.tsv of `hf-ssm probe`"
    parser.add_argument("input", metavar="TABLE", type=Path, help=table)
    add = parser.add_argument_group("occurrences").add_argument
    add("--score", metavar="NAME", help="column of the score (default: llr, masked_log_odds, effect, ...)")
    add(
        "--threshold",
        metavar="P",
        type=float,
        default=1e-4,
        help="largest p-value of an occurrence (default: %(default)s)",
    )
    add_table_options(parser, "csv, tsv or parquet", continues=False)


def add_modisco(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    what = f"DNA sequences without N ({INPUT_FORMATS}), which may be gzipped"
    parser.add_argument("input", metavar="INPUT", type=Path, help=what)
    add = parser.add_argument_group("input").add_argument
    add_sequence_column(add)
    add("--genome", metavar="FILE", type=Path, help=_GENOME_HELP)
    _add_length(add)
    add = parser.add_argument_group("attributions").add_argument
    add("--target", metavar="N", type=int, help="number of a class or value (default: class 1 of two classes)")
    add(
        "--method",
        choices=ATTRIBUTION_METHODS,
        default="deep_lift",
        help="method of attribution (default: %(default)s)",
    )
    references = "number of shuffles of each sequence that deep_lift takes as references (default: %(default)s)"
    add("--references", metavar="N", type=int, default=20, help=references)
    add("--seed", metavar="N", type=int, default=0, help="seed of the shuffles (default: %(default)s)")
    add = parser.add_argument_group("output").add_argument
    add("--output", metavar="DIR", type=Path, required=True, help="folder for ohe.npz, shap.npz, completeness.csv")
    add("--overwrite-output", action="store_true", help="replace these files")
