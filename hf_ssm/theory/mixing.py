"""τ of the map behind the channels: the outputs of the convolutions after a mixing matrix, with correlated channels.

Legend: `B` rows, `L` positions, `D` channels, `O` outputs of the mixing matrix. "By lag" means by distance to the last
token.

A layer computes `z = W y` with `y_d = Σ_ℓ k_{d,ℓ} x_{d,ℓ}` at the last position. Liu & Li take the mean of τ over the
channels and leave the dependence between channels open (Section 5). The following definition is ours. With
w_{o,ℓ} = W_o ⊙ k_ℓ, the weights of the inputs at lag ℓ in output o, and Γ_ℓ, the covariance between channels at lag ℓ,

τ_o^{1/2} = Σ_ℓ √(w_{o,ℓ}ᵀ Γ_ℓ w_{o,ℓ}) + |Σ_ℓ w_{o,ℓ}ᵀ μ_ℓ|.

The size |k_ℓ| √K_ℓ of one position in eq. (6) is the standard deviation of the contribution of this position to the
output, and so is the square root here. The consequences in the paper carry over: the first term bounds the standard
deviation of z_o for any correlation in time (Minkowski's inequality), and Proposition 4.3 holds for z_o, with the
process w_{o,ℓ}ᵀ (x_ℓ - μ_ℓ) / √(w_{o,ℓ}ᵀ Γ_ℓ w_{o,ℓ}) in place of x̃. Theorem 4.2 does not carry over directly, because
this process depends on the model.

- With W = I, τ_o is τ of each channel, for any correlation.
- With uncorrelated channels of mean 0, τ_o is a mean with the weights W_od²: for one lag, exactly Σ_d W_od² τ_d.
- With equal inputs in all channels, τ_o is τ of the single kernel Σ_d W_od k_d: kernels may add up or cancel.
- τ of the matrix of all kernels (`theory.mimo.matrix_tau`), which does not use the correlation, is an upper bound.

τ_o therefore differs from the mean over channels if channels are correlated, or if the rows of W do not have the norm 1
(a fresh `nn.Linear` has rows of norm about 1/√3).
"""

import torch
from torch import Tensor

from hf_ssm.ops.documents import Documents
from hf_ssm.theory.complexity import tau
from hf_ssm.theory.moments import lag_moments
from hf_ssm.theory.processes import lags_of
from hf_ssm.utils.processes import Processes

__all__ = ["mixed_tau"]


def mixed_tau(
    kernel: Tensor,
    mixing: Tensor,
    inputs: Tensor,
    mask: Tensor | None = None,
    *,
    documents: Documents | None = None,
    processes: Processes | None = None,
) -> Tensor:
    """τ of each output of a mixing matrix behind the convolutions, see the description of this module.

    The moments of eq. (6) are those of the contribution of each position to the outputs; the covariance matrices are
    not formed. The cost is that of the linear map of all positions, B L D O multiply-adds.

    Args:
        kernel: `(D, L)`, with a feed-through at lag 0; L at least the length of the inputs.
        mixing: W, `(O, D)`.
        inputs: `(B, L, D)`, or documents in their layout, `(1, T, D)`.
        mask: `(B, L)`; `None` if all positions are tokens.
        documents: The layout of the documents.
        processes: Processes whose rows form one batch, as in `lag_moments`.

    Returns:
        `(O,)`; the mean over outputs is the τ of a layer.

    Raises:
        ValueError: The columns of `mixing` are not the channels of the kernel.

    Source: an extension of Liu & Li 2024, eq. (6).
    """
    if mixing.dim() != 2 or mixing.shape[1] != len(kernel):
        raise ValueError(
            f"`mixing` must have shape (outputs, {len(kernel)}), a column for each channel of the kernel, got "
            f"{tuple(mixing.shape)}."
        )

    def added(rows: Tensor, row_mask: Tensor | None) -> Tensor:
        taps = kernel.T[lags_of(rows, row_mask).clamp(min=0)].to(rows)
        return (rows * taps) @ mixing.T.to(rows)

    sizes = added(inputs, mask) if documents is None else documents.map(added, inputs)
    mean, variance = lag_moments(sizes, mask, length=kernel.shape[1], processes=processes, documents=documents)
    return tau(torch.ones_like(mean).T, mean, variance)
