"""Options of `hf-ssm benchmark`."""

import argparse
from pathlib import Path

from hf_ssm.cli.options import add_batch_limit

SUITE_NAMES = ("genomic-benchmarks", "nucleotide-transformer", "gue", "traitgym", "bend-variants")


def add_benchmark(parser: argparse.ArgumentParser) -> None:
    suite = f"{', '.join(SUITE_NAMES)}, or a YAML file that lists tables"
    parser.add_argument("suite", metavar="SUITE", help=suite)
    model = "folder or Hub id of a model of hf_ssm or transformers, or a .yaml file with the settings of a training run"
    parser.add_argument("models", metavar="MODEL", nargs="*", help=model)
    add = parser.add_argument_group("tasks").add_argument
    add("--list", action="store_true", help="only list the tasks of SUITE and their data")
    add("--tasks", metavar="TASK", nargs="+", help="names of the tasks to measure (default: all)")
    add(
        "--data",
        metavar="DIR",
        type=Path,
        help="folder with copies of data sets, DIR/USER/NAME, which are read instead of the Hub",
    )
    add("--genome", metavar="FASTA", type=Path, help="FASTA file of the reference genome for tasks with variants")
    add("--max-rows", metavar="N", type=int, help="measure on a random sample of N rows of each split (default: all)")
    add(
        "--max-length",
        metavar="LETTERS",
        type=int,
        help="cut longer sequences to this number of letters (default: no limit)",
    )
    add = parser.add_argument_group("measurement").add_argument
    fine_tune = "train all weights of each checkpoint (default: a linear probe of its embeddings)"
    add("--fine-tune", action="store_true", help=fine_tune)
    example = "setting of the training runs, such as training.num_train_epochs=3"
    add("--set", metavar="SECTION.KEY=VALUE", action="append", default=[], dest="assignments", help=example)
    seeds = "number of seeds of the runs and of the random weights (default: %(default)s)"
    add("--seeds", metavar="N", type=int, default=3, help=seeds)
    add("--without-random", action="store_true", help="do not measure random weights of the models")
    add("--both-strands", action="store_true", help="average embeddings and predictions over both strands")
    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--tokenizer", metavar="NAME", help="dna, byte, a folder or a Hub id; default: tokenizer of each checkpoint")
    add("--trust-remote-code", action="store_true", help="run the Python code that comes with a MODEL, if there is any")
    add_batch_limit(add)
    add = parser.add_argument_group("output").add_argument
    add("--output", "--output-dir", metavar="DIR", type=Path, help="folder for the table and all measurements")
