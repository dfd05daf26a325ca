"""The end of a command: what to try next."""

import shlex
import sys
from typing import TextIO


def suggest(*steps: tuple[str, str], file: TextIO | None = None) -> None:
    """Print commands to try next, each with its purpose, on stderr by default: stdout holds the results."""
    width = max(len(command) for command, _ in steps)
    lines = (f"  {command:<{width}}  # {purpose}" for command, purpose in steps)
    print("Next:", *lines, sep="\n", file=file or sys.stderr)


def command(*words: object) -> str:
    """A command line of `hf-ssm` that a shell reads as these words."""
    return shlex.join(["hf-ssm", *map(str, words)])
