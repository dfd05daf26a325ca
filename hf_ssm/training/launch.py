"""A run in several processes, as `accelerate launch` starts them: who does what, and who says what went wrong."""

import os
from collections.abc import Callable
from typing import TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from hf_ssm.training.settings import RunSettings

T = TypeVar("T")


def begin(settings: RunSettings) -> None:
    """Let the processes know each other; does nothing where there is one, or where they do."""
    PartialState(cpu=bool(settings.training.get("use_cpu", uses_cpu())))


def uses_cpu() -> bool:
    """Whether to train on the CPU where the settings do not say."""
    return not torch.accelerator.is_available() or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true")


def is_main() -> bool:
    """Whether this is the process that writes and prints; also before `begin`."""
    return os.environ.get("RANK", "0") == "0"


def on_main(function: Callable[[], None]) -> None:
    """`function()` in the main process alone, while the others wait.

    Raises:
        SystemExit: In the others, where it failed; the main process says why.
    """
    error: Exception | None = None
    if is_main():
        try:
            function()
        except Exception as caught:
            error = caught
    (failed,) = broadcast_object_list([error is not None])
    if error is not None:
        raise error
    if failed:
        raise SystemExit(2)


def main_first(function: Callable[[], T]) -> T:
    """`function()` in the main process, then in the others, who find in caches what the first has made.

    Raises:
        SystemExit: In the others, where it failed in the main process.
    """
    found: list[T] = []
    on_main(lambda: found.append(function()))
    return found[0] if found else function()
