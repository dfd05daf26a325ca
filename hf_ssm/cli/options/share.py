"""Options of `hf-ssm convert`, `export`, `verify` and `push`."""

import argparse
from pathlib import Path

EXPORT_FORMATS = ("onnx", "torch")


def add_convert(parser: argparse.ArgumentParser) -> None:
    file = "a file with a state dict (a selective SSM of Honarpisheh et al., the example of state-spaces/s4)"
    what = f"{file}, or a folder or Hub id, for example of a Mamba, Caduceus or HyenaDNA model"
    parser.add_argument("source", metavar="SOURCE", help=what)
    target = "folder for the result; leave it out to renew the code of a local checkpoint of hf_ssm"
    parser.add_argument("target", metavar="TARGET", type=Path, nargs="?", help=target)
    parser.add_argument("--overwrite-output", action="store_true", help="replace TARGET if it is a folder with a model")
    add = parser.add_argument_group("facts that files of S4 do not contain").add_argument
    norm_first = "the norms precede the layers (the model was trained with --prenorm)"
    add("--norm-first", action="store_true", default=None, help=norm_first)
    rule = "discretization in the training of the model (default: that of the version that wrote the file)"
    add("--discretization", choices=("zoh", "bilinear"), help=rule)
    add = parser.add_argument_group("a fact that files of Caduceus do not contain").add_argument
    add("--pooling", choices=("mean", "max"), help="pooling_strategy of a classifier (default: mean)")
    add = parser.add_argument_group("a fact that files of Mamba-3 do not contain").add_argument
    rate = "how A follows from its projection: heavy_tail (default), or softplus, as in the first release of mamba_ssm"
    add("--A-activation", choices=("heavy_tail", "softplus"), help=rate)


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder or Hub id of a model of hf_ssm")
    parser.add_argument(
        "target", metavar="TARGET", type=Path, help="folder for the program, which must be new or empty"
    )
    formats = "onnx (default) needs the packages of the extra `export`; torch writes a program of torch.export"
    parser.add_argument("--format", choices=EXPORT_FORMATS, default="onnx", help=formats)
    with_cache = (
        "export two programs of a causal language model: one reads a prompt, the other reads one token, and both "
        "return the states"
    )
    parser.add_argument("--with-cache", action="store_true", help=with_cache)


def add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a folder, or USER/NAME on the Hub")
    parser.add_argument("--revision", metavar="REVISION", help="branch, tag or commit on the Hub")


def add_push(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the output folder of a run, or an export")
    parser.add_argument("repo_id", metavar="USER/NAME", help="the repository, which is created if it does not exist")
    parser.add_argument(
        "--revision", metavar="BRANCH", help="branch, which is created if it does not exist (default: main)"
    )
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument(
        "--include",
        metavar="NAME",
        action="append",
        default=[],
        help="also upload a file or a folder that the package has not written, by name or pattern; can be repeated",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the files that would be uploaded, and stop")
