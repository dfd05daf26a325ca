"""Peers: transformers' selective scan and scan of Mamba-2, the listing of S4D, a convolution by torch.fft.

Dimensions: `B` batch, `L` length, `D` channels, `N` states, `H` conjugate pairs.
"""

import importlib.util

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.mamba.modeling_mamba import mamba_selective_scan
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

MAMBAPY_MISSING = "mambapy is not installed, and its rows are omitted: pip install 'hf_ssm[bench]'"


def has_mambapy() -> bool:
    # Without mambapy transformers falls back to its loop without a warning.
    return importlib.util.find_spec("mambapy") is not None


def transformers_scan(inputs: dict[str, Tensor], use_mambapy: bool = False) -> Tensor:
    """The scan that `MambaForCausalLM` calls, in its layout: `u`, `delta`, `z` `(B, D, L)`, `B`, `C` `(B, N, L)`.

    On CUDA the kernel of mamba_ssm if transformers finds it, otherwise a loop over positions or mambapy.
    """
    u, delta, A, B, C, D, z, bias = (inputs[name] for name in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias"))
    y: Tensor = mamba_selective_scan(u, delta, A, B, C, D, z, bias, delta_softplus=True, use_mambapy=use_mambapy)
    return y


def transformers_ssd(inputs: dict[str, Tensor], chunk_size: int = 256) -> Tensor:
    """The scan that `Mamba2ForCausalLM` calls, in its layout, which is ours, and with its default chunks.

    On CUDA the kernel of mamba_ssm if transformers finds it, otherwise products within chunks in plain torch.
    """
    x, dt, A, B, C, D, bias = (inputs[name] for name in ("x", "dt", "A", "B", "C", "D", "dt_bias"))
    y: Tensor = mamba2_chunk_scan(x, dt, A, B, C, chunk_size, D=D, dt_bias=bias, dt_softplus=True)
    return y


def listed_s4d_kernel(a: Tensor, c: Tensor, dt: Tensor, length: int) -> Tensor:
    """`(D, L)` of `a`, `c` `(D, H)`, `dt` `(D,)`: the Vandermonde product with all entries in memory, zero-order hold.

    Source: Gu et al. 2022 (S4D), Listing 1, with their eq. (4) for the input weights.
    """
    step = a * dt.unsqueeze(-1)
    exponents = step.unsqueeze(-1) * torch.arange(length, device=a.device)
    weights = c * (torch.exp(step) - 1) / a
    return 2 * torch.einsum("dh,dhl->dl", weights, torch.exp(exponents)).real


def fft_convolution(u: Tensor, kernel: Tensor) -> Tensor:
    """Causal convolution of `u` `(B, D, L)` with `kernel` `(D, L)` on `2 L` points, differentiated by autograd."""
    length = u.shape[-1]
    spectrum = torch.fft.rfft(u.float(), n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length].to(u.dtype)


def matrix_products(rows: int, hidden: int, states: int, layers: int, vocabulary: int) -> list[tuple[Tensor, Tensor]]:
    """Inputs and weights of all linear maps of a Mamba model with the default ratios; `rows` is `B L`."""
    inner, rank = 2 * hidden, -(-hidden // 16)
    block = [(hidden, 2 * inner), (inner, rank + 2 * states), (rank, inner), (inner, hidden)]
    shapes = [*(block * layers), (hidden, vocabulary)]
    return [(torch.randn(rows, fan_in), torch.randn(fan_out, fan_in)) for fan_in, fan_out in shapes]


def mamba2_products(rows: int, hidden: int, states: int, layers: int, vocabulary: int) -> list[tuple[Tensor, Tensor]]:
    """Inputs and weights of all linear maps of a Mamba-2 model with heads of 64 channels and one group."""
    inner = 2 * hidden
    block = [(hidden, 2 * inner + 2 * states + inner // 64), (inner, hidden)]
    shapes = [*(block * layers), (hidden, vocabulary)]
    return [(torch.randn(rows, fan_in), torch.randn(fan_out, fan_in)) for fan_in, fan_out in shapes]


def multiply(products: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
    """Compute each product; returns an empty tuple."""
    for x, weight in products:
        F.linear(x, weight)
    return ()


def multiply_and_differentiate(products: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
    """Compute each product and the gradients of both factors; returns an empty tuple."""
    for x, weight in products:
        y = F.linear(x, weight)
        torch.mm(y, weight)
        torch.mm(y.t(), x)
    return ()
