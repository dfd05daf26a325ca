"""Images as sequences of pixels, row by row: idx files, folders, the Pathfinder folders of the Long Range Arena.

Legend: `n` images, `H` height, `W` width, `L` = H W pixels, `C` channels (1 gray, 3 red, green, blue).

A pixel stays a byte from 0 to 255 until a batch is made: data sets of a hundred thousand images fit into memory.
"""

import dataclasses
import logging
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Array2D, Dataset, DatasetDict, Features, Image, concatenate_datasets, load_dataset
from datasets.exceptions import DatasetsError
from datasets.table import InMemoryTable

from hf_ssm.data.checks import RowName
from hf_ssm.data.files import open_text, read_bytes

logger = logging.getLogger(__name__)

INSTALL_HINT = 'images need Pillow: pip install "hf_ssm[images]"'

_IDX_NAME = re.compile(r"images(?P<joint>[-.])idx3-ubyte(?P<gz>\.gz)?$", re.IGNORECASE)
_IMAGES_MAGIC, _LABELS_MAGIC = 0x0803, 0x0801  # bytes of three and of one dimension
_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
_GRAY_MODES = frozenset({"1", "L"})
_DEEP_MODES = ("I", "F")  # more than eight bits a pixel; also "I;16" and its kin
_ROWS = 1000


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """How an image becomes pixels.

    Attributes:
        grayscale: whether colours become gray (0.299 R + 0.587 G + 0.114 B).
        image_size: side that images are resized to, square; None leaves them as they are.
    """

    grayscale: bool = False
    image_size: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.grayscale, bool):
            raise ValueError(f"grayscale={self.grayscale!r}: give true or false.")
        size = self.image_size
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"image_size={size!r}: give the side in pixels, a positive whole number.")


def is_idx(path: Path) -> bool:
    """Whether a file is named like the images of MNIST: "...images-idx3-ubyte", also with ".gz"."""
    return _IDX_NAME.search(path.name) is not None


def load_idx(path: Path, sequence_column: str, label_column: str | None, options: ImageOptions) -> dict[str, Dataset]:
    """Images and labels from a pair of idx files, the format of MNIST; all rows are "train".

    The file of the labels lies beside that of the images: "train-labels-idx1-ubyte" for "train-images-idx3-ubyte",
    zipped or not.

    Args:
        path: The file of the images.
        sequence_column: Name for the column of pixels.
        label_column: Name for the column of labels; None leaves them out.
        options: See there; idx images are gray.

    Raises:
        FileNotFoundError: One of the files is missing.
        ValueError: One of the files is no idx file of its kind, is truncated or too long, or the two differ in their
            numbers of rows.
    """
    images = _read_idx(path, _IMAGES_MAGIC, 3)
    pixels = images.reshape(len(images), -1, 1)
    if options.image_size is not None:
        # `fromarray` gives the mode "L" for bytes of two dimensions.
        pillow = _pillow()
        decode = (pillow.fromarray(image) for image in images)
        pixels = _to_pixels(decode, len(images), options, path.name, lambda index: str(index + 1))
    table = pixel_column(pixels, sequence_column)
    if label_column is None:
        return {"train": table}
    labels_path = _labels_beside(path)
    labels = _read_idx(labels_path, _LABELS_MAGIC, 1)
    if len(labels) != len(images):
        raise ValueError(
            f"source={str(path)!r} has {len(images)} images, but {labels_path.name} has {len(labels)} labels; the two "
            "files do not belong together."
        )
    return {"train": _join(table, Dataset.from_dict({label_column: labels.astype(np.int64)}))}


def _labels_beside(path: Path) -> Path:
    match = _IDX_NAME.search(path.name)
    assert match is not None  # the caller asked `is_idx`
    stem = path.name[: match.start()] + f"labels{match['joint']}idx1-ubyte"
    choices = [path.with_name(name) for name in (stem + (match["gz"] or ""), stem, stem + ".gz")]
    for choice in choices:
        if choice.is_file():
            return choice
    raise FileNotFoundError(
        f"source={str(path)!r}: there is no {choices[0].name} beside it, where its labels should be; fetch it, or pass "
        "label_column=None."
    )


def _read_idx(path: Path, magic: int, dimensions: int) -> np.ndarray:
    """The array of an idx file: a magic number, the sizes (all big-endian, 4 bytes), then the bytes."""
    content = read_bytes(path)
    start = 4 * (1 + dimensions)
    if len(content) < start:
        raise ValueError(f"source={str(path)!r} has {len(content)} bytes, less than the head of an idx file.")
    found, *sizes = struct.unpack(f">{1 + dimensions}I", content[:start])
    if found != magic:
        raise ValueError(
            f"source={str(path)!r} begins with {found:#010x}, not with {magic:#010x} as an idx file of bytes in "
            f"{dimensions} dimension{'s' if dimensions > 1 else ''} does; check which file it is."
        )
    wanted = int(np.prod(sizes, dtype=np.int64))
    if not wanted:
        raise ValueError(f"source={str(path)!r} is empty: its sizes are {sizes}.")
    if len(content) - start != wanted:
        raise ValueError(
            f"source={str(path)!r} should hold {wanted} bytes after its head (sizes {sizes}) and holds "
            f"{len(content) - start}; it is truncated or damaged, fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(sizes)


def holds_images(folder: Path) -> bool:
    """Whether there is an image anywhere in a folder."""
    return any(path.suffix.lower() in _SUFFIXES for path in folder.rglob("*"))


def is_pathfinder(folder: Path) -> bool:
    """Whether a folder is laid out as those of Pathfinder in the Long Range Arena: `imgs/` and `metadata/`."""
    return (folder / "imgs").is_dir() and (folder / "metadata").is_dir()


def load_pathfinder(
    folder: Path, sequence_column: str, label_column: str | None, options: ImageOptions
) -> dict[str, Dataset]:
    """Images and labels of one folder of the Long Range Arena's Pathfinder, such as "curv_contour_length_14".

    Each line of `metadata/*.npy`, which are text, stands for an image: its folder, its file, an id, the label (1
    where a path joins the two dots), and the settings of the generator. Images are read as gray. Image files without
    a byte (the release has one) are left out, and a warning says so. All rows are "train": the Arena, too, cuts
    80/10/10 by chance.

    Args:
        folder: The folder with `imgs/` and `metadata/`.
        sequence_column: Name for the column of pixels.
        label_column: Name for the column of labels; None leaves them out.
        options: See there.

    Raises:
        FileNotFoundError: An image that the metadata names is missing.
        ValueError: The metadata or an image cannot be read, or images have different sizes.

    Source: Tay et al. 2021 (Long Range Arena).
    """
    entries = list(_pathfinder_entries(folder))
    missing = [path for path, _ in entries if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"source={str(folder)!r}: {len(missing)} images of the metadata are not there (first: {missing[0]}); "
            "unpack the archive again."
        )
    whole = [(path, label) for path, label in entries if path.stat().st_size]
    if len(whole) < len(entries):
        logger.warning("%s: left out %d image files without a byte.", folder, len(entries) - len(whole))
    if not whole:
        raise ValueError(f"source={str(folder)!r}: its metadata name no image that can be read.")
    pillow = _pillow()
    names = [str(path.relative_to(folder)) for path, _ in whole]
    decoded = (_decode(partial(pillow.open, path), name) for (path, _), name in zip(whole, names, strict=True))
    gray = dataclasses.replace(options, grayscale=True)
    table = pixel_column(_to_pixels(decoded, len(whole), gray, folder.name, names.__getitem__), sequence_column)
    if label_column is None:
        return {"train": table}
    return {"train": _join(table, Dataset.from_dict({label_column: [label for _, label in whole]}))}


def _pathfinder_entries(folder: Path) -> Iterator[tuple[Path, int]]:
    """Path and label of each image, in the order of the metadata's numbers."""
    files = sorted((folder / "metadata").glob("*.npy"), key=lambda path: (len(path.stem), path.stem))
    if not files:
        raise ValueError(f"source={str(folder)!r} has no metadata/*.npy; unpack the archive again.")
    for file in files:
        with open_text(file) as handle:
            for number, line in enumerate(handle, start=1):
                fields = line.split()
                if not fields:
                    continue
                if len(fields) < 4 or fields[3] not in ("0", "1"):
                    raise ValueError(
                        f"source={str(file)!r}, line {number}: not of the form 'imgs/0 sample_0.png 0 1 ...' (folder, "
                        "file, id, label 0 or 1); unpack the archive again."
                    )
                yield folder / fields[0] / fields[1], int(fields[3])


def load_folder(folder: Path, sequence_column: str) -> DatasetDict:
    """A folder of images as `datasets` reads it: `CLASS/*.png`, or `train/CLASS/*.png` beside `test/CLASS/*.png`.

    Returns:
        The column `sequence_column` of images, not yet pixels, and `label` where the folders tell classes.

    Raises:
        ValueError: `datasets` cannot read the folder, or it holds folders of Pathfinder.
    """
    inside = sorted(path.name for path in folder.iterdir() if path.is_dir() and is_pathfinder(path))
    if inside:
        raise ValueError(f"source={str(folder)!r} holds several data sets; give one of its folders: {inside}.")
    _pillow()
    try:
        # Its cache would hold paths only, and is not worth a place on the disk.
        with TemporaryDirectory() as cache:
            loaded = load_dataset("imagefolder", data_dir=str(folder), cache_dir=cache, keep_in_memory=True)
    except (ValueError, OSError, DatasetsError) as error:
        raise ValueError(f"source={str(folder)!r} cannot be read as a folder of images: {error}") from error
    return loaded.rename_column("image", sequence_column) if sequence_column != "image" else loaded


def images_to_pixels(splits: dict[str, Dataset], column: str, options: ImageOptions, source: str) -> dict[str, Dataset]:
    """Replace a column of images by their pixels, `(L, C)` bytes each.

    Raises:
        ImportError: Pillow is missing.
        ValueError: An image cannot be read or has more than eight bits a pixel; images differ in size, or some are gray
            and others coloured, and no option makes them equal.
    """
    _pillow()
    pixels: dict[str, np.ndarray] = {}
    for name, split in splits.items():

        def row_name(index: int, name: str = name) -> str:
            return f"{index + 1} of {name!r}"

        count, images = split.num_rows, _images_of(split, column, row_name)
        pixels[name] = _to_pixels(images, count, options, source, row_name)
    shapes = {name: values.shape[1:] for name, values in pixels.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(
            f"{source}: the splits have different pixels and channels, {shapes}; make them equal with image_size=... "
            "or grayscale=true."
        )
    return {
        name: _join(pixel_column(pixels[name], column), split.remove_columns(column)) for name, split in splits.items()
    }


def _images_of(split: Dataset, column: str, row_name: RowName) -> Iterator[Any]:
    feature = split.features[column]
    raw = split.select_columns([column]).cast_column(column, Image(decode=False))
    for index, row in enumerate(raw):
        if row[column] is None:
            raise ValueError(f"sequence_column={column!r}: no image in row {row_name(index)}; take the row out.")
        yield _decode(partial(feature.decode_example, row[column]), f"row {row_name(index)}")


def _decode(read: Callable[[], Any], where: str) -> Any:
    try:
        image = read()
        image.load()
    # Pillow's own are of these kinds; that of images of a size beyond belief is of none of them.
    except (OSError, SyntaxError, ValueError, _pillow().DecompressionBombError) as error:
        raise ValueError(f"{where}: the image cannot be read ({error}); mend it, or take it out.") from error
    return image


def _to_pixels(images: Iterable[Any], count: int, options: ImageOptions, source: str, row_name: RowName) -> np.ndarray:
    """`(n, L, C)` bytes of `count` images, which must be alike."""
    pixels: np.ndarray | None = None
    first = ""
    for index, image in enumerate(images):
        if image.mode.startswith(_DEEP_MODES):
            raise ValueError(
                f"{source}, row {row_name(index)}: an image of mode {image.mode!r}, with more than eight bits a pixel; "
                "convert it to eight."
            )
        image = image.convert("L" if options.grayscale or image.mode in _GRAY_MODES else "RGB")
        if options.image_size is not None:
            # Averages where it shrinks.
            image = image.resize((options.image_size, options.image_size), _pillow().Resampling.BILINEAR)
        values = np.asarray(image)
        shape = f"{image.width} x {image.height} {'gray' if image.mode == 'L' else 'coloured'}"
        if pixels is None:
            pixels, first = np.empty((count, image.width * image.height, len(image.getbands())), np.uint8), shape
        if shape != first:
            raise ValueError(
                f"{source}: the first image is {first}, that of row {row_name(index)} {shape}; make them equal with "
                "image_size=... or grayscale=true."
            )
        pixels[index] = values.reshape(pixels.shape[1:])
    if pixels is None:
        raise ValueError(f"{source} has no images.")
    return pixels


def pixel_column(pixels: np.ndarray, column: str) -> Dataset:
    """A data set of one column from `(n, L, C)` bytes; a row reads as `(L,)` where C is 1, else as `(L, C)`."""
    count, length, channels = pixels.shape
    if channels == 1:
        # One copy of the bytes and no offsets; the general way would take five times the memory.
        parts = [
            pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), length)
            for part in np.split(pixels, range(_ROWS, count, _ROWS))
        ]
        return Dataset(InMemoryTable(pa.table({column: pa.chunked_array(parts)})))
    features = Features({column: Array2D((length, channels), "uint8")})
    # In pieces, as one Arrow list ends at 2^31 values.
    return concatenate_datasets(
        [Dataset.from_dict({column: part}, features=features) for part in np.split(pixels, range(_ROWS, count, _ROWS))]
    )


def _join(left: Dataset, right: Dataset) -> Dataset:
    return concatenate_datasets([left, right], axis=1) if right.column_names else left


def _pillow() -> Any:
    try:
        from PIL import Image as pillow
    except ImportError as error:
        raise ImportError(INSTALL_HINT) from error
    return pillow
