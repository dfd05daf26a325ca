"""The bimodal experiment: target, gradient, edge and fixed points against independent computations; a tiny run."""

import json
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy import integrate, optimize

from hf_ssm.ops.lti.diagonal import diagonal_transfer

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


def test_model_is_half_of_the_real_system_of_the_library(script: ModuleType) -> None:
    s = np.linspace(-9, 9, 31)
    pole, one = torch.tensor([[-1 + 4j]], dtype=torch.complex128), torch.ones(1, 1, dtype=torch.complex128)
    pair = diagonal_transfer(torch.tensor(1j * s), pole, one, one).real.squeeze(0).numpy()
    np.testing.assert_allclose(script.mode(s, 4.0) + script.mode(s, -4.0), pair, rtol=1e-12)


@pytest.mark.parametrize("power", [-2.0, 0.0, 4.0])
def test_weights_are_those_of_the_integral(script: ModuleType, power: float) -> None:
    nyquist = np.pi / script.TIME_STEP
    exact = 2 * integrate.quad(lambda s: (1 + s) ** power, 0, nyquist)[0]
    inner = script.weights(power)
    inner[[0, -1]] /= 2
    assert inner.sum() == pytest.approx(exact, rel=2e-3)


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


def test_equation_9_weighs_the_position_alone(script: ModuleType) -> None:
    point = np.array([2.0, 0.3])
    plain = script.GradientFlow(script.NOISY)(0.0, point)
    weighted = script.GradientFlow(script.NOISY, 2, "eq. (9)")(0.0, point)
    assert weighted[1] == plain[1]
    w, xi = point
    # K of Theorem 1 with v = -1 and ζ = 0.
    kernel = lambda s: 2 * xi * (s - w) / (1 + (s - w) ** 2) ** 2  # noqa: E731
    integrand = lambda s: 2 * (noisy(s) - xi / (1 + (s - w) ** 2)) * (1 + abs(s)) ** 2 * kernel(s)  # noqa: E731
    nyquist = np.pi / script.TIME_STEP
    cuts = sorted({-nyquist, -50.0, -2 * np.pi, 0.0, w, 2 * np.pi, 50.0, nyquist})
    exact = sum(integrate.quad(integrand, *ends, limit=500)[0] for ends in pairwise(cuts))
    assert weighted[0] == pytest.approx(exact, rel=1e-3)


def test_edge_of_the_flow_without_ripple(script: ModuleType) -> None:
    """Two modes at distance d overlap by 2π / (4 + d²), so the pulls on w have a closed form on the whole line."""

    def pull(w: float) -> float:
        large, small = w + 50, w - 50
        return 5 * large / (4 + large**2) ** 2 + 0.2 * small / (4 + small**2) ** 2

    exact = optimize.brentq(pull, 0, 45)
    assert exact == pytest.approx(24.5, abs=0.1)  # the paper's number
    found = script.GradientFlow(script.Target((-50.0, 50.0))).edge(20.0, 30.0, tolerance=0.1)
    assert found == pytest.approx(exact, abs=0.1)


def test_edge_refuses_a_wrong_bracket(script: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"not between 40 and 45"):
        script.GradientFlow(script.NOISY).edge(40, 45)


def test_ripple_traps_in_l2_and_not_by_equation_9(script: ModuleType) -> None:
    plain = script.GradientFlow(script.NOISY)
    assert [plain.destination(start) for start in (-30.0, 3.0, 15.0, 30.0)] == ["large", "neither", "neither", "small"]
    assert abs(plain.trajectory(15.0)[-1, 0]) < 2 * np.pi
    weighted = script.GradientFlow(script.NOISY, 2, "eq. (9)")
    assert [weighted.destination(start) for start in (-30.0, 3.0, 15.0, 30.0)] == ["large"] * 4


def test_h2_loss_has_a_minimum_between_the_modes(script: ModuleType) -> None:
    """What keeps the flow of eq. (7) from the modes is a minimum of that loss, found here by another method."""
    end = script.GradientFlow(script.NOISY, 2).trajectory(3.0)[-1]
    s = np.linspace(-np.pi / script.TIME_STEP, np.pi / script.TIME_STEP, 20001)
    target = np.array([noisy(float(each)) for each in s])

    def loss(point: np.ndarray) -> float:
        residual = target - point[1] / (1 + (s - point[0]) ** 2)
        return float(np.sum((1 + np.abs(s)) ** 4 * residual**2))

    minimum = optimize.minimize(loss, end, method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-6}).x
    np.testing.assert_allclose(end, minimum, rtol=2e-3, atol=0.01)
    assert loss(minimum) < min(loss(minimum + step) for step in ([1, 0], [-1, 0], [0, 9], [0, -9]))


@pytest.mark.slow
def test_tiny_run(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output, picture = tmp_path / "bimodal.json", tmp_path / "bimodal.png"
    script.main(["--tiny", "--output", str(output), "--picture", str(picture)])
    results = json.loads(output.read_text())
    assert list(results["figure_3"]) == ["L²", "β = 2, eq. (7)", "β = 2, eq. (9)", "edge_without_ripple", CUTS]
    assert list(results["figure_8"]) == ["-2", "-1", "0", "1", "2"]
    assert results["figure_3"]["L²"]["reached"] == {"-50": "large", "0": "neither", "50": "small"}
    # However far the integral goes, the trap remains; the further it goes, the nearer ξ is to 5.2.
    heights = [height for _, height in results["figure_3"][CUTS].values()]
    assert heights[0] > heights[1] > heights[2] > 5.2
    assert results["figure_3"]["L²"]["share"] == {"large": 1 / 3, "small": 1 / 3, "neither": 1 / 3}
    assert picture.stat().st_size > 10_000
    assert "paper 24.5" in capsys.readouterr().out
