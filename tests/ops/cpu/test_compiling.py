"""Kernels are kept on disk where that is possible, and work where it is not."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
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


CACHED = """
import sys
from hf_ssm.ops.cpu.compiling import kernel
from numba.core import caching
sys.path.insert(0, sys.argv[1])
from increment import increment
assert kernel(increment)(1) == 2
"""


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_the_configuration_of_the_working_directory_chooses_no_cache(tmp_path):
    planted, source = tmp_path / "planted", tmp_path / "source"
    for folder in (planted, source):
        folder.mkdir()
    (source / "increment.py").write_text("def increment(x):\n    return x + 1\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    command = [sys.executable, "-c", CACHED, str(source)]

    def run(**more: str) -> None:
        done = subprocess.run(
            command, env=environment | more, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    # The names of the files that numba reads.
    run(NUMBA_CACHE_DIR=str(planted))
    indices = list(planted.rglob("*.nbi"))
    assert indices
    for path in indices:
        path.write_bytes(pickle.dumps(Payload(tmp_path / "executed")))
    (tmp_path / ".numba_config.yaml").write_text(f"cache_dir: {planted}\n")
    run()
    assert not (tmp_path / "executed").exists()
    assert list(source.rglob("*.nbi"))


def test_the_configuration_of_the_working_directory_imports_nothing(monkeypatch):
    monkeypatch.setattr("numba.core.config.CACHE_LOCATOR_CLASSES", "this.Zen")
    assert compiling.kernel(_increment)(1) == 2
    assert "this" not in sys.modules
