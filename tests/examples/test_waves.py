"""The waves experiment: signals, the filter's weights at the waves; a tiny run."""

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

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


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
def test_tiny_run(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "waves.json"
    script.main(["--tiny", "--output", str(output)])
    results = json.loads(output.read_text())
    assert list(results["mean_absolute_error"]) == [f"α = {a:g}, β = {b:g}" for a, b in script.SETTINGS]
    for (run,) in results["mean_absolute_error"].values():
        assert all(run["error"][wave] > 0 for wave in ("1", "16", "256"))
        assert run["curve"]["step"][-2:] == [2, 2]
        assert run["curve"]["1"][-1] == run["error"]["1"]
    assert results["error_of_the_mean"] == pytest.approx([0.25] * 3, abs=0.15)
    first = results["mean_absolute_error"]["α = 0.01, β = -1"][0]["error"]["1"]
    assert f"| α = 0.01, β = -1 | {first:.3f} |" in capsys.readouterr().out
