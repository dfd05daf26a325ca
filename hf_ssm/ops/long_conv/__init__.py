"""Long convolution of sequences, one kernel per channel.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps of the kernel.

- `reference.py`: the sum at each position;
- `fft.py`: FFTs of some channels at a time, with a backward of their own (PyTorch);
- `streaming.py`: the causal convolution of a sequence that arrives in chunks.
"""

from torch import Tensor

from hf_ssm.ops.backends import Operation
from hf_ssm.ops.long_conv.fft import long_conv_fft, next_fast_len
from hf_ssm.ops.long_conv.reference import check_long_conv, long_conv_reference

__all__ = ["add_feed_through_", "long_conv", "long_conv_reference", "next_fast_len"]

_LONG_CONV = Operation(
    torch=long_conv_fft,
    reference=long_conv_reference,
)


def long_conv(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None = None) -> Tensor:
    """Causal or two-sided convolution along the length, one kernel per channel.

    `y[t] = Σ_{j<=t} kernel[t-j] u[j] + Σ_{j>t} backward_kernel[j-t-1] u[j]`, zero outside the input. Kernels may be
    shorter or longer than the input; taps beyond the input are not used, and their gradient is zero.

    The backward keeps the inputs and the taps, but no spectra.

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

    In place, to avoid a copy of a long kernel.
    """
    kernel[0, :, 0] += skip.to(kernel.dtype)
    return kernel
