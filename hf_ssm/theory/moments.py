"""Mean and variance of the inputs of a sequence operator, by distance to the last token.

Legend: `B` batch, `L` length, `D` channels.
"""

import torch
from torch import Tensor

__all__ = ["lag_moments"]


def lag_moments(inputs: Tensor, mask: Tensor | None = None, *, from_first: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and variance of the inputs over the batch, by distance to the last (or first) token of each row.

    The last position of a row is its last token, so that padding on either side changes nothing. The variance is the
    population variance (divided by the number of rows that reach the distance), in float32 or better.

    Args:
        inputs: `(B, L, D)`, what enters the convolution.
        mask: `(B, L)`, true (or 1) at tokens; `None` when every position is one.
        from_first: Count distances from the first token instead (for the kernel that runs backwards).

    Returns:
        Mean μ and variance K, both `(L, D)`; entry ℓ belongs to the token ℓ steps away from the anchor. Distances that
        no row reaches have mean and variance 0.

    Source: Liu & Li 2024, Algorithm 1, lines 6 and 7.
    """
    inputs = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    length = inputs.shape[1]
    steps = torch.arange(length, device=inputs.device)
    if mask is None:
        variance, mean = torch.var_mean(inputs, dim=0, correction=0)
        return (mean, variance) if from_first else (mean.flip(0), variance.flip(0))
    mask = mask.bool()
    anchor = (mask.int() * (length - steps if from_first else steps + 1)).argmax(dim=1, keepdim=True)
    position = anchor + steps if from_first else anchor - steps
    index = position.clamp(0, length - 1)
    present = (mask.gather(1, index) & (position == index)).unsqueeze(-1).to(inputs.dtype)
    aligned = inputs.gather(1, index.unsqueeze(-1).expand_as(inputs))
    count = present.sum(dim=0).clamp(min=1)
    mean = (aligned * present).sum(dim=0) / count
    variance = ((aligned - mean).square() * present).sum(dim=0) / count
    return mean, variance
