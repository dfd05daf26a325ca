"""Short depth-wise convolution with an optional state for incremental execution.

Legend: `B` batch, `L` length, `D` channels.
"""

from torch import Tensor, nn

from hf_ssm.modules.rows import Rows
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.short_conv import short_conv, short_conv_extend

__all__ = ["ShortConvolution"]


class ShortConvolution(nn.Conv1d):
    """Depth-wise convolution of the tokens of `(B, L, D)`, zero at padding; with a state, of the next tokens."""

    parameter_quantity = "short_convolution"

    def __init__(self, channels: int, taps: int, *, bias: bool = True, bidirectional: bool = False):
        super().__init__(channels, channels, taps, groups=channels, bias=bias)
        self.bidirectional = bidirectional

    def forward(
        self, inputs: Tensor, rows: Rows = Rows(), state: LayerState | None = None, activation: str | None = None
    ) -> Tensor:
        weight = self.weight.squeeze(1)
        if state is None:
            return short_conv(inputs, weight, self.bias, self.bidirectional, activation, rows.mask)
        memory = state.get("short_conv")
        output, after = short_conv_extend(inputs, memory, weight, self.bias, activation, rows.mask)
        state.put("short_conv", after)
        return output
