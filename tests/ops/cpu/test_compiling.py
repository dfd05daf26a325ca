"""Kernels are kept on disk where that is possible, and work where it is not."""

import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")

from numba.core import caching

from hf_ssm.ops.cpu import compiling


def _increment(x):
    return x + 1


def _fail(*args: Any) -> None:
    raise OSError(28, "No space left on device")


def test_no_folder_that_can_be_written(monkeypatch):
    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", _fail)
    assert compiling.kernel(_increment)(1) == 2


@pytest.mark.parametrize("method", ["save", "load"])
def test_a_cache_that_fails_later(monkeypatch, method):
    increment = compiling.kernel(_increment)
    monkeypatch.setattr(increment._cache._cache_file, method, _fail)
    assert increment(1) == 2


def test_other_errors_are_not_hidden():
    with pytest.raises(ZeroDivisionError), compiling._ignore_cache_errors():
        _ = 1 / 0


def test_a_change_of_any_source_compiles_again(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    assert compiling.kernel(_increment)(1) == 2
    again = compiling.kernel(_increment)
    again(1)
    assert sum(again.stats.cache_hits.values()) == 1
    monkeypatch.setattr(compiling, "_SOURCES", (("vector.py", 0, 0),))
    changed = compiling.kernel(_increment)
    assert changed(1) == 2
    assert not changed.stats.cache_hits


def test_a_cache_folder_that_cannot_exist():
    script = """
from hf_ssm.ops.cpu.compiling import kernel
print(kernel(lambda x: 2 * x)(21))
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": os.path.join(os.devnull, "x")}
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (result.stdout.strip(), result.returncode) == ("42", 0), result.stderr
