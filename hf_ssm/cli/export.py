"""`hf-ssm export` and `hf-ssm kernels`: folders that `hf upload` shares, as `hf-ssm push` is for checkpoints."""

import argparse
import shlex
from pathlib import Path

from hf_ssm.cli.checkpoints import load_config, load_model
from hf_ssm.cli.summary import suggest
from hf_ssm.hub.kernel_repository import save_kernels
from hf_ssm.hub.programs import export_program


def run_export(args: argparse.Namespace) -> None:
    """`hf-ssm export`: write a model as a program that runs without hf_ssm."""
    model = load_model(args.checkpoint, load_config(args.checkpoint))
    exported = export_program(model.cpu(), args.target, format=args.format, with_cache=args.with_cache)
    print(f"{args.target} holds {', '.join(exported.components)} of a {type(model).__name__} ({args.format})")
    _suggest_upload(args.target)


def run_kernels(args: argparse.Namespace) -> None:
    """`hf-ssm kernels`: write the Triton kernels as a repository of the `kernels` library."""
    save_kernels(args.target)
    print(f"{args.target} is a kernel repository: see its README.md")
    _suggest_upload(args.target)


def _suggest_upload(folder: Path) -> None:
    suggest((shlex.join(["hf", "upload", f"USER/{folder.resolve().name}", str(folder)]), "share it"))
