"""Parts of the compiled kernels of one position: linear maps, norms, the short convolution, and the call of blocks.

In kernels tensors are contiguous and given by the address of their first element (0: none); `like` is 0 in the type of
all numbers. The weights of a block are given by descriptions of three integers: the address of the numbers, that of a
scale for each row, and how they are stored: in the type of `like`, in bfloat16, or in int8. `resolve` replaces them by
addresses of numbers in the type of `like`, except those of linear maps, which `apply_linear` reads as they are stored.
"""

import math
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import (
    LANES,
    add,
    constant,
    fma,
    load,
    load_as,
    load_some,
    load_some_as,
    mul,
    pointer,
    sigmoid,
    splat,
    store_some,
    sub,
    total,
)
from hf_ssm.ops.decoding import LINEAR_MAPS, BlockShapes, FinalNorm, ScaledRows

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
    "resolve",
]

NORMS = ("none", "layer", "rms")
NO_NORM, _LAYER_NORM = 0, 1
ZERO = {torch.float32: np.float32(0), torch.float64: np.float64(0)}
_AS_NUMBERS, _BFLOAT16, _INT8 = 0, 1, 2
LOG2_E = {torch.float32: np.float32(math.log2(math.e)), torch.float64: np.float64(math.log2(math.e))}


@kernel
def apply_linear(like, x, weight, bias, y, rows, columns):
    """`y = W x + b`, with the description `weight` of W `(rows, columns)`."""
    described, out = pointer(weight, np.int64(0)), pointer(y, like)
    if described[2] == _INT8:
        _multiply(like, pointer(described[0], np.int8(0)), x, y, rows, columns)
        scales = pointer(described[1], like)
        for i in range(0, rows, LANES):
            store_some(out, i, mul(load_some(out, i, rows - i), load_some(scales, i, rows - i)), rows - i)
    elif described[2] == _BFLOAT16:
        _multiply(like, pointer(described[0], np.uint16(0)), x, y, rows, columns)
    else:
        _multiply(like, pointer(described[0], like), x, y, rows, columns)
    if bias != 0:
        add_rows(like, y, bias, y, rows)


@kernel
def _multiply(like, w, x, y, rows, columns):
    """`y = W x` with the pointer `w` to W, read sequentially, with four independent sums.

    In float32 it takes half the time of torch's matrix-vector product, and as long as reading the weights. In int8,
    loops over `range` are slower than these.
    """
    v, out = pointer(x, like), pointer(y, like)
    for row in range(rows):
        at, c = row * columns, 0
        s0, s1, s2, s3 = splat(like), splat(like), splat(like), splat(like)
        while c + 4 * LANES <= columns:
            s0 = fma(load_as(w, at + c, like), load(v, c), s0)
            s1 = fma(load_as(w, at + c + LANES, like), load(v, c + LANES), s1)
            s2 = fma(load_as(w, at + c + 2 * LANES, like), load(v, c + 2 * LANES), s2)
            s3 = fma(load_as(w, at + c + 3 * LANES, like), load(v, c + 3 * LANES), s3)
            c += 4 * LANES
        while c < columns:
            s0 = fma(load_some_as(w, at + c, columns - c, like), load_some(v, c, columns - c), s0)
            c += LANES
        out[row] = total(add(add(s0, s1), add(s2, s3)))


@kernel
def _resolved(like, weight, count, room):
    """The address of the `count` numbers of a description, which are copied to `room` if they are in bfloat16."""
    if weight == 0:
        return weight
    described = pointer(weight, np.int64(0))
    if described[2] != _BFLOAT16:
        return described[0]
    source, target = pointer(described[0], np.uint16(0)), pointer(room, like)
    for i in range(0, count, LANES):
        store_some(target, i, load_some_as(source, i, count - i, like), count - i)
    return room


@kernel
def resolve(like, item, weights, counts, addresses, room):
    """Write the addresses of the weights of a block.

    Args:
        weights: Their descriptions.
        counts: Numbers of each weight; 0 for a linear map, whose description is kept.
        addresses: Written.
        room: Memory for copies.
    """
    for i in range(len(counts)):
        addresses[i] = weights[i] if counts[i] == 0 else _resolved(like, weights[i], counts[i], room)
        room += counts[i] * item


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
        squares, whole = splat(like), count // LANES * LANES
        for i in range(0, whole, LANES):
            deviation = sub(load(v, i), constant(mean, like))
            squares = fma(deviation, deviation, squares)
        square = total(squares)
        for i in range(whole, count):
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


# `weights` are the resolved weights of a block, which begin with those of norm and in-projection and end with
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
def apply_final_norm(like, item, y, norm, flags, final, batch, width, room):
    """The norm of each row after the last block, where norms are before the mixers; `final` are descriptions."""
    kind, epsilon = norm
    if flags[0] and kind != NO_NORM:
        weight = _resolved(like, final[0], width, room)
        bias = _resolved(like, final[1], width, room + width * item)
        for row in range(batch):
            at = y + row * width * item
            apply_norm(like, at, kind, epsilon, weight, bias, at, width)


def address(t: Tensor | None) -> int:
    """Address of the first element, 0 for `None`."""
    return 0 if t is None else t.data_ptr()


class CompiledBlocks:
    """One position of all blocks of a model.

    Args:
        run: The kernel. Its arguments are `like`; the size of a number in bytes; the descriptions of the weights, an
            array with a row for each block, and `counts` for `resolve`; those of the final norm; `norm` and `flags`;
            `numbers`; the batch size; the addresses of the states of convolutions and scans before (read) and after
            (written), and of the input, the outputs of all blocks, the scratch memory and that for copies of weights.
        weights: Of each block.
        options: Of all blocks.
        final_norm: Weight and bias of the norm after the last block.
        shapes: Of all tensors.
        dtype: The type of all numbers.
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
        dtype: torch.dtype,
        scratch_size: int,
        numbers: tuple[Any, ...],
    ):
        shapes.check_weights(weights)
        self.run, self.shapes, self.dtype, self.count = run, shapes, dtype, len(weights)
        stored = [_described(t, dtype) for block in (*weights, final_norm) for t in block]
        # Keeps the memory of the weights alive.
        self.tensors = [tensors for tensors, _ in stored]
        self.descriptions = np.array([description for _, description in stored])
        first, size = self.descriptions.ctypes.data, self.descriptions.strides[0]
        places = [first + i * size if tensors else 0 for i, (tensors, _) in enumerate(stored)]
        fields = weights[0]._fields
        counts = [0 if n in LINEAR_MAPS else prod(s) for n, s in zip(fields, shapes.weights, strict=True)]
        # Numbers of the scratch memory before the copies, and with them.
        self.scratch_sizes = scratch_size, scratch_size + max(sum(counts), 2 * shapes.width)
        self.arguments = (
            *(ZERO[dtype], dtype.itemsize),
            *(np.array(places[:-2]).reshape(self.count, -1), np.array(counts), (places[-2], places[-1])),
            *((NORMS.index(options.norm), options.epsilon), (options.norm_first, options.residual)),
            *numbers,
        )

    def __call__(self, hidden: Tensor, pasts: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.shapes.check_inputs(hidden, pasts, states, self.count)
        batch, kept = len(hidden), pasts.dtype
        hidden, pasts, states = (t.to(self.dtype).contiguous() for t in (hidden, pasts, states))
        new_pasts, new_states = torch.empty_like(pasts), torch.empty_like(states)
        outputs = hidden.new_empty(self.count, *hidden.shape)
        before_copies, size = self.scratch_sizes
        scratch = hidden.new_empty(size)
        memories = pasts.data_ptr(), states.data_ptr(), new_pasts.data_ptr(), new_states.data_ptr()
        rooms = scratch.data_ptr(), scratch.data_ptr() + before_copies * self.dtype.itemsize
        self.run(*self.arguments, batch, memories, (hidden.data_ptr(), outputs.data_ptr(), *rooms))
        return outputs, new_pasts.to(kept), new_states


def _described(weight: Tensor | ScaledRows | None, dtype: torch.dtype) -> tuple[list[Tensor], tuple[int, int, int]]:
    """The tensors of a weight, and its description.

    Raises:
        ValueError: It is stored in a way that the kernels do not read.
    """
    if weight is None:
        return [], (0, 0, _AS_NUMBERS)
    if isinstance(weight, ScaledRows):
        values, scales = weight.values.detach(), weight.scales.detach()
        if values.dtype != torch.int8 or scales.dtype != dtype or scales.numel() != len(values):
            raise ValueError(f"scaled rows must be int8 with a scale of {dtype} for each row")
        return [values, scales], (values.data_ptr(), scales.data_ptr(), _INT8)
    form = {dtype: _AS_NUMBERS, torch.bfloat16: _BFLOAT16}.get(weight.dtype)
    if form is None:
        raise ValueError(f"weights must be of {dtype} or bfloat16, got {weight.dtype}")
    return [weight.detach()], (weight.data_ptr(), 0, form)
