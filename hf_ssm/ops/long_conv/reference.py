"""Long convolution as a sum at each position, and what all implementations share.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps of the kernel.
"""

import torch
from torch import Tensor

__all__ = ["check_long_conv", "long_conv_reference", "usable_taps"]


def check_long_conv(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None) -> None:
    """Raise a ValueError where the shapes of the arguments of `long_conv` do not fit."""
    if u.dim() != 3 or u.shape[1] < 1:
        raise ValueError(f"u must have shape (batch, length >= 1, channels), got {tuple(u.shape)}")
    for name, k in (("kernel", kernel), ("backward_kernel", backward_kernel)):
        if k is None:
            continue
        if k.dim() != 2 or k.shape[0] != u.shape[2] or k.shape[1] < 1:
            raise ValueError(
                f"{name} must have shape (channels, taps >= 1) with channels = {u.shape[2]} as in u, "
                f"got {tuple(k.shape)}"
            )


def usable_taps(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The taps within reach of the input, in the precision of the computation."""
    length = u.shape[1]
    dtype = torch.promote_types(torch.promote_types(u.dtype, kernel.dtype), torch.float32)
    # A single position has no later inputs.
    back = None if backward_kernel is None or length == 1 else backward_kernel[:, : length - 1].to(dtype)
    return kernel[:, :length].to(dtype), back


def long_conv_reference(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None = None) -> Tensor:
    """`long_conv` as a sum at each position; same arguments, differentiable any number of times."""
    check_long_conv(u, kernel, backward_kernel)
    length = u.shape[1]
    taps, back = usable_taps(u, kernel, backward_kernel)
    inputs = u.to(taps.dtype)
    outputs = []
    for t in range(length):
        past = taps[:, : t + 1]
        output = (inputs[:, t + 1 - past.shape[1] : t + 1] * past.flip(-1).T).sum(1)
        if back is not None:
            ahead = back[:, : length - 1 - t]
            output = output + (inputs[:, t + 1 : t + 1 + ahead.shape[1]] * ahead.T).sum(1)
        outputs.append(output)
    return torch.stack(outputs, dim=1).to(u.dtype)
