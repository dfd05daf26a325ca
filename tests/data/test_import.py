"""Importing the rooms for data and tokenizers loads nothing heavy until one of their names is used."""

import json
import subprocess
import sys

import pytest

import hf_ssm.data
import hf_ssm.tokenization

SCRIPT = """
import json, sys
import hf_ssm
before = set(sys.modules)
import hf_ssm.data, hf_ssm.tokenization
print(json.dumps(sorted(set(sys.modules) - before)))
from hf_ssm.data import *
from hf_ssm.tokenization import *
print(load_sequences.__name__, build_dna_tokenizer.__name__)
"""


def test_the_rooms_are_light_and_their_names_work():
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    new, names = result.stdout.splitlines()[-2:]
    assert {name for name in json.loads(new) if not name.startswith("hf_ssm")} == set()
    assert names == "load_sequences build_dna_tokenizer"


@pytest.mark.parametrize("room", [hf_ssm.data, hf_ssm.tokenization])
def test_names(room):
    assert dir(room) == sorted(room.__all__)
    assert all(getattr(room, name) is not None for name in room.__all__)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = room.absent
