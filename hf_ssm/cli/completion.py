"""`hf-ssm completion`."""

import argparse

import shtab

from hf_ssm.cli.commands import COMMANDS
from hf_ssm.cli.parser import build_parser, prepare_completion

_PLACES = {
    "bash": "~/.local/share/bash-completion/completions/hf-ssm",
    "zsh": "a file _hf-ssm in a folder of $fpath",
    "tcsh": "~/.hf-ssm.tcsh, and add `source ~/.hf-ssm.tcsh` to ~/.tcshrc",
}


def run_completion(args: argparse.Namespace) -> None:
    """`hf-ssm completion`: print the completion script of a shell."""
    parser = build_parser(*COMMANDS)
    prepare_completion(parser)
    line = f"# To install it, write the output of `hf-ssm completion {args.shell}` to {_PLACES[args.shell]}."
    print(shtab.complete(parser, shell=args.shell, preamble=line))
