"""Options of `hf-ssm probe`, `report` and `app`."""

import argparse
from pathlib import Path

from hf_ssm.cli.options import (
    add_batch_limit,
    add_data_options,
    add_model,
    add_output_options,
    add_series_columns,
)

# The last is another name of "shortlist".
PROBE_METHODS = (
    *("exact", "shortlist", "one_shot"),
    *("occlusion", "integrated_gradients", "deep_lift", "in_silico_mutagenesis"),
    "screened",
)
COLOURED_BY = ("effect", "rank")
LABEL, PREDICTED = "label", "predicted"


def add_probe(parser: argparse.ArgumentParser) -> None:
    add_data_options(parser, "test", 20, "probe")
    genome = (
        "FASTA file of the genome, if --dataset is a BED file; the command then also writes effect.bw, a track of "
        "the intervals"
    )
    parser.add_argument("--genome", metavar="FILE", type=Path, help=genome)
    add = parser.add_argument_group("method").add_argument
    orders = f"{', '.join(PROBE_METHODS)} (default: shortlist; exact takes many times as long)"
    order = f"order in which tokens are masked: {orders}"
    add("--method", "--strategy", choices=PROBE_METHODS, default="shortlist", metavar="METHOD", help=order)
    add("--steps", metavar="N", type=int, help="gradients of integrated_gradients for each draw (default: 32)")
    letters = "letters that in_silico_mutagenesis tries (default: ACGT, or all single letters of the tokenizer)"
    add("--alphabet", metavar="LETTERS", help=letters)
    draws = (
        "replacement of masked tokens: draws by the composition of the row (default for DNA and proteins), by its "
        "shuffle or dinucleotide shuffle, by the background of the training data (default for texts), or uniform; or "
        "one token everywhere: N, mask, pad, zero (embedding), or any token of the model"
    )
    add("--replace", "--mask", dest="replace", metavar="HOW", help=draws)
    add("--draws", metavar="K", type=int, default=16, help="number of draws (default: %(default)s)")
    null = (
        "also search an untrained copy of the model and one trained on shuffled labels: a search gives curves of the "
        "same shape without anything learnt, and only the excess over them counts"
    )
    add("--null", action="store_true", help=null)
    add_batch_limit(add)
    add = parser.add_argument_group("target").add_argument
    target = (
        f"class to probe: its number or its name, {LABEL} (the label of each row; default) or {PREDICTED} (the "
        "predicted class)"
    )
    add("--target", metavar="CLASS", help=target)
    position = "position of the token that is predicted or classified, counted from 0, or backwards from -1"
    add("--position", metavar="N", type=int, help=position)
    add("--allow-wrong", action="store_true", help="also probe rows that are predicted wrongly")
    least = "smallest probability of the target with which a row is probed (default: 0)"
    add("--minimum-probability", metavar="P", type=float, default=0.0, help=least)
    add_output_options(parser, "results, tables and figures; an interrupted command continues there", required=True)
    colour = (
        "colour of the tokens: effect (default), the probability that is lost when the token is also masked, or rank, "
        "the order of masking"
    )
    add = parser.add_argument_group("figures").add_argument
    add("--colour-by", choices=COLOURED_BY, default="effect", help=colour)


def add_report(parser: argparse.ArgumentParser) -> None:
    add_data_options(parser, "train", 256, "measure")
    add = parser.add_argument_group("measurement").add_argument
    add(
        "--task",
        metavar="TASK",
        help="how the data are read, as in `hf-ssm train`; default: the task of the head of the model",
    )
    add("--batch-size", metavar="N", type=int, default=32, help="sequences in a batch (default: %(default)s)")
    add_series_columns(parser.add_argument_group("series of a forecaster, in windows of --max-length").add_argument)
    add_output_options(parser, "report.json and the plots")
    section = 'write or replace the section "Theory report" in the README.md of CHECKPOINT, with the curves of a probe '
    curves = "if `hf-ssm probe --output` wrote them to that folder"
    parser.add_argument("--update-card", action="store_true", help=section + curves)


def add_app(parser: argparse.ArgumentParser) -> None:
    add_model(parser, parser)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all addresses (default: %(default)s)")
    add("--port", type=int, default=7860, help="port (default: %(default)s)")
    add("--share", action="store_true", help="also open a tunnel with a public address, through servers of Gradio")
    hosts = (
        "further host name of the page, such as the name of a proxy; can be repeated (default: none with a local "
        "--host)"
    )
    add("--allowed-host", action="append", default=[], metavar="NAME", help=hosts)
