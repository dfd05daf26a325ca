"""`import hf_ssm` takes a moment: names are imported at their first use, and families when they are looked up."""

import json
import subprocess
import sys

import pytest

import hf_ssm
from hf_ssm.models.registry import FAMILIES

HEAVY = ("torch", "transformers", "datasets", "numpy", "huggingface_hub", "evaluate", "matplotlib", "numba")
SCRIPT = """
import json, sys
import hf_ssm
print(json.dumps(sorted(sys.modules)))
assert callable(hf_ssm.hub.push) and callable(hf_ssm.metrics.load) and callable(hf_ssm.probes.MaskingProbe)
"""
LOOKED_UP = """
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.for_model("hf_ssm_s4")
assert type(AutoModelForCausalLM.from_config(config)).__name__ == "S4ForCausalLM"
"""


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_nothing_heavy():
    modules = json.loads(run(SCRIPT).splitlines()[-1])
    assert "hf_ssm" in modules and not set(HEAVY) & set(modules)


@pytest.mark.parametrize("imports", ["import hf_ssm", "import transformers.models.auto.configuration_auto, hf_ssm"])
def test_the_auto_classes_find_the_families(imports):
    run(imports + LOOKED_UP)


def test_every_class_of_a_family_has_a_public_name():
    classes = [cls for family in FAMILIES.values() for cls in (family.config_class, *family.model_classes.values())]
    assert all(getattr(hf_ssm, cls.__name__) is cls for cls in classes)
    assert {cls.__name__ for cls in classes} == set(hf_ssm._CLASSES)
