"""One position of all blocks of a Mamba model in one call of a compiled kernel, and its plain twin.

At the sizes of a single position each operation of torch costs more to call than to compute.

Legend: `B` batch, `H` hidden size, `D` channels of the scan, `N` states, `R` rank of the step projection, `K` taps.

Source: Gu & Dao 2023 (Mamba), Section 3.4 and Algorithm 2.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BlockOptions", "BlockWeights", "BlocksStep", "blocks_step_reference", "scan_step"]

_ZERO = {torch.float32: np.float32(0), torch.float64: np.float64(0)}
_LOG2_E = {torch.float32: np.float32(math.log2(math.e)), torch.float64: np.float64(math.log2(math.e))}
_NORMS = ("none", "layer", "rms")


class BlockWeights(NamedTuple):
    """The weights of a block.

    Attributes:
        norm_weight, norm_bias: `(H,)` or `None`.
        in_weight, in_bias: `(2 D, H)`; `(2 D,)` or `None`.
        conv_weight, conv_bias: `(D, 1, K)`; `(D,)` or `None`.
        x_weight: `(R + 2 N, D)`.
        dt_weight, dt_bias: `(D, R)`, `(D,)`.
        A: `(D, N)`: the state matrix, or the logarithm of its negative.
        skip: `(D,)` or `None`.
        out_weight, out_bias: `(H, D)`; `(H,)` or `None`.
    """

    norm_weight: Tensor | None
    norm_bias: Tensor | None
    in_weight: Tensor
    in_bias: Tensor | None
    conv_weight: Tensor
    conv_bias: Tensor | None
    x_weight: Tensor
    dt_weight: Tensor
    dt_bias: Tensor
    A: Tensor
    skip: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None


class BlockOptions(NamedTuple):
    """What the configuration says of the weights' use.

    Attributes:
        norm: `"none"`, `"layer"` or `"rms"`.
        epsilon: What norms add to the variance.
        norm_first: Whether a norm stands before each mixer and behind the last block, or after each sum.
        residual: Whether the input of a block is added to its output.
        logarithmic: Whether `A` is given as the logarithm of its negative.
    """

    norm: str
    epsilon: float
    norm_first: bool
    residual: bool
    logarithmic: bool


def _normed(h: Tensor, options: BlockOptions, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if options.norm == "layer":
        return F.layer_norm(h, h.shape[-1:], weight, bias, options.epsilon)
    return h if options.norm == "none" else F.rms_norm(h, h.shape[-1:], weight, options.epsilon)


def _block_step_reference(
    hidden: Tensor, past: Tensor, state: Tensor, w: BlockWeights, options: BlockOptions
) -> tuple[Tensor, Tensor, Tensor]:
    rank, states = w.dt_weight.shape[1], w.A.shape[1]
    read = _normed(hidden, options, w.norm_weight, w.norm_bias) if options.norm_first else hidden
    inputs, gate = F.linear(read, w.in_weight, w.in_bias).chunk(2, dim=-1)
    window = torch.cat([past, inputs.unsqueeze(-1)], dim=-1)
    u = (window * w.conv_weight.squeeze(1)).sum(-1)
    u = F.silu(u if w.conv_bias is None else u + w.conv_bias)
    step, B, C = F.linear(u, w.x_weight).split([rank, states, states], dim=-1)
    d = F.softplus(F.linear(step, w.dt_weight, w.dt_bias))
    A = -w.A.exp() if options.logarithmic else w.A
    state = torch.exp(d.unsqueeze(-1) * A) * state + (d * u).unsqueeze(-1) * B.unsqueeze(1)
    y = (state * C.unsqueeze(1)).sum(-1)
    y = (y if w.skip is None else y + w.skip * u) * F.silu(gate)
    output = F.linear(y, w.out_weight, w.out_bias)
    output = hidden + output if options.residual else output
    output = output if options.norm_first else _normed(output, options, w.norm_weight, w.norm_bias)
    return output, window[..., 1:], state


def blocks_step_reference(
    hidden: Tensor,
    pasts: Tensor,
    states: Tensor,
    weights: Sequence[BlockWeights],
    options: BlockOptions,
    final_norm: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor, Tensor]:
    """`BlocksStep(weights, options, final_norm)(hidden, pasts, states)` in plain torch."""
    outputs, new_pasts, new_states = [], [], []
    for past, state, w in zip(pasts, states, weights, strict=True):
        hidden, past, state = _block_step_reference(hidden, past.transpose(1, 2), state, w, options)
        outputs.append(hidden)
        new_pasts.append(past.transpose(1, 2))
        new_states.append(state)
    if options.norm_first:
        outputs[-1] = _normed(hidden, options, *final_norm)
    return torch.stack(outputs), torch.stack(new_pasts), torch.stack(new_states)


def _address(t: Tensor | None) -> int:
    return 0 if t is None else t.data_ptr()


class BlocksStep:
    """One position through all blocks, which have no MLP, with given weights.

    It holds on to the memory of the weights, and sees what is written to it later.

    Args:
        weights: Of each block, of the same shapes; all contiguous, on a CPU, and of one real type.
        options: The same for all.
        final_norm: Weight and bias of the norm behind the last block, `(H,)` or `None`.

    Raises:
        ValueError: A weight of another shape.
    """

    def __init__(
        self,
        weights: Sequence[BlockWeights],
        options: BlockOptions,
        final_norm: tuple[Tensor | None, Tensor | None] = (None, None),
    ):
        from hf_ssm.ops.cpu import decoding_kernels

        self.kernel = decoding_kernels.blocks_step
        self.tensors = [None if t is None else t.detach() for block in (*weights, final_norm) for t in block]
        addresses = [_address(t) for t in self.tensors]
        w = weights[0]
        self.dtype = w.A.dtype
        (channels, states), rank = w.A.shape, w.dt_weight.shape[1]
        size, taps = len(w.out_weight), w.conv_weight.shape[-1]
        for block in weights:
            _check_shapes(block, size, channels, states, rank, taps)
        self.count, self.shapes = len(weights), (size, (taps - 1, channels), (channels, states))
        self.scratch_size = size + 5 * channels + rank + 2 * states
        self.arguments = (
            *(_ZERO[self.dtype], _LOG2_E[self.dtype], w.A.element_size()),
            *(np.array(addresses[:-2]).reshape(len(weights), -1), *addresses[-2:]),
            *(_NORMS.index(options.norm), *options[1:]),
            *(size, channels, states, rank, taps),
        )

    def __call__(self, hidden: Tensor, pasts: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Go on by one position; everything on a CPU and of the type of the weights.

        Args:
            hidden: `(B, H)`, or with further axes of length 1.
            pasts: The inputs of each block's convolution at the `K - 1` positions before, oldest first,
                `(number of blocks, B, K - 1, D)`.
            states: State of each block's scan after the position before, `(number of blocks, B, D, N)`.

        Returns:
            New tensors: the outputs of the blocks, `(number of blocks, *hidden.shape)`, the last after the final norm,
            and what `pasts` and `states` are at the next position.

        Raises:
            ValueError: Shapes that do not fit those of the weights.
        """
        size, *shapes = self.shapes
        batch = len(hidden)
        if hidden.shape[-1] != size or hidden.numel() != batch * size:
            raise ValueError(f"hidden must have {size} numbers for each row, got {tuple(hidden.shape)}")
        for name, memory, shape in zip(("pasts", "states"), (pasts, states), shapes, strict=True):
            if memory.shape != (self.count, batch, *shape):
                expected = (self.count, batch, *shape)
                raise ValueError(f"{name} must have shape {expected}, got {tuple(memory.shape)}")
        hidden, pasts, states = hidden.contiguous(), pasts.contiguous(), states.contiguous()
        new_pasts, new_states = torch.empty_like(pasts), torch.empty_like(states)
        outputs = hidden.new_empty(self.count, *hidden.shape)
        scratch = hidden.new_empty(self.scratch_size)
        memories = pasts.data_ptr(), states.data_ptr(), new_pasts.data_ptr(), new_states.data_ptr()
        self.kernel(*self.arguments, batch, *memories, hidden.data_ptr(), outputs.data_ptr(), scratch.data_ptr())
        return outputs, new_pasts, new_states


def _check_shapes(w: BlockWeights, size: int, channels: int, states: int, rank: int, taps: int) -> None:
    expected = (
        *((size,), (size,), (2 * channels, size), (2 * channels,), (channels, 1, taps), (channels,)),
        *((rank + 2 * states, channels), (channels, rank), (channels,), (channels, states), (channels,)),
        *((size, channels), (size,)),
    )
    for name, tensor, shape in zip(w._fields, w, expected, strict=True):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")


def scan_step(
    u: Tensor, d: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, D: Tensor | None, z: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One position of the real scan, of tensors on a CPU in one type, `d` being what enters the recurrence.

    Args:
        u, d: `(B, D)`.
        A: `(D, N)`.
        B, C: `(B, N)`.
        state: `(B, D, N)`.
        D: `(D,)` or `None`.
        z: `(B, D)` or `None`.

    Returns:
        `y` `(B, D)` and the new state, `(B, D, N)`.
    """
    from hf_ssm.ops.cpu import decoding_kernels

    u, d, A, B, C, state = (t.contiguous() for t in (u, d, A, B, C, state))
    D, z = (None if t is None else t.contiguous() for t in (D, z))
    y, new = torch.empty_like(u), torch.empty_like(state)
    for row in range(len(u)):
        per_row = [_address(t) + row * t.stride(0) * t.element_size() for t in (u, d, B, C, state, new, y)]
        x, step, b, c, before, after, out = per_row
        gate = 0 if z is None else z[row].data_ptr()
        decoding_kernels.scan_step(
            *(_ZERO[u.dtype], _LOG2_E[u.dtype], x, step, A.data_ptr(), False, b, c, _address(D), gate),
            *(before, after, out, *A.shape),
        )
    return y, new
