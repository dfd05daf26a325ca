"""Two processes that share the channels of a model equal one process with all of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import tensor_worker as worker
import torch
from launching import run_workers

from hf_ssm import S4Config, S4ForCausalLM
from hf_ssm.parallel import tensor_parallel

# Two processes build, train and save the models of all cases: see the fixture.
pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


@pytest.fixture(scope="module", params=["gloo", "nccl"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each of two processes found; they agree on the numbers of a whole model."""
    if request.param == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs two GPUs")
    folder = tmp_path_factory.mktemp("tensor_parallel")
    run_workers(worker.__file__, folder, 2, request.param)
    ours, theirs = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    return {name: {"first": ours[name], "second": theirs[name]} for name in ours}


@pytest.mark.parametrize(("name", "precision"), worker.RUNS)
def test_a_split_model_equals_the_whole_one(found, name, precision):
    for errors in found[f"{name}, {precision}"].values():
        for quantity, error in errors.items():
            assert error < TOLERANCE[precision], f"{quantity}: {error}"


@pytest.mark.parametrize("name", ["packed", "rescaled"])
def test_packed_rows_and_recomputed_layers_and_the_rescaled_initialisation(found, name):
    for errors in found[name].values():
        assert max(errors.values()) < TOLERANCE["float64"]


def test_each_process_holds_half_of_the_layers_and_saves_all_of_them(found):
    for results in found["memory"].values():
        whole, split = results["counts"]
        # Norms are whole.
        assert 0.5 * whole < split < 0.51 * whole
        assert results["saved"] == 0.0


def test_what_cannot_be_split(found):
    messages = found["refusals"]["first"]
    assert messages["channels"].startswith("`hidden_size`=7 cannot be divided by 2 processes")
    assert messages["heads"].startswith("`num_heads`=3 cannot be divided by 2 processes")
    assert messages["groups"].startswith("`n_groups`=3 cannot be divided by 2 processes")
    assert "shard its parameters by FSDP2 instead" in messages["S5"]
    assert "use 'layer' or 'rms'" in messages["batch norm"]
    assert "split already" in messages["twice"]
    assert "cannot be copied" in messages["copy"]
    assert "any parameter that requires a gradient" in messages["DDP"]
    assert "has no `tp_plan`" in messages["plan of transformers"]


def test_one_process_keeps_its_model_whole():
    model = S4ForCausalLM(S4Config(vocab_size=12, hidden_size=7, state_size=4))
    assert tensor_parallel(model) is model
    assert model.model.layers[0].mixer.long_conv.channels == 7
    with pytest.raises(ValueError, match="not a model of hf_ssm"):
        tensor_parallel(torch.nn.Linear(2, 2))
