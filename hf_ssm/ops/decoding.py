"""One position of a mixer of Mamba or Mamba-2: projections, short convolution, scan and gate by one compiled call.

For a single position each operation of torch costs more to call than to compute; there is no other implementation than
the modules themselves.

Dimensions: `B` batch, `S` hidden size, `D` channels of the scan, `H` heads (each channel of Mamba is one), `G` groups,
`N` states, `R` rank of the step projection, `K` taps, `M` channels of the convolution (Mamba-2: D + 2 G N).
"""

import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hf_ssm.ops.backends import runs_compiled

__all__ = ["MixerWeights", "decode"]

# For larger batches, matrix products read the weights less often.
_MAX_BATCH = 8
_STORED = (torch.float32, torch.bfloat16)


class MixerWeights(NamedTuple):
    """What a mixer computes one position with; the linear maps may be tensors that torchao has quantised.

    Attributes:
        in_weight, in_bias: Mamba: the rows of the input of the convolution and the gate, `(2 D, S)`. Mamba-2: those of
            gate, input and step sizes, `(D + M + H, S)`.
        conv_weight, conv_bias: `(M, 1, K)`, `(M,)`.
        A: State matrix, `(H, N)`, or one number for each head, `(H,)`; or the logarithm of its negative.
        dt_bias: `(H,)`.
        skip: `(H,)` or `(D,)`.
        out_weight, out_bias: `(S, D)`, `(S,)`.
        x_weight, dt_weight: `(R + 2 N, D)`, `(D, R)`; Mamba only.
        norm_weight: Weight of the gated norm, `(D,)`.
        is_log_A: Whether `A` is the logarithm.
        groups: Number of groups of B, C and the gated norm.
        epsilon: Added to the mean square by the gated norm.
        norm_before_gate: Whether the gate multiplies the output of the gated norm instead of its input.
        dt_limit: Least and greatest step size.
    """

    in_weight: Tensor
    in_bias: Tensor | None
    conv_weight: Tensor
    conv_bias: Tensor | None
    A: Tensor
    dt_bias: Tensor
    skip: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None
    x_weight: Tensor | None = None
    dt_weight: Tensor | None = None
    norm_weight: Tensor | None = None
    is_log_A: bool = True
    groups: int = 1
    epsilon: float = 0.0
    norm_before_gate: bool = False
    dt_limit: tuple[float, float] = (0.0, math.inf)


def decode(
    read_weights: Callable[[], MixerWeights | None], hidden_states: Tensor, tensors: dict[str, Tensor]
) -> Tensor | None:
    """The output of a mixer at the next position of each sequence; `None` if its modules have to be called.

    Args:
        read_weights: Returns the weights; `None` if the modules compute something else.
        hidden_states: `(B, 1, S)`.
        tensors: The state of the mixer, replaced: `short_conv`, the last inputs `(B, M, K - 1)`; `scan`, `(B, D, N)` or
            `(B, H, D / H, N)`.
    """
    past, state = tensors.get("short_conv"), tensors.get("scan")
    if past is None or state is None or hidden_states.shape[1] != 1 or len(hidden_states) > _MAX_BATCH:
        return None
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or state.dtype != torch.float32:
        return None
    if hidden_states.dtype not in _STORED or past.dtype not in _STORED or not runs_compiled(hidden_states, past, state):
        return None
    weights = read_weights()
    if weights is None or not all(map(_is_readable, weights)):
        return None
    step: Any = importlib.import_module("hf_ssm.ops.cpu.decoding").mixer_step
    output, tensors["short_conv"], tensors["scan"] = step(weights, hidden_states, past, state)
    return output


def _is_readable(value: Any) -> bool:
    """Whether a kernel reads this weight, or it is no tensor."""
    if type(value) in (Tensor, nn.Parameter):
        return value.is_cpu and value.dtype in _STORED and value.is_contiguous()
    if type(value).__name__ == "Int8Tensor" and type(value).__module__.partition(".")[0] == "torchao":
        return _has_scaled_rows(value)
    return not isinstance(value, Tensor)


def _has_scaled_rows(weight: Any) -> bool:
    """Whether torchao has quantised the weights only, row by row: `qdata` `(rows, columns)`, `scale` `(rows, 1)`."""
    for name in ("act_quant_kwargs", "act_quant_scale", "act_pre_scale"):
        if getattr(weight, name, None) is not None:
            return False
    values, scales, zeros = weight.qdata, weight.scale, weight.zero_point
    has_rows = values.is_cpu and values.dim() == 2 and values.is_contiguous() and scales.shape == (len(values), 1)
    return has_rows and scales.dtype == torch.float32 and (zeros is None or not zeros.any())
