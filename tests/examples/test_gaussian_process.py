"""The Gaussian process experiment: its data, its model, its measures, and a run in its tiny setting."""

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch


def tiny(script: ModuleType) -> Any:
    return script.Setting("s4", length=20, num_test=6, epochs=2, state_size=4, lengths=(1, 20))


@pytest.mark.slow
def test_tiny_run(script, frozen_garbage, tmp_path: Path, capsys) -> None:
    result = tmp_path / "result.json"
    script.main(["--tiny", "--output", str(result)])
    results = json.loads(result.read_text())
    assert set(results["table_1"]) == set(script.PAPER_TABLE_1)
    assert set(script.PAPER_TABLE_12) < set(results["table_12"])
    for row in (*results["table_1"].values(), *results["table_12"].values()):
        for by_name in row.values():
            assert all(len(by_name[name]) == 1 and by_name[name][0] > 0 for name in script.MEASURES)
            assert len(by_name["curve"]) == 2
    found = results["table_1"]["w (7, 8)"]["0.1"]["test MSE"][0]
    assert f"{found:.3f} (0.59)" in capsys.readouterr().out
    # Trained with λ, the trained models differ; the rescaling has changed the first loss.
    first = [results["table_1"][row]["0.01"]["curve"][0] for row in ("w/o (7, 8)", "w (7)", "w (7, 8)")]
    assert first[0] != first[1] == first[2]


def test_covariance_is_the_stated_one_and_the_sequences_have_it(script) -> None:
    for b in (1.0, 0.1, 3.0):
        expected = [[math.exp(-(((i - j) / b) ** 2)) / (b * math.sqrt(math.pi)) for j in range(5)] for i in range(5)]
        np.testing.assert_allclose(script.covariance(5, b).numpy(), expected, rtol=1e-12)
    values, labels = script.sample(40_000, 5, 1.0, torch.Generator().manual_seed(0))
    rows = values.squeeze(-1).double().numpy()
    np.testing.assert_allclose(rows.mean(0), np.ones(5), atol=0.02)
    np.testing.assert_allclose(np.cov(rows.T), script.covariance(5, 1.0).numpy(), atol=0.02)
    # Position 2 of 5, counted from 1.
    np.testing.assert_allclose(labels.numpy(), np.sin(rows[:, 1]), atol=1e-6)


@pytest.mark.parametrize("kernel_type", ["s4", "s4d"])
def test_the_model_is_the_convolution_alone(script, kernel_type: str) -> None:
    setting = script.Setting(kernel_type, length=20, state_size=4)
    model = script.build_model(setting, 0)
    inputs = torch.randn(3, 20, 1)
    kernel = model.model.layers[0].mixer.long_conv.kernels(20)[0, 0].detach().numpy()
    expected = [[sum(kernel[lag] * row[19 - lag, 0] for lag in range(20))] for row in inputs.numpy()]
    np.testing.assert_allclose(model(input_values=inputs).logits.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    trained = {name.rsplit(".", 1)[-1] for name, value in model.named_parameters() if value.requires_grad}
    assert trained == {"log_dt", "log_A_real", "A_imag", "B", "C"} | ({"P"} if kernel_type == "s4" else set())


def test_measure_by_loops(script) -> None:
    model, b, length = script.build_model(tiny(script), 3), 0.1, 20
    kernel = model.model.layers[0].mixer.long_conv.kernels(length)[0, 0].tolist()
    deviation = math.sqrt(1 / (b * math.sqrt(math.pi)))
    root = sum(abs(tap) * deviation for tap in kernel) + abs(sum(kernel))
    assert script.measure(model, length, b) == pytest.approx(root**2 / math.sqrt(100), rel=1e-5)


def test_training_from_another_scale_is_measured_before_and_after(script, monkeypatch) -> None:
    monkeypatch.setattr(script, "SCALES", (0.1,))
    monkeypatch.setattr(script, "STARTS", {"": 1.0, "C / 2": 0.5})
    found = script.start_scales(tiny(script), 1)
    plain, smaller = found["unchanged"]["0.1"], found["C / 2"]["0.1"]
    assert smaller[script.AT_START][0] == pytest.approx(plain[script.AT_START][0] / 4, rel=1e-5)
    assert plain["ψ²/√n"] != plain[script.AT_START]
    assert smaller["test MSE"] != plain["test MSE"]
