"""New Python processes that import nothing from the working directory and have no access to tokens."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["environment_without_secrets", "run_python"]

_SECRET = re.compile("AUTH|CREDENTIAL|KEY|PASSW|SECRET|TOKEN", re.IGNORECASE)
# `python -c` puts the working directory, as "", first on the path. The option `-P` and the variable PYTHONSAFEPATH need
# Python 3.11; the variable, unlike this line, also reaches processes that the new process starts.
_SAFE_PATH = "import sys; sys.path[:] = [entry for entry in sys.path if entry]\n"


def environment_without_secrets() -> dict[str, str]:
    """The variables of the environment, except those whose names are usual for tokens, keys and passwords."""
    return {name: value for name, value in os.environ.items() if not _SECRET.search(name)}


def run_python(
    code: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    input: str | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process, and wait for its end.

    Args:
        code: The code.
        *arguments: Its `sys.argv[1:]`.
        environment: Variables in addition to those of `environment_without_secrets`.
        input: Its standard input.
        cwd: Its working directory, from which nothing is imported.
    """
    return subprocess.run(
        [sys.executable, "-c", _SAFE_PATH + code, *arguments],
        input=input,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env={**environment_without_secrets(), "PYTHONSAFEPATH": "1", **(environment or {})},
        cwd=cwd,
    )
