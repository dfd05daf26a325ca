"""The picture of the training log is a PNG, and without matplotlib there is a message that says so."""

import sys

import pytest

from hf_ssm.training import plots

LOG = [
    {
        "step": 1,
        "loss": 1.2,
        "task_loss": 1.0,
        "tau_loss": 0.2,
        "tau": 20.0,
        "tau_layer_0": 12.0,
        "tau_layer_1": 8.0,
    },
    {"step": 5, "loss": 0.9, "task_loss": 0.8, "tau": 2.0, "tau_layer_0": 1.0, "tau_layer_1": 1.0},
    {"step": 5, "eval_loss": 0.85, "eval_accuracy": 0.7},
    {"step": 9, "loss": float("nan"), "grad_norm": 1.0},
    {"step": 9, "train_runtime": 3.0},
]


def test_picture_is_a_png(tmp_path):
    path = tmp_path / "log.png"
    plots.plot_training_log(LOG, path, metrics=["accuracy", "absent"], title="a run")
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_panels_show_what_the_log_holds():
    names = {name: [key for key, _ in lines] for name, lines, _ in plots._panels(LOG, ["accuracy", "absent"])}
    assert names == {
        "loss": ["loss", "task_loss", "eval_loss"],
        "metric": ["eval_accuracy"],
        "τ": ["tau", "tau_layer_0", "tau_layer_1"],
    }


def test_values_that_are_not_finite_are_left_out():
    assert plots.series(LOG, "loss") == ([1.0, 5.0], [1.2, 0.9])


def test_zero_tau_is_drawn_on_a_linear_scale(tmp_path):
    plots.plot_training_log([{"step": 1, "tau": 0.0}, {"step": 2, "tau": 1.0}], tmp_path / "log.png")


def test_empty_log_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no loss and no metric"):
        plots.plot_training_log([{"step": 1, "epoch": 1.0}], tmp_path / "log.png")


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "hf_ssm\[plots\]"'):
        plots.plot_training_log(LOG, tmp_path / "log.png")
