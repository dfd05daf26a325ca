"""The denoising experiment: stripes, pass rates of known filters, monotony, images; a tiny run."""

import builtins
import json
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

from hf_ssm.ops.lti.diagonal import diagonal_kernel_reference


def circular_filter(response: Any) -> Any:
    """A map of `(B, L, 1)` that multiplies the spectrum by `response` of ω in radians per sample, and adds 0.3."""

    def respond(signals: Tensor) -> Tensor:
        omega = 2 * np.pi * np.fft.rfftfreq(signals.shape[1])
        spectrum = np.fft.rfft(signals.numpy(), axis=1) * response(omega)[None, :, None]
        return torch.from_numpy(np.fft.irfft(spectrum, n=signals.shape[1], axis=1)) + 0.3

    return respond


@pytest.mark.parametrize("horizontal", [True, False])
def test_stripes_are_where_they_should_be(script: ModuleType, horizontal: bool) -> None:
    images = script.stripes(64, 32, horizontal=horizontal)
    assert images.shape == (2 * len(script.CYCLES), 64, 32)
    # Horizontal stripes do not vary along a row, vertical ones not from row to row.
    assert torch.equal(images, images[:, :, :1].expand_as(images) if horizontal else images[:, :1].expand_as(images))
    spectrum = torch.fft.rfft(images[:, :, 0] if horizontal else images[:, 0]).abs()
    assert spectrum.argmax(dim=1).tolist() == 2 * list(script.CYCLES)
    # Flattened: the vertical stripes are `rows` times as fast.
    signals = script.flatten(images).squeeze(-1)
    fastest = torch.fft.rfft(signals).abs().argmax(dim=1)
    assert fastest.tolist() == [cycles * (1 if horizontal else 64) for cycles in 2 * script.CYCLES]


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


def test_exceptions_are_counted_along_each_axis(script: ModuleType) -> None:
    assert script.exceptions(script.PAPER) == {"β": 0, "α": 0}
    assert script.exceptions([[3.0, 2.0, 2.0], [1.0, 1.5, 0.5]]) == {"β": 2, "α": 0}
    assert script.exceptions([[3.0, 2.0, 1.0], [2.0, 2.5, 0.5], [2.5, 1.0, 0.6]]) == {"β": 1, "α": 3}


def test_crops_are_stretched_pieces_of_the_photographs(script: ModuleType) -> None:
    images = script.photographs()
    assert [image.shape for image in images] == [(427, 640), (427, 640)]
    colours = load_sample_image("flower.jpg")[100, 200].astype(float)
    assert float(images[1][100, 200]) == pytest.approx(colours.mean() / 255 * 2 - 1, abs=1e-6)
    assert all(image.min() >= -1 and image.max() <= 1 for image in images)
    ramp = torch.arange(40.0).unsqueeze(1).expand(40, 50)
    pieces = script.crops([ramp], 5, 32, 10, seed=3)
    assert pieces.shape == (5, 32, 10)
    # Stretched fourfold, a ramp rises by a quarter of its step; its ends repeat.
    torch.testing.assert_close(pieces[:, 3:-2].diff(dim=1), torch.full((5, 26, 10), 0.25))
    assert len({float(piece[0, 0]) for piece in pieces}) > 1
    assert torch.equal(pieces, script.crops([ramp], 5, 32, 10, seed=3))
    with pytest.raises(ValueError, match=r"pieces of 50 x 10 do not fit into a photograph of \(40, 50\)"):
        script.crops([ramp], 1, 200, 10, seed=0)


def test_more_photographs_are_of_three_packages(script: ModuleType) -> None:
    if find_spec("gradio") is None:  # whose import takes seconds
        pytest.skip("gradio, which ships four of the photographs, is not installed")
    images = script.photographs(more=True)
    assert len(images) == 7
    assert all(min(image.shape) >= 256 and image.min() >= -1 and image.max() <= 1 for image in images)
    assert len({float(image.mean()) for image in images}) == 7


def test_a_missing_photograph_is_named(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "MORE", (("matplotlib", "nothing.jpg"),))
    with pytest.raises(ImportError, match=r"--more-photographs: matplotlib with nothing\.jpg is missing"):
        script.photographs(more=True)


@pytest.mark.parametrize("missing", ["sklearn.datasets", "PIL"])
def test_missing_libraries_are_named_with_the_install_command(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    plain = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == missing:
            raise ImportError(f"No module named {missing!r}")
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"pip install 'hf_ssm\[test\]'"):
        script.photographs()


def test_model_is_a_linear_filter_with_both_directions(script: ModuleType) -> None:
    """Without the Sobolev filter, the model is affine, and its response to an impulse is that of the recurrences."""
    args = SimpleNamespace(state_size=4, time_step=0.1)
    model = script.build_model(args, 2.0, 0.0).double().eval()
    signals = torch.randn(2, 41, 1, dtype=torch.float64)
    with torch.no_grad():
        zero, first, second, both = (
            model(input_values=each).logits
            for each in (0 * signals, signals, signals.flip(0), signals + signals.flip(0))
        )
        impulse = torch.zeros(1, 41, 1, dtype=torch.float64)
        impulse[0, 20] = 1
        answer = (model(input_values=impulse).logits - zero[:1]).squeeze()
    torch.testing.assert_close(both - zero, first - zero + second - zero)
    layer = model.model.layers[0].mixer
    assert layer.long_conv.D is None
    system = layer.long_conv.filter.state_space(torch.float64)
    step = torch.full((3,), 0.1, dtype=torch.float64)
    forward, backward = (
        diagonal_kernel_reference(system["a"], system["b"], system["c"][way], step, 21, "bilinear") for way in (0, 1)
    )
    kernel = torch.cat([backward[:, :20].flip(1), forward], dim=1)
    head, into = model.classifier.weight @ layer.out_proj.weight, model.model.input_projection.weight
    torch.testing.assert_close(answer, (head @ (kernel * into)).squeeze(), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
def test_tiny_run(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, picture = tmp_path / "denoising.json", tmp_path / "denoising.png"
    monkeypatch.setattr(script, "SCALES", (1.0, 100.0))
    monkeypatch.setattr(script, "ORDERS", (0.0, 1.0))
    monkeypatch.setattr(script, "PAPER", ((1.758e04, 5.730e01), (3.801e-03, 5.963e-06)))
    script.main(["--tiny", "--output", str(output), "--picture", str(picture)])
    results = json.loads(output.read_text())
    assert np.array(results["ratio"]).shape == (2, 2)
    assert results["steps"] == {"β": 2, "α": 2}
    for (row, column), name in zip(np.ndindex(2, 2), results["runs"], strict=True):
        (run,) = results["runs"][name]
        assert results["ratio"][row][column] == pytest.approx(run["horizontal"] / run["vertical"])
        assert run["mse"] > 0
    assert picture.stat().st_size > 10_000
    # Continued from the stored runs, of which one is missing.
    stored = json.loads(output.read_text())
    lost = stored["runs"].popitem()
    output.write_text(json.dumps({key: stored[key] for key in ("arguments", "runs")}))
    trained: list[tuple[float, float]] = []
    once = script.train
    monkeypatch.setattr(script, "train", lambda *given: trained.append(given[2:4]) or once(*given))
    script.main(["--tiny", "--output", str(output)])
    assert trained == [(100.0, 1.0)]
    assert json.loads(output.read_text())["runs"][lost[0]] == lost[1]
    printed = capsys.readouterr().out
    assert f"{results['ratio'][0][0]:.3g} (1.76e+04)" in printed
    assert "paper: the ratio does not fall at 0 of 2 steps in β and 0 of 2 steps in α" in printed
