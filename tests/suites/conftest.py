"""Fixtures of the suites."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from suite_stand_ins import make_mirror

from hf_ssm import build_dna_tokenizer
from hf_ssm.inference.model import SequenceModel


@pytest.fixture(scope="session")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mirror(tmp_path_factory.mktemp("mirror"))


@pytest.fixture
def reader(make_model: Callable[..., Any]) -> SequenceModel:
    """A causal language model of DNA."""
    return SequenceModel(make_model("S4", "ForCausalLM", vocab_size=16), build_dna_tokenizer())
