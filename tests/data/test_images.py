"""Images as sequences of pixels: idx files, folders and Hub data sets."""

import gzip
import struct
import sys

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from PIL import Image as Pillow

from hf_ssm.data import label_names, load_sequences, loading

ALL = {"validation_fraction": 0, "test_fraction": 0}


def write_idx(path, array):
    """An idx file of bytes, written from the description of the format."""
    head = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
    content = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def digits(tmp_path):
    """`digits(suffix)`: the path of an idx file of 30 images 4 x 6, its pixels; the labels are 0, 1, 2, 0, ..."""

    def write(suffix=""):
        pixels = np.random.default_rng(0).integers(0, 256, (30, 4, 6))
        write_idx(tmp_path / f"train-labels-idx1-ubyte{suffix}", np.arange(30) % 3)
        return write_idx(tmp_path / f"train-images-idx3-ubyte{suffix}", pixels), pixels

    return write


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_an_idx_file(digits, suffix, tmp_path):
    path, pixels = digits(suffix)
    data = load_sequences(path, **ALL)
    assert np.array_equal(np.array(data["train"]["sequence"][:]), pixels.reshape(30, 24))
    assert data["train"]["label"][:] == [0, 1, 2] * 10
    assert data["train"].features["sequence"].feature.dtype == "uint8"
    assert label_names(data) == ["0", "1", "2"]
    cut = load_sequences(path, validation_fraction=0.2, test_fraction=0.5)
    assert {name: np.bincount(split["label"][:]).tolist() for name, split in cut.items()} == {
        "train": [3, 3, 3],
        "validation": [2, 2, 2],
        "test": [5, 5, 5],
    }
    (tmp_path / f"train-labels-idx1-ubyte{suffix}").unlink()
    with pytest.raises(FileNotFoundError, match="train-labels-idx1-ubyte"):
        load_sequences(path)
    assert load_sequences(path, label_column=None)["train"].column_names == ["sequence"]


def test_equal_images_are_in_one_split(tmp_path):
    pixels = np.repeat(np.arange(10), 6)[:, None, None] * np.ones((1, 2, 2), dtype=int)
    path = write_idx(tmp_path / "images-idx3-ubyte", pixels)
    data = load_sequences(path, label_column=None, test_fraction=0.4, validation_fraction=0)
    assert not {row[0] for row in data["train"]["sequence"]} & {row[0] for row in data["test"]["sequence"]}
    assert data["test"].num_rows == 24


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], r"size 719 into shape \(30,4,6\)"),
        (lambda content: b"\0\0\x0d" + content[3:], "does not begin like an idx file"),
    ],
)
def test_damaged_idx_files(digits, damage, message):
    path, _ = digits()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        load_sequences(path)


def test_labels_of_another_file(digits, tmp_path):
    path, _ = digits()
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.arange(29) % 3)
    with pytest.raises(ValueError, match="has 30 images, but train-labels-idx1-ubyte has 29 labels"):
        load_sequences(path)


def test_image_size_averages(tmp_path):
    path = write_idx(tmp_path / "images-idx3-ubyte", np.kron([[[10, 200], [90, 40]]], np.ones((1, 8, 8))))
    (row,) = load_sequences(path, image_size=4, label_column=None, **ALL)["train"]["sequence"]
    small = np.array(row).reshape(4, 4)
    assert (small[0, 0], small[0, 3], small[3, 0], small[3, 3]) == (10, 200, 90, 40)


@pytest.mark.parametrize(("name", "value"), [("image_size", 0), ("image_size", 2.0), ("grayscale", "yes")])
def test_bad_options(digits, name, value):
    with pytest.raises(ValueError, match=f"^{name}={value!r}: give"):
        load_sequences(digits()[0], **{name: value})


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Pillow.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path):
    """Folders `cat` and `dog` of ten coloured 3 x 2 images each, with the class and the number in the first pixel."""
    for number, name in enumerate(("cat", "dog")):
        for image in range(10):
            pixels = np.random.default_rng(image).integers(0, 256, (2, 3, 3))
            pixels[0, 0] = (255 * number, image, 0)
            save(tmp_path / "pets" / name / f"{image}.png", pixels)
    return tmp_path / "pets"


def test_a_folder_of_images_by_class(folder):
    data = load_sequences(folder, validation_fraction=0, test_fraction=0.2)
    assert data["train"].features["label"] == ClassLabel(names=["cat", "dog"])
    assert {name: split.num_rows for name, split in data.items()} == {"train": 16, "test": 4}
    for row in data["train"]:
        pixels = np.array(row["sequence"])
        assert pixels.shape == (6, 3) and pixels.dtype.kind in "iu"
        assert pixels[0, 0] == 255 * row["label"]
        wanted = np.asarray(Pillow.open(folder / ("cat", "dog")[row["label"]] / f"{pixels[0, 1]}.png"))
        assert np.array_equal(pixels, wanted.reshape(6, 3))


def test_grayscale(folder):
    row = load_sequences(folder, grayscale=True, **ALL)["train"][0]
    colours = np.asarray(Pillow.open(folder / "cat" / "0.png")).reshape(6, 3)
    # The weights of ITU-R 601, up to rounding to a byte.
    assert np.abs(np.array(row["sequence"]) - colours @ [0.299, 0.587, 0.114]).max() <= 1


def test_images_of_different_shapes(folder):
    save(folder / "cat" / "big.png", np.zeros((4, 4, 3)))
    with pytest.raises(ValueError, match=r"row 11 of 'train' has the shape \(4, 4, 3\).*\(2, 3, 3\).*image_size"):
        load_sequences(folder)
    assert len(load_sequences(folder, image_size=2, **ALL)["train"]["sequence"][0]) == 4


def test_images_of_more_than_eight_bits(folder):
    Pillow.fromarray(np.zeros((2, 3), dtype=np.uint16)).save(folder / "cat" / "0.png")
    with pytest.raises(ValueError, match=r"row 1 of 'train': the image has more than eight bits per pixel"):
        load_sequences(folder)


def test_damaged_images(folder):
    path = folder / "dog" / "3.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"row 14 of 'train': the image cannot be decoded"):
        load_sequences(folder)


def test_pillow_is_optional(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install \"hf_ssm\[images\]\""):
        load_sequences(folder)


def test_a_hub_data_set_of_images(monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 4, 5, 3)).astype(np.uint8)
    features = Features({"img": Image(), "label": ClassLabel(names=["a", "b"]), "note": Value("string")})
    rows = {"img": [Pillow.fromarray(row) for row in pixels], "label": [0, 1] * 6, "note": ["x"] * 12}
    loaded = DatasetDict(train=Dataset.from_dict(rows, features=features))
    monkeypatch.setattr(loading, "load_dataset", lambda *args, **kwargs: loaded)
    data = load_sequences("uoft-cs/cifar10", sequence_column="img", **ALL)
    assert set(data["train"].column_names) == {"img", "label", "note"}
    assert np.array_equal(np.array(data["train"]["img"][:]), pixels.reshape(12, 20, 3))
    assert data["train"].features["img"].shape == (20, 3)
    loaded["test"] = Dataset.from_dict({**rows, "img": [None, *rows["img"][1:]]}, features=features)
    with pytest.raises(ValueError, match=r"row 1 of 'test' has no image"):
        load_sequences("uoft-cs/cifar10", sequence_column="img")
