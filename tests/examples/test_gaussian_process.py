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
    result, picture = tmp_path / "result.json", tmp_path / "figure.png"
    script.main(["--tiny", "--output", str(result), "--picture", str(picture)])
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
    assert picture.stat().st_size > 10_000


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


def test_the_label_lies_half_the_length_before_the_end(script) -> None:
    for length, position in ((1000, 500), (2, 1), (1, 1)):
        values, labels = script.sample(3, length, 0.1, torch.Generator().manual_seed(1))
        torch.testing.assert_close(labels, torch.sin(values[:, position - 1, 0]), rtol=1e-5, atol=1e-5)


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


def test_optimizer_of_the_paper(script, monkeypatch) -> None:
    """Rate 1e-2 and decay 1e-2 for C, rate 1e-3 without decay for Δ, A and B, no clipping; or decay of A as stored."""
    seen: list = []
    create = script.SSMTrainer.create_optimizer

    def spy(self, *arguments: Any) -> Any:
        optimizer = create(self, *arguments)
        names = {id(value): name.rsplit(".", 1)[-1] for name, value in self.model.named_parameters()}
        seen.append((self.args.max_grad_norm, names, optimizer))
        return optimizer

    monkeypatch.setattr(script.SSMTrainer, "create_optimizer", spy)
    for decay in (0.0, 0.5):
        script.run(tiny(script), 1.0, 0, stored_weight_decay=decay)
        clipping, names, optimizer = seen[-1]
        groups = {
            names[id(value)]: (group["initial_lr"], group["weight_decay"])
            for group in optimizer.param_groups
            for value in group["params"]
        }
        slow = dict.fromkeys(("log_A_real", "A_imag", "P"), (1e-3, decay))
        assert clipping == 0
        assert groups == {"C": (1e-2, 1e-2), "log_dt": (1e-3, 0.0), "B": (1e-3, 0.0), **slow}


@pytest.mark.parametrize("rescale", [False, True])
def test_output_scale_and_gradient_at_initialisation(script, rescale: bool) -> None:
    """By numpy: the mean output over the test sequences; the gradient for C by differences, as part of the whole."""
    setting, length, b, seed = tiny(script), 20, 0.1, 4
    output, gradient = script.at_initialisation(setting, length, b, seed, rescale)
    data = {name: [part.numpy() for part in pair] for name, pair in script.draw_data(setting, length, b, seed).items()}
    model = script.build_model(setting, seed)
    filter = model.model.layers[0].mixer.long_conv.filter

    def kernel() -> np.ndarray:
        with torch.no_grad():
            return filter.kernel(length, torch.float64)[0, 0].numpy()[::-1]

    taps, train = kernel(), data["train"][0][..., 0]
    factor = 1.0
    if rescale:
        factor = 1 / (np.sum(np.abs(taps) * train.std(0)) + abs(np.sum(taps * train.mean(0))))
    assert output == pytest.approx(np.abs(data["test"][0][..., 0] @ taps * factor).mean(), rel=1e-4)
    filter.double().C.data.mul_(factor)
    squares = 0.0
    for parameter in filter.parameters():
        for entry in parameter.data.view(-1):
            losses = []
            for step in (1e-5, -1e-5):
                entry.add_(step)
                losses.append(((train @ kernel() - data["train"][1]) ** 2).mean())
                entry.sub_(step)
            squares += ((losses[0] - losses[1]) / 2e-5) ** 2
    assert gradient == pytest.approx(math.sqrt(squares), rel=1e-3)


def test_the_best_coefficient_is_chosen_for_each_b(script, monkeypatch) -> None:
    errors = {0.1: {"1": [1.0, 3.0], "0.1": [5.0], "0.01": [1.0]}, 1.0: {"1": [1.5, 1.5], "0.1": [6.0], "0.01": [0.5]}}
    monkeypatch.setattr(
        script,
        "run_seeds",
        lambda setting, seeds, some_decay: {b: {"test MSE": values} for b, values in errors[some_decay].items()},
    )
    found = script.best_decay(None, 2, "some_decay", (0.1, 1.0))
    assert {b: row["coefficient"] for b, row in found.items()} == {"1": 1.0, "0.1": 0.1, "0.01": 1.0}
    assert found["1"]["test MSE by coefficient"] == {0.1: 2.0, 1.0: 1.5}


def test_spread_is_the_largest_ratio_among_the_b(script) -> None:
    values = {"1": [1, 8], "0.1": [2, 2], "0.01": [6, 4]}
    figure = {f"plain, b = {b}": {"output": by_length} for b, by_length in values.items()}
    assert script.spread(figure, "plain", "output") == [6, 4]


def test_the_initial_scale_is_squared_in_the_measure_and_removed_by_rescaling(script) -> None:
    """ψ² is quadratic in C; after (7) models of all scales are the same model."""
    setting, b = tiny(script), 0.1
    inputs = script.draw_data(setting, setting.length, b, 0)["train"][0]
    measures, rescaled = {}, {}
    for start in script.STARTS:
        model = script.build_model(setting, 0)
        script.scale_start(model, start)
        measures[start] = script.measure(model, setting.length, b)
        script.rescale_init_(model, {"input_values": inputs})
        rescaled[start] = model(input_values=inputs).logits
    assert measures["C / √2"] == pytest.approx(measures[""] / 2, rel=1e-5)
    assert measures["C / 2"] == pytest.approx(measures[""] / 4, rel=1e-5)
    for start in ("C / √2", "C / 2"):
        torch.testing.assert_close(rescaled[start], rescaled[""], rtol=1e-5, atol=1e-5)
    large = script.build_model(script.Setting("s4", length=20), 0)
    script.scale_start(large, script.CLIPPED)
    assert large.model.layers[0].mixer.long_conv.filter.B[..., 0].max().item() == 2


def test_training_from_another_scale_is_measured_before_and_after(script, monkeypatch) -> None:
    monkeypatch.setattr(script, "SCALES", (0.1,))
    monkeypatch.setattr(script, "STARTS", {"": 1.0, "C / 2": 0.5})
    found = script.start_scales(tiny(script), 1)
    plain, smaller = found["unchanged"]["0.1"], found["C / 2"]["0.1"]
    assert smaller[script.AT_START][0] == pytest.approx(plain[script.AT_START][0] / 4, rel=1e-5)
    assert plain["ψ²/√n"] != plain[script.AT_START]
    assert smaller["test MSE"] != plain["test MSE"]
