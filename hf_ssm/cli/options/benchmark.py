"""Options of `hf-ssm benchmark`."""

import argparse
from pathlib import Path

from hf_ssm.cli.options import add_batch_limit

SUITE_NAMES = ("genomic-benchmarks", "nucleotide-transformer", "gue", "traitgym", "bend-variants")


def add_benchmark(parser: argparse.ArgumentParser) -> None:
    suite = f"{', '.join(SUITE_NAMES)}, or a YAML file that lists tables"
    parser.add_argument("suite", metavar="SUITE", help=suite)
    model = "folder or Hub id of a model of hf_ssm or transformers, or a .yaml file of settings to train by"
    parser.add_argument("models", metavar="MODEL", nargs="*", help=model)
    add = parser.add_argument_group("tasks").add_argument
    add("--list", action="store_true", help="list the tasks of SUITE and their data, and stop")
    add("--tasks", metavar="TASK", nargs="+", help="some of the tasks (default: all)")
    add(
        "--data",
        metavar="DIR",
        type=Path,
        help="folder with copies of data sets, DIR/USER/NAME, read instead of the Hub",
    )
    add("--genome", metavar="FASTA", type=Path, help="the reference of tasks with variants")
    add("--max-rows", metavar="N", type=int, help="a random sample of N rows of each split (default: all)")
    add("--max-length", metavar="LETTERS", type=int, help="cut longer sequences (default: no limit)")
    add = parser.add_argument_group("measurement").add_argument
    fine_tune = "train all weights of each checkpoint (default: a linear probe of its embeddings)"
    add("--fine-tune", action="store_true", help=fine_tune)
    example = "setting of the runs, such as training.num_train_epochs=3"
    add("--set", metavar="SECTION.KEY=VALUE", action="append", default=[], dest="assignments", help=example)
    seeds = "seeds of runs and of random weights (default: %(default)s)"
    add("--seeds", metavar="N", type=int, default=3, help=seeds)
    add("--without-random", action="store_true", help="do not measure random weights of the models")
    add("--both-strands", action="store_true", help="average embeddings and predictions over both strands")
    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--tokenizer", metavar="NAME", help="dna, byte, a folder or a Hub id; default: tokenizer of each checkpoint")
    add("--trust-remote-code", action="store_true", help="run the Python code of a MODEL, if it has some")
    add_batch_limit(add)
    add = parser.add_argument_group("output").add_argument
    add("--output", "--output-dir", metavar="DIR", type=Path, help="folder for the table and all measurements")
