"""Weighted sums of powers of complex numbers: the kernel of a diagonal system, with its own backward.

Dimensions: `L` length, `D` channels, `H` stored conjugate pairs, `M` columns, `R` rows, `R M >= L`.

With `l = i M + j`, `exp(x l)` is `exp(x M i) exp(x j)`: two short tables, whose real matrix product per channel is the
kernel. The backward multiplies the gradient with the table of the columns, unweighted and weighted by `j`, and sums the
products over the rows. Channels are processed in blocks whose tables fit the processor's cache; only the parameters are
kept for the backward, since the tables are cheaper to compute than to load.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from hf_ssm.ops.context import NAMESPACE, in_function_transform, no_autocast
from hf_ssm.ops.operators import differentiable_operator, empty_gradients

__all__ = [
    "SumInputs",
    "block_bytes",
    "empty_sums",
    "exponential_sums",
    "multiply_into",
    "plain_exponential_sums",
    "plain_sums",
    "split_length",
    "to_rows",
]

_CPU_BLOCK, _GPU_BLOCK = 2**22, 2**28


def block_bytes(device: torch.device) -> int:
    """Bytes of the tables of a block of channels: on a CPU a part of its cache, elsewhere a part of the memory."""
    return _CPU_BLOCK if device.type == "cpu" else _GPU_BLOCK


def split_length(length: int) -> tuple[int, int]:
    """`(rows, columns)`, columns a power of two near the root of the length, rows * columns >= length."""
    columns = 1 << ((length - 1).bit_length() + 1) // 2
    return -(-length // columns), columns


def multiply_into(kernel: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Write the product of `(D, R, K)` and `(D, M, K)` transposed to the kernel `(D, L)`, row by row."""
    rows, columns = left.shape[1], right.shape[1]
    if rows * columns == kernel.shape[1]:
        torch.bmm(left, right.mT, out=kernel.unflatten(-1, (rows, columns)))
    else:
        kernel.copy_((left @ right.mT).flatten(1)[:, : kernel.shape[1]])


def to_rows(taps: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """`(D, L)` -> `(D, R, M)`, padded with zeros."""
    missing = rows * columns - taps.shape[1]
    return (F.pad(taps, (0, missing)) if missing else taps).unflatten(-1, (rows, columns))


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
    if in_function_transform():
        return plain_exponential_sums(log_base, weights, length, dtype)
    kernel: torch.Tensor = _exponential_sums(log_base, weights, length, dtype == torch.float64)
    return kernel


def plain_exponential_sums(
    log_base: torch.Tensor, weights: torch.Tensor, length: int, dtype: torch.dtype
) -> torch.Tensor:
    """The sums by operations of torch that are differentiable any number of times, in any mode."""
    rows, columns = split_length(length)
    steps = torch.arange(max(rows, columns), dtype=torch.float64, device=log_base.device).unsqueeze(-1)
    with no_autocast(log_base.device):
        left = weights.unsqueeze(1) * torch.exp(log_base.unsqueeze(1) * (columns * steps[:rows]))
        right = torch.exp(log_base.unsqueeze(1) * steps[:columns])
        return (left @ right.mT).real.flatten(1)[:, :length].to(dtype)


def _diagonal_channel_blocks(log_base: torch.Tensor, length: int) -> list[slice]:
    """Slices of channels to process at a time."""
    channels, pairs = log_base.shape
    budget = block_bytes(log_base.device)
    size = max(1, budget // (2 * sum(split_length(length)) * max(pairs, 1) * log_base.element_size()))
    return [slice(start, start + size) for start in range(0, channels, size)]


def _ladders(log_base: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`exp(log_base · stride · 2^k)` for all channels, `(K, D, H)`: for the columns, stride 1, and for the rows."""
    rows, columns = split_length(length)
    strides = [1 << k for k in range((columns - 1).bit_length() + (rows - 1).bit_length())]
    scales = torch.tensor(strides, dtype=torch.float64, device=log_base.device)
    ladder = (scales.view(-1, 1, 1) * log_base).exp_()
    return ladder[: (columns - 1).bit_length()], ladder[(columns - 1).bit_length() :]


def _powers(ladder: torch.Tensor, count: int) -> torch.Tensor:
    """`exp(x · stride · i)` for `i < count`: the steps `(K, D, H)` of a block -> `(D, count, H)`.

    By doubling, with one exponential for each step: a complex product costs a fortieth of an exponential.
    """
    table = ladder.new_empty(ladder.shape[1], count, ladder.shape[2])
    table[:, 0] = 1
    for k, step in enumerate(ladder):
        size = 1 << k
        new = min(size, count - size)
        torch.mul(table[:, :new], step.unsqueeze(1), out=table[:, size : size + new])
    return table


def _interleaved(z: torch.Tensor, double: bool) -> torch.Tensor:
    """`(D, R, H)` -> `(D, R, 2 H)`, real and imaginary parts alternating, rounded to the working precision."""
    return torch.view_as_real(_rounded(z, double)).flatten(-2)


def _rounded(z: torch.Tensor, double: bool) -> torch.Tensor:
    return z.to(torch.complex128 if double else torch.complex64)


class SumInputs(NamedTuple):
    """The tensors of `exponential_sums`, complex128."""

    log_base: torch.Tensor
    weights: torch.Tensor


def empty_sums(args: SumInputs, length: int, double: bool = False) -> torch.Tensor:
    """Memory for the taps `(D, L)`."""
    return args.log_base.new_empty(args.log_base.shape[0], length, dtype=torch.float64 if double else torch.float32)


def _run_sums(args: SumInputs, length: int, double: bool) -> torch.Tensor:
    log_base, weights = args
    rows, columns = split_length(length)
    kernel = empty_sums(args, length, double)
    # The conjugate on the left turns the interleaved real product into Re w Re e - Im w Im e.
    mirrored_weights = weights.conj().resolve_conj()
    fine, coarse = _ladders(log_base, length)
    coarse = coarse.conj_physical_()
    with no_autocast(log_base.device):
        for block in _diagonal_channel_blocks(log_base, length):
            left = _powers(coarse[:, block], rows).mul_(mirrored_weights[block].unsqueeze(1))
            right = _powers(fine[:, block], columns)
            multiply_into(kernel[block], _interleaved(left, double), _interleaved(right, double))
    return kernel


def _run_sums_backward(
    grad: torch.Tensor, args: SumInputs, length: int, double: bool, wanted: Sequence[bool]
) -> tuple[torch.Tensor, torch.Tensor]:
    (log_base, weights), with_base = args, wanted[0]
    rows, columns = split_length(length)
    grad_base, grad_weights = empty_gradients(args, (with_base, True))
    fine, coarse = _ladders(log_base, length)
    column = torch.arange(columns, dtype=grad.dtype, device=grad.device).unsqueeze(-1)
    row = columns * torch.arange(rows, dtype=grad.dtype, device=grad.device).unsqueeze(-1)
    with no_autocast(grad.device):
        for block in _diagonal_channel_blocks(log_base, length):
            right = _interleaved(_powers(fine[:, block], columns), double)
            left = _rounded(_powers(coarse[:, block], rows), double)
            taps = to_rows(grad[block], rows, columns)
            # Σ_j dk exp(x j) and Σ_j j dk exp(x j), (D, R, H).
            sums = torch.view_as_complex((taps @ right).unflatten(-1, (-1, 2)))
            grad_weights[block] = (sums * left).sum(1)
            if with_base:
                moments = torch.view_as_complex((taps @ (right * column)).unflatten(-1, (-1, 2)))
                grad_base[block] = moments.addcmul_(row, sums).mul_(left).sum(1)
    if with_base:
        grad_base.mul_(weights)
    return grad_base.conj_physical_(), grad_weights.conj_physical_()


def plain_sums(args: SumInputs, length: int, double: bool = False) -> torch.Tensor:
    """`plain_exponential_sums` with the arguments of the operator."""
    return plain_exponential_sums(*args, length, torch.float64 if double else torch.float32)


_exponential_sums, _exponential_sums_backward = differentiable_operator(
    f"{NAMESPACE}::exponential_sums",
    tensors=SumInputs,
    options="SymInt length, bool double",
    forward=_run_sums,
    fake=empty_sums,
    backward=_run_sums_backward,
    plain=plain_sums,
)
