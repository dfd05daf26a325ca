"""The heat map of saturation mutagenesis."""

from pathlib import Path

import numpy as np
import pytest

from hf_ssm.plotting import plot_saturation

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def table(first: int, count: int) -> dict[str, list]:
    rows = [(first + n, "ACGT"[n % 4], alt, n + k / 10) for n in range(count) for k, alt in enumerate("ACGT")]
    rows = [row for row in rows if row[1] != row[2]]
    return dict(zip(("position", "ref", "alt", "llr"), map(list, zip(*rows, strict=True)), strict=True))


def test_cells_and_reference(tmp_path: Path) -> None:
    figure = plot_saturation(table(10, 130), "llr", tmp_path / "map.svg", offset=1)
    assert (tmp_path / "map.svg").read_text().startswith("<?xml")
    first, second, third = figure.axes[:3]
    (image,) = first.images
    cells = image.get_array()
    assert cells.shape == (4, 60)
    assert cells[2, 5] == 5.2 and np.ma.getmaskarray(cells)[1, 5]
    assert list(image.get_extent()) == [10.5, 70.5, 3.5, -0.5]
    (dots,) = first.lines
    assert dots.get_xydata()[:5].tolist() == [[11, 0], [12, 1], [13, 2], [14, 3], [15, 0]]
    assert second.images[0].get_array().shape == (4, 60) and third.images[0].get_array().shape == (4, 10)
    assert second.get_xlim() == pytest.approx([limit + 60 for limit in first.get_xlim()])


def test_long_regions_have_few_rows() -> None:
    figure = plot_saturation(table(0, 2500), "llr")
    # And the scale of colours.
    assert len(figure.axes) == 31


def test_empty_table() -> None:
    with pytest.raises(ValueError, match="no position has a score"):
        plot_saturation({"position": [], "ref": [], "alt": [], "llr": []}, "llr")
