"""What the compiled kernels of one position share: linear maps, norms, the short convolution, and the call of blocks.

In kernels tensors are contiguous and given by the address of their first element (0: none); `like` is 0 in the type of
all numbers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import LANES, add, fma, load, load_some, mul, pointer, sigmoid, splat, store_some, total
from hf_ssm.ops.decoding import BlockShapes, FinalNorm

__all__ = [
    "LOG2_E",
    "ZERO",
    "CompiledBlocks",
    "address",
    "apply_final_norm",
    "apply_gate",
    "apply_linear",
    "convolve",
    "project_in",
    "project_out",
]

NORMS = ("none", "layer", "rms")
NO_NORM, _LAYER_NORM = 0, 1
ZERO = {torch.float32: np.float32(0), torch.float64: np.float64(0)}
LOG2_E = {torch.float32: np.float32(math.log2(math.e)), torch.float64: np.float64(math.log2(math.e))}


@kernel
def apply_linear(like, x, weight, bias, y, rows, columns):
    """`y = W x + b` with W `(rows, columns)`, read sequentially, with four independent sums.

    Takes half the time of torch's matrix-vector product, and as long as reading the weights.
    """
    v, w, out = pointer(x, like), pointer(weight, like), pointer(y, like)
    in_fours = columns // (4 * LANES) * (4 * LANES)
    for row in range(rows):
        at = row * columns
        s0, s1, s2, s3 = splat(like), splat(like), splat(like), splat(like)
        for c in range(0, in_fours, 4 * LANES):
            s0 = fma(load(w, at + c), load(v, c), s0)
            s1 = fma(load(w, at + c + LANES), load(v, c + LANES), s1)
            s2 = fma(load(w, at + c + 2 * LANES), load(v, c + 2 * LANES), s2)
            s3 = fma(load(w, at + c + 3 * LANES), load(v, c + 3 * LANES), s3)
        for c in range(in_fours, columns, LANES):
            s0 = fma(load_some(w, at + c, columns - c), load_some(v, c, columns - c), s0)
        out[row] = total(add(add(s0, s1), add(s2, s3)))
    if bias != 0:
        add_rows(like, y, bias, y, rows)


@kernel
def add_rows(like, a, b, y, count):
    """`y = a + b`."""
    left, right, out = pointer(a, like), pointer(b, like), pointer(y, like)
    for i in range(0, count, LANES):
        store_some(out, i, add(load_some(left, i, count - i), load_some(right, i, count - i)), count - i)


@kernel
def apply_norm(like, x, kind, epsilon, weight, bias, y, count):
    """Layer norm, RMS norm or none; `y` may be `x`."""
    v, out = pointer(x, like), pointer(y, like)
    mean = like
    if kind == _LAYER_NORM:
        summed = splat(like)
        for i in range(0, count, LANES):
            summed = add(summed, load_some(v, i, count - i))
        mean = total(summed) / count
    square = like
    if kind != NO_NORM:
        for i in range(count):
            square += (v[i] - mean) * (v[i] - mean)
    scale = 1 / math.sqrt(square / count + epsilon) if kind != NO_NORM else 1.0
    for i in range(count):
        value = (v[i] - mean) * scale
        if weight != 0:
            value *= pointer(weight, like)[i]
        if bias != 0:
            value += pointer(bias, like)[i]
        out[i] = value


@kernel
def convolve(like, u, past, weight, bias, new_past, y, channels, taps):
    """The short convolution with SiLU.

    Args:
        u, y: `(D,)`, read and written.
        past, new_past: State before (read) and after (written), `(K - 1, D)`.
        weight, bias: `(D, K)`; `(D,)` or 0.
    """
    x, before, w = pointer(u, like), pointer(past, like), pointer(weight, like)
    after, out = pointer(new_past, like), pointer(y, like)
    for d in range(channels):
        value = w[d * taps + taps - 1] * x[d]
        if bias != 0:
            value += pointer(bias, like)[d]
        for i in range(taps - 1):
            value += w[d * taps + i] * before[i * channels + d]
        out[d] = value
    for i in range((taps - 2) * channels):
        after[i] = before[i + channels]
    if taps > 1:
        for d in range(channels):
            after[(taps - 2) * channels + d] = x[d]
    for d in range(0, channels, LANES):
        s = load_some(out, d, channels - d)
        store_some(out, d, mul(s, sigmoid(s)), channels - d)


@kernel
def apply_gate(like, y, gate, channels):
    """`y = y SiLU(gate)`."""
    out, z = pointer(y, like), pointer(gate, like)
    for i in range(0, channels, LANES):
        lanes = channels - i
        v = load_some(z, i, lanes)
        store_some(out, i, mul(load_some(out, i, lanes), mul(v, sigmoid(v))), lanes)


# `weights` are the addresses of the weights of a block, which begin with those of norm and in-projection and end with
# those of the out-projection; `norm` is the kind of all norms and the number they add to the variance; `flags` are
# whether norms are before the mixers instead of after the sums, and whether a block adds its input to its output.


@kernel
def project_in(like, source, norm, flags, weights, normed, y, rows, width):
    """The in-projection of `source` with the norm before it; `normed` is memory for `width` numbers."""
    kind, epsilon = norm
    read = source
    if flags[0] and kind != NO_NORM:
        apply_norm(like, source, kind, epsilon, weights[0], weights[1], normed, width)
        read = normed
    apply_linear(like, read, weights[2], weights[3], y, rows, width)


@kernel
def project_out(like, x, source, norm, flags, weights, y, width, channels):
    """The out-projection of `x`, the sum with the input `source` of the block, and the norm after it."""
    kind, epsilon = norm
    apply_linear(like, x, weights[len(weights) - 2], weights[len(weights) - 1], y, width, channels)
    if flags[1]:
        add_rows(like, source, y, y, width)
    if not flags[0] and kind != NO_NORM:
        apply_norm(like, y, kind, epsilon, weights[0], weights[1], y, width)


@kernel
def apply_final_norm(like, item, y, norm, flags, final, batch, width):
    """The norm of each row after the last block, where norms are before the mixers."""
    kind, epsilon = norm
    if flags[0] and kind != NO_NORM:
        for row in range(batch):
            at = y + row * width * item
            apply_norm(like, at, kind, epsilon, final[0], final[1], at, width)


def address(t: Tensor | None) -> int:
    """Address of the first element, 0 for `None`."""
    return 0 if t is None else t.data_ptr()


class CompiledBlocks:
    """One position of all blocks of a model.

    Args:
        run: The kernel. Its arguments are `like`; the size of a number in bytes; the addresses of the weights, an array
            with a row for each block; those of the final norm; `norm` and `flags`; `numbers`; the batch size; the
            addresses of the states of convolutions and scans before (read) and after (written), of the input, of the
            outputs of all blocks, and of the scratch memory.
        weights: Of each block.
        options: Of all blocks.
        final_norm: Weight and bias of the norm after the last block.
        shapes: Of all tensors.
        scratch_size: Numbers of scratch memory.
        numbers: What else the kernel needs.
    """

    def __init__(
        self,
        run: Callable[..., None],
        weights: Sequence[Any],
        options: Any,
        final_norm: FinalNorm,
        shapes: BlockShapes,
        scratch_size: int,
        numbers: tuple[Any, ...],
    ):
        shapes.check_weights(weights)
        self.run, self.shapes, self.scratch_size, self.count = run, shapes, scratch_size, len(weights)
        # Keeps the memory of the weights alive.
        self.tensors = [None if t is None else t.detach() for block in (*weights, final_norm) for t in block]
        addresses = [address(t) for t in self.tensors]
        in_weight = weights[0].in_weight
        self.arguments = (
            *(ZERO[in_weight.dtype], in_weight.element_size()),
            *(np.array(addresses[:-2]).reshape(self.count, -1), (addresses[-2], addresses[-1])),
            *((NORMS.index(options.norm), options.epsilon), (options.norm_first, options.residual)),
            *numbers,
        )

    def __call__(self, hidden: Tensor, pasts: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.shapes.check_inputs(hidden, pasts, states, self.count)
        batch = len(hidden)
        hidden, pasts, states = hidden.contiguous(), pasts.contiguous(), states.contiguous()
        new_pasts, new_states = torch.empty_like(pasts), torch.empty_like(states)
        outputs = hidden.new_empty(self.count, *hidden.shape)
        scratch = hidden.new_empty(self.scratch_size)
        memories = pasts.data_ptr(), states.data_ptr(), new_pasts.data_ptr(), new_states.data_ptr()
        self.run(*self.arguments, batch, memories, hidden.data_ptr(), outputs.data_ptr(), scratch.data_ptr())
        return outputs, new_pasts, new_states
