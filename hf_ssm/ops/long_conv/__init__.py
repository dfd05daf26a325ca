"""Long convolution of sequences, one kernel per channel.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps of the kernel.

- `reference.py`: the sum at each position;
- `fft.py`: blockwise FFTs with a backward of their own (PyTorch);
- `dft.py`: transforms by matrix products, for exported programs;
- `triton.py`: kernels for GPUs, with the transforms of the vendor for long inputs;
- `streaming.py`: the causal convolution of a sequence that arrives in chunks.
"""

import torch
from torch import Tensor

from hf_ssm.ops.backends import Compiled, Operation
from hf_ssm.ops.long_conv.dft import long_conv_dft
from hf_ssm.ops.long_conv.fft import long_conv_fft, next_fast_len
from hf_ssm.ops.long_conv.reference import check_long_conv, long_conv_reference

__all__ = ["add_feed_through_", "long_conv", "long_conv_reference", "next_fast_len"]

_LONG_CONV = Operation(
    export=long_conv_dft,
    triton=Compiled("hf_ssm.ops.long_conv.triton", "long_conv_triton", "supports_long_conv"),
    torch=long_conv_fft,
    reference=long_conv_reference,
)


def long_conv(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None = None) -> Tensor:
    """Causal or two-sided convolution along the length, one kernel per channel.

    `y[t] = Σ_{j<=t} kernel[t-j] u[j] + Σ_{j>t} backward_kernel[j-t-1] u[j]`, zero outside the input. Kernels may be
    shorter or longer than the input; taps beyond the input are not used, and their gradient is zero.

    The backward keeps the inputs and the taps or their transform, but no spectra of the inputs.

    Args:
        u: Input `(B, L, D)`.
        kernel: Taps of lag 0, 1, ..., `(D, K)`.
        backward_kernel: Taps of lag -1, -2, ..., `(D, K2)`; without it the convolution is causal.

    Returns:
        `(B, L, D)`, contiguous, in the dtype of `u`. Half precision is computed in float32, float64 stays float64.
        Second derivatives and transforms of `torch.func` take plain transforms, which need more memory.

    Raises:
        ValueError: Shapes do not fit, or the sequence is empty.
    """
    check_long_conv(u, kernel, backward_kernel)
    y: Tensor = _LONG_CONV(u, kernel, backward_kernel)
    return y


def add_feed_through_(kernel: Tensor, skip: Tensor) -> Tensor:
    """Add a feed-through `(D,)` to the taps of lag 0 of the first direction of `kernel` `(K, D, L)`, and return it.

    In place, to avoid a copy of a long kernel; not while a program is exported.
    """
    result: Tensor = _ADD_FEED_THROUGH(kernel, skip.to(kernel.dtype))
    return result


def _add_at_lag_0_(kernel: Tensor, skip: Tensor) -> Tensor:
    kernel[0, :, 0] += skip
    return kernel


def _exported_sum(kernel: Tensor, skip: Tensor) -> Tensor:
    at_lag_0 = (torch.arange(kernel.shape[-1], device=kernel.device) == 0).to(kernel.dtype)
    return torch.stack([kernel[0] + skip.unsqueeze(-1) * at_lag_0, *kernel.unbind()[1:]])


_ADD_FEED_THROUGH = Operation(export=_exported_sum, torch=_add_at_lag_0_)
