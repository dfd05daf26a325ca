"""The theory report as tables: for the screen and for a model card."""

import dataclasses
import math
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hf_ssm.modules.roles import QUANTITIES

if TYPE_CHECKING:
    from hf_ssm.analysis.report import TheoryReport

__all__ = ["FEWEST_SEQUENCES", "Table", "markdown", "plain_text", "tables_of"]

FEWEST_SEQUENCES = 16
"""Number of sequences whose variance, and so τ, is within a tenth of that of many sequences."""

_NOTHING = "–"
_LINE = 100
# The share of power for which the table shows the recommendation of α.
_SHARE = 0.9


@dataclasses.dataclass(frozen=True)
class Table:
    """One section of the report.

    Attributes:
        title: Its heading.
        header: Names of the columns; empty for notes without a table.
        rows: Cells, numbers or texts; `None` for a missing value.
        notes: Sentences below it.
    """

    title: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    notes: Sequence[str] = ()


def tables_of(report: "TheoryReport") -> list[Table]:
    """All parts of a report, in the order of reading."""
    return [
        _complexity(report),
        *_variation(report),
        *_alpha(report),
        *_bound(report),
        *_movement(report),
    ]


def _complexity(report: "TheoryReport") -> Table:
    rows = [
        (layer.layer, layer.tau, layer.measure, layer.squared_l1_norm, layer.squared_l2_norm)
        for layer in report.complexity
    ]
    notes = [
        f"Means over channels, on {report.data['rows']} sequences of up to {report.data['longest']} positions; "
        f"n = {report.data['num_sequences']} training sequences. τ: Liu & Li 2024, eq. (6); ψ²/√n: Theorem 4.2; the "
        "norms do not depend on the data."
    ]
    if report.data["rows"] < FEWEST_SEQUENCES:
        notes.append(
            f"τ and ψ²/√n need the variance of the inputs over the sequences. Fewer than {FEWEST_SEQUENCES} sequences "
            "give too small a variance, a single one gives none: do not compare these values with others."
        )
    if not report.is_time_invariant:
        notes.append(
            "For selective scans the values are an extension, computed from the kernel of the data's mean Δ, B and C "
            "at the last token."
        )
    return Table("Complexity", ("layer", "τ", "ψ²/√n", "‖k‖₁²", "‖k‖₂²"), rows, notes)


def _variation(report: "TheoryReport") -> list[Table]:
    title = "Total variation of the frequency response"
    if not report.variation:
        return [Table(title, notes=["None: a selective scan has no frequency response, as it varies in time."])]
    bands = [f"{_multiple_of_pi(low)} to {_multiple_of_pi(high)}" for low, high in pairwise(report.bands)]
    rows = [(part.layer, part.direction, *part.variation) for part in report.variation]
    notes = ["Means over channels, by angular frequency in radians per sample (Yu et al. 2025, Section 2)."]
    for measured, kernels in sorted({(part.measured, part.kernels) for part in report.variation}):
        if measured == 0:
            notes.append("Not measured, as the kernels have so many taps that it would take hours.")
        elif measured < kernels:
            notes.append(f"Of {measured} of the {kernels} kernels of a layer, evenly chosen, as they have many taps.")
    return [Table(title, ("layer", "direction", *bands), rows, notes)]


def _alpha(report: "TheoryReport") -> list[Table]:
    title = "Useful range of the frequency scale α"
    if isinstance(report.alpha, str):
        return [Table(title, notes=[f"None: {report.alpha}"])]
    rows: list[tuple[Any, ...]] = [("without data", None, *report.alpha.data_free)]
    for layer, found in report.alpha_of_layers.items():
        if not isinstance(found, str):
            rows.append((f"inputs of layer {layer}", found.edges[_SHARE], *found.from_data[_SHARE]))
    low, high = report.alpha.time_steps
    scale = report.model["frequency_scale"]
    notes = [
        f"The configuration has α = {scale:g}, {_verdict(scale, report.alpha.data_free)}. A limit "
        f"from data puts the fastest pole at the frequency ω below which {_SHARE:.0%} of the power of a layer's "
        f"inputs lies, in radians per sample (Yu et al. 2025, Section 5.1); it is no value "
        f"to aim at. Step sizes Δ go from {low:g} to {high:g}."
    ]
    notes += [] if report.alpha.paper_note is None else [report.alpha.paper_note]
    return [Table(title, ("inputs", "ω", "α up to, largest Δ", "α up to, smallest Δ"), rows, notes)]


def _verdict(scale: float, limits: tuple[float, float]) -> str:
    """α compared with the limits for the largest and the smallest step size."""
    if scale <= limits[0]:
        return "below the limit without data for every step size"
    if scale > limits[1]:
        return "above the limit without data for every step size"
    return "below the limit without data for small step sizes and above it for large ones"


def _bound(report: "TheoryReport") -> list[Table]:
    title = "Generalisation bound"
    if isinstance(report.bound, str):
        return [Table(title, notes=[f"None: {report.bound}"])]
    found = report.bound.to_dict()
    failed = [entry for entry in found["assumptions"] if not entry["holds"]]
    norms = found["norms"]
    values = (
        (f"bound (27) on the gap, n = {found['num_sequences']}", found["bound"]),
        (f"for sequences of at most {found['longest']} positions", found["bound_at_length"]),
        ("log₁₀ of the capacity", found["log10_capacity"]),
        ("log₁₀ of its leading terms (28), (29)", found["log10_leading_terms"]),
        ("log₁₀ of the sequences needed for a bound below 1", found["log10_sequences_needed"]),
        ("stability margin s_A", norms.get("s_A")),
        ("contraction ρ_A", norms.get("rho_A")),
    )
    rows = [(name, value) for name, value in values if value is not None]
    notes = [f"Theorem {found['theorem']} of Honarpisheh et al. 2025, for a loss in [0, 1]."]
    if (found["bound"] or 0) > 1:
        notes.append("A bound above 1 is vacuous for such a loss.")
    if failed:
        notes.append("It makes no claim for this model, as these assumptions fail:")
        notes += [f"- {entry['name']}: {entry['message']}" for entry in failed]
    scans = [
        (
            scan["layer"],
            scan["direction"],
            scan["log10_capacity"],
            scan["contraction"]["mean"],
            scan["output"]["largest"],
        )
        for scan in found["scans"]
    ]
    notes += found["notes"]
    # A scan of which no capacity is given, with the reason; the scans of a model have the same sizes.
    lacking = [scan for scan in found["scans"] if scan["log10_capacity"] is None]
    reasons = [entry["message"] for scan in lacking[:1] for entry in scan["assumptions"] if not entry["holds"]]
    notes += [f"No capacity of the scans: {'; '.join(reasons)}"] if failed and reasons else []
    header = ("layer", "direction", "log₁₀ capacity of the scan", "mean contraction", "largest output")
    alone = Table("Each scan alone (an adaptation, not a bound for the network)", header, scans)
    return [Table(title, ("quantity", "value") if rows else (), rows, notes), *([alone] if failed and scans else [])]


def _movement(report: "TheoryReport") -> list[Table]:
    title = "Movement of the parameters in training"
    if not report.movement:
        return [Table(title, notes=["Not known: no training_log.json records it from the start of training."])]
    rows = [(QUANTITIES[group], value) for group, value in report.movement.items()]
    notes = ["‖θ_after − θ_before‖ / ‖θ_before‖ (Yu et al. 2025, Table 1); – where a group was zero before."]
    return [Table(title, ("parameters", "relative change"), rows, notes)]


def _multiple_of_pi(frequency: float) -> str:
    """0, π/4, π, or else a decimal number."""
    if frequency == 0:
        return "0"
    denominator = math.pi / frequency
    if math.isclose(denominator, round(denominator), rel_tol=1e-9):
        return "π" if round(denominator) == 1 else f"π/{round(denominator)}"
    return f"{frequency:.3g}"


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return _NOTHING
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def plain_text(tables: Iterable[Table]) -> str:
    """The tables with aligned columns, for a terminal."""
    return "\n\n".join("\n".join(_text_lines(table)) for table in tables) + "\n"


def _text_lines(table: Table) -> list[str]:
    lines = [table.title, "-" * _width(table.title)]
    if table.header:
        cells = [list(table.header), *([_cell(value) for value in row] for row in table.rows)]
        widths = [max(_width(row[column]) for row in cells) for column in range(len(table.header))]
        words = [all(isinstance(row[column], str) for row in table.rows) for column in range(len(table.header))]
        for row in cells:
            spaces = [" " * (width - _width(text)) for width, text in zip(widths, row, strict=True)]
            padded = [text + gap if word else gap + text for text, gap, word in zip(row, spaces, words, strict=True)]
            lines.append("  ".join(padded).rstrip())
    for note in table.notes:
        lines += textwrap.wrap(note, _LINE, subsequent_indent="  " if note.startswith("- ") else "")
    return lines


def _width(text: str) -> int:
    """Columns of a terminal; combining marks take none."""
    return sum(not unicodedata.combining(letter) for letter in text)


def markdown(tables: Iterable[Table], level: int = 3) -> str:
    """The tables in Markdown, with headings of a level."""
    return "\n\n".join(_markdown_part(table, level) for table in tables) + "\n"


def _markdown_part(table: Table, level: int) -> str:
    parts = [f"{'#' * level} {table.title}"]
    if table.header:
        rows = [table.header, ["---"] * len(table.header), *([_cell(value) for value in row] for row in table.rows)]
        parts.append("\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows))
    if table.notes:
        parts.append(_paragraphs(table.notes))
    return "\n\n".join(parts)


def _paragraphs(notes: Sequence[str]) -> str:
    """Sentences as paragraphs, list entries as lists."""
    text, in_list = "", False
    for note in notes:
        entry = note.startswith("- ")
        text += ("\n" if entry and in_list else "\n\n" if entry or in_list else " ") + note
        in_list = entry
    return text.strip()
