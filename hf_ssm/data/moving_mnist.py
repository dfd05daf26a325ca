"""Coloured Moving MNIST: digits that move on a larger canvas at adjustable speeds and bounce at its borders.

Legend: `T` frames, `H` height and width of the canvas, `C` channels, `K` digits of a video, `s` size of a digit,
`n` digit images.

A digit starts at a random place in a random direction and keeps its speed; where it would leave the canvas, it is
reflected. Positions are not rounded to pixels: the digit is interpolated linearly, so that slow motion is smooth too.
Where digits overlap, the brighter value counts.

Source: Srivastava, Mansimov & Salakhutdinov 2015 (Moving MNIST); Yu et al. 2025, Appendix I.2 (colours and speeds).
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hf_ssm.data.checks import check_integer, did_you_mean
from hf_ssm.data.images import read_idx

__all__ = ["COLOURS", "MovingMNIST", "moving_mnist", "resized_digits"]

COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (1.0, 0.0, 0.0),
    "green": (0.0, 1.0, 0.0),
    "blue": (0.0, 0.0, 1.0),
    "yellow": (1.0, 1.0, 0.0),
    "magenta": (1.0, 0.0, 1.0),
    "cyan": (0.0, 1.0, 1.0),
    "white": (1.0, 1.0, 1.0),
}
"""Red, green and blue of the colours that `MovingMNIST` knows by name."""

_SPLITS = ("train", "test")


class MovingMNIST(Dataset[dict[str, Tensor]]):
    """Videos of moving digits, rendered when they are read; each depends on the seed and its number only.

    An item has `pixel_values`, frames `(T, H, H, C)` from 0 to 1, float32, and `labels`, the same tensor: a model that
    predicts the next frame shifts them itself, as causal language models do. `positions` gives the paths.

    Args:
        digits: `(n, s, s)`, values from 0 to 1, or bytes; each video takes random ones.
        num_videos: Number of videos.
        num_frames: T.
        image_size: H, at least s.
        speeds: Pixels per frame of each digit; their number is K.
        colours: Names in `COLOURS`, or red, green and blue from 0 to 1, of each digit. `None`: gray videos (C = 1).
        seed: Seed of digits, places and directions.

    Raises:
        ValueError: A value out of its range, an unknown colour, numbers of speeds and colours that differ.
    """

    def __init__(
        self,
        digits: np.ndarray,
        num_videos: int,
        num_frames: int = 20,
        image_size: int = 64,
        speeds: Sequence[float] = (3.0, 0.3),
        colours: Sequence[str | Sequence[float]] | None = ("red", "blue"),
        seed: int = 0,
    ):
        digits = np.asarray(digits)
        if digits.ndim != 3 or digits.shape[1] != digits.shape[2] or 0 in digits.shape:
            raise ValueError(f"digits: give square images, (number, size, size), not an array of {digits.shape}.")
        for name, value in {"num_videos": num_videos, "num_frames": num_frames}.items():
            check_integer(name, value, 1)
        check_integer("image_size", image_size, digits.shape[1])
        check_integer("seed", seed, 0)
        if not speeds or not all(math.isfinite(speed) and speed >= 0 for speed in speeds):
            raise ValueError(f"speeds={speeds!r}: give the pixels per frame of each digit, finite and not negative.")
        if colours is not None and len(colours) != len(speeds):
            raise ValueError(
                f"colours={colours!r}: give one colour for each of the {len(speeds)} speeds, or None for gray."
            )
        self.digits = digits.astype(np.float32) / (255 if digits.dtype == np.uint8 else 1)
        self.num_videos = num_videos
        self.num_frames = num_frames
        self.image_size = image_size
        self.speeds = np.array(speeds, dtype=np.float64)
        chosen = [(1.0,)] * len(speeds) if colours is None else [_rgb(colour) for colour in colours]
        self.colours = np.array(chosen, dtype=np.float32)
        self.seed = seed

    def __len__(self) -> int:
        return self.num_videos

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        frames = torch.from_numpy(self.render(index))
        return {"pixel_values": frames, "labels": frames}

    def positions(self, index: int) -> np.ndarray:
        """Row and column of the upper left corner of each digit, in pixels, `(T, K, 2)`, float64.

        Raises:
            IndexError: There is no such video.
        """
        return self._draw(index)[1]

    def render(self, index: int) -> np.ndarray:
        """The frames of a video, `(T, H, H, C)`, float32 from 0 to 1.

        Raises:
            IndexError: There is no such video.
        """
        numbers, positions = self._draw(index)
        size = self.digits.shape[1]
        # A row of the canvas at distance d from a row of the digit takes 1 - |d| of it: linear interpolation.
        grid = np.arange(self.image_size)[:, None] - np.arange(size)
        weights = np.clip(1 - np.abs(grid - positions[..., None, None]), 0, None).astype(np.float32)
        rows, columns = weights[:, :, 0], weights[:, :, 1]
        gray = rows @ self.digits[numbers] @ columns.swapaxes(-1, -2)
        frames: np.ndarray = (gray[..., None] * self.colours[:, None, None]).max(axis=1)
        return frames

    def _draw(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the digits of a video, `(K,)`, and their positions `(T, K, 2)`."""
        if not -self.num_videos <= index < self.num_videos:
            raise IndexError(f"index={index!r} is out of range: there are {self.num_videos} videos.")
        # Not the global random state, so that the order of reading does not matter.
        generator = np.random.default_rng((self.seed, index % self.num_videos))
        count, free = len(self.speeds), float(self.image_size - self.digits.shape[1])
        numbers = generator.integers(len(self.digits), size=count)
        start = generator.uniform(0, free, size=(count, 2))
        angle = generator.uniform(0, 2 * math.pi, size=count)
        velocity = self.speeds[:, None] * np.stack([np.sin(angle), np.cos(angle)], axis=-1)
        straight = start + np.arange(self.num_frames)[:, None, None] * velocity
        # Reflected at 0 and at `free`: a triangle wave of the straight path.
        return numbers, free - np.abs(np.mod(straight, 2 * free) - free) if free else np.zeros_like(straight)


def moving_mnist(
    source: str | Path,
    split: str = "train",
    num_videos: int = 1000,
    *,
    digit_size: int | None = None,
    test_fraction: float = 0.2,
    **options: Any,
) -> MovingMNIST:
    """Videos of the digits of an idx file, such as "train-images-idx3-ubyte.gz" of MNIST.

    Args:
        source: Path of the file.
        split: "train" or "test". The two share no digit image.
        num_videos: Number of videos.
        digit_size: Size to which the images are averaged, for a small canvas; `None` keeps the size.
        test_fraction: Share of the images, the last ones of the file, that are digits of the test videos.
        options: `num_frames`, `image_size`, `speeds`, `colours` and `seed` of `MovingMNIST`. With the same seed, the
            two splits have different paths.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not an idx file, or a value is out of its range.
    """
    if split not in _SPLITS:
        raise ValueError(f"split={split!r}: give 'train' or 'test'{did_you_mean(str(split), _SPLITS)}.")
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction={test_fraction!r}: give a share above 0 and below 1.")
    digits = read_idx(Path(source), 3)
    cut = len(digits) - max(1, round(test_fraction * len(digits)))
    if cut < 1:
        raise ValueError(f"source={str(source)!r} has {len(digits)} image(s), but two splits need at least two images.")
    digits = digits[:cut] if split == "train" else digits[cut:]
    seed = options.pop("seed", 0)
    check_integer("seed", seed, 0)
    chosen = digits if digit_size is None else resized_digits(digits, digit_size)
    return MovingMNIST(chosen, num_videos, seed=2 * seed + _SPLITS.index(split), **options)


def resized_digits(digits: np.ndarray, size: int) -> np.ndarray:
    """Images averaged to a smaller square, `(n, size, size)`, float32 from 0 to 1.

    Args:
        digits: `(n, s, s)`, bytes, or values from 0 to 1.
        size: Width and height of the result, from 1 to s.
    """
    check_integer("digit_size", size, 1, digits.shape[1])
    images = torch.from_numpy(digits.astype(np.float32) / (255 if digits.dtype == np.uint8 else 1))
    return torch.nn.functional.adaptive_avg_pool2d(images, size).numpy()


def _rgb(colour: str | Sequence[float]) -> tuple[float, ...]:
    if isinstance(colour, str):
        if colour not in COLOURS:
            raise ValueError(
                f"colours: there is no {colour!r}{did_you_mean(colour, COLOURS)}; give one of {', '.join(COLOURS)}, or "
                "three numbers from 0 to 1."
            )
        return COLOURS[colour]
    values = tuple(float(value) for value in colour)
    if len(values) != 3 or not all(0 <= value <= 1 for value in values):
        raise ValueError(f"colours: {colour!r} is not a colour; give red, green and blue as numbers from 0 to 1.")
    return values
