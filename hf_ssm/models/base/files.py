"""Checks of a checkpoint's files before anything reads them: what they claim, and where they lie.

A checkpoint may come from anyone. Nothing here runs what a file holds, allocates what it claims, or follows a name
that leads out of its folder.
"""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

# Bytes of a JSON file, and of the header of a safetensors file (which is JSON too).
_LARGEST_JSON, _LARGEST_HEADER = 64 << 20, 100 << 20

# Bits of the types of the safetensors format.
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}

# What a configuration may claim; each layer, and the name of each label, is made before there is any weight for it.
_LARGEST_CLAIMS = {"num_hidden_layers": 10_000, "n_layer": 10_000, "n_layers": 10_000, "num_labels": 1_000_000}

# So many layers take no memory to speak of.
_FEW_LAYERS = 100

# Suffixes of the files of a checkpoint.
_SUFFIXES = frozenset({".bin", ".ckpt", ".jinja", ".json", ".model", ".pt", ".pth", ".py", ".safetensors", ".txt"})


def check_inside(path: Path, folder: Path) -> None:
    """Raise `ValueError` for a symbolic link that leads out of its folder, but for the blobs of the Hub's cache.

    Args:
        path: A file in the folder, or in a folder below it.
        folder: The checkpoint.
    """
    home, found = folder.resolve(), path.resolve()
    if found.is_relative_to(home):
        return
    # The cache has its files in `blobs`, and in `snapshots/REVISION` (and below it) links to them.
    for snapshot in (home, *home.parents):
        if snapshot.parent.name == "snapshots" and found.is_relative_to(snapshot.parents[1] / "blobs"):
            return
    raise ValueError(f"{str(path)!r} is a link that leads out of its folder: put the file itself there")


def check_regular(path: Path) -> None:
    """Raise `FileNotFoundError` or `ValueError` for what is no regular file, such as a pipe, which would never end."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    if not path.is_file():
        raise ValueError(f"{str(path)!r} is no regular file")


def read_json(path: str | Path) -> dict[str, Any]:
    """The object of a JSON file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no JSON, no object, or absurdly large or deep.
    """
    path = Path(path)
    check_regular(path)
    if path.stat().st_size > _LARGEST_JSON:
        raise ValueError(f"{str(path)!r} has {path.stat().st_size} bytes, too many for a JSON file of a checkpoint")
    return _parse(path.read_bytes(), repr(str(path)))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _parse(text: bytes, name: str, *, once: bool = False) -> dict[str, Any]:
    """The object in a text; `once` refuses names that come again, where readers would disagree on which one counts."""
    try:
        found = json.loads(text, object_pairs_hook=_once if once else None)
    except RecursionError as error:
        raise ValueError(f"{name} is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{name} is no valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} must hold an object (names and values), got {type(found).__name__}")
    return found


def check_claims(config: dict[str, Any]) -> None:
    """Raise `ValueError` where a configuration claims sizes that would fill the memory before any weight is read."""
    for name, largest in _LARGEST_CLAIMS.items():
        claimed = config.get(name)
        if isinstance(claimed, (int, float)) and claimed > largest:
            raise ValueError(f"`{name}`={claimed} of the configuration is absurd: at most {largest} can be loaded")


def read_safetensors_header(path: str | Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each tensor of a safetensors file, all of whose claims are checked.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is cut off, or its header is too long, no JSON, or speaks of what is not in the file.
    """
    path = Path(path)
    check_regular(path)
    try:
        return _checked_header(path)
    except ValueError as error:
        raise ValueError(f"the weights of {str(path)!r} cannot be read: {error}") from error


def _checked_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise ValueError(f"{size} bytes are too few for a safetensors file")
        (length,) = struct.unpack("<Q", start)
        if length > min(size - 8, _LARGEST_HEADER):
            raise ValueError(
                f"it claims a header of {length} bytes, and has {size} bytes in all: cut off, or no safetensors file"
            )
        entries = _parse(file.read(length), "its header", once=True)
    entries.pop("__metadata__", None)
    tensors, spans = {}, []
    for name, entry in entries.items():
        kind, shape, span = _entry(name, entry)
        tensors[name] = kind, shape
        spans.append((*span, name))
    _check_spans(sorted(spans), size - 8 - length)
    return tensors


def _are_numbers(found: Any) -> TypeGuard[list[int]]:
    return isinstance(found, list) and all(type(number) is int and number >= 0 for number in found)


def _entry(name: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """Type, shape, begin and end of one tensor."""
    found: dict[str, Any] = entry if isinstance(entry, dict) else {}
    kind: Any = found.get("dtype")
    shape, span = found.get("shape"), found.get("data_offsets")
    if not _are_numbers(shape) or not _are_numbers(span):
        raise ValueError(f"{name!r} has no shape, or does not say where it lies")
    if kind not in _BITS or len(span) != 2 or math.prod(shape) * _BITS[kind] != 8 * (span[1] - span[0]):
        raise ValueError(f"{name!r} has the type {kind!r}, the shape {shape} and the place {span}, which do not agree")
    return kind, tuple(shape), (span[0], span[1])


def _check_spans(spans: list[tuple[int, int, str]], size: int) -> None:
    """Raise `ValueError` where tensors overlap, leave gaps, or end elsewhere than the file does."""
    end = 0
    for begin, stop, name in spans:
        if begin != end:
            raise ValueError(f"{name!r} {'overlaps another tensor' if begin < end else 'leaves a gap before it'}")
        end = stop
    if end != size:
        raise ValueError(f"it holds {size} bytes of tensors, but its header speaks of {end}: cut off or damaged")


def read_index(path: Path) -> dict[str, str]:
    """Tensor names and the files they are in, of a `*.index.json`, all of which lie in its folder.

    Raises:
        ValueError: No weight map, or a file name that is a path.
    """
    found = read_json(path)
    places = found.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ValueError(f"{str(path)!r} has no `weight_map` of tensor names and file names")
    if not isinstance(found.get("metadata"), dict):
        raise ValueError(f"{str(path)!r} has no `metadata`, which every index has: it is damaged")
    for name in sorted(set(places.values())):
        # A name that is a path elsewhere, on whatever system, is one too many.
        if not name or name == ".." or name != Path(name).name or any(letter in name for letter in "\\:\0"):
            raise ValueError(f"{str(path)!r} names the file {name!r}: weights must lie in the folder itself")
    return places


def weight_files(folder: Path, variant: str | None = None, use_safetensors: bool | None = None) -> list[Path]:
    """The files that transformers would read the weights of a folder from, with the index first where there is one."""

    def named(name: str) -> Path:
        stem, suffix = name.rsplit(".", 1)
        return folder / (name if variant is None else f"{stem}.{variant}.{suffix}")

    names = ["model.safetensors", "model.safetensors.index.json"] if use_safetensors is not False else []
    names += [] if use_safetensors else ["pytorch_model.bin", "pytorch_model.bin.index.json"]
    for name in names:
        path = named(name)
        if not (path.exists() or path.is_symlink()):
            continue
        check_inside(path, folder)
        if not name.endswith(".json"):
            return [path]
        return [path, *(folder / shard for shard in sorted(set(read_index(path).values())))]
    return []


def check_weights(
    folder: Path, variant: str | None = None, use_safetensors: bool | None = None
) -> dict[str, tuple[int, ...]] | None:
    """Check the weights of a folder.

    Returns:
        Names and shapes of all tensors; `None` where only unpickling would tell, or where there are no weights.

    Raises:
        FileNotFoundError: A file of the index is not there.
        ValueError: A file is not what it claims to be, or lies elsewhere.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    files = weight_files(folder, variant, use_safetensors)
    for path in files:
        check_inside(path, folder)
        check_regular(path)
        if path.suffix == ".safetensors":
            shapes |= {name: shape for name, (_, shape) in read_safetensors_header(path).items()}
    return shapes if any(path.suffix == ".safetensors" for path in files) else None


def check_folder(folder: Path, variant: str | None = None, use_safetensors: bool | None = None) -> None:
    """Check the folder of a checkpoint: its weights, what its configuration claims, and links that lead out of it.

    Raises:
        FileNotFoundError: A file that an index names is not there.
        ValueError: A file is not what it claims to be, or lies elsewhere; the configuration claims far more layers
            than there are tensors.
    """
    for path in _links(folder):
        check_inside(path, folder)
    shapes = check_weights(folder, variant, use_safetensors)
    if not (folder / "config.json").exists():
        return
    config = read_json(folder / "config.json")
    check_claims(config)
    layers = next((config[name] for name in _LARGEST_CLAIMS if "layer" in name and name in config), 0)
    # Some may lack, which is for others to say; what is to be kept away is a model far larger than its files.
    if shapes is not None and isinstance(layers, (int, float)) and layers > len(shapes) + _FEW_LAYERS:
        raise ValueError(f"{str(folder)!r} claims {layers} layers, but holds {len(shapes)} tensors")


def _links(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.is_symlink() and path.suffix in _SUFFIXES)


__all__ = [
    "check_claims",
    "check_folder",
    "check_inside",
    "check_regular",
    "check_weights",
    "read_index",
    "read_json",
    "read_safetensors_header",
    "weight_files",
]
