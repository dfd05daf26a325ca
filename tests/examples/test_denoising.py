"""The denoising experiment: pass rates of known filters, and a tiny run."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor


def circular_filter(response: Any) -> Any:
    """A map of `(B, L, 1)` that multiplies the spectrum by `response` of ω in radians per sample, and adds 0.3."""

    def respond(signals: Tensor) -> Tensor:
        omega = 2 * np.pi * np.fft.rfftfreq(signals.shape[1])
        spectrum = np.fft.rfft(signals.numpy(), axis=1) * response(omega)[None, :, None]
        return torch.from_numpy(np.fft.irfft(spectrum, n=signals.shape[1], axis=1)) + 0.3

    return respond


def test_pass_rates_of_known_filters(script: ModuleType) -> None:
    low, high = (script.flatten(script.stripes(64, 32, horizontal=which)) for which in (True, False))
    gentle = circular_filter(lambda omega: 1 / (1 + omega))
    omega = 2 * np.pi * np.array(script.CYCLES) / 32
    # Vertical stripes are pure waves; all have the same norm.
    assert script.pass_rate(gentle, high) == pytest.approx(np.sqrt(np.mean(1 / (1 + omega) ** 2)), rel=1e-5)
    # Horizontal stripes are steps of 32 samples, almost all of their power below half a radian per sample.
    assert 0.9 < script.pass_rate(gentle, low) < 1
    assert script.pass_rate(circular_filter(lambda omega: 2.5 + 0 * omega), low) == pytest.approx(2.5, rel=1e-5)
    assert script.pass_rate(circular_filter(lambda omega: (omega < 0.5) * 1.0), high) < 1e-5


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
def test_tiny_run(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "denoising.json"
    monkeypatch.setattr(script, "SCALES", (1.0, 100.0))
    monkeypatch.setattr(script, "ORDERS", (0.0, 1.0))
    monkeypatch.setattr(script, "PAPER", ((1.758e04, 5.730e01), (3.801e-03, 5.963e-06)))
    script.main(["--tiny", "--output", str(output)])
    results = json.loads(output.read_text())
    assert np.array(results["ratio"]).shape == (2, 2)
    assert results["steps"] == {"β": 2, "α": 2}
    for (row, column), name in zip(np.ndindex(2, 2), results["runs"], strict=True):
        (run,) = results["runs"][name]
        assert results["ratio"][row][column] == pytest.approx(run["horizontal"] / run["vertical"])
        assert run["mse"] > 0
    printed = capsys.readouterr().out
    assert f"{results['ratio'][0][0]:.3g} (1.76e+04)" in printed
    assert "paper: the ratio does not fall at 0 of 2 steps in β and 0 of 2 steps in α" in printed
