"""Which implementation of an operation runs: compiled kernels, plain torch, or the references.

The environment variable `HF_SSM_KERNELS` chooses, when this module is imported:

- `auto` (the default): compiled kernels where they can serve (numba installed, tensors on a CPU; on a GPU those that
  transformers finds), else torch;
- `numba`: the same, and an error where numba is not installed;
- `torch`: plain torch everywhere;
- `reference`: the plainest loops everywhere; slow, for comparisons.
"""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hf_ssm.ops.cpu_kernels import AVAILABLE

__all__ = ["CHOICES", "compiled", "current", "hub", "reference", "set_kernels", "use_kernels"]

CHOICES = ("auto", "numba", "torch", "reference")
# Finding it costs nothing; importing it, a third of a second, is left to the first call of a compiled kernel.
_CAN_COMPILE = AVAILABLE and importlib.util.find_spec("numba") is not None
_chosen = "auto"


def set_kernels(choice: str) -> None:
    """Choose from here on, in all threads, whatever `HF_SSM_KERNELS` says.

    Args:
        choice: `"auto"`, `"numba"`, `"torch"` or `"reference"`.

    Raises:
        ValueError: Another choice.
        ImportError: `"numba"` without numba.
    """
    global _chosen
    if choice not in CHOICES:
        raise ValueError(f"HF_SSM_KERNELS must be one of {', '.join(CHOICES)}, got {choice!r}")
    if choice == "numba" and not _CAN_COMPILE:
        raise ImportError("HF_SSM_KERNELS=numba, but numba is not installed: pip install 'hf_ssm[cpu]'")
    _chosen = choice


@contextmanager
def use_kernels(choice: str) -> Iterator[None]:
    """`set_kernels` for the time of a `with` block."""
    before = current()
    set_kernels(choice)
    try:
        yield
    finally:
        set_kernels(before)


def current() -> str:
    """The choice in force."""
    return _chosen


def reference() -> bool:
    """Whether the references are to run."""
    return current() == "reference"


def compiled(device: torch.device) -> bool:
    """Whether the compiled CPU kernels are to run on tensors of this device."""
    return device.type == "cpu" and _CAN_COMPILE and current() in ("auto", "numba")


def hub(device: torch.device) -> bool:
    """Whether kernels that transformers finds for a GPU may run on tensors of this device."""
    return device.type == "cuda" and current() in ("auto", "numba")


set_kernels(os.environ.get("HF_SSM_KERNELS") or "auto")
