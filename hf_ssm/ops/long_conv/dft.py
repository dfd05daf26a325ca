"""Long convolution by discrete Fourier transforms that are real matrix products, for exported programs.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps, `R` = 64 rows, `M` columns, `R M >= 2 L` points.

With `t = a M + b` and `k = p + R q`, the exponential of `2πi k t / (R M)` is the product of those of `2πi p a / R`,
`2πi p b / (R M)` and `2πi q b / M`: two matrix products and a product of elements between them. ONNX Runtime's own
transform is accurate for powers of two only: its error at 10,007 positions is 9e-4 in float32, that of the products
4e-7.

Source: Bailey 1990, "FFTs in external or hierarchical memory", for the decomposition.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.blocks import first_positions
from hf_ssm.ops.long_conv.reference import usable_taps

__all__ = ["DFTTables", "dft_tables", "long_conv_dft"]

_DFT_ROWS = 64


class DFTTables(NamedTuple):
    """Cosines and sines of a transform of `R M` points: `(R, R)`, `(R, M)` and `(M, M)`."""

    rows: tuple[Tensor, Tensor]
    between: tuple[Tensor, Tensor]
    columns: tuple[Tensor, Tensor]

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Real and imaginary parts `(..., R, M)` of the transform of real `(..., R M)`; frequency `p + R q` at p, q."""
        x = x[..., self._places()]
        real, imag = self.rows[0] @ x, -(self.rows[1] @ x)
        cos, sin = self.between
        real, imag = real * cos + imag * sin, imag * cos - real * sin
        cos, sin = self.columns
        return real @ cos + imag @ sin, imag @ cos - real @ sin

    def invert(self, real: Tensor, imag: Tensor) -> Tensor:
        """The real part of the inverse transform, `(..., R M)`."""
        cos, sin = self.columns
        real, imag = real @ cos - imag @ sin, imag @ cos + real @ sin
        cos, sin = self.between
        real, imag = real * cos - imag * sin, imag * cos + real * sin
        points = self.rows[0].shape[0] * self.columns[0].shape[0]
        return ((self.rows[0] @ real - self.rows[1] @ imag) / points).flatten(-2)

    def _places(self) -> Tensor:
        rows, columns = self.between[0].shape
        steps = [torch.arange(count, device=self.between[0].device) for count in (rows, columns)]
        return columns * steps[0].unsqueeze(1) + steps[1]


def dft_tables(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> DFTTables:
    """The tables of a transform of `rows * columns` points, rounded once to `dtype`."""
    a, b = (torch.arange(count, device=device, dtype=torch.float64) for count in (rows, columns))
    turns = (
        torch.outer(a, a) / rows,
        torch.outer(a, b) / (rows * columns),
        torch.outer(b, b) / columns,
    )
    angles = [2 * math.pi * (turn - torch.floor(turn)) for turn in turns]
    return DFTTables(*((torch.cos(angle).to(dtype), torch.sin(angle).to(dtype)) for angle in angles))


def long_conv_dft(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None) -> Tensor:
    """`long_conv` by matrix products; same arguments, and differentiable any number of times."""
    length = u.shape[1]
    taps, _ = usable_taps(u, kernel, None)
    # The tap of lag -L meets zeros only; without it there might be a single one, of a size that torch.export fixes.
    back = None if backward_kernel is None else backward_kernel.to(taps.dtype)
    columns = 2 * length // _DFT_ROWS + 2
    points = _DFT_ROWS * columns
    tables = dft_tables(_DFT_ROWS, columns, taps.dtype, u.device)

    def padded(t: Tensor) -> Tensor:
        return first_positions(F.pad(t, (0, 2 * length + 2 * _DFT_ROWS)), -1, points)

    circular = padded(taps)
    if back is not None:
        # Lag -m is at `points - m`.
        circular = circular + padded(back).flip(-1)
    inputs = tables.transform(padded(u.to(taps.dtype).transpose(1, 2)))
    weights = tables.transform(circular)
    real = inputs[0] * weights[0] - inputs[1] * weights[1]
    imag = inputs[0] * weights[1] + inputs[1] * weights[0]
    return first_positions(tables.invert(real, imag), -1, length).transpose(1, 2).to(u.dtype)
