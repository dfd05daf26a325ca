"""`hf-ssm convert`."""

import argparse
from pathlib import Path


def add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a .pth state dict, or a folder or Hub id of a Mamba model")
    parser.add_argument("target", metavar="TARGET", type=Path, help="folder for the result")
    parser.add_argument("--overwrite-output", action="store_true", help="replace TARGET")


def run_convert(args: argparse.Namespace) -> None:
    """`hf-ssm convert`: a foreign checkpoint as a folder that the Auto classes load."""
    from hf_ssm.models.conversion import convert_checkpoint

    model = convert_checkpoint(args.source, args.target, overwrite=args.overwrite_output)
    head = type(model).__name__.removeprefix("SelectiveSSM")
    print(
        f"{args.target} holds a {type(model).__name__}; after `import hf_ssm`, load it with "
        f"AutoModel{head}.from_pretrained({str(args.target)!r})"
    )
