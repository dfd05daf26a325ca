"""Moving MNIST: paths, rendering, splits, and bad values."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_ssm.data.moving_mnist import MovingMNIST, moving_mnist, resized_digits


def digits(count: int = 10, size: int = 6) -> np.ndarray:
    """Bytes; the brightness of an image is its number."""
    return np.repeat(np.arange(1, count + 1, dtype=np.uint8), size * size).reshape(count, size, size) * 20


@pytest.fixture
def idx_file(tmp_path: Path) -> Path:
    path = tmp_path / "images-idx3-ubyte.gz"
    images = digits()
    header = bytes([0, 0, 8, 3]) + np.array(images.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + images.tobytes()))
    return path


def test_videos_are_deterministic_and_of_the_right_kind() -> None:
    data = MovingMNIST(digits(), 5, num_frames=30, image_size=16, speeds=(3.0, 0.5), seed=1)
    videos = [data[index] for index in range(len(data))]
    assert len(videos) == 5 and videos[0]["pixel_values"].shape == (30, 16, 16, 3)
    assert all(v["pixel_values"].dtype == torch.float32 and v["labels"] is v["pixel_values"] for v in videos)
    again = MovingMNIST(digits(), 5, num_frames=30, image_size=16, speeds=(3.0, 0.5), seed=1)
    assert all(torch.equal(again[index]["pixel_values"], videos[index]["pixel_values"]) for index in (3, 0))
    assert torch.equal(again[-1]["pixel_values"], videos[4]["pixel_values"])
    others = [*videos[1:], MovingMNIST(digits(), 5, num_frames=30, image_size=16, speeds=(3.0, 0.5), seed=2)[0]]
    assert not any(torch.equal(other["pixel_values"], videos[0]["pixel_values"]) for other in others)
    # A longer video begins with the shorter one.
    longer = MovingMNIST(digits(), 5, num_frames=40, image_size=16, speeds=(3.0, 0.5), seed=1)
    assert torch.equal(longer[2]["pixel_values"][:30], videos[2]["pixel_values"])
    with pytest.raises(IndexError, match="index=5 is out of range: there are 5 videos"):
        data[5]


def test_digits_keep_their_speed_and_bounce() -> None:
    data = MovingMNIST(digits(), 3, num_frames=200, image_size=16, speeds=(2.0, 0.2))
    for index in range(3):
        positions = data.positions(index)
        assert positions.min() >= 0 and positions.max() <= 10
        steps = np.diff(positions, axis=0)
        lengths = np.linalg.norm(steps, axis=-1)
        # Shorter only where a digit bounces.
        for digit, speed in enumerate((2.0, 0.2)):
            np.testing.assert_allclose(np.median(lengths[:, digit]), speed, rtol=1e-9)
            assert (lengths[:, digit] <= speed * (1 + 1e-9)).all()
        # The speed along an axis changes its sign only; in 200 frames the fast digit bounces.
        sizes = np.abs(steps[:, 0]).round(9)
        assert all(np.median(column) == column.max() for column in sizes.T)
        assert (np.diff(np.sign(steps[:, 0]), axis=0) != 0).any()


def test_rendering() -> None:
    data = MovingMNIST(digits(), 1, num_frames=20, image_size=16, speeds=(1.7, 0.3), colours=("red", (0, 0.5, 1)))
    video, positions = data.render(0), data.positions(0)
    assert video.min() >= 0 and video.max() <= 1
    red, green, blue = np.moveaxis(video, -1, 0)
    np.testing.assert_allclose(green, blue / 2, rtol=1e-6)
    rows = np.arange(16)[:, None]
    for channel, digit in ((red, 0), (blue, 1)):
        mass = channel.sum(axis=(1, 2))
        # All of the digit is on the canvas, and its centre of mass moves with its position.
        np.testing.assert_allclose(mass, mass[0], rtol=1e-5)
        assert round(float(mass[0]) * 255 / 36) in set(digits()[:, 0, 0])
        centre = (channel * rows).sum(axis=(1, 2)) / mass, (channel * rows.T).sum(axis=(1, 2)) / mass
        np.testing.assert_allclose(np.stack(centre, -1), positions[:, digit] + 2.5, rtol=1e-4)
    gray = MovingMNIST(digits(), 1, num_frames=20, image_size=16, speeds=(1.7, 0.3), colours=None).render(0)
    np.testing.assert_allclose(gray[..., 0], np.maximum(red, blue), rtol=1e-6)
    still = MovingMNIST(digits(), 1, num_frames=2, image_size=6, speeds=(1.0,), colours=("white",)).render(0)
    assert (still == still[0, 0, 0]).all() and still[0, 0, 0, 0] > 0


def test_splits_share_no_digit(idx_file: Path) -> None:
    found = {name: moving_mnist(idx_file, name, 4, image_size=8, test_fraction=0.3) for name in ("train", "test")}
    brightness = {name: set(data.digits.max(axis=(1, 2)).tolist()) for name, data in found.items()}
    assert len(brightness["train"]) == 7 and len(brightness["test"]) == 3
    assert not brightness["train"] & brightness["test"]
    assert not np.array_equal(found["train"].positions(0), found["test"].positions(0))
    small = moving_mnist(idx_file, "test", 4, digit_size=3, image_size=8, speeds=[1.0], colours=None)
    assert small.digits.shape == (2, 3, 3) and small[0]["pixel_values"].shape == (20, 8, 8, 1)


def test_resized_digits_are_averages() -> None:
    image = np.arange(16, dtype=np.float32).reshape(1, 4, 4) / 16
    np.testing.assert_allclose(resized_digits(image, 2)[0], [[2.5 / 16, 4.5 / 16], [10.5 / 16, 12.5 / 16]])
    assert resized_digits(digits(2), 6).max() == pytest.approx(40 / 255)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"digits": np.zeros((2, 3, 4))}, r"square images, \(number, size, size\)"),
        ({"image_size": 5}, "image_size=5: give a whole number of at least 6"),
        ({"speeds": (-1.0, 1.0)}, r"speeds=\(-1.0, 1.0\): give the pixels per frame"),
        ({"speeds": (1.0,)}, "colours=.*give one colour for each of the 1 speeds"),
        ({"colours": ("red", "bleu")}, r"there is no 'bleu' \(did you mean 'blue'\?\)"),
        ({"colours": ("red", (0, 0, 2))}, "red, green and blue as numbers from 0 to 1"),
    ],
)
def test_bad_values(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MovingMNIST(**({"digits": digits(), "num_videos": 1, "image_size": 16} | options))


def test_bad_sources(idx_file: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        moving_mnist(idx_file.with_name("missing-idx3-ubyte"))
    for message, arguments in {
        "split='tset'.*did you mean 'test'": {"split": "tset"},
        "test_fraction=1.0": {"test_fraction": 1.0},
        "digit_size=7: give a whole number from 1 to 6": {"digit_size": 7},
        "two splits need at least two": {"test_fraction": 0.99},
    }.items():
        with pytest.raises(ValueError, match=message):
            moving_mnist(idx_file, **arguments)
