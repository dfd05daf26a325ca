"""The waves experiment: signals, measures, the filter's weights at the waves; a tiny run."""

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import EvalPrediction

from hf_ssm.modules.rows import Rows


def test_signals_hold_the_amplitudes_at_their_frequencies(script: ModuleType) -> None:
    amplitudes = torch.tensor([[0.2, 0.7, 0.4], [1.0, 0.1, 0.3]])
    batch = script.Superpose(1024)([{"labels": row} for row in amplitudes])
    assert torch.equal(batch["labels"], amplitudes)
    assert batch["input_values"].shape == (2, 1024, 1)
    spectrum = np.fft.rfft(batch["input_values"].squeeze(-1).numpy()) / 512
    np.testing.assert_allclose(spectrum[:, [1, 16, 256]].real, amplitudes, atol=1e-5)
    spectrum[:, [1, 16, 256]] = 0
    assert np.abs(spectrum).max() < 1e-5


def test_amplitudes(script: ModuleType) -> None:
    training = script.training_amplitudes()
    assert len({tuple(row) for row in training.tolist()}) == 1000
    assert sorted({round(value, 4) for value in training.flatten().tolist()}) == [i / 10 for i in range(1, 11)]
    test = script.test_amplitudes(400)
    assert test.shape == (400, 3) and 0 <= test.min() < 0.05 and 0.95 < test.max() <= 1
    assert torch.equal(test, script.test_amplitudes(400))


def test_errors_by_wave(script: ModuleType) -> None:
    prediction = EvalPrediction(
        np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), np.array([[1.5, 2.0, 1.0], [0.5, 0.0, 2.0]])
    )
    errors = script.absolute_errors(prediction)
    assert errors == {"1": 0.5, "16": 0.0, "256": 2.0}
    assert script.best_wave(errors) == "16"


@pytest.mark.parametrize("order", [-1.0, 0.5, 1.0])
def test_filter_weighs_each_wave_by_its_angular_frequency(script: ModuleType, order: float) -> None:
    """In the middle of a long signal, the layer's filter multiplies cos f t by (1 + f)^β."""
    model = script.build_model(SimpleNamespace(length=2048, hidden_size=1, state_size=2), 1.0, order)
    operator = model.model.layers[0].mixer.long_conv
    signals = script.waves(2048).double().unsqueeze(-1)
    with torch.no_grad():
        filtered = operator._zero_phase(signals, Rows())
    middle = slice(1024 - 256, 1024 + 256)  # a quarter of the slow wave, whole periods of the others
    for frequency, before, after in zip(script.FREQUENCIES, signals[:, middle, 0], filtered[:, middle, 0], strict=True):
        gain = float(before @ after / (before @ before))
        assert gain == pytest.approx((1 + frequency) ** order, rel=0.1)


def test_eigenvalues_are_those_of_the_paper(script: ModuleType) -> None:
    torch.manual_seed(0)
    model = script.build_model(SimpleNamespace(length=2048, hidden_size=2, state_size=8), 10.0, 0.0)
    system = model.model.layers[0].mixer.long_conv.filter
    expected = [-0.5 + 10j * np.pi * n for n in range(4)]
    np.testing.assert_allclose(system.state_space(torch.float64)["a"].detach().numpy(), [expected] * 2, rtol=1e-6)
    np.testing.assert_allclose(system.time_step(torch.float64).detach().numpy(), 2 * np.pi / 2048, rtol=1e-6)


def test_signals_too_short_for_the_fast_wave_are_refused(script: ModuleType, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        script.main(["--length", "512"])
    assert "--length must be over 512" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
def test_tiny_run(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output, picture = tmp_path / "waves.json", tmp_path / "waves.png"
    script.main(["--tiny", "--output", str(output), "--picture", str(picture)])
    results = json.loads(output.read_text())
    assert list(results["mean_absolute_error"]) == [f"α = {a:g}, β = {b:g}" for a, b in script.SETTINGS]
    for (run,) in results["mean_absolute_error"].values():
        assert all(run["error"][wave] > 0 for wave in ("1", "16", "256"))
        assert run["curve"]["step"][-2:] == [2, 2]
        assert run["curve"]["1"][-1] == run["error"]["1"]
    assert results["error_of_the_mean"] == pytest.approx([0.25] * 3, abs=0.15)
    assert picture.stat().st_size > 10_000
    first = results["mean_absolute_error"]["α = 0.01, β = -1"][0]["error"]["1"]
    assert f"| α = 0.01, β = -1 | {first:.3f} |" in capsys.readouterr().out
