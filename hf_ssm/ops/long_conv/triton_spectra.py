"""The long convolution of rows of channels by transforms, with a kernel for the products of spectra.

Dimensions: `B` rows of the batch, `D` channels, `n` points, `F = n / 2 + 1` frequencies.

The transforms are those of the vendor (`torch.fft`), out of place, of rows that are dense in memory. A program of the
kernel multiplies the spectra of all rows of the batch at some frequencies by the spectrum of the taps, which it reads
once, in place; in the backward it also sums the products whose inverse is the gradient of the taps. The factor `1 / n`
of the inverse is part of these products, so that no pass over the outputs is needed for it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_ssm.ops.gpu.kernels import config, kernel
from hf_ssm.ops.long_conv.fft import fft_length

__all__ = ["Transforms"]

_EXAMPLE = {
    **dict.fromkeys(("values", "weights", "inputs", "total"), "*fp32"),
    "batch": "i32",
    "cells": "i32",
    "scale": "fp32",
    "CONJUGATE": True,
    "ACCUMULATE": False,
}


@triton.jit
def _load_complex(source, place, mask):
    real, imag = tl.split(tl.load(source + place, mask=mask, other=0.0))
    return real, imag


@kernel(
    # A single one: autotuning would repeat products in place.
    configs=[config(BLOCK=512)],
    examples={"forward": {**_EXAMPLE, "inputs": None, "total": None, "CONJUGATE": False}, "backward": _EXAMPLE},
)
@triton.jit
def _multiply_spectra(
    values,
    weights,
    inputs,
    total,
    batch,
    cells,
    scale,
    CONJUGATE: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Multiply `values` by `weights` in place, and sum the products of `values` and conjugates of `inputs`.

    Complex numbers are pairs of float32.

    Args:
        values: Spectra `(B, D, F)`.
        weights: `(D, F)`, or absent: the values remain. Their conjugates are taken with `CONJUGATE`.
        inputs: As `values`, or absent.
        total: `(D, F)`, the sums over the batch, with `inputs`; added to what it holds with `ACCUMULATE`.
        batch: B.
        cells: D F.
        scale: Factor of both results.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (at < cells)[:, None]
    place = at.to(tl.int64)[:, None] * 2 + tl.arange(0, 2)[None, :]
    weight_real, weight_imag = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    if weights is not None:
        weight_real, weight_imag = _load_complex(weights, place, mask)
        weight_real *= scale
        weight_imag *= -scale if CONJUGATE else scale
    sum_real, sum_imag = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for _ in range(batch):
        real, imag = _load_complex(values, place, mask)
        if inputs is not None:
            input_real, input_imag = _load_complex(inputs, place, mask)
            sum_real += input_real * real + input_imag * imag
            sum_imag += input_real * imag - input_imag * real
            inputs += 2 * cells
        if weights is not None:
            product = tl.join(real * weight_real - imag * weight_imag, real * weight_imag + imag * weight_real)
            tl.store(values + place, product, mask=mask)
        values += 2 * cells
    if inputs is not None:
        result = tl.join(sum_real * scale, sum_imag * scale)
        if ACCUMULATE:
            result += tl.load(total + place, mask=mask, other=0.0)
        tl.store(total + place, result, mask=mask)


class Transforms:
    """Convolution of rows by transforms.

    Attributes:
        points: Points of a row.
        dtype: Type of the rows.
    """

    dtype = torch.float32

    def __init__(self, length: int, count: int, back_count: int):
        self.points, self.count, self.back_count = fft_length(length, count, back_count), count, back_count

    def prepare(self, taps: Tensor, back: Tensor | None) -> Tensor:
        """The spectrum `(D, F)` of taps `(D, K)`; lag -m is at the point `n - m`."""
        if back is None:
            return torch.fft.rfft(taps, n=self.points)
        rows = taps.new_zeros(len(taps), self.points)
        rows[:, : self.count] = taps
        rows[:, self.points - self.back_count :] = back.flip(-1)
        return torch.fft.rfft(rows)

    def convolve(self, rows: Tensor, weights: Tensor) -> Tensor:
        """The convolution of rows `(B, D, n)` with the taps of the spectrum `weights`, `(B, D, n)`."""
        spectra = torch.fft.rfft(rows)
        del rows
        self._multiply(spectra, weights, None, None, conjugate=False, accumulate=False)
        return torch.fft.irfft(spectra, n=self.points, norm="forward")

    def differentiate(
        self, grad: Tensor, inputs: Tensor | None, weights: Tensor | None, total: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the inputs, and of the taps as a spectrum.

        Args:
            grad: Gradient of the convolution, `(B, D, n)`.
            inputs: Its rows, where the gradient of the taps is wanted.
            weights: The spectrum of the taps, where the gradient of the rows is wanted.
            total: The spectrum of the gradient of the taps that is due to other rows, changed in place.
        """
        spectra = torch.fft.rfft(grad)
        del grad
        accumulate, of_inputs = total is not None, None
        if inputs is not None:
            of_inputs = torch.fft.rfft(inputs)
            del inputs
            total = torch.empty_like(spectra[0]) if total is None else total
        self._multiply(spectra, weights, of_inputs, total, conjugate=True, accumulate=accumulate)
        del of_inputs
        return None if weights is None else torch.fft.irfft(spectra, n=self.points, norm="forward"), total

    def gradients(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of the taps of both sides, from the `total` of all rows."""
        by_lag = torch.fft.irfft(total, n=self.points, norm="forward")
        return by_lag[:, : self.count], by_lag[:, self.points - self.back_count :].flip(-1)

    def _multiply(
        self,
        values: Tensor,
        weights: Tensor | None,
        inputs: Tensor | None,
        total: Tensor | None,
        conjugate: bool,
        accumulate: bool,
    ) -> None:
        cells = values[0].numel()
        tensors = {"values": values, "weights": weights, "inputs": inputs, "total": total}
        _multiply_spectra.launch(
            lambda meta: (triton.cdiv(cells, meta["BLOCK"]),),
            **{name: None if t is None else torch.view_as_real(t) for name, t in tensors.items()},
            batch=len(values),
            cells=cells,
            scale=1 / self.points,
            CONJUGATE=conjugate,
            ACCUMULATE=accumulate,
        )
