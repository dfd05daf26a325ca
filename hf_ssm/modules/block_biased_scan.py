"""The selective scan of Block-Biased Mamba (B2S6): blocks of channels with their own selection, biases of channels.

Legend: `B` batch, `L` length, `D` channels of the scan, `K` blocks, `S` stored states, `R` rank of the step projection
of a block.
"""

import torch
from torch import Tensor, nn

from hf_ssm.modules.operator import fp32_parameter
from hf_ssm.modules.roles import ParameterRole
from hf_ssm.modules.selective_scan import SelectiveScanBase
from hf_ssm.ops.selective_scan.blocks import block_scan

__all__ = ["BlockBiasedScan", "BlockLinear"]


class BlockLinear(nn.Module):
    """A linear map of each block of features, with normal initial weights of the standard deviation `std`."""

    def __init__(self, in_features: int, out_features: int, blocks: int, std: float):
        super().__init__()
        self.std = std
        # Outputs first: the quantities that a scan stacks are rows, as in `nn.Linear`.
        self.weight = nn.Parameter(torch.empty(out_features, blocks, in_features))

    def initial_parameters(self) -> dict[str, Tensor]:
        """Fresh values of the parameters by name."""
        return {"weight": self.std * torch.randn(self.weight.shape)}

    def forward(self, features: Tensor) -> Tensor:
        """Map `(B, L, blocks * in)` or `(B, L, blocks, in)` to `(B, L, blocks, out)`."""
        features = features.reshape(*features.shape[:2], *self.weight.shape[1:])
        return torch.einsum("blkp,rkp->blkr", features, self.weight)


class BlockBiasedScan(SelectiveScanBase):
    """`SelectiveScan` in `num_blocks` blocks: Δ, B and C of a block are linear in the channels of the block.

    With `use_input_bias`, the input weights of a channel are B + `B_bias`, where `B_bias` does not depend on the input.
    Its initial values are standard normal; the paper names none. The step of a block, Δ = softplus(W_dt (W_r u) + b),
    has the rank `time_step_rank`. The paper's, one number for all channels of a block before b, is the rank 1 with
    W_dt = 1 (`time_step_init_scheme="constant"`), which is trained here. A differs from channel to channel, where the
    paper has one for all; complex states and B_bias are theirs, C is complex too.

    Source: Yu & Erichson 2025 (Block-Biased Mamba), eq. (7) and Algorithm 2; `ops/selective_scan/blocks.py`.
    """

    no_bound = (
        "the theorem needs one W_B and one W_C for all channels, and no bias of B, unlike a model with `num_blocks` "
        "above 1 or `use_input_bias=True`."
    )

    def __init__(self, config, layer_idx: int, direction: str = "forward"):
        super().__init__(config, layer_idx, direction)
        self.blocks = config.num_blocks
        size = self.channels // self.blocks
        # The variances of Δ, B and C at the start are those of one block.
        std = config.initializer_range * self.blocks**0.5
        self.x_proj = BlockLinear(size, self.rank + 2 * config.state_size, self.blocks, std)  # type: ignore[assignment]
        self.dt_proj = BlockLinear(self.rank, size, self.blocks, std)  # type: ignore[assignment]
        pairs = (2,) if config.complex_state else ()
        self.B_bias = fp32_parameter(*self.state_shape, *pairs) if config.use_input_bias else None

    def initial_parameters(self) -> dict[str, Tensor]:
        values = super().initial_parameters()
        return values if self.B_bias is None else values | {"B_bias": torch.randn(self.B_bias.shape)}

    def parameter_roles(self) -> dict[str, ParameterRole]:
        roles = super().parameter_roles()
        return roles if self.B_bias is None else roles | {"B_bias": ParameterRole("B")}

    def selection(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Δ before bias and softplus, `(B, L, D)`, and B (without its bias) and C, `(B, L, K, S)`, at every token."""
        step, B, C = super().selection(inputs)
        return step.flatten(-2), B, C

    def input_bias(self) -> Tensor | None:
        """B_bias, `(D, S)`, complex with complex states; `None` where there is none."""
        if self.B_bias is None or self.A_imag is None:
            return self.B_bias
        return torch.complex(*self.B_bias.unbind(-1))

    def _scan(
        self, A: Tensor, u: Tensor, step: Tensor, B: Tensor, C: Tensor, gate: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        return self._continued(A, u, step, B, C, gate, None)[0]

    def _continued(
        self, A: Tensor, u: Tensor, step: Tensor, B: Tensor, C: Tensor, gate: Tensor | None, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return block_scan(u, self.time_steps(step), A, B, C, self.input_bias(), self.D, gate, before)

    def _weights(self, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        size = self.channels // self.blocks
        B, C = (means.unflatten(-1, (self.blocks, -1)).repeat_interleave(size, dim=-2) for means in (B, C))
        bias = self.input_bias()
        return B if bias is None else B + bias, C

    def _matrix(self, delta: Tensor, B: Tensor, C: Tensor, chosen: list[int]) -> Tensor:
        matrices, bias = [], self.input_bias()
        for channel in chosen:
            block = channel * self.blocks // self.channels
            weights = B[:, :, block] if bias is None else B[:, :, block] + bias[channel]
            matrices.append(super()._matrix(delta, weights, C[:, :, block], [channel]))
        return torch.cat(matrices, dim=1)
