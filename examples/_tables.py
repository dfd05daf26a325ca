"""Reading of stored results, and text for the tables of the documents; see `tables.py`."""

import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "examples/results"
TABLES: dict[str, Callable[[], str]] = {}


def table(make: Callable[[], str]) -> Callable[[], str]:
    """Register the function that returns the text between the markers of its name."""
    TABLES[make.__name__] = make
    return make


@cache
def load(name: str, folder: str = RESULTS) -> Any:
    """The contents of a JSON file of the project."""
    return json.loads((ROOT / folder / f"{name}.json").read_text(encoding="utf-8"))


NOT_RUN = "This experiment has not been run yet: there is no result, and no claim."
"""The text in place of a table whose results are not stored."""


def is_stored(name: str) -> bool:
    """Whether there is a result."""
    return (ROOT / RESULTS / f"{name}.json").is_file()


def by_seed(runs: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Runs with names such as "Mamba-3, seed 0", by their names without the seed."""
    several: dict[str, list[Any]] = {}
    for name, run in runs.items():
        several.setdefault(name.rpartition(", seed ")[0], []).append(run)
    return several


def trivial(name: str) -> Any:
    """The trivial baseline of a table, of `baselines.py`."""
    return load("baselines")["baselines"][name]


def names(pattern: str) -> list[str]:
    """Names of the stored results that match a pattern."""
    return sorted(path.stem for path in (ROOT / RESULTS).glob(f"{pattern}.json"))


def grid(header: Sequence[str], rows: Iterable[Sequence[Any]], *notes: str) -> str:
    """A Markdown table, with paragraphs below it."""
    lines = [[str(cell) for cell in row] for row in (header, ["---"] * len(header), *rows)]
    shown = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([shown, *(f"\n{fill(note)}" for note in notes)]) + "\n"


def fill(note: str) -> str:
    """A paragraph in lines of at most 120 characters, with code in one piece."""
    lines = [""]
    for word in re.findall(r"`[^`]*`\S*|\S+", note):
        if lines[-1] and len(lines[-1]) + len(word) >= 120:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return "\n".join(lines)


def pm(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation, or a single value alone."""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def span(values: Iterable[float], form: str = ".3f") -> str:
    """Smallest to largest value."""
    found = list(values)
    low, high = f"{min(found):{form}}", f"{max(found):{form}}"
    return low if low == high else f"{low} to {high}"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.0f} %"


def slope(trend: Mapping[str, float], digits: int = 3) -> str:
    """A slope with its confidence interval."""
    return f"{trend['slope']:+.{digits}f} ({trend['low']:+.{digits}f} to {trend['high']:+.{digits}f})"


def shown(command: str) -> str:
    """A stored command without the file of its results, and with the folder of `get_data.py`."""
    return re.sub(r" --output (examples|benchmarks)/results/[^ ]*", "", command).replace("../shared/data/", "data/")


def code(command: str) -> str:
    """A stored command in a sentence."""
    return f"`{shown(command)}`"


def console(*commands: str) -> str:
    """A block of commands, each in lines of at most 100 characters."""
    lines = []
    for command in commands:
        lines.append("")
        for piece in re.split(r" (?=-)", shown(command)):
            if lines[-1] and len(lines[-1]) + len(piece) > 96:
                lines[-1] += " \\"
                lines.append("   ")
            lines[-1] += (" " if lines[-1] else "") + piece
    return "\n".join(["", "```console", *lines, "```", ""])
