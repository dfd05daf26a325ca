"""How kernels are compiled: without the interpreter's lock, kept on disk where a folder can be written."""

import logging
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba

__all__ = ["kernel"]

logger = logging.getLogger(__name__)


def _sources() -> tuple[tuple[str, int, int], ...]:
    """What changes when any kernel does."""
    files = ((path.name, path.stat()) for path in sorted(Path(__file__).parent.glob("*.py")))
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in files)


_SOURCES = _sources()


@contextmanager
def _without_failing():
    """A cache that cannot be read or written (a full disk, a folder that has become read-only) is done without."""
    try:
        yield
    except OSError as error:
        logger.debug("compiled kernels are not kept: %s", error)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call for the types it is called with.

    The machine code is kept in `NUMBA_CACHE_DIR`, beside the source or in the user's cache folder; where none can be
    written, each process compiles for itself.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        dispatcher = numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # numba says so when it finds no folder to write to.
        return numba.njit(**options)(function)
    cache = dispatcher._cache
    # numba swallows such errors on Windows only. Its stamp is that of the file the function is written in, but machine
    # code holds the functions called as well.
    cache._guard_against_spurious_io_errors = _without_failing
    cache._cache_file._source_stamp = _SOURCES
    return dispatcher
