"""Tensors as arguments of compiled kernels."""

from torch import Tensor

__all__ = ["address", "dense_rows", "place", "round_up"]


def round_up(number: int, multiple: int) -> int:
    return (number + multiple - 1) // multiple * multiple


def address(t: Tensor | None) -> int:
    """Address of the first element; 0 for `None` and for an empty tensor."""
    return 0 if t is None or t.numel() == 0 else t.data_ptr()


def dense_rows(t: Tensor) -> Tensor:
    """The tensor itself if its last dimension is dense, else a copy."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def place(t: Tensor | None, axes: int) -> tuple[int, ...]:
    """Address and strides of the first `axes` dimensions, in real numbers; zeros for `None`."""
    if t is None:
        return (0,) * (axes + 1)
    return address(t), *(stride * (2 if t.is_complex() else 1) for stride in t.stride()[:axes])
