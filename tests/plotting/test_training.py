"""Curves of a training log."""

import pytest

from hf_ssm.plotting import plot_training_log

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


def test_panels_show_the_finite_values_of_the_log():
    loss, metric, tau = plot_training_log(LOG, metrics=["accuracy", "absent"], title="a run").axes
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in loss.get_lines()}
    assert lines == {
        "training, with regulariser": ([1.0, 5.0], [1.2, 0.9]),
        "training, task only": ([1.0, 5.0], [1.0, 0.8]),
        "validation": ([5.0], [0.85]),
    }
    assert [line.get_label() for line in metric.get_lines()] == ["accuracy"]
    assert [line.get_label() for line in tau.get_lines()] == ["sum", "layer 0", "layer 1"]
    assert tau.get_yscale() == "log"


def test_zero_tau_is_plotted_on_a_linear_scale():
    (axes,) = plot_training_log([{"step": 1, "tau": 0.0}, {"step": 2, "tau": 1.0}]).axes
    assert axes.get_yscale() == "linear"


def test_lines_differ_in_colour_or_style():
    (axes,) = plot_training_log([{"step": 1, **{f"tau_layer_{i}": 1.0 + i for i in range(20)}}]).axes
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}) == 20


def test_empty_log_is_rejected():
    with pytest.raises(ValueError, match="no loss, metric or τ"):
        plot_training_log([{"step": 1, "epoch": 1.0}])
