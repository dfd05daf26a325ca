"""`hf-ssm export`."""

import argparse
from pathlib import Path

from hf_ssm.cli.checkpoints import load_config, load_model
from hf_ssm.hub.programs import FORMATS, export_program


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder or Hub id of a model of hf_ssm")
    parser.add_argument("target", metavar="TARGET", type=Path, help="folder for the program; new or empty")
    parser.add_argument(
        "--format",
        choices=tuple(FORMATS),
        default="onnx",
        help="onnx (default): needs the packages of the extra `export`; torch: a program of torch.export",
    )
    with_cache = "of a causal language model: two programs, which read a prompt and one token, and return the states"
    parser.add_argument("--with-cache", action="store_true", help=with_cache)


def run_export(args: argparse.Namespace) -> None:
    """`hf-ssm export`: write a model as a program that runs without hf_ssm."""
    model = load_model(args.checkpoint, load_config(args.checkpoint))
    exported = export_program(model.cpu(), args.target, format=args.format, with_cache=args.with_cache)
    print(f"{args.target} holds {', '.join(exported.components)} of a {type(model).__name__} ({args.format})")
