"""Run transformers' own model tests on all families, and print how many passed, failed and were skipped, and why.

    python tests/conformance/run.py [--family Hyena] [--cache FOLDER]

The tests are part of the source distribution of the installed version of transformers, which pip downloads once into
a folder of the environment. The exit code is 0 if no test failed.
"""

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CONSTRAINTS = HERE.parents[1] / "constraints.txt"
# Packages that the tests import and the environment lacks.
EXTRA_PACKAGES = ("parameterized==0.9.0",)
# Modules that the tests import and the source distribution lacks: mixins of tests of export and generation, which are
# left out, and values of the arguments that all configurations share.
STAND_INS = {
    "__init__.py": "",
    "exporters/__init__.py": "",
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/__init__.py": "",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "utils/__init__.py": "",
    "utils/test_configuration_utils.py": """config_common_kwargs = {
    "architectures": ["SomeModel"],
    "chunk_size_feed_forward": 3,
    "dtype": "float16",
    "id2label": {0: "no", 1: "yes", 2: "maybe"},
    "label2id": {"no": 0, "yes": 1, "maybe": 2},
    "output_attentions": True,
    "output_hidden_states": True,
    "problem_type": "regression",
    "return_dict": False,
}
""",
}


@dataclass
class Result:
    """Outcomes of the phases and of the subtests of one test."""

    outcomes: set[str] = field(default_factory=set)
    subtests: set[str] = field(default_factory=set)
    reasons: set[str] = field(default_factory=set)

    @property
    def outcome(self) -> str:
        """`"failed"` if any part failed, `"skipped"` if the test or all of its subtests were, otherwise `"passed"`."""
        if "failed" in self.outcomes | self.subtests:
            return "failed"
        if "skipped" in self.outcomes or self.subtests == {"skipped"}:
            return "skipped"
        return "passed"


class Results:
    """Pytest plugin that records the outcome of each test.

    Attributes:
        tests: Results by family and name of the test. The family is the name of the test class up to the first
            underscore.
        broken: Reasons why tests could not run at all.
    """

    def __init__(self) -> None:
        self.tests: defaultdict[str, dict[str, Result]] = defaultdict(dict)
        self.broken: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        _, class_name, name = str(report.nodeid).rsplit("::", 2)
        result = self.tests[class_name.partition("_")[0]].setdefault(f"{class_name}::{name}", Result())
        # Only reports of subtests have a context.
        (result.subtests if hasattr(report, "context") else result.outcomes).add(report.outcome)
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            result.reasons.add(re.sub(r"<class '[^']*'>", "the class", reason))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(f"not collected: {report.nodeid}")

    def names(self, family: str, outcome: str) -> list[str]:
        """Names of the tests of a family with an outcome."""
        return [name for name, result in self.tests[family].items() if result.outcome == outcome]

    @property
    def exit_code(self) -> int:
        """0 if tests ran and none failed, otherwise 1."""
        outcomes = {result.outcome for results in self.tests.values() for result in results.values()}
        return int("failed" in outcomes or "passed" not in outcomes or bool(self.broken))


def _short(names: Sequence[str]) -> str:
    """Names of tests without class and parameters, each with its number of parameters."""
    # The package `parameterized` appends the index of the parameters.
    bare = Counter(re.sub(r"_\d+(_.*)?$", "", name.rpartition("::")[2]) for name in names)
    return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in sorted(bare.items()))


def summary(results: Results) -> str:
    """Counts per family, the failed tests, and the skipped ones by reason."""
    lines = []
    for family in sorted(results.tests):
        passed, failed, skipped = (results.names(family, outcome) for outcome in ("passed", "failed", "skipped"))
        lines += ["", f"{family}: {len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped"]
        lines += [f"  failed: {name}" for name in failed]
        by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for name in skipped:
            by_reason["; ".join(sorted(results.tests[family][name].reasons))].append(name)
        lines += [
            f"  skipped, {len(names):3d}: {reason}\n                {_short(names)}"
            for reason, names in sorted(by_reason.items())
        ]
    return "\n".join([*lines, *results.broken])


def _pip(*arguments: str | Path) -> None:
    environment = {**os.environ, "PIP_CONSTRAINT": str(CONSTRAINTS), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [sys.executable, "-m", "pip", arguments[0], "--quiet", *arguments[1:]]
    subprocess.run([str(part) for part in command], check=True, env=environment)


def _write_stand_ins(package: Path) -> None:
    """Write the modules that the source distribution does not contain."""
    for name, text in STAND_INS.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(text, encoding="utf-8")


def fetch(cache: Path) -> Path:
    """The folder with the package `transformers_tests` and its dependencies; downloads them at the first call."""
    version = importlib.metadata.version("transformers")
    # Changed stand-ins need a new folder.
    ready = cache / f"transformers-{version}-{zlib.crc32(repr((STAND_INS, EXTRA_PACKAGES)).encode()):08x}"
    if ready.is_dir():
        return ready
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        scratch = Path(name)
        source, filled = scratch / f"transformers-{version}", scratch / "filled"
        _pip("download", "--no-deps", "--no-binary", ":all:", "--dest", scratch, f"transformers=={version}")
        with tarfile.open(scratch / f"{source.name}.tar.gz") as archive:
            tests = [member for member in archive.getmembers() if member.name.startswith(f"{source.name}/tests/")]
            archive.extractall(scratch, members=tests, filter="data")
        _pip("install", "--no-deps", "--target", filled, *EXTRA_PACKAGES)
        shutil.move(source / "tests", filled / "transformers_tests")
        _write_stand_ins(filled / "transformers_tests")
        # Last: an interrupted download is repeated at the next call.
        filled.rename(ready)
    return ready


def run_tests(targets: Sequence[str | Path]) -> Results:
    """Run pytest on the targets with the settings of `conformance.ini` instead of the settings of the project."""
    results = Results()
    settings = ("-c", HERE / "conformance.ini", "--rootdir", HERE, "--confcutdir", HERE)
    code = pytest.main([str(argument) for argument in (*settings, *targets)], plugins=[results])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        results.broken.append(f"pytest ended early: {code!s}")
    return results


def main() -> int:
    from families import ROWS

    families = sorted({row.family.name for row in ROWS})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=families, help="test only this family")
    parser.add_argument(
        "--cache", type=Path, default=Path(sys.prefix) / "conformance", help="folder for the downloaded tests"
    )
    arguments = parser.parse_args()

    try:
        sys.path.insert(0, str(fetch(arguments.cache)))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"The tests of transformers could not be fetched into {arguments.cache}: {error}", file=sys.stderr)
        return 2
    # The tests need nothing from the Hub; those marked as slow are quick with a tiny model.
    os.environ |= {"HF_HUB_OFFLINE": "1", "RUN_SLOW": "1"}
    wanted = [row for row in ROWS if arguments.family in (None, row.family.name)]
    module = HERE / "model_tests.py"
    results = run_tests([f"{module}::{row.name}_{kind}" for row in wanted for kind in row.kinds])
    print(summary(results))
    return results.exit_code


if __name__ == "__main__":
    sys.exit(main())
