"""The pages of the experiments are listed, and their tables and commands fit the width of a page."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "experiments"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.md")), ids=lambda path: path.stem)
def test_pages_are_readable(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert all(len(line) <= 190 for line in text.splitlines() if line.startswith("|"))
    for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL):
        assert max(map(len, block.splitlines())) <= 120
    assert path.stem == "index" or f"({path.name})" in (FOLDER / "index.md").read_text(encoding="utf-8")
