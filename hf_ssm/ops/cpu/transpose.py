"""Transposing a matrix that lies with some distance between its rows.

Legend: `R` rows, `C` columns.
"""

import numpy as np
import torch
from torch import Tensor

__all__ = ["can_transpose", "copy_transposed"]

_ZERO = {torch.float32: np.float32(0), torch.float64: np.float64(0)}


def can_transpose(*tensors: Tensor) -> bool:
    """Whether these matrices are of one real type, with rows that are dense."""
    dtype = tensors[0].dtype
    return dtype in _ZERO and all(t.dtype == dtype and t.stride(-1) == 1 for t in tensors)


def copy_transposed(source: Tensor, target: Tensor) -> None:
    """`target.copy_(source.T)`, in squares of sixteen numbers that stay in registers.

    Args:
        source: `(R, C)`, which `can_transpose`, on a CPU.
        target: `(C, R)`, likewise.
    """
    from hf_ssm.ops.cpu.transpose_kernel import transpose

    rows, columns = source.shape
    transpose(
        source.data_ptr(), source.stride(0), target.data_ptr(), target.stride(0), rows, columns, _ZERO[source.dtype]
    )
