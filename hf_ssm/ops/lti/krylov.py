"""Powers of small matrices between two vectors: the kernel of a DPLR or dense system, with its own backward.

Dimensions: `L` length, `D` channels, `N` states, `H = N // 2` stored conjugate pairs, `S` columns given, `M` columns,
`R` rows, `R M >= L`.

With `l = i M + j`, `C A^l B` is the product of the rows `C A^(iM)` and the columns `A^j B`. Columns are computed by
doubling, `(x, A^m x)` and `A^(2m) = A^m A^m`; so are the first sixteen rows, and further rows eight at a time. The
dominant cost is squaring, `O(N^3)`; the structure of a diagonal-plus-low-rank matrix saves the first four squarings.
The backward reverses these steps with recomputed powers. Channels are processed in blocks whose powers fit the
processor's cache.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from hf_ssm.ops.context import NAMESPACE, in_function_transform, no_autocast
from hf_ssm.ops.lti.exponential_sums import block_bytes, multiply_into, split_length, to_rows
from hf_ssm.ops.operators import differentiable_operator, empty_gradients

__all__ = [
    "START_COLUMNS",
    "KrylovInputs",
    "Start",
    "bilinear_start",
    "dense_kernel",
    "dense_start",
    "empty_taps",
    "krylov_products",
    "plain_krylov_products",
    "plain_taps",
]

# Number of powers for the rows: sixteen rows by doubling, then eight at a time by the last power. More doublings need
# more squarings, each of which costs as much as `N` rows; fewer rows at a time are slow to multiply.
_ROW_LEVELS = 4
# Columns computed by the structure of a diagonal-plus-low-rank matrix, a power of two.
START_COLUMNS = 16


class Start(NamedTuple):
    """`A^S = diag(δ) + outer^T inner` and `S` columns, from which the powers and columns of `A` are computed.

    In real coordinates `(Re x, Im x)`, double precision.
    """

    delta: torch.Tensor  # (D, H), complex; acts on Re x + i Im x
    outer: torch.Tensor  # (D, K, N)
    inner: torch.Tensor  # (D, K, N)
    columns: torch.Tensor  # A^j B for j < S, (D, S, N); S a power of two


def dense_start(a_bar: torch.Tensor, b_bar: torch.Tensor) -> Start:
    """The start for any real matrices `(D, N, N)`, N even, and vectors `(D, N)`, float64: one column."""
    channels, states = b_bar.shape
    delta = torch.zeros(channels, states // 2, dtype=torch.complex128, device=b_bar.device)
    identity = torch.eye(states, dtype=b_bar.dtype, device=b_bar.device).expand(channels, states, states)
    return Start(delta, identity, a_bar, b_bar.unsqueeze(1))


def bilinear_start(
    lam: torch.Tensor, p: torch.Tensor, b: torch.Tensor, dt: torch.Tensor, length: int, columns: int = START_COLUMNS
) -> Start:
    """The start for `A = diag(λ) - p p^*` discretised by the bilinear rule, in `O(N)` operations per column.

    By the Woodbury identity `A_bar x = δ x - g q Re Σ r x` on the stored half, with `d = 1 - λ dt / 2`,
    `δ = (1 + λ dt / 2) / d`, `q = p / d`, `r = p^* / d` and `g = 2 dt / (1 + dt Re Σ r p)`, so that
    `A_bar^S x = δ^S x - Σ_k (δ^(S-1-k) g q) Re Σ (r A_bar^k) x`.

    Args:
        lam: Diagonal part `(D, H)`, complex128.
        p: Low-rank factor `(D, H)`, complex128.
        b: Input weights `(D, H)`, complex128.
        dt: Step sizes `(D,)`, float64.
        length: Number of taps `L` of the kernel: a short kernel needs a short start.
        columns: The most columns of the start, a power of two.

    Returns:
        A `Start` with up to that many columns.

    Source: Gu, Goel & Ré 2022 (S4), Appendix C.2, for the discrete matrix; its use is original.
    """
    step = dt.unsqueeze(-1)
    inverse = 1 / (1 - step / 2 * lam)
    delta, r = (1 + step / 2 * lam) * inverse, inverse * p.conj()
    # From here on g q.
    q = 2 * step / (1 + step * (r * p).real.sum(-1, keepdim=True)) * inverse * p
    column = step * inverse * b - step / 2 * q * (r * b).real.sum(-1, keepdim=True)
    # Rows r A_bar^k and columns, advanced together.
    vectors, ahead, behind = torch.stack([r, column]), torch.stack([q, r]), torch.stack([r, q])
    made, power, outers = [vectors], delta, [-q]
    for _ in range(min(columns, split_length(length)[1]) - 1):
        vectors = delta * vectors - behind * (ahead * vectors).real.sum(-1, keepdim=True)
        made.append(vectors)
        power = delta * power
        outers.append(delta * outers[-1])
    inner, made_columns = torch.stack(made, dim=2).unbind()
    outer = torch.stack(outers[::-1], dim=1)
    return Start(power, *(_real_coordinates(part) for part in (outer, inner.conj(), made_columns)))


def _real_coordinates(z: torch.Tensor) -> torch.Tensor:
    """Complex `(..., H)` -> `(..., N)` in real coordinates."""
    return torch.cat([z.real, z.imag], dim=-1)


def krylov_products(start: Start, c: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """`k[l] = C A^l B` for `l < length`.

    Powers and tables are computed in float64 (float32 powers lose all but three digits at `l = 10^4`) and rounded once
    to the working precision, for the product of rows and columns and for the backward.

    Args:
        start: Of `A` and `B`.
        c: Output vectors `(D, N)`, float64.
        length: Number of taps `L`, at least 1.
        dtype: The working precision, float32 or float64.

    Returns:
        `(D, L)` in that precision.
    """
    if in_function_transform():
        return plain_krylov_products(*start, c, length=length, dtype=dtype)
    kernel: torch.Tensor = _krylov_products(*start, c, length, dtype == torch.float64)
    return kernel


def plain_krylov_products(
    delta: torch.Tensor,
    outer: torch.Tensor,
    inner: torch.Tensor,
    columns: torch.Tensor,
    c: torch.Tensor,
    *,
    length: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The products by operations of torch that are differentiable any number of times, in any mode."""
    count, size = split_length(length)
    real, imag = torch.diag_embed(delta.real), torch.diag_embed(delta.imag)
    with no_autocast(c.device):
        power = outer.mT @ inner + torch.cat([torch.cat([real, -imag], -1), torch.cat([imag, real], -1)], -2)
        while columns.shape[1] < size:
            columns = torch.cat([columns, columns @ power.mT], dim=1)
            power = power @ power
        rows = c.unsqueeze(1)
        while rows.shape[1] < count:
            rows = torch.cat([rows, rows @ power], dim=1)
            power = power @ power
        return (rows[:, :count] @ columns.mT).flatten(1)[:, :length].to(dtype)


def dense_kernel(a_bar: torch.Tensor, b_bar: torch.Tensor, c: torch.Tensor, length: int) -> torch.Tensor:
    """`C A_bar^l B_bar` for `l < length`, `(D, L)`: of real matrices `(D, N, N)`, N even, and vectors `(D, N)`."""
    return krylov_products(dense_start(a_bar, b_bar), c, length, torch.float64)


class _KrylovTables(NamedTuple):
    powers: list[torch.Tensor]  # A^(S 2^k), each (D, N, N); the first `levels` for columns, the others for rows
    levels: int
    rows: torch.Tensor  # C A^(iM), (D, R, N)
    columns: torch.Tensor  # A^j B, (D, M, N)


def _split_krylov(length: int, first: int) -> tuple[int, int, int, int]:
    """Rows, columns, and the numbers of powers for the columns and for the rows."""
    rows, columns = split_length(length)
    return rows, columns, (columns // first).bit_length() - 1, min(_ROW_LEVELS, (rows - 1).bit_length())


def _dense_channel_blocks(start: Start, length: int) -> tuple[list[slice], torch.Tensor]:
    """Slices of channels, and memory for their powers: new memory for each block would double the cost."""
    channels, first, states = start.columns.shape
    rows, columns, levels, row_levels = _split_krylov(length, first)
    numbers = states * (rows + columns + states * (levels + row_levels + 1))
    size = max(1, block_bytes(start.columns.device) // max(1, numbers * start.columns.element_size()))
    room = start.columns.new_empty(max(1, levels + row_levels), min(size, channels), states, states)
    return [slice(begin, begin + size) for begin in range(0, channels, size)], room


def _start_of_channels(start: Start, block: slice) -> Start:
    return Start(*(t[block] for t in start))


def _extend(first: torch.Tensor, powers: list[torch.Tensor], count: int) -> torch.Tensor:
    """Rows `(D, S, N)` times `1, P, P^2, ...`: `(D, count, N)`, `powers` being `P, P^2, P^4, ...`."""
    table = first.new_empty(first.shape[0], count, first.shape[2])
    table[:, : first.shape[1]] = first
    for source, target, size, power in _extension_steps(first.shape[1], powers, count):
        table[:, target : target + size] = table[:, source : source + size] @ power
    return table


def _extension_steps(first: int, powers: list[torch.Tensor], count: int) -> list[tuple[int, int, int, torch.Tensor]]:
    """Source row, target row, number of rows and power of each step: doubling, then repeatedly the last power."""
    steps = []
    filled = first
    for power in powers:
        steps.append((0, filled, min(filled, count - filled), power))
        filled *= 2
    stride = filled // 2
    while filled < count:
        steps.append((filled - stride, filled, min(stride, count - filled), powers[-1]))
        filled += stride
    return steps


def _unextend(
    table: torch.Tensor, grad: torch.Tensor, first: int, powers: list[torch.Tensor], with_powers: bool
) -> list[torch.Tensor]:
    """The backward of `_extend`: gradients of the powers; `grad` becomes the gradient of the first rows."""
    count = table.shape[1]
    for source, target, size, power in reversed(_extension_steps(first, powers, count)):
        grad[:, source : source + size] += grad[:, target : target + size] @ power.mT
    if not with_powers:
        return []
    gradients = []
    for k in range(len(powers)):
        stride = first << k
        size = count - stride if k == len(powers) - 1 else min(stride, count - stride)
        gradients.append(table[:, :size].mT @ grad[:, stride : stride + size])
    return gradients


def _krylov_tables(start: Start, c: torch.Tensor, length: int, room: torch.Tensor) -> _KrylovTables:
    rows, columns, levels, row_levels = _split_krylov(length, start.columns.shape[1])
    powers = list(room[:, : c.shape[0]].unbind())
    power = torch.bmm(start.outer.mT, start.inner, out=powers[0])
    half = power.shape[-1] // 2
    # Multiplication by complex numbers as a matrix in real coordinates.
    power.diagonal(0, -2, -1).add_(start.delta.real.repeat(1, 2))
    power.diagonal(half, -2, -1).sub_(start.delta.imag)
    power.diagonal(-half, -2, -1).add_(start.delta.imag)
    for root, square in pairwise(powers):
        torch.bmm(root, root, out=square)
    return _KrylovTables(
        powers,
        levels,
        _extend(c.unsqueeze(1), powers[levels : levels + row_levels], rows),
        _extend(start.columns, [p.mT for p in powers[:levels]], columns),
    )


def _unsquare(powers: list[torch.Tensor], gradients: list[torch.Tensor]) -> torch.Tensor:
    """The gradient of the first power, from the gradients of its repeated squares."""
    if not gradients:
        return torch.zeros_like(powers[0])
    total = gradients[-1]
    for power, direct in zip(powers[-2::-1], gradients[-2::-1], strict=True):
        total = torch.baddbmm(direct, total, power.mT).baddbmm_(power.mT, total)
    return total


class KrylovInputs(NamedTuple):
    """The tensors of `krylov_products`: those of a `Start`, and the output vectors."""

    delta: torch.Tensor
    outer: torch.Tensor
    inner: torch.Tensor
    columns: torch.Tensor
    c: torch.Tensor

    @property
    def start(self) -> Start:
        return Start(*self[:4])


def empty_taps(args: KrylovInputs, length: int, double: bool = False) -> torch.Tensor:
    """Memory for the taps `(D, L)`."""
    return args.c.new_empty(args.c.shape[0], length, dtype=torch.float64 if double else torch.float32)


def plain_taps(args: KrylovInputs, length: int, double: bool = False) -> torch.Tensor:
    """`plain_krylov_products` with the arguments of the operator."""
    return plain_krylov_products(*args, length=length, dtype=torch.float64 if double else torch.float32)


def _run_products(args: KrylovInputs, length: int, double: bool) -> torch.Tensor:
    start, c, kernel = args.start, args.c, empty_taps(args, length, double)
    with no_autocast(c.device):
        blocks, room = _dense_channel_blocks(start, length)
        for block in blocks:
            tables = _krylov_tables(_start_of_channels(start, block), c[block], length, room)
            multiply_into(kernel[block], tables.rows.to(kernel.dtype), tables.columns.to(kernel.dtype))
    return kernel


def _run_products_backward(
    grad: torch.Tensor, args: KrylovInputs, length: int, double: bool, wanted: Sequence[bool]
) -> list[torch.Tensor]:
    start, c, gradients = args.start, args.c, empty_gradients(args, wanted)
    with no_autocast(grad.device):
        blocks, room = _dense_channel_blocks(start, length)
        for block in blocks:
            values = _block_backward(grad[block], _start_of_channels(start, block), c[block], room, wanted)
            for gradient, value, want in zip(gradients, values, wanted, strict=True):
                if want and value is not None:
                    gradient[block] = value
    return gradients


def _block_backward(
    grad: torch.Tensor, start: Start, c: torch.Tensor, room: torch.Tensor, wanted: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    length, first, with_power = grad.shape[1], start.columns.shape[1], any(wanted[:3])
    rows, columns, levels, row_levels = _split_krylov(length, first)
    tables = _krylov_tables(start, c, length, room)
    powers = [p.to(grad.dtype) for p in tables.powers]
    row_table, column_table = tables.rows.to(grad.dtype), tables.columns.to(grad.dtype)
    taps = to_rows(grad, rows, columns)
    grad_rows, grad_columns = taps @ column_table, taps.mT @ row_table
    of_rows = _unextend(row_table, grad_rows, 1, powers[levels : levels + row_levels], with_power)
    of_columns = _unextend(column_table, grad_columns, first, [p.mT for p in powers[:levels]], with_power)
    if not with_power:
        return None, None, None, grad_columns[:, :first], grad_rows[:, 0]
    grad_power = _unsquare(powers, [g.mT for g in of_columns] + of_rows)
    half = c.shape[-1] // 2
    real = grad_power.diagonal(0, -2, -1).unflatten(-1, (2, half)).sum(1)
    imag = grad_power.diagonal(-half, -2, -1) - grad_power.diagonal(half, -2, -1)
    grad_outer = start.inner.to(grad.dtype) @ grad_power.mT if wanted[1] else None
    grad_inner = start.outer.to(grad.dtype) @ grad_power if wanted[2] else None
    return torch.complex(real, imag), grad_outer, grad_inner, grad_columns[:, :first], grad_rows[:, 0]


_krylov_products, _krylov_products_backward = differentiable_operator(
    f"{NAMESPACE}::krylov_products",
    tensors=KrylovInputs,
    options="SymInt length, bool double",
    forward=_run_products,
    fake=empty_taps,
    backward=_run_products_backward,
    plain=plain_taps,
)
