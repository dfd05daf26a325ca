"""Products `C A^l B` of powers of a matrix with two vectors: the kernel of a DPLR or dense system.

Dimensions: `L` length, `D` channels, `N` states, `M` columns, `R` rows, `R M >= L`.

With `l = i M + j`, `C A^l B` is the product of the rows `C A^(iM)` and the columns `A^j B`. Both are computed by
doubling, `(x, A^m x)` and `A^(2m) = A^m A^m`.
"""

import torch

from hf_ssm.ops.context import is_exporting, no_autocast
from hf_ssm.ops.lti.exponential_sums import joined_rows, split_length

__all__ = ["dense_kernel", "times_powers"]

# Bits of the number of a row of an exported program, for 64 * 65,536 taps.
_EXPORTED_BITS = 16


def dense_kernel(a_bar: torch.Tensor, b_bar: torch.Tensor, c: torch.Tensor, length: int) -> torch.Tensor:
    """`C A_bar^l B_bar` for `l < length`, `(D, L)`, of real matrices `(D, N, N)` and vectors `(D, N)`.

    In double precision: float32 powers lose all but three digits at `l = 10^4`.
    """
    rows, columns = split_length(length)
    power, right, left = a_bar, b_bar.unsqueeze(-1), c.unsqueeze(-2)
    with no_autocast(c.device):
        while right.shape[-1] < columns:
            right = torch.cat([right, power @ right], dim=-1)
            power = power @ power
        if is_exporting():
            left = times_powers(left.expand(-1, rows, -1), power)
        while not is_exporting() and left.shape[-2] < rows:
            if left.shape[-2] > 1:
                power = power @ power
            left = torch.cat([left, left @ power], dim=-2)
        return joined_rows((left if is_exporting() else left[:, :rows]) @ right, length)


def times_powers(vectors: torch.Tensor, power: torch.Tensor) -> torch.Tensor:
    """Row i of `(..., R, N)` times the i-th power of `(..., N, N)`, for a number of rows that a program leaves open."""
    index = torch.arange(vectors.shape[-2], device=vectors.device).unsqueeze(-1)
    for bit in range(_EXPORTED_BITS):
        vectors = torch.where((index >> bit) % 2 == 1, vectors @ power, vectors)
        power = power @ power
    return vectors
