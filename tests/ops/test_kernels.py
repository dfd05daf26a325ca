"""The choice between compiled kernels, torch and references, in this process and by the environment variable."""

import os
import subprocess
import sys

import pytest
import torch

from hf_ssm.ops.backends import CHOICES, use_backend

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", (True, True, False)),
        ("numba", (True, True, False)),
        ("torch", (False, False, False)),
        ("reference", (False, False, True)),
    ],
)
def test_what_each_choice_means(choice, expected):
    pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")
    with use_backend(choice):
        assert (kernels.compiled(CPU), kernels.hub(GPU), kernels.reference()) == expected
        assert not kernels.compiled(GPU)
        assert not kernels.hub(CPU)


def test_the_choice_before_is_restored_after_an_error():
    before = kernels.current()
    other = "torch" if before != "torch" else "reference"
    with pytest.raises(RuntimeError, match="stop"), use_backend(other):
        assert kernels.current() == other
        raise RuntimeError("stop")
    assert kernels.current() == before


def test_an_unknown_choice_names_the_others():
    with pytest.raises(ValueError, match=r"HF_SSM_KERNELS must be one of auto, numba, torch, reference, got 'fast'"):
        kernels.set_backend("fast")


def run(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source], env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("choice", CHOICES)
def test_the_environment_variable_chooses(choice):
    pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")
    result = run("from hf_ssm.ops import kernels; print(kernels.current())", HF_SSM_KERNELS=choice)
    assert result.stdout.strip() == choice, result.stderr


def test_a_wrong_environment_variable_is_one_clear_error():
    result = run("import hf_ssm; hf_ssm.S4ForCausalLM", HF_SSM_KERNELS="fast")
    assert result.stderr.splitlines()[-1].endswith("must be one of auto, numba, torch, reference, got 'fast'")


# None in the place of a module is how Python itself marks what cannot be imported.
WITHOUT_NUMBA = "import sys; sys.modules['numba'] = None\n"


def test_without_numba_torch_serves():
    source = """
import torch, hf_ssm
from hf_ssm.ops import backends
assert not kernels.compiled(torch.device("cpu"))
config = hf_ssm.SelectiveSSMConfig(hidden_size=8, state_size=4, num_hidden_layers=1, vocab_size=8)
model = hf_ssm.SelectiveSSMForCausalLM(config)
tokens = torch.randint(0, 8, (2, 9))
model(input_ids=tokens, labels=tokens).loss.backward()
print(model.generate(tokens, max_new_tokens=3).shape)
"""
    result = run(WITHOUT_NUMBA + source, HF_SSM_KERNELS="auto")
    assert result.stdout.strip() == "torch.Size([2, 12])", result.stderr


def test_asking_for_numba_without_it_says_how_to_get_it():
    result = run(WITHOUT_NUMBA + "import hf_ssm; hf_ssm.S4ForCausalLM", HF_SSM_KERNELS="numba")
    assert "pip install 'hf_ssm[cpu]'" in result.stderr.splitlines()[-1]
