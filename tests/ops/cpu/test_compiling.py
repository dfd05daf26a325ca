"""Kernels are kept on disk where that is possible, and work where it is not."""

import os
import pickle
import runpy
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


def test_other_errors_are_not_hidden():
    with pytest.raises(ZeroDivisionError), compiling._ignore_cache_errors(None):
        _ = 1 / 0


@pytest.mark.parametrize("length", [0, 1, 40, -10])
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_damaged_cache_is_cleared(monkeypatch, tmp_path, kind, length):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert compiling.kernel(_increment)(1) == 2
    (path,) = tmp_path.rglob(f"*.{kind}")
    path.write_bytes(path.read_bytes()[:length])
    assert compiling.kernel(_increment)(1) == 2
    again = compiling.kernel(_increment)
    assert again(1) == 2
    assert sum(again.stats.cache_hits.values()) == 1


def test_a_damaged_cache_that_cannot_be_cleared(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert compiling.kernel(_increment)(1) == 2
    for path in tmp_path.rglob("*.nbi"):
        path.write_bytes(b"")
    monkeypatch.setattr(caching.IndexDataCacheFile, "_open_for_write", _fail)
    assert compiling.kernel(_increment)(1) == 2


def test_kernels_do_not_run_in_python(monkeypatch):
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    with pytest.raises(ImportError, match="NUMBA_DISABLE_JIT"):
        runpy.run_path(compiling.__file__)


@pytest.mark.slow
def test_without_compilation_torch_runs():
    script = """
import torch, hf_ssm
from hf_ssm.ops.backends import use_backend
torch.manual_seed(0)
ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
for family in ("Hyena", "S4", "SelectiveSSM"):
    config = getattr(hf_ssm, family + "Config")(hidden_size=8, state_size=4, num_hidden_layers=1)
    model = getattr(hf_ssm, family + "ForCausalLM")(config).eval()
    found = model.generate(ids, max_new_tokens=2, do_sample=False), model(ids, labels=ids).loss
    found[1].backward()
    with use_backend("torch"):
        assert torch.equal(found[0], model.generate(ids, max_new_tokens=2, do_sample=False))
        assert torch.equal(found[1], model(ids, labels=ids).loss)
print("equal")
"""
    environment = {name: value for name, value in os.environ.items() if name != "HF_SSM_KERNELS"}
    environment["NUMBA_DISABLE_JIT"] = "1"
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert (result.stdout.strip(), result.returncode) == ("equal", 0), result.stderr


def test_a_change_of_any_source_compiles_again(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert compiling.kernel(_increment)(1) == 2
    again = compiling.kernel(_increment)
    again(1)
    assert sum(again.stats.cache_hits.values()) == 1
    monkeypatch.setattr(compiling, "_SOURCES", (("vector.py", 0, 0),))
    changed = compiling.kernel(_increment)
    assert changed(1) == 2
    assert not changed.stats.cache_hits


@pytest.mark.slow
def test_a_cache_folder_that_cannot_exist():
    script = """
from hf_ssm.ops.cpu.compiling import kernel
print(kernel(lambda x: 2 * x)(21))
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": os.path.join(os.devnull, "x")}
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (result.stdout.strip(), result.returncode) == ("42", 0), result.stderr
