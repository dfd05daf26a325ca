"""`constraints-lowest.txt` pins each dependency to the lowest version that `pyproject.toml` admits."""

from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
# Tools of `make lint`, which runs with the pinned set only.
UNTESTED = {"mypy", "ruff"}


def test_pins_are_the_floors_of_the_project_file():
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    pins = {}
    for line in lines:
        if not line.startswith("#"):
            requirement = Requirement(line)
            pins[canonicalize_name(requirement.name)] = Version(str(requirement.specifier).removeprefix("=="))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in sum(project["optional-dependencies"].values(), project["dependencies"]):
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name not in UNTESTED:
            (floor,) = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
            assert pins[name] == floor, text
