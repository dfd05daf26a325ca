"""Short depth-wise convolution with an optional state for incremental execution.

Legend: `B` batch, `L` length, `D` channels.
"""

from torch import Tensor, nn

from hf_ssm.modules.state import LayerState
from hf_ssm.ops.documents import Documents
from hf_ssm.ops.short_conv import short_conv, short_conv_extend

__all__ = ["ShortConvolution", "masked"]


def masked(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """`hidden` with zeros at padding."""
    return hidden if mask is None else hidden * mask.unsqueeze(-1).to(hidden.dtype)


class ShortConvolution(nn.Conv1d):
    """Depth-wise convolution of the tokens of `(B, L, D)`, zero at padding; with a state, of the next tokens; with
    `documents`, of each document by itself."""

    parameter_quantity = "short_convolution"

    def __init__(self, channels: int, taps: int, *, bias: bool = True, bidirectional: bool = False):
        super().__init__(channels, channels, taps, groups=channels, bias=bias)
        self.bidirectional = bidirectional

    def forward(
        self,
        inputs: Tensor,
        state: LayerState | None = None,
        mask: Tensor | None = None,
        activation: str | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        weight = self.weight.squeeze(1)
        if documents is not None:
            return documents.map(
                lambda batch, own: short_conv(batch, weight, self.bias, self.bidirectional, activation, own), inputs
            )
        if state is None:
            return short_conv(inputs, weight, self.bias, self.bidirectional, activation, mask)
        memory = state.get("short_conv")
        output, after = short_conv_extend(inputs, memory, weight, self.bias, activation, mask)
        state.put("short_conv", after)
        return output
