"""Moving MNIST: paths, rendering and splits."""

import gzip
from pathlib import Path
from types import ModuleType

import numpy as np
import torch


def digits(count: int = 10, size: int = 6) -> np.ndarray:
    """Bytes; the brightness of an image is its number."""
    return np.repeat(np.arange(1, count + 1, dtype=np.uint8), size * size).reshape(count, size, size) * 20


def test_videos_depend_on_seed_and_number(script: ModuleType) -> None:
    def videos(frames: int, seed: int) -> list[torch.Tensor]:
        data = script.MovingMNIST(digits(), 3, num_frames=frames, image_size=16, seed=seed)
        return [data[index]["pixel_values"] for index in (2, 0, 1)]

    first, again, longer, other = videos(30, 1), videos(30, 1), videos(40, 1), videos(30, 2)
    assert first[0].shape == (30, 16, 16, 3) and first[0].dtype == torch.float32
    for a, b, c in zip(first, again, longer, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c[:30])
    assert not any(torch.equal(video, first[0]) for video in (*first[1:], *other))


def test_digits_keep_their_speed_and_bounce(script: ModuleType) -> None:
    data = script.MovingMNIST(digits(), 3, num_frames=200, image_size=16, speeds=(2.0, 0.2))
    for index in range(3):
        _, positions = data.draw(index)
        assert positions.min() >= 0 and positions.max() <= 10
        steps = np.diff(positions, axis=0)
        lengths = np.linalg.norm(steps, axis=-1)
        # Shorter only where a digit bounces.
        np.testing.assert_allclose(np.median(lengths, axis=0), (2.0, 0.2), rtol=1e-9)
        assert (lengths <= np.array([2.0, 0.2]) * (1 + 1e-9)).all()
        # In 200 frames the fast digit bounces.
        assert (np.diff(np.sign(steps[:, 0]), axis=0) != 0).any()


def test_rendering(script: ModuleType) -> None:
    options = {"num_frames": 20, "image_size": 16, "speeds": (1.7, 0.3), "colours": (script.RED, (0, 0.5, 1))}
    data = script.MovingMNIST(digits(), 1, **options)
    video, (_, positions) = data.render(0), data.draw(0)
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


def test_splits_share_no_digit(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "images-idx3-ubyte.gz"
    images = digits()
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 3]) + np.array(images.shape, ">u4").tobytes() + images.tobytes()))
    train, test = (script.moving_mnist(path, split, 4, 3, image_size=8) for split in ("train", "test"))
    brightness = [set(data.digits.max(axis=(1, 2)).round(4).tolist()) for data in (train, test)]
    assert [len(values) for values in brightness] == [8, 2] and not brightness[0] & brightness[1]
    assert not np.array_equal(train.draw(0)[1], test.draw(0)[1])
    assert train.digits.shape == (8, 3, 3) and train[0]["pixel_values"].shape == (20, 8, 8, 3)
