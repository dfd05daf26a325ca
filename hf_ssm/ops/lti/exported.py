"""State space models in real arithmetic, for exported programs of any length.

Dimensions: `B` batch, `L` length, `D` channels, `N` real states, `H = N // 2` stored conjugate pairs, `R` blocks of 64
positions.

States are `(Re x, Im x)` of the stored half. An exported program can contain neither complex numbers, which ONNX does
not have, nor a number of operations that depends on the length. With `l = 64 i + j`, `C A^l B` is the product of
`C A^j` and `A^(64 i) B`; the number of the latter depends on the length, and is reached by four levels of 16. All but
these depends on the parameters only, so that a runtime which folds constants computes it once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.blocks import block_count, first_positions, in_blocks
from hf_ssm.ops.long_conv import long_conv
from hf_ssm.ops.lti.discretize import check_discretization

__all__ = ["ExportedSystem", "exported_system"]

_SYSTEM_BLOCK = 64
# Powers of a diagonal matrix are the products of those in two tables of 256; powers of a dense one are applied at four
# levels of 16: 64 * 65,536 positions, 4,194,304.
_TABLE = 256
_FACTOR = 16
_SYSTEM_LEVELS = 4
# The exponential of a matrix of norm up to 4096 to double precision: 2^16 parts, each by 8 terms of the series.
_SQUARINGS, _TERMS = 16, 8


@dataclass(frozen=True)
class _Rotations:
    """A block-diagonal matrix per channel that multiplies the stored half by complex numbers `(D, H)`."""

    real: Tensor
    imag: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """The matrix times vectors `(D, n, N)`."""
        real, imag = x.chunk(2, dim=-1)
        r, i = self.real.unsqueeze(1), self.imag.unsqueeze(1)
        return torch.cat([real * r - imag * i, real * i + imag * r], dim=-1)

    def squared(self) -> "_Rotations":
        return _Rotations(self.real * self.real - self.imag * self.imag, 2 * self.real * self.imag)

    def powers(self, count: int) -> tuple[Tensor, Tensor]:
        """The numbers to the powers `i < count`, `(D, count, H)` each: real and imaginary parts."""
        one = torch.cat([torch.ones_like(self.real), torch.zeros_like(self.real)], dim=-1)
        fine, stride = _doubled(one, self, _TABLE)
        coarse, _ = _doubled(one, stride, _TABLE)
        index = torch.arange(count, device=self.real.device)
        fine, coarse = fine[:, index % _TABLE], coarse[:, index // _TABLE]
        (a, b), (c, d) = fine.chunk(2, dim=-1), coarse.chunk(2, dim=-1)
        return a * c - b * d, a * d + b * c

    def on_vector(self, x: Tensor, length: int, size: int) -> Tensor:
        """The powers of the matrix, one for each block of `size` of `length` positions, times `(D, N)`: `(D, R, N)`."""
        real, imag = self.powers(block_count(length, size))
        a, b = x.unsqueeze(1).chunk(2, dim=-1)
        return torch.cat([a * real - b * imag, a * imag + b * real], dim=-1)

    def total(self, x: Tensor, length: int, size: int) -> Tensor:
        """The sum of the i-th power times the i-th vector of `(D, B, R, N)`: `(D, B, N)`."""
        real, imag = (part.unsqueeze(1) for part in self.powers(block_count(length, size)))
        a, b = x.chunk(2, dim=-1)
        return torch.cat([(a * real - b * imag).sum(2), (a * imag + b * real).sum(2)], dim=-1)

    def transposed(self) -> "_Rotations":
        return _Rotations(self.real, -self.imag)

    def inverse(self) -> "_Rotations":
        size = self.real * self.real + self.imag * self.imag
        return _Rotations(self.real / size, -self.imag / size)

    def dense(self) -> Tensor:
        """The matrix, `(D, N, N)`."""
        identity = torch.eye(self.real.shape[1], dtype=self.real.dtype, device=self.real.device)
        real, imag = identity * self.real.unsqueeze(-1), identity * self.imag.unsqueeze(-1)
        return torch.cat([torch.cat([real, -imag], dim=-1), torch.cat([imag, real], dim=-1)], dim=-2)


@dataclass(frozen=True)
class _Dense:
    """A matrix per channel, `(D, N, N)`, with the methods of `_Rotations`."""

    matrix: Tensor

    def apply(self, x: Tensor) -> Tensor:
        return x @ self.matrix.mT

    def squared(self) -> "_Dense":
        return _Dense(self.matrix @ self.matrix)

    def transposed(self) -> "_Dense":
        return _Dense(self.matrix.mT)

    def on_vector(self, x: Tensor, length: int, size: int) -> Tensor:
        vectors = x.unsqueeze(1)
        for level, powers in reversed(list(enumerate(self._levels()))):
            grown = vectors.unsqueeze(2)
            for power in powers:
                grown = torch.cat([grown, grown @ power.matrix.mT.unsqueeze(1)], dim=2)
            vectors = first_positions(grown.flatten(1, 2), 1, block_count(length, size * _FACTOR**level))
        return vectors

    def total(self, x: Tensor, length: int, size: int) -> Tensor:
        for powers in self._levels():
            size *= _FACTOR
            x = in_blocks(x, 2, _FACTOR, block_count(length, size))
            for power in powers:
                x = x[..., 0::2, :] + x[..., 1::2, :] @ power.matrix.mT[:, None, None]
            x = x.squeeze(-2)
        return x[:, :, 0]

    def _levels(self) -> "list[list[_Dense]]":
        """The powers 1, 2, 4 and 8 of the matrix, then of its 16th power, and so on."""
        powers = [self]
        for _ in range(4 * _SYSTEM_LEVELS - 1):
            powers.append(powers[-1].squared())
        return [powers[start : start + 4] for start in range(0, len(powers), 4)]


_Matrix = _Rotations | _Dense


@dataclass(frozen=True)
class ExportedSystem:
    """A discrete model `x[t] = A_bar x[t-1] + B_bar u[t]`, `y[t] = C x[t] + skip u[t]`, made by `exported_system`.

    Attributes:
        a_bar: `A_bar`.
        b_bar: `B_bar`, `(D, N)`, float64; so are the others.
        c: `C`, `(D, N)`.
        skip: `(D,)`, or `None` for no feed-through.
        dtype: The precision of results.
    """

    a_bar: _Matrix
    b_bar: Tensor
    c: Tensor
    skip: Tensor | None
    dtype: torch.dtype

    def extend(self, u: Tensor, state: Tensor | None, taps: Callable[[int], Tensor]) -> tuple[Tensor, Tensor]:
        """As `Recurrence.extend`; a chunk that continues a sequence has a single position."""
        length: Any = u.shape[1]
        if state is None:
            return long_conv(u, taps(length)), self.advance(u)
        if type(length) is not int or length != 1:
            raise ValueError(
                "An exported program that continues from a cache of state space filters reads one token: give "
                "`input_ids` of the shape (batch, 1), and leave the second dimension out of `dynamic_shapes`."
            )
        y, after = self.step(u[:, 0], state)
        return y.unsqueeze(1), after

    def kernel(self, length: int) -> Tensor:
        """`C A_bar^l B_bar` for `l < length`, without the feed-through, `(D, length)`."""
        left, stride = _doubled(self.c, self.a_bar.transposed(), _SYSTEM_BLOCK)
        right = stride.transposed().on_vector(self.b_bar, length, _SYSTEM_BLOCK)
        taps = right.to(self.dtype) @ left.to(self.dtype).mT
        return first_positions(taps.flatten(1), 1, length)

    def advance(self, u: Tensor) -> Tensor:
        """The state `(B, D, N)` after inputs `(B, L, D)` that begin a sequence."""
        inward, stride = _doubled(self.b_bar, self.a_bar, _SYSTEM_BLOCK)
        # The last input first.
        length, count = u.shape[1], block_count(u.shape[1], _SYSTEM_BLOCK)
        blocks = in_blocks(u.to(self.dtype).flip(1), 1, _SYSTEM_BLOCK, count).permute(3, 0, 1, 2)
        states = (blocks @ inward.to(self.dtype).unsqueeze(1)).to(torch.float64)
        return stride.total(states, length, _SYSTEM_BLOCK).transpose(0, 1).to(self.dtype)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The output `(B, D)` and the state `(B, D, N)` after one input `(B, D)`."""
        inputs = u.to(torch.float64)
        moved = self.a_bar.apply(state.to(torch.float64).transpose(0, 1)).transpose(0, 1)
        new = moved + self.b_bar * inputs.unsqueeze(-1)
        y = (new * self.c).sum(-1)
        y = y if self.skip is None else y + self.skip * inputs
        return y.to(u.dtype), new.to(state.dtype)


def _doubled(vector: Tensor, power: Any, count: int) -> tuple[Tensor, Any]:
    """`A^j x` for `j < count`, a power of two, `(D, count, N)`, and `A^count`."""
    vectors = vector.unsqueeze(1)
    while vectors.shape[1] < count:
        vectors = torch.cat([vectors, power.apply(vectors)], dim=1)
        power = power.squared()
    return vectors, power


def exported_system(
    a_real: Tensor,
    a_imag: Tensor,
    b: Tensor,
    c: Tensor,
    p: Tensor | None,
    dt: Tensor,
    discretization: str,
    skip: Tensor | None,
    dtype: torch.dtype,
) -> ExportedSystem:
    """The system whose impulse response is `diagonal_kernel`, or with `p` `dplr_kernel`.

    Args:
        a_real: Real parts of the eigenvalues, or of the diagonal part, `(D, H)`.
        a_imag: Imaginary parts, `(D, H)`.
        b: Input weights as real pairs, `(D, H, 2)`.
        c: Output weights as real pairs, `(D, H, 2)`.
        p: Low-rank factor as real pairs, `(D, H, 2)`, or `None`.
        dt: Step sizes `(D,)`.
        discretization: `"zoh"` or `"bilinear"`.
        skip: Feed-through `(D,)`, or `None`.
        dtype: The precision of results.

    Raises:
        ValueError: Unknown discretization.
    """
    check_discretization(discretization)
    a_real, a_imag, b, c, dt = (t.to(torch.float64) for t in (a_real, a_imag, b, c, dt))
    inputs = torch.cat(b.unbind(-1), dim=-1)
    # y = 2 Re Σ c x.
    outputs = 2 * torch.cat([c[..., 0], -c[..., 1]], dim=-1)
    low_rank = None if p is None else torch.cat(p.to(torch.float64).unbind(-1), dim=-1)
    step = dt.unsqueeze(-1)
    make = _zoh if discretization == "zoh" else _bilinear
    a_bar, b_bar = make(_Rotations(a_real, a_imag), low_rank, inputs, step)
    return ExportedSystem(a_bar, b_bar, outputs, None if skip is None else skip.to(torch.float64), dtype)


def _bilinear(a: _Rotations, p: Tensor | None, b: Tensor, step: Tensor) -> tuple[_Matrix, Tensor]:
    """`A_bar = 2 M - 1` and `B_bar = dt M B` with `M = (1 - dt A / 2)^{-1}`; the Woodbury identity for `- 2 p p^T`."""
    inverse = _Rotations(1 - step / 2 * a.real, -step / 2 * a.imag).inverse()
    if p is None:
        a_bar = _Rotations(2 * inverse.real - 1, 2 * inverse.imag)
        return a_bar, step * inverse.apply(b.unsqueeze(1)).squeeze(1)
    right, left = (matrix.apply(p.unsqueeze(1)).squeeze(1) for matrix in (inverse, inverse.transposed()))
    gain = step / (1 + step * (p * right).sum(-1, keepdim=True))
    matrix = inverse.dense() - (gain * right).unsqueeze(-1) * left.unsqueeze(-2)
    identity = torch.eye(b.shape[-1], dtype=b.dtype, device=b.device)
    return _Dense(2 * matrix - identity), step * _Dense(matrix).apply(b.unsqueeze(1)).squeeze(1)


def _zoh(a: _Rotations, p: Tensor | None, b: Tensor, step: Tensor) -> tuple[_Matrix, Tensor]:
    """`A_bar = exp(A dt)` and `B_bar = ∫ exp(A s) ds B`."""
    if p is not None:
        return _dense_zoh(a.dense() - 2 * p.unsqueeze(-1) * p.unsqueeze(-2), b, step)
    real, imag = a.real * step, a.imag * step
    size = torch.exp(real)
    a_bar = _Rotations(size * torch.cos(imag), size * torch.sin(imag))
    # (exp(x) - 1) / x by its series where x is small.
    half = torch.sin(imag / 2)
    minus_one = _Rotations(torch.expm1(real) * torch.cos(imag) - 2 * half * half, a_bar.imag)
    small = real * real + imag * imag < 1e-4
    apart = _Rotations(torch.where(small, 1.0, real), torch.where(small, 0.0, imag)).inverse()
    quotient = _complex_product(minus_one, apart)
    near = _Rotations(torch.where(small, real, 0.0), torch.where(small, imag, 0.0))
    series = _Rotations(torch.ones_like(real), torch.zeros_like(real))
    for k in range(7, 1, -1):
        product = _complex_product(near, series)
        series = _Rotations(1 + product.real / k, product.imag / k)
    factor = _Rotations(torch.where(small, series.real, quotient.real), torch.where(small, series.imag, quotient.imag))
    return a_bar, step * factor.apply(b.unsqueeze(1)).squeeze(1)


def _complex_product(x: _Rotations, y: _Rotations) -> _Rotations:
    return _Rotations(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def _dense_zoh(a: Tensor, b: Tensor, step: Tensor) -> tuple[_Dense, Tensor]:
    """By the exponential of `[[A, B], [0, 0]] dt`: ONNX has neither matrix exponentials nor linear systems."""
    block = F.pad(torch.cat([a, b.unsqueeze(-1)], dim=-1), (0, 0, 0, 1)) * step.unsqueeze(-1)
    scaled = block / 2**_SQUARINGS
    identity = torch.eye(block.shape[-1], dtype=block.dtype, device=block.device)
    total = identity + scaled / _TERMS
    for k in range(_TERMS - 1, 0, -1):
        total = identity + scaled / k @ total
    for _ in range(_SQUARINGS):
        total = total @ total
    return _Dense(total[:, :-1, :-1]), total[:, :-1, -1]
