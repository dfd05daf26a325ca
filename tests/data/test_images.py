"""Images as sequences of pixels: idx files, folders, Hub data sets, and what each says when it cannot be read."""

import gzip
import logging
import shutil
import struct
import sys

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from PIL import Image as Pillow

from hf_ssm.data import hub, images, label_names, load_sequences


def write_idx(path, array, magic=None):
    """An idx file of bytes, written from the description of the format."""
    head = struct.pack(">I", 0x0800 + array.ndim if magic is None else magic) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    content = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def digits(tmp_path):
    """`digits(count)`: the path of an idx file of 4 x 6 images, its arrays; labels 0, 1, 2, 0, ... lie beside it."""

    def write(count=30, suffix=".gz"):
        pixels = np.random.default_rng(0).integers(0, 256, (count, 4, 6))
        labels = np.arange(count) % 3
        write_idx(tmp_path / f"train-labels-idx1-ubyte{suffix}", labels)
        return write_idx(tmp_path / f"train-images-idx3-ubyte{suffix}", pixels), pixels, labels

    return write


def all_of(split, column="sequence"):
    return np.array(split[column])


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_an_idx_file_gives_pixels_row_by_row_and_labels(digits, suffix):
    path, pixels, labels = digits(suffix=suffix)
    data = load_sequences(path, validation_fraction=0, test_fraction=0)
    assert list(data) == ["train"]
    assert np.array_equal(all_of(data["train"]), pixels.reshape(30, 24))
    assert data["train"]["label"][:] == labels.tolist()
    assert data["train"].features["sequence"].feature.dtype == "uint8"
    assert label_names(data) == ["0", "1", "2"]


def test_an_idx_file_is_cut_by_seed_with_the_shares_of_the_classes(digits):
    path, pixels, labels = digits(60)
    data = load_sequences(path, validation_fraction=0.2, test_fraction=0.5)
    assert {name: split.num_rows for name, split in data.items()} == {"train": 18, "validation": 12, "test": 30}
    assert np.bincount(data["test"]["label"][:]).tolist() == [10, 10, 10]
    of_row = {row.tobytes(): label for row, label in zip(pixels.reshape(60, 24), labels, strict=True)}
    seen = [
        (of_row.pop(all_of(split)[i].tobytes()), split["label"][i])
        for split in data.values()
        for i in range(len(split))
    ]
    assert not of_row and all(wanted == found for wanted, found in seen)


def test_equal_images_stay_on_one_side(tmp_path):
    pixels = np.repeat(np.arange(10), 6)[:, None, None] * np.ones((1, 2, 2), dtype=int)
    write_idx(tmp_path / "images-idx3-ubyte", pixels)
    data = load_sequences(tmp_path / "images-idx3-ubyte", label_column=None, test_fraction=0.4, validation_fraction=0)
    assert {name: {row[0] for row in split["sequence"]} for name, split in data.items()}.keys() == {"train", "test"}
    assert not {row[0] for row in data["train"]["sequence"]} & {row[0] for row in data["test"]["sequence"]}
    assert data["test"].num_rows == 24


def test_the_file_of_labels_may_be_zipped_otherwise_or_left_out(digits, tmp_path):
    path, _, labels = digits()
    zipped = tmp_path / "train-labels-idx1-ubyte.gz"
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(gzip.decompress(zipped.read_bytes()))
    zipped.unlink()
    assert load_sequences(path, validation_fraction=0, test_fraction=0)["train"]["label"][:] == labels.tolist()
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=r"no train-labels-idx1-ubyte\.gz beside it.*label_column=None"):
        load_sequences(path)
    assert load_sequences(path, label_column=None)["train"].column_names == ["sequence"]


def test_a_missing_idx_file():
    with pytest.raises(FileNotFoundError, match=r"source='mnist/train-images-idx3-ubyte'.*no such file"):
        load_sequences("mnist/train-images-idx3-ubyte")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda content: content[:-1],
            r"should hold 720 bytes after its head .*\[30, 4, 6\].* holds 719; it is truncated",
        ),
        (lambda content: content + b"x", "holds 721"),
        (lambda content: b"\0\0\x0d" + content[3:], r"begins with 0x00000d03, not with 0x00000803"),
        (lambda content: content[:10], "has 10 bytes, less than the head"),
        (lambda content: content[:4] + b"\0\0\0\0" + content[8:], "is empty: its sizes are"),
    ],
)
def test_damaged_idx_files_are_refused(digits, damage, message):
    path, _, _ = digits(suffix="")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        load_sequences(path)


def test_truncated_gzip_is_refused(digits):
    path, _, _ = digits()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz' is truncated gzip"):
        load_sequences(path)


def test_labels_of_another_file_are_refused(digits, tmp_path):
    path, _, _ = digits()
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.arange(29) % 3)
    with pytest.raises(ValueError, match=r"has 30 images, but train-labels-idx1-ubyte\.gz has 29 labels"):
        load_sequences(path)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros((30, 2, 2)))
    with pytest.raises(ValueError, match="of bytes in 1 dimension does"):
        load_sequences(path)


def test_image_size_averages(tmp_path):
    pixels = np.kron(np.array([[[10, 200], [90, 40]]]), np.ones((1, 8, 8)))
    write_idx(tmp_path / "images-idx3-ubyte", pixels)
    given = {"label_column": None, "validation_fraction": 0, "test_fraction": 0}
    (row,) = load_sequences(tmp_path / "images-idx3-ubyte", image_size=4, **given)["train"]["sequence"]
    small = np.array(row).reshape(4, 4)
    assert (small[0, 0], small[0, 3], small[3, 0], small[3, 3]) == (10, 200, 90, 40)


@pytest.mark.parametrize(
    "options", [{"image_size": 0}, {"image_size": 2.0}, {"image_size": True}, {"grayscale": "yes"}]
)
def test_bad_options(digits, options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"^{name}={value!r}: give"):
        load_sequences(digits()[0], **options)


def save(path, pixels, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    Pillow.fromarray(np.asarray(pixels, dtype=np.uint8), mode).save(path)


@pytest.fixture
def folder(tmp_path):
    """Folders `cat` and `dog` of ten coloured 3 x 2 images each, whose first pixel tells which."""
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
        assert pixels.shape == (6, 3)
        assert pixels[0, 0] == 255 * row["label"]
        wanted = np.asarray(Pillow.open(folder / ("cat", "dog")[row["label"]] / f"{pixels[0, 1]}.png"))
        assert np.array_equal(pixels, wanted.reshape(6, 3))


def test_colours_become_gray(folder):
    (gray,) = {len(row) for row in load_sequences(folder, grayscale=True, validation_fraction=0)["train"]["sequence"]}
    assert gray == 6
    row = load_sequences(folder, grayscale=True, validation_fraction=0, test_fraction=0)["train"][0]
    colours = np.asarray(Pillow.open(folder / "cat" / "0.png")).reshape(6, 3)
    # The weights of ITU-R 601, to the rounding of a byte.
    assert np.abs(np.array(row["sequence"]) - colours @ [0.299, 0.587, 0.114]).max() <= 1


def test_folders_of_splits(folder, tmp_path, caplog):
    target = tmp_path / "split"
    for split in ("train", "test"):
        (target / split).mkdir(parents=True)
        for name in ("cat", "dog"):
            shutil.copytree(folder / name, target / split / name)
    with caplog.at_level(logging.WARNING):
        data = load_sequences(target, validation_fraction=0)
    assert {name: part.num_rows for name, part in data.items()} == {"train": 20, "test": 20}
    assert "20 sequences of split 'test' also stand in 'train'" in caplog.text


def test_images_that_differ_are_refused(folder):
    save(folder / "cat" / "big.png", np.zeros((4, 4, 3)))
    with pytest.raises(ValueError, match=r"first image is 3 x 2 coloured, that of row 11 of 'train' 4 x 4.*image_size"):
        load_sequences(folder)
    assert len(load_sequences(folder, image_size=2, validation_fraction=0)["train"]["sequence"][0]) == 4
    save(folder / "cat" / "big.png", np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"3 x 2 gray; make them equal with .*grayscale=true"):
        load_sequences(folder)


def test_images_of_more_than_eight_bits_are_refused(folder):
    Pillow.fromarray(np.zeros((2, 3), dtype=np.uint16)).save(folder / "cat" / "0.png")
    with pytest.raises(ValueError, match=r"row 1 of 'train': an image of mode 'I;16', with more than eight bits"):
        load_sequences(folder)


def test_images_that_could_fill_the_memory_are_named(folder, monkeypatch):
    monkeypatch.setattr(Pillow, "MAX_IMAGE_PIXELS", 2)  # Pillow refuses twice as many
    with pytest.raises(ValueError, match=r"row 1 of 'train': the image cannot be read \(Image size \(6 pixels\)"):
        load_sequences(folder)


def test_damaged_images_are_named(folder):
    path = folder / "dog" / "3.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"row 14 of 'train': the image cannot be read"):
        load_sequences(folder)


def test_a_folder_without_images(tmp_path):
    (tmp_path / "notes.txt").write_text("none")
    with pytest.raises(ValueError, match="is a folder without images"):
        load_sequences(tmp_path)


def test_pillow_is_asked_for(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install \"hf_ssm\[images\]\""):
        load_sequences(folder)


@pytest.fixture
def pathfinder(tmp_path):
    """A folder as in the Long Range Arena's release: two folders of five 4 x 4 images, the label in the first pixel."""
    root = tmp_path / "pathfinder32" / "curv_contour_length_14"
    (root / "metadata").mkdir(parents=True)
    for part in range(2):
        lines = []
        for sample in range(5):
            label = (part + sample) % 2
            pixels = np.full((4, 4), 10 * part + sample)
            pixels[0, 0] = 100 * label
            save(root / "imgs" / str(part) / f"sample_{sample}.png", pixels)
            lines.append(f"imgs/{part} sample_{sample}.png {sample} {label} 1.8 6 2.0 5 1.5 2 1\n")
        (root / "metadata" / f"{part}.npy").write_text("".join(lines))
    return root


def test_pathfinder(pathfinder):
    data = load_sequences(pathfinder, validation_fraction=0, test_fraction=0)
    rows = np.array(data["train"]["sequence"])
    assert rows.shape == (10, 16)
    assert rows[:, 0].tolist() == [100 * label for label in data["train"]["label"]]
    assert rows[:, 1].tolist() == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


def test_an_empty_image_of_pathfinder_is_left_out(pathfinder, caplog):
    (pathfinder / "imgs" / "0" / "sample_2.png").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        data = load_sequences(pathfinder, validation_fraction=0, test_fraction=0)
    assert data["train"].num_rows == 9
    assert "left out 1 image files without a byte" in caplog.text


def test_bad_pathfinder_folders(pathfinder):
    with pytest.raises(ValueError, match=r"holds several data sets; .*\['curv_contour_length_14'\]"):
        load_sequences(pathfinder.parent)
    (pathfinder / "imgs" / "1" / "sample_0.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 images of the metadata are not there.*sample_0\.png"):
        load_sequences(pathfinder)
    (pathfinder / "metadata" / "1.npy").write_text("imgs/1 sample_0.png 0\n")
    with pytest.raises(ValueError, match=r"1\.npy', line 1: not of the form 'imgs/0 sample_0.png 0 1"):
        load_sequences(pathfinder)
    for path in (pathfinder / "metadata").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="has no metadata"):
        load_sequences(pathfinder)


def test_a_hub_data_set_of_images(monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 4, 5, 3)).astype(np.uint8)
    features = Features({"img": Image(), "label": ClassLabel(names=["a", "b"]), "note": Value("string")})
    rows = {"img": [Pillow.fromarray(row) for row in pixels], "label": [0, 1] * 6, "note": ["x"] * 12}
    loaded = DatasetDict(train=Dataset.from_dict(rows, features=features))
    monkeypatch.setattr(hub, "fetch", lambda *args: loaded)
    data = load_sequences("uoft-cs/cifar10", sequence_column="img", validation_fraction=0, test_fraction=0)
    assert set(data["train"].column_names) == {"img", "label", "note"}
    assert np.array_equal(np.array(data["train"]["img"][:]), pixels.reshape(12, 20, 3))
    assert data["train"].features["img"].shape == (20, 3)
    loaded["test"] = Dataset.from_dict({**rows, "img": [None, *rows["img"][1:]]}, features=features)
    with pytest.raises(ValueError, match=r"sequence_column='img': no image in row 1 of 'test'"):
        load_sequences("uoft-cs/cifar10", sequence_column="img")


def test_many_images_are_stored_as_bytes():
    pixels = np.random.default_rng(0).integers(0, 256, (2500, 50, 1)).astype(np.uint8)
    table = images.pixel_column(pixels, "sequence")
    assert table.data.nbytes < 1.1 * pixels.nbytes
    assert np.array_equal(np.array(table["sequence"][:]), pixels[..., 0])


def test_real_mnist(shared_data):
    data = load_sequences(
        shared_data / "mnist_t10k-images-idx3-ubyte.gz", test_fraction=0.5, validation_fraction=0.1, seed=1
    )
    assert {name: split.num_rows for name, split in data.items()} == {"train": 4000, "validation": 1000, "test": 5000}
    assert label_names(data) == [str(digit) for digit in range(10)]
    rows = np.array(data["test"].select(range(100))["sequence"][:])
    assert rows.shape == (100, 784)
    # The rim of the official images is black, and their ink lies in the middle.
    assert rows.reshape(100, 28, 28)[:, :2].max() < 30 < rows.reshape(100, 28, 28)[:, 8:20, 8:20].mean()
