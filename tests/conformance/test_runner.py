"""The runner of the conformance tests: download, without network, and the families."""

import importlib.metadata
import importlib.util
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from hf_ssm.models.registry import FAMILIES

HERE = Path(__file__).parent


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"conformance_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = _load("run")
families = _load("families")


@pytest.fixture
def pip_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces pip by a source distribution with two files; the list collects the commands."""
    calls: list[str] = []
    source = tmp_path / f"transformers-{importlib.metadata.version('transformers')}"
    (source / "tests" / "utils").mkdir(parents=True)
    (source / "setup.py").write_text("")
    (source / "tests" / "test_modeling_common.py").write_text("original = True\n")
    (source / "tests" / "utils" / "test_configuration_utils.py").write_text("original = True\n")

    def pip(command: str, *arguments: str | Path) -> None:
        calls.append(command)
        if command == "download":
            with tarfile.open(Path(arguments[arguments.index("--dest") + 1]) / f"{source.name}.tar.gz", "w:gz") as file:
                file.add(source, source.name)
        else:
            Path(arguments[arguments.index("--target") + 1]).mkdir()

    monkeypatch.setattr(run, "_pip", pip)
    return calls


def test_tests_are_downloaded_once_and_only_missing_modules_are_added(tmp_path: Path, pip_calls: list[str]) -> None:
    cache = tmp_path / "cache"
    package = run.fetch(cache) / "transformers_tests"
    assert package.parent == run.fetch(cache) and pip_calls == ["download", "install"]
    assert [path.name for path in cache.iterdir()] == [package.parent.name]
    assert (package / "test_modeling_common.py").read_text() == "original = True\n"
    assert (package / "utils" / "test_configuration_utils.py").read_text() == "original = True\n"
    assert "class GenerationTesterMixin" in (package / "generation" / "test_utils.py").read_text()
    assert not list(package.parent.rglob("setup.py"))


def test_every_registered_family_is_tested() -> None:
    assert {row.family.name for row in families.ROWS} == set(FAMILIES)
    assert len({row.name for row in families.ROWS}) == len(families.ROWS)
    for row in families.ROWS:
        # The runner takes the family from the class name up to the first underscore.
        assert row.build_config().hidden_size == 32 and "_" not in row.family.name
