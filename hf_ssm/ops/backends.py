"""Whether operations may call faster versions than plain torch: compiled kernels on CPUs, a library's kernel on GPUs.

The environment variable `HF_SSM_KERNELS` sets the choice of the process when this module is imported:

- `auto` (default): the fastest version that supports the call;
- `numba`: as `auto`, but an error where numba is not installed or `NUMBA_DISABLE_JIT=1` is set;
- `torch`: operations of torch only.

`set_backend` changes the choice; `use_backend` changes it for a `with` block. Exported programs (`is_exporting`)
consist of operations of torch, whatever the choice.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import getLogger
from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.ops.context import in_function_transform, is_exporting

__all__ = [
    "CHOICES",
    "Compiled",
    "Implementation",
    "Operation",
    "current",
    "is_enabled",
    "runs_compiled",
    "runs_hub",
    "set_backend",
    "use_backend",
]

CHOICES = ("auto", "numba", "torch")

# Importing numba takes a third of a second.
_HAS_NUMBA = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0") and importlib.util.find_spec("numba") is not None
# The copy of this module in a checkpoint has no compiled kernels.
_HAS_KERNELS = _HAS_NUMBA and __name__ == "hf_ssm.ops.backends"
_choice = "auto"


def set_backend(choice: str) -> None:
    """Set the choice of the process, in place of `HF_SSM_KERNELS`.

    Args:
        choice: `"auto"`, `"numba"` or `"torch"`.

    Raises:
        ValueError: Unknown choice.
        ImportError: `"numba"` without numba.
    """
    global _choice
    if choice not in CHOICES:
        raise ValueError(f"HF_SSM_KERNELS must be one of {', '.join(CHOICES)}, got {choice!r}")
    if choice == "numba" and not _HAS_NUMBA:
        raise ImportError(
            "HF_SSM_KERNELS=numba, but numba is not installed, or NUMBA_DISABLE_JIT is set: "
            "pip install 'hf_ssm[cpu]', and unset NUMBA_DISABLE_JIT"
        )
    _choice = choice


@contextmanager
def use_backend(choice: str) -> Iterator[None]:
    """Set the choice of the process for a `with` block; arguments and errors as of `set_backend`."""
    before = _choice
    set_backend(choice)
    try:
        yield
    finally:
        set_backend(before)


def current() -> str:
    """The choice in effect."""
    return _choice


def is_enabled(name: str) -> bool:
    """Whether `"torch"`, `"numba"` or `"hub"` is installed and admitted by the current choice."""
    if _choice == "torch" or is_exporting():
        return name == "torch"
    return name != "numba" or _HAS_KERNELS


def runs_compiled(*tensors: Tensor | None) -> bool:
    """Whether compiled kernels for CPUs may compute with these tensors, or `None`.

    They read memory: under tracing, transforms of `torch.func`, forward-mode differentiation, dispatch modes (as of
    fake tensors) and for subclasses of tensors, operations of torch compute the result.
    """
    if not is_enabled("numba") or torch.compiler.is_compiling() or in_function_transform():
        return False
    # There is no public way to detect a dispatch mode.
    if torch._C._len_torch_dispatch_stack() > 0:
        return False
    return all(t is None or (t.device.type == "cpu" and type(t) in (Tensor, nn.Parameter)) for t in tensors)


def runs_hub(*tensors: Tensor | None) -> bool:
    """Whether kernels of a library may compute with these tensors, or `None`: all are on a GPU."""
    return is_enabled("hub") and all(t is None or t.device.type == "cuda" for t in tensors)


class Implementation:
    """A version of an operation.

    Args:
        run: Called with the arguments of the operation.
        supports: Called with the same arguments; whether `run` can compute the result. Default: always.
    """

    def __init__(self, run: Callable[..., Any] | None, supports: Callable[..., bool] | None = None):
        self.run, self.supports = run, supports


class Compiled(Implementation):
    """A version in a module of hf_ssm that is imported by name when it is first needed, and not copied to checkpoints.

    Args:
        module: Full name of the module.
        run: Name of its function.
        supports: Name of the function that decides whether `run` can compute the result; default: always.
    """

    def __init__(self, module: str, run: str, supports: str | None = None):
        super().__init__(None)
        self._source: tuple[str, str, str | None] | None = (module, run, supports)

    # torch.compile does not trace imports: it executes this function while it traces.
    @torch.compiler.assume_constant_result
    def load(self) -> None:
        """Import the module at the first call."""
        if self._source is None:
            return
        (name, run, supports), self._source = self._source, None
        try:
            module = importlib.import_module(name)
            self.run = getattr(module, run)
            self.supports = None if supports is None else getattr(module, supports)
        except ImportError as error:
            getLogger(__name__).warning("%s is not available: %s", name, error)


class Operation:
    """An operation with faster versions, all of the same signature.

    Args:
        **implementations: `hub`, `numba` and `torch`, in order of preference, an `Implementation` or a function each.
    """

    def __init__(self, **implementations: Implementation | Callable[..., Any]):
        devices = {"hub": "cuda", "numba": "cpu", "torch": None}
        self.implementations = [
            (name, device, given if isinstance(given, Implementation) else Implementation(given))
            for name, device in devices.items()
            if (given := implementations.get(name)) is not None
        ]

    def choose(self, *args: Any) -> Any:
        """The function that computes these arguments; `None` where no version supports them."""
        for name, device, implementation in self.implementations:
            if not is_enabled(name) or not (device is None or all(t.device.type == device for t in _tensors(args))):
                continue
            if isinstance(implementation, Compiled):
                implementation.load()
            run, supports = implementation.run, implementation.supports
            if run is not None and (supports is None or supports(*args)):
                return run
        return None

    def __call__(self, *args: Any) -> Any:
        return self.choose(*args)(*args)


def _tensors(args: Any) -> Iterator[Tensor]:
    """All tensors in arguments and in tuples of them."""
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, tuple):
            yield from _tensors(arg)


set_backend(os.environ.get("HF_SSM_KERNELS") or "auto")
