"""State dicts that others have written: reading them from a file safely, and checking what is in them."""

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from hf_ssm.models.base.files import check_regular, read_safetensors_header

# Where training scripts keep the state dict among other things.
_INSIDE = ("state_dict", "model_state_dict", "model")


def load_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a `.safetensors` file, or in a file of torch (also below `state_dict` or `model` there).

    Nothing that is in the file is run, and no more memory is taken than it has bytes.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not what it claims to be, needs code to be run, or holds no state dict.
    """
    path = Path(path)
    check_regular(path)
    if path.suffix == ".safetensors":
        read_safetensors_header(path)
        return load_file(path)
    _check_not_packed(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    # A damaged pickle fails in as many ways as there are instructions in it.
    except Exception as error:
        raise ValueError(
            f"{str(path)!r} is no file of tensors that torch can load safely (`weights_only=True`, which runs no code)"
        ) from error
    inside = found if isinstance(found, dict) else {}
    for name in _INSIDE:
        if isinstance(inside.get(name), dict):
            found = inside[name]
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise ValueError(f"{str(path)!r} holds no state dict (names and tensors)")
    for name, tensor in found.items():
        # A pickle can claim any shape by repeating the numbers that it has.
        here = tensor.layout == torch.strided and not tensor.is_meta
        if here and tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(f"{name} in {str(path)!r} claims the shape {tuple(tensor.shape)}, but has fewer numbers")
    return found


def _check_not_packed(path: Path) -> None:
    """Raise `ValueError` for an archive that would unpack to more than it is; torch itself never packs."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError) as error:
        raise ValueError(f"{str(path)!r} is no file of tensors that torch can load safely: {error}") from error
    if unpacked > path.stat().st_size:
        raise ValueError(
            f"{str(path)!r} is no file of tensors that torch can load safely: it would unpack to {unpacked} bytes"
        )


def check_names(found: Iterable[str], expected: Iterable[str], what: str) -> None:
    """Raise `ValueError` unless both are the same names; all that are missing, and all that are too many, are listed.

    Args:
        found: Names of tensors.
        expected: Those of a whole state dict.
        what: Whose state dict it would be, for the message.
    """
    found, expected = set(found), set(expected)
    parts = [
        f"{how} {', '.join(sorted(names))}"
        for how, names in (("missing", expected - found), ("unknown", found - expected))
        if names
    ]
    if parts:
        raise ValueError(f"not a state dict of {what}: {'; '.join(parts)}")


def check_tensors(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[str | int, ...]], sizes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Check tensors that are to become weights: dense, real, finite, and of shapes that fit together.

    Args:
        tensors: By name, those of `shapes` among them.
        shapes: A letter for each size that may be any, but the same wherever the letter stands.
        sizes: Sizes that are known already.

    Returns:
        The sizes by their letters.

    Raises:
        ValueError: One that does not, by its name.
    """
    known: dict[str, int] = dict(sizes or {})
    for name, letters in shapes.items():
        tensor = tensors[name]
        shape = tuple(tensor.shape)
        expected = tuple(letter if isinstance(letter, int) else known.get(letter) for letter in letters)
        fits = len(shape) == len(expected) and all(e in (None, s) for e, s in zip(expected, shape, strict=True))
        if not fits or 0 in shape:
            raise ValueError(f"{name} has the shape {shape}, which does not fit {letters} with {known}")
        check_tensor(name, tensor)
        known |= {letter: s for letter, s in zip(letters, shape, strict=True) if isinstance(letter, str)}
    return known


def check_tensor(name: str, tensor: Tensor) -> None:
    """Raise `ValueError` for what is no dense tensor of finite real numbers."""
    if tensor.is_meta or tensor.layout != torch.strided or not tensor.is_floating_point():
        raise ValueError(f"{name} must be a dense tensor of real floating point numbers, got {tensor.dtype}")
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{name} holds NaN or infinite values")


def widest(tensors: Iterable[Tensor]) -> torch.dtype:
    """The precision that holds all of them, float32 at least."""
    found: Any = torch.float32
    for tensor in tensors:
        if tensor.is_floating_point():
            found = torch.promote_types(found, tensor.dtype)
    return found


__all__ = ["check_names", "check_tensor", "check_tensors", "load_state_dict", "widest"]
