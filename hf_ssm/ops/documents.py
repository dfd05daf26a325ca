"""Documents that scans read in one row. Legend: `B` batch, `L` length."""

import torch
from torch import Tensor

__all__ = ["document_starts"]


def document_starts(seq_idx: Tensor | None, x: Tensor) -> Tensor | None:
    """Whether a document other than the first of its row begins at a position, `(B, L)`.

    Raises:
        ValueError: Another shape than the first two axes of `x`.
        TypeError: Not integers.
    """
    if seq_idx is None:
        return None
    if seq_idx.shape != x.shape[:2]:
        raise ValueError(f"seq_idx must have shape (batch, length) = {tuple(x.shape[:2])}, got {tuple(seq_idx.shape)}")
    if seq_idx.is_floating_point() or seq_idx.is_complex() or seq_idx.dtype == torch.bool:
        raise TypeError(f"seq_idx must be of an integer type, got {seq_idx.dtype}")
    # Without slices, of whose length an exported program would have to know whether it is 1.
    begins = torch.arange(x.shape[1], device=seq_idx.device) > 0
    return (seq_idx != seq_idx.roll(1, 1)) & begins
