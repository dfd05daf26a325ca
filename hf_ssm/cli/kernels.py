"""`hf-ssm kernels`."""

import argparse
import shlex

from hf_ssm.cli.summary import suggest
from hf_ssm.hub.kernel_repository import save_kernels


def run_kernels(args: argparse.Namespace) -> None:
    """`hf-ssm kernels`: write the Triton kernels as a repository of the `kernels` library."""
    save_kernels(args.target)
    print(f"{args.target} is a kernel repository: see its README.md")
    suggest((shlex.join(["hf", "upload", f"USER/{args.target.resolve().name}", str(args.target)]), "share it"))
