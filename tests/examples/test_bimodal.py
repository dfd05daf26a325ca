"""The bimodal experiment: target, gradient, edge and traps against independent computations; a tiny run."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy import optimize

CUTS = "eq. (7) by highest frequency"


def noisy(s: float) -> float:
    """F as the paper prints it."""
    ripple = 0.01 * np.cos(9 / 4 * s) if abs(s) <= 2 * np.pi else 0.0
    return (5 / (1j * s - (-1 - 50j)) + 0.2 / (1j * s - (-1 + 50j))).real + ripple


def test_target_is_that_of_the_paper(script: ModuleType) -> None:
    s = np.array([-50.0, -3.0, 0.0, 2 * np.pi - 1e-9, 2 * np.pi + 1e-9, 50.0])
    np.testing.assert_allclose(script.NOISY.response(s), [noisy(each) for each in s], rtol=1e-12)
    dense = np.linspace(-100, 100, 20001)
    response = script.NOISY.response(dense)
    peaks = dense[1:-1][(response[1:-1] > response[:-2]) & (response[1:-1] > response[2:])]
    outside = peaks[np.abs(peaks) > 2 * np.pi]
    np.testing.assert_allclose(outside, [-50, 50], atol=0.01)
    assert script.NOISY.reached(-49.5) == "large"
    assert script.NOISY.reached(49.5) == "small"
    assert script.NOISY.reached(0.0) == script.NOISY.reached(47.0) == "neither"


@pytest.mark.parametrize(("order", "at"), [(0.0, (-20.0, 0.7)), (1.0, (3.0, 2.0)), (2.0, (30.0, 4.0))])
def test_flow_is_minus_the_gradient_by_autograd(script: ModuleType, order: float, at: tuple[float, float]) -> None:
    flow = script.GradientFlow(script.NOISY, order)
    point = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    s = torch.linspace(-np.pi / script.TIME_STEP, np.pi / script.TIME_STEP, len(script.grid()), dtype=torch.float64)
    model = (point[1] / (1j * s - (-1 + 1j * point[0]))).real
    target = torch.tensor([noisy(float(each)) for each in s], dtype=torch.float64)
    loss = torch.sum((1 + s.abs()) ** (2 * order) * (target - model) ** 2) * (s[1] - s[0])
    (gradient,) = torch.autograd.grad(loss, point)
    np.testing.assert_allclose(flow(0.0, np.array(at)), -gradient.numpy(), rtol=1e-6)


def test_edge_of_the_flow_without_ripple(script: ModuleType) -> None:
    """Two modes at distance d overlap by 2π / (4 + d²), so the pulls on w have a closed form on the whole line."""

    def pull(w: float) -> float:
        large, small = w + 50, w - 50
        return 5 * large / (4 + large**2) ** 2 + 0.2 * small / (4 + small**2) ** 2

    exact = optimize.brentq(pull, 0, 45)
    assert exact == pytest.approx(24.5, abs=0.1)  # the paper's number
    found = script.GradientFlow(script.Target((-50.0, 50.0))).edge(20.0, 30.0, tolerance=0.1)
    assert found == pytest.approx(exact, abs=0.1)


@pytest.mark.slow
def test_tiny_run(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "bimodal.json"
    script.main(["--tiny", "--output", str(output)])
    results = json.loads(output.read_text())
    assert list(results["figure_3"]) == ["L²", "β = 2, eq. (7)", "β = 2, eq. (9)", "edge_without_ripple", CUTS]
    assert list(results["figure_8"]) == ["-2", "-1", "0", "1", "2"]
    assert results["figure_3"]["L²"]["reached"] == {"-50": "large", "0": "neither", "50": "small"}
    # However far the integral goes, the trap remains; the further it goes, the nearer ξ is to 5.2.
    heights = [height for _, height in results["figure_3"][CUTS].values()]
    assert heights[0] > heights[1] > heights[2] > 5.2
    assert results["figure_3"]["L²"]["share"] == {"large": 1 / 3, "small": 1 / 3, "neither": 1 / 3}
    assert "paper 24.5" in capsys.readouterr().out
