"""Sequence logos of effects."""

from pathlib import Path

import pytest

from hf_ssm.plotting import plot_logo

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.mark.parametrize("length", [20, 150])
def test_a_long_label_lies_within_the_figure(tmp_path: Path, length: int) -> None:
    label = "−mean bright_logit_delta of the other bases"
    figure = plot_logo("ACGT" * (length // 4), [1.0] * (length // 4 * 4), tmp_path / "logo.png", label=label)
    assert figure._supylabel.get_text().replace("\n", " ") == label
    # In the resolution of the figure, not that of the file.
    figure.canvas.draw()
    box = figure._supylabel.get_window_extent()
    assert box.y0 >= 0 and box.y1 <= figure.bbox.height and box.x0 >= 0
