"""`constraints-lowest.txt` pins each dependency to the lowest version that `pyproject.toml` admits."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
# Extras that are tested with the pinned set only.
UNTESTED = {"app", "browser", "docs", "lint", "quantization", "tracking"}


def test_pins_are_the_floors_of_the_project_file():
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    pins = {}
    for line in lines:
        if not line.startswith("#"):
            requirement = Requirement(line)
            pins[canonicalize_name(requirement.name)] = Version(str(requirement.specifier).removeprefix("=="))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = [texts for extra, texts in project["optional-dependencies"].items() if extra not in UNTESTED]
    for text in sum(tested, project["dependencies"]):
        requirement = Requirement(text)
        (floor,) = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
        assert pins[canonicalize_name(requirement.name)] == floor, text
