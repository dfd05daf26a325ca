"""The conformance tests know every registered family."""

import runpy
from pathlib import Path

from hf_ssm.models.registry import FAMILIES


def test_every_registered_family_is_tested() -> None:
    rows = runpy.run_path(str(Path(__file__).with_name("families.py")))["ROWS"]
    assert {row.family.name for row in rows} == set(FAMILIES)
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.build_config().hidden_size == 32 for row in rows)
