"""Compiled transposed copies for the transforms of the long convolution.

Legend: `B` matrices, `R` rows, `C` columns.
"""

import numpy as np
import torch
from torch import Tensor

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import LANES, copy_transposed, pointer

__all__ = ["can_transpose", "transpose"]

_ZERO = {torch.float32: np.float32(0), torch.float64: np.float64(0)}


@kernel
def _transpose(source_address, source_row, target_address, target_row, rows, columns, like):
    """`target[j, i] = source[i, j]` of numbers of the type of `like`, in squares of 16 by 16 that stay in registers."""
    source, target = pointer(source_address, like), pointer(target_address, like)
    whole_rows, whole_columns = rows - rows % LANES, columns - columns % LANES
    for i in range(0, whole_rows, LANES):
        for j in range(0, whole_columns, LANES):
            at, to = i * source_row + j, j * target_row + i
            copy_transposed(source, at, source_row, target, to, target_row)
    for i in range(rows):
        for j in range(whole_columns if i < whole_rows else 0, columns):
            target[j * target_row + i] = source[i * source_row + j]


def can_transpose(source: Tensor, target: Tensor) -> bool:
    """Whether both tensors have one real dtype and dense rows."""
    dtype = source.dtype
    return dtype in _ZERO and target.dtype == dtype and source.stride(-1) == target.stride(-1) == 1


def transpose(source: Tensor, target: Tensor) -> None:
    """`target.copy_(source.mT)` of `source` `(B, R, C)` and `target` `(B, C, R)`."""
    for rows, columns in zip(source, target, strict=True):
        sizes = *rows.shape, _ZERO[rows.dtype]
        _transpose(rows.data_ptr(), rows.stride(0), columns.data_ptr(), columns.stride(0), *sizes)
