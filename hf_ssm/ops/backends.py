"""Selects the implementation of an operation: a library's GPU kernel, compiled CPU kernels, PyTorch or the reference.

An `Operation` has at most one implementation for each backend. A call runs the first backend, in the order of
`BACKENDS`, that the current choice admits, that is installed, that runs on the device of the arguments and whose
implementation supports the arguments.

The environment variable `HF_SSM_KERNELS` sets the choice of the process when this module is imported:

- `auto` (default): the fastest backend that supports the call;
- `numba`: as `auto`, but an error where numba is not installed or `NUMBA_DISABLE_JIT=1` is set;
- `torch`: PyTorch operations only;
- `reference`: the plainest loops, where an operation has them; slow, for comparisons.

While a program is exported (`is_exporting`), `torch` runs, whatever the choice.

`set_backend` changes the choice of the process. `use_backend` overrides it for a `with` block, in the current thread
or asyncio task only.

With the environment variable `HF_SSM_LOG=debug`, each call logs the backend that runs it, and why those before it do
not.
"""

import importlib
import importlib.util
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import DEBUG, StreamHandler, getLogger
from typing import Any, NamedTuple

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

CHOICES = ("auto", "numba", "torch", "reference")


class Backend(NamedTuple):
    """A way to execute operations.

    Attributes:
        choices: Values of `HF_SSM_KERNELS` that admit the backend.
        device: Type of the device that all tensors must be on; `None` for any.
        packages: Packages that must be installed.
        disabled_by: Environment variable that turns the backend off, unless it is empty or "0".
    """

    choices: tuple[str, ...]
    device: str | None = None
    packages: tuple[str, ...] = ()
    disabled_by: str | None = None

    def is_installed(self) -> bool:
        if self.disabled_by is not None and os.environ.get(self.disabled_by, "0") not in ("", "0"):
            return False
        # Does not import the packages: importing numba takes a third of a second.
        return all(importlib.util.find_spec(package) is not None for package in self.packages)


# In order of preference.
BACKENDS = {
    "hub": Backend(("auto", "numba"), device="cuda"),
    "numba": Backend(("auto", "numba"), device="cpu", packages=("numba",), disabled_by="NUMBA_DISABLE_JIT"),
    "reference": Backend(("reference",)),
    "torch": Backend(CHOICES),
}
_INSTALLED = {name: backend.is_installed() for name, backend in BACKENDS.items()}
# The copy of this module in a checkpoint has no compiled implementations.
_INSTALLED["numba"] &= __name__ == "hf_ssm.ops.backends"


class _TracedChoice(threading.local):
    """Mirrors the choice of `use_backend` for torch.compile, which can neither trace nor guard a `ContextVar`."""

    def __init__(self) -> None:
        self.choice: str | None = None


_process_choice = "auto"
_context_choice: ContextVar[str | None] = ContextVar("hf_ssm_backend", default=None)
_traced_choice = _TracedChoice()


def _check_choice(choice: str) -> None:
    if choice not in CHOICES:
        raise ValueError(f"HF_SSM_KERNELS must be one of {', '.join(CHOICES)}, got {choice!r}")
    if choice == "numba" and not BACKENDS["numba"].is_installed():
        raise ImportError(
            "HF_SSM_KERNELS=numba, but numba is not installed, or NUMBA_DISABLE_JIT is set: "
            "pip install 'hf_ssm[cpu]', and unset NUMBA_DISABLE_JIT"
        )


def set_backend(choice: str) -> None:
    """Set the choice of the process, in place of `HF_SSM_KERNELS`.

    Args:
        choice: `"auto"`, `"numba"`, `"torch"` or `"reference"`.

    Raises:
        ValueError: Unknown choice.
        ImportError: `"numba"` without numba.
    """
    global _process_choice
    _check_choice(choice)
    _process_choice = choice


@contextmanager
def use_backend(choice: str) -> Iterator[None]:
    """Override the choice inside a `with` block, in the current thread or asyncio task.

    The thread pools of this package pass the override on to their workers. A backward pass on CPU tensors runs in the
    thread that starts it, and an operation's gradient runs on the backend of its forward. Autograd executes backward
    passes on a GPU in threads of its own, which see the choice of the process.

    Args:
        choice: `"auto"`, `"numba"`, `"torch"` or `"reference"`.

    Raises:
        ValueError: Unknown choice.
        ImportError: `"numba"` without numba.
    """
    _check_choice(choice)
    before, traced_before = _context_choice.get(), _traced_choice.choice
    _context_choice.set(choice)
    _traced_choice.choice = choice
    try:
        yield
    finally:
        _context_choice.set(before)
        _traced_choice.choice = traced_before


def current() -> str:
    """The choice in effect."""
    chosen = _traced_choice.choice if torch.compiler.is_compiling() else _context_choice.get()
    return _process_choice if chosen is None else chosen


def is_enabled(name: str) -> bool:
    """Whether a backend is installed and admitted by the current choice."""
    if is_exporting():
        return name == "torch"
    return _INSTALLED[name] and current() in BACKENDS[name].choices


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


def _always(*args: Any) -> bool:
    return True


class Implementation:
    """An implementation of an operation.

    Args:
        run: Called with the arguments of the operation.
        supports: Called with the same arguments; whether `run` can compute the result. Default: always.
    """

    def __init__(self, run: Callable[..., Any] | None, supports: Callable[..., bool] = _always):
        self.run, self.supports = run, supports

    def is_available(self) -> bool:
        return self.run is not None


class Compiled(Implementation):
    """An implementation in a module of hf_ssm that is imported when it is first needed.

    Args:
        module: Full name of the module. It is imported by name, so the code in checkpoints does not include it.
        run: Name of its function.
        supports: Name of the function that decides whether `run` can compute the result; default: always.
    """

    def __init__(self, module: str, run: str, supports: str | None = None):
        super().__init__(None)
        self._source = module, run, supports
        self._is_loaded = False

    # torch.compile does not trace imports: it executes this function while it traces.
    @torch.compiler.assume_constant_result
    def _load(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        name, run, supports = self._source
        try:
            module = importlib.import_module(name)
            self.run = getattr(module, run)
            self.supports = _always if supports is None else getattr(module, supports)
        except ImportError as error:
            getLogger(__name__).warning("%s is not available: %s", name, error)

    def is_available(self) -> bool:
        self._load()
        return self.run is not None


def _tensors(args: Iterable[Any]) -> Iterator[torch.Tensor]:
    """All tensors in arguments and in tuples of them."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, tuple):
            yield from _tensors(arg)


class Operation:
    """An operation with an implementation for each of some backends, all of the same signature.

    Args:
        **implementations: By name of the backend, an `Implementation`, or a function that supports all arguments.
    """

    def __init__(self, **implementations: Implementation | Callable[..., Any]):
        unknown = set(implementations) - set(BACKENDS)
        if unknown:
            raise ValueError(f"backends must be among {', '.join(BACKENDS)}, got {', '.join(sorted(unknown))}")
        self.implementations = [
            (name, BACKENDS[name].device, given if isinstance(given, Implementation) else Implementation(given))
            for name in BACKENDS
            if (given := implementations.get(name)) is not None
        ]

    def choose(self, *args: Any) -> Any:
        """The function that computes these arguments; `None` where no backend supports them."""
        refusals: list[str] = []
        for name, device, implementation in self.implementations:
            if not is_enabled(name):
                refusal = "is not installed" if current() in BACKENDS[name].choices else ""
            elif device is not None and not all(t.device.type == device for t in _tensors(args)):
                refusal = f"needs tensors on {device}"
            elif not implementation.is_available():
                refusal = "cannot be imported"
            elif not implementation.supports(*args):
                refusal = "does not support these arguments"
            else:
                _log_choice(implementation.run, refusals)
                return implementation.run
            if refusal:
                refusals.append(f"{name} {refusal}")
        return None

    def __call__(self, *args: Any) -> Any:
        return self.choose(*args)(*args)


def _log_choice(run: Any, refusals: list[str]) -> None:
    # torch.compile cannot trace a logger.
    if _LOGS_CHOICES and not torch.compiler.is_compiling():
        getLogger(__name__).debug("%s.%s runs%s", run.__module__, run.__name__, "".join(f"; {r}" for r in refusals))


_LOGS_CHOICES = os.environ.get("HF_SSM_LOG", "").lower() == "debug"
if _LOGS_CHOICES:
    getLogger(__name__).setLevel(DEBUG)
    getLogger(__name__).addHandler(StreamHandler())
set_backend(os.environ.get("HF_SSM_KERNELS") or "auto")
