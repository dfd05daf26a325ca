"""Sections of the papers that the documents cite, and the formula of the selective bound."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for pattern in ("hf_ssm/**/*.py", "examples/**/*.py", "docs/**/*.md", "model_cards/**/*.md", "model_cards/*.py")
    for path in ROOT.glob(pattern)
]


def test_experiments_of_nishikawa_and_suzuki_are_in_the_appendix() -> None:
    """Section 5 is their conclusion; the last section with content is 4, the last appendix K."""
    cited = {
        match
        for path in SOURCES
        for match in re.findall(r"Nishikawa & Suzuki(?: 2025)?,\s+(Section \d|Appendi\w+ \w)", path.read_text("utf-8"))
    }
    assert cited
    assert cited <= {"Section 2", "Section 3", *(f"Appendix {letter}" for letter in "BCDK"), "Appendices C"}


def test_the_contraction_has_the_lower_bound_of_p() -> None:
    """Eq. (30) of Honarpisheh et al., as `theory.selective_norms` computes it."""
    text = (ROOT / "docs/explanation/selective.md").read_text("utf-8")
    assert r"\rho_A = (1 + e^{\mathfrak{L}_p - \mathfrak{B}_q \mathfrak{B}_u})^{-s_A}" in text
