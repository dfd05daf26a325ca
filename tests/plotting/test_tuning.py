"""The figure of a tuning."""

import math

import pytest

from hf_ssm.plotting import plot_tuning


def test_scores_and_failures_are_shown(tmp_path):
    scores = {"default": [0.7, 0.71, 0.72], "rescale": [0.8], "x_3": [math.nan, 0.6, math.nan]}
    figure = plot_tuning(scores, tmp_path / "tuning.png", "Tuning", metric="accuracy", chance=0.5)
    (axes,) = figure.axes
    points = sorted(float(x) for line in axes.lines if line.get_marker() in ("o", "D") for x in line.get_xdata())
    assert points == [0.6, 0.7, 0.71, 0.72, 0.8]
    assert [text.get_text() for text in axes.texts] == ["2 of 3 diverged"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["seed of the settings, which selects", "fresh seeds", "trivial baseline"]
    assert (tmp_path / "tuning.png").stat().st_size > 1000


@pytest.mark.parametrize("scores", [{}, {"default": []}])
def test_a_figure_without_scores(scores):
    with pytest.raises(ValueError, match="one or more scores"):
        plot_tuning(scores)
