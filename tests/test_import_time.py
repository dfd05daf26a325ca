"""`import hf_ssm` is fast: packages that take seconds to import are imported at their first use."""

import json
import subprocess
import sys

import pytest

HEAVY = ("transformers.trainer", "datasets", "evaluate", "matplotlib", "numba")

SCRIPT = """
import json, sys
from transformers import AutoModel
before = set(sys.modules)
import hf_ssm
print(json.dumps(sorted(set(sys.modules) - before)))
assert callable(hf_ssm.hub.push) and callable(hf_ssm.metrics.load) and callable(hf_ssm.probes.MaskingProbe)
"""


@pytest.fixture(scope="module")
def newly_imported() -> set[str]:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", HEAVY)
def test_import_loads_nothing_heavy(newly_imported, module):
    assert module not in newly_imported


def test_import_loads_the_package(newly_imported):
    assert "hf_ssm" in newly_imported
