"""`hf-ssm export`: a program of a model, which `hf upload` shares, as `hf-ssm push` is for checkpoints."""

import argparse
import shlex

from hf_ssm.cli.checkpoints import load_config, load_model
from hf_ssm.cli.summary import suggest
from hf_ssm.hub.programs import export_program


def run_export(args: argparse.Namespace) -> None:
    """`hf-ssm export`: write a model as a program that runs without hf_ssm."""
    model = load_model(args.checkpoint, load_config(args.checkpoint))
    exported = export_program(model.cpu(), args.target, format=args.format, with_cache=args.with_cache)
    print(f"{args.target} holds {', '.join(exported.components)} of a {type(model).__name__} ({args.format})")
    suggest((shlex.join(["hf", "upload", f"USER/{args.target.resolve().name}", str(args.target)]), "share it"))
