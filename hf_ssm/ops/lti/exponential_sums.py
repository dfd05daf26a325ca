"""Weighted sums of powers of complex numbers: the kernel of a diagonal system.

Dimensions: `L` length, `D` channels, `H` stored conjugate pairs, `M` columns, `R` rows, `R M >= L`.

With `l = i M + j`, `exp(x l)` is `exp(x M i) exp(x j)`: two short tables, whose real matrix product per channel is the
kernel.
"""

from functools import partial

import torch

from hf_ssm.ops.blocks import block_count, first_positions
from hf_ssm.ops.context import is_exporting, no_autocast, recomputed

__all__ = ["exponential_sums", "joined_rows", "split_length"]


def split_length(length: int) -> tuple[int, int]:
    """`(rows, columns)`, columns a power of two near the root of the length, rows * columns >= length."""
    if is_exporting():
        # The number of columns must not depend on the length.
        return block_count(length, 64), 64
    columns = 1 << ((length - 1).bit_length() + 1) // 2
    return -(-length // columns), columns


def joined_rows(table: torch.Tensor, length: int) -> torch.Tensor:
    """`(D, R, M)` -> `(D, L)`."""
    taps = table.flatten(1)
    return first_positions(taps, 1, length) if is_exporting() else taps[:, :length]


def exponential_sums(log_base: torch.Tensor, weights: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """`k[l] = Re Σ_n w_n exp(x_n l)` for `l < length`.

    The tables are computed in complex128 and rounded once to the working precision, so that the phase of `exp(x l)` is
    accurate at any length. Differentiable with respect to both tensors.

    Args:
        log_base: `x`, `(D, H)`, complex128.
        weights: `w`, `(D, H)`, complex128.
        length: Number of taps `L`, at least 1.
        dtype: The working precision, float32 or float64.

    Returns:
        `(D, L)` in that precision.

    Source: Gu et al. 2022 (S4D), Section 3.2, for the sum; the algorithm is original.
    """
    with no_autocast(log_base.device):
        taps: torch.Tensor = recomputed(partial(_two_level_sums, length=length, dtype=dtype), log_base, weights)
    return taps


def _two_level_sums(log_base: torch.Tensor, weights: torch.Tensor, *, length: int, dtype: torch.dtype) -> torch.Tensor:
    rows, columns = split_length(length)
    complex_dtype = torch.complex128 if dtype == torch.float64 else torch.complex64

    def powers(count: int, stride: int) -> torch.Tensor:
        """`exp(x stride i)` for `i < count`, `(D, count, H)`; by doubling, as products cost far less than `exp`."""
        if is_exporting():
            steps = stride * torch.arange(count, dtype=torch.float64, device=log_base.device)
            return torch.exp(log_base.unsqueeze(1) * steps.unsqueeze(-1))
        table = torch.ones_like(log_base).unsqueeze(1)
        while table.shape[1] < count:
            table = torch.cat([table, table * torch.exp(log_base * (stride * table.shape[1])).unsqueeze(1)], dim=1)
        return table[:, :count]

    left = (weights.unsqueeze(1) * powers(rows, columns)).to(complex_dtype)
    right = powers(columns, 1).to(complex_dtype)
    # Re x y = Re x Re y - Im x Im y, by one real product.
    left, right = torch.cat([left.real, -left.imag], dim=-1), torch.cat([right.real, right.imag], dim=-1)
    return joined_rows(left @ right.mT, length)
