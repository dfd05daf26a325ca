"""The small models of the Long Range Arena: the paper's settings, and a tiny run."""

import json
from pathlib import Path
from types import ModuleType

import pytest

# Depth, features, states, dropout, rate, batch, decay: Liu & Li 2024, Table 8.
PAPER = {"listops": (4, 128, 64, 0, 0.01, 50, 0.05), "mnist": (4, 128, 64, 0.1, 0.01, 50, 0.05)}
PAPER["cifar10"] = PAPER["mnist"]


@pytest.mark.parametrize("task", PAPER)
def test_the_settings_are_the_papers(script: ModuleType, task: str) -> None:
    args = script.build_parser().parse_args([task, "--data", "x"])
    for name in script.TASKS[task][-1]:
        settings = script.settings_of(args, name)
        model, training = settings.model, settings.training
        assert (
            *(model[field] for field in ("num_hidden_layers", "hidden_size", "state_size", "hidden_dropout")),
            *(training[field] for field in ("learning_rate", "per_device_train_batch_size", "weight_decay")),
        ) == PAPER[task]
        assert training["dynamics_learning_rate"] == 1e-3
        assert (model["rescale_init"], model["tau_weight"]) == {
            "neither": (False, 0.0),
            "8": (False, 1e-5),
            "7, 8": (True, 1e-3),
        }[name]
        assert training["save_strategy"] == training["eval_strategy"]
    assert settings.data["dataset"].startswith("uoft-cs" if task == "cifar10" else "x/")


@pytest.mark.slow
def test_tiny_run_continues(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import get_data

    get_data.listops_lra(tmp_path, counts=(24, 8, 8))
    output, runs = tmp_path / "result.json", tmp_path / "runs"
    words = ["listops", "--tiny", "--data", str(tmp_path), "--runs", str(runs), "--output", str(output)]
    script.main(words)
    first = json.loads(output.read_text())
    assert first["runs"]["8"]["complete"]
    assert [point["epoch"] for point in first["runs"]["8"]["curve"]] == [1.0, 2.0]
    assert first["paper"] == {"task": "ListOps", "epochs": 40, "accuracy": {"8": 0.5645}}
    assert set(first["baselines"]) == {"most frequent answer", "most frequent answer of the operator"}
    assert "started" in capsys.readouterr().out
    # As if it had been stopped after its last checkpoint: the curve is known, the test accuracy is not.
    (runs / "listops_8_seed0" / "training_log.json").unlink()
    script.main([*words, "--collect"])
    stopped = json.loads(output.read_text())["runs"]["8"]
    assert not stopped["complete"]
    assert stopped["curve"] == first["runs"]["8"]["curve"]
    script.main(words)
    assert "continued" in capsys.readouterr().out
    assert json.loads(output.read_text())["runs"] == first["runs"]
