"""The runner of the conformance tests: counts, summary and download, without network."""

import importlib.metadata
import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from hf_ssm.models.registry import FAMILIES

HERE = Path(__file__).parent
MIXED = """
import unittest

class Hyena_implicit_tokens(unittest.TestCase):
    def test_passes(self): pass
    def test_fails(self): self.fail("for a reason")
    def test_skips(self): self.skipTest("Model architecture does not support attentions")
    @unittest.skip("test requires multiple accelerators")
    def test_marked_0_fp16(self): pass
    @unittest.skip("test requires multiple accelerators")
    def test_marked_1_fp32(self): pass
    def test_all_parts_skip(self):
        for cls in (int, str):
            with self.subTest(cls.__name__):
                self.skipTest(f"No conversion found for {cls}")
    def test_some_parts_skip(self):
        for part in range(2):
            with self.subTest(part):
                if part: self.skipTest("Nobody knows why")
    def test_part_fails(self):
        for part in range(2):
            with self.subTest(part):
                self.assertEqual(part, 0)

class S4_s4d_tokens(unittest.TestCase):
    def test_passes(self): pass
    def test_flash_attn_2(self): self.skipTest("test requires Flash Attention")
"""


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"conformance_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = _load("run")
families = _load("families")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "mixed_tests.py"
    path.write_text(MIXED, encoding="utf-8")
    return path


def test_summary_counts_each_test_once_with_the_reason_of_its_skip(mixed: Path) -> None:
    results = run.run_tests([mixed])
    assert run.summary(results).splitlines() == [
        "",
        "Hyena: 2 passed, 2 failed, 4 skipped",
        "  failed: Hyena_implicit_tokens::test_fails",
        "  failed: Hyena_implicit_tokens::test_part_fails",
        "  skipped,   1: Model architecture does not support attentions",
        "                test_skips",
        "  skipped,   1: No conversion found for the class",
        "                test_all_parts_skip",
        "  skipped,   2: test requires multiple accelerators",
        "                test_marked (2)",
        "",
        "S4: 1 passed, 0 failed, 1 skipped",
        "  skipped,   1: test requires Flash Attention",
        "                test_flash_attn",
    ]
    assert results.exit_code == 1


def test_exit_code_is_zero_only_if_tests_ran_and_none_failed(mixed: Path) -> None:
    assert run.run_tests([f"{mixed}::S4_s4d_tokens"]).exit_code == 0
    assert run.run_tests([f"{mixed}::Hyena_implicit_tokens::test_part_fails"]).exit_code == 1
    assert run.run_tests([f"{mixed}::S4_s4d_tokens::test_flash_attn_2"]).exit_code == 1
    missing = run.run_tests([f"{mixed}::S4_s4d_tokens", f"{mixed}::Unknown"])
    assert missing.exit_code == 1 and "pytest ended early" in run.summary(missing)
    unreadable = mixed.with_name("unreadable_tests.py")
    unreadable.write_text("import a_module_that_is_not_there\n", encoding="utf-8")
    broken = run.run_tests([unreadable])
    assert broken.exit_code == 1 and "not collected: " in run.summary(broken)


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


def test_a_failed_download_is_reported_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pip(*arguments: str | Path) -> None:
        raise subprocess.CalledProcessError(1, ["pip"])

    monkeypatch.setattr(run, "_pip", pip)
    monkeypatch.setattr(sys, "argv", ["run.py", "--cache", str(tmp_path / "cache")])
    monkeypatch.syspath_prepend(HERE)
    assert run.main() == 2
    assert "could not be fetched" in capsys.readouterr().err
    assert list((tmp_path / "cache").iterdir()) == []


def test_every_registered_family_is_tested() -> None:
    assert {row.family.name for row in families.ROWS} == set(FAMILIES)
    assert len({row.name for row in families.ROWS}) == len(families.ROWS)
    for row in families.ROWS:
        # The runner takes the family from the class name up to the first underscore.
        assert row.build_config().hidden_size == 32 and "_" not in row.family.name
