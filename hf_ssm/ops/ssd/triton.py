"""State space duality by Triton kernels: custom operators and gradients.

Dimensions, tiles and decays as in `triton_tiles.py`.

Four kernels compute the forward pass: sums of the logarithms of decays, what each chunk adds to the state, the states
before the chunks by a recurrence over chunks, and the outputs; of many sequences one kernel is the second and third.
The states before the chunks are kept, and the backward recomputes everything else: the second and third kernel in
reverse give the gradients of the states, and four more those of x, of the products `C_i · B_j`, of B and C, and of d.

All work is divided by chunks, so that one sequence of 2048 positions fills a GPU, and by heads; sums over heads by
parts of a group, whose partial sums are added by torch. x, B, C and their gradients are read and written in their own
dtype, and matrices of half precision are multiplied in it, with sums in float32: products with decays, states at the
beginning of a chunk and their gradients are rounded to it, which errs by some 0.4 % of the largest numbers in bfloat16
(1 % is tested); float16 overflows beyond 65504. Everything else is float32.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from hf_ssm.ops.context import NAMESPACE
from hf_ssm.ops.gpu.arguments import as_bytes, dense_rows
from hf_ssm.ops.gpu.kernels import runs_kernels
from hf_ssm.ops.operators import needs_gradient
from hf_ssm.ops.ssd.operators import ScanInputs, ssd_operator
from hf_ssm.ops.ssd.triton_backward import grad_inputs, grad_products, grad_steps, grad_weights
from hf_ssm.ops.ssd.triton_forward import chunk_scan, chunk_states, decay_sums, pass_states
from hf_ssm.ops.ssd.triton_tiles import MAX_CHANNELS, Heads, Skip, Tiling, chunk_size_of

__all__ = ["ssd_triton", "supports_ssd"]


def _decays(d: Tensor, A: Tensor, starts: Tensor | None, tiling: Tiling) -> Tensor:
    """`(B, H, 3, K T)`; see `decay_sums`."""
    decays = d.new_empty(tiling.batch, tiling.heads, 3, tiling.padded)
    decay_sums.launch(
        lambda meta: (triton.cdiv(tiling.heads, meta["BLOCK_H"]), tiling.chunks, tiling.batch),
        d=d.contiguous(),
        A=A.contiguous(),
        starts=as_bytes(starts),
        decays=decays,
        length=tiling.length,
        heads=tiling.heads,
        padded=tiling.padded,
        CHUNK=tiling.chunk,
    )
    return decays


def _states(
    source: Tensor, weights: Tensor, decays: Tensor, first: Tensor | None, saved: Tensor | None, tiling: Tiling
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The states before the chunks `(B, K, H, P, N)` and the one after the last, of x and B.

    With `saved`, these states, the gradients of those after the chunks and of the one before the first, of the gradient
    of y and C; and the gradients of the logarithms of the chunks' decays `(B, H, K, number of blocks)`.
    """
    batch, heads, chunks, size = tiling.batch, tiling.heads, tiling.chunks, tiling.channels * tiling.states
    states = decays.new_empty(batch, chunks, heads, tiling.channels, tiling.states)
    last = decays.new_empty(batch, heads, tiling.channels, tiling.states)
    is_reversed, block = saved is not None, pass_states.configs[0].kwargs["BLOCK"]
    pieces = tiling.blocks if tiling.carries else triton.cdiv(size, block)
    through = decays.new_empty(batch, heads, chunks, pieces) if is_reversed else None
    first = None if first is None else first.contiguous()
    recurrence = {"first": first, "last": last, "saved": saved, "through": through}
    chunk_states.launch(
        (heads * tiling.blocks, 1 if tiling.carries else chunks, batch),
        source=Heads.of(source),
        weights=Heads.of(weights),
        **(recurrence if tiling.carries else dict.fromkeys(recurrence)),
        decays=decays,
        states=states,
        chunks=chunks,
        REVERSED=is_reversed,
        CARRY=tiling.carries,
        **tiling.arguments,
    )
    if not tiling.carries:
        pass_states.launch(
            (pieces, heads, batch),
            **recurrence,
            states=states,
            decays=decays,
            heads=heads,
            chunks=chunks,
            size=size,
            padded=tiling.padded,
            CHUNK=tiling.chunk,
            REVERSED=is_reversed,
        )
    return states, last, through


def _run_forward(args: ScanInputs, chunk: int, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the last state and, with `keep`, the states before the chunks for the backward."""
    x, B, C = (dense_rows(t) for t in (args.x, args.B, args.C))
    tiling = Tiling.of(x, B, chunk)
    decays = _decays(args.d, args.A, args.starts, tiling)
    states, last, _ = _states(x, B, decays, args.state, None, tiling)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    chunk_scan.launch(
        (tiling.heads * tiling.tiles, tiling.chunks, tiling.batch),
        **{"x": Heads.of(x), "B": Heads.of(B), "C": Heads.of(C), "D": Skip.of(args.D)},
        decays=decays,
        states=states,
        y=y,
        **tiling.arguments,
    )
    return y, last, states if keep else last.new_empty(0)


def _empty_results(args: ScanInputs, chunk: int, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    x, d, B = args.x, args.d, args.B
    batch, length, heads, channels = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    last = d.new_empty(batch, heads, channels, B.shape[3])
    kept = (batch, -(-length // chunk), heads, channels, B.shape[3])
    return y, last, d.new_empty(kept if keep else (0,))


def _run_backward(
    grad_y: Tensor, grad_last: Tensor | None, args: ScanInputs, chunk: int, kept: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of x, d, A, B, C, D, the initial state and `None`."""
    d, A, D, starts, states = args.d, args.A, args.D, args.starts, kept
    grad_y, x, B, C = (dense_rows(t) for t in (grad_y, args.x, args.B, args.C))
    tiling = Tiling.of(x, B, chunk)
    decays = _decays(d, A, starts, tiling)
    grads, first, through = _states(grad_y, C, decays, grad_last, states, tiling)
    vectors = tiling.batch, tiling.heads, tiling.padded
    direct, outgoing = decays.new_empty(vectors), decays.new_empty(vectors)
    grad_x, skip_sums = _grad_inputs(grad_y, x, B, C, D, decays, grads, direct, outgoing, tiling)
    products, paths = _grad_products(grad_y, x, B, C, decays, tiling)
    incoming = decays.new_empty(tiling.batch, tiling.heads, tiling.blocks, tiling.padded)
    grad_C = _grad_weights(grad_y, C, B, states, decays, products, incoming, tiling)
    grad_B = _grad_weights(x, None, C, grads, decays, products, None, tiling)
    grad_d = torch.empty(d.shape, dtype=d.dtype, device=d.device)
    rate_sums = decays.new_empty(tiling.batch, tiling.chunks, tiling.heads)
    grad_steps.launch(
        lambda meta: (triton.cdiv(tiling.heads, meta["BLOCK_H"]), tiling.chunks, tiling.batch),
        A=A.contiguous(),
        starts=as_bytes(starts),
        decays=decays,
        direct=direct,
        outgoing=outgoing,
        incoming=incoming,
        paths=paths,
        through=through,
        grad_d=grad_d,
        rate_sums=rate_sums,
        length=tiling.length,
        heads=tiling.heads,
        padded=tiling.padded,
        blocks=tiling.blocks,
        pieces=0 if through is None else through.shape[3],
        CHUNK=tiling.chunk,
        ROWS=tiling.rows,
    )
    grad_D = skip_sums.sum((0, 1))
    grad_D = grad_D.sum(1) if D is not None and D.dim() == 1 else grad_D
    return grad_x, grad_d, rate_sums.sum((0, 1)), grad_B, grad_C, grad_D, first, None


def _grad_inputs(
    grad_y: Tensor,
    x: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    decays: Tensor,
    grads: Tensor,
    direct: Tensor,
    outgoing: Tensor,
    tiling: Tiling,
) -> tuple[Tensor, Tensor]:
    """The gradient of x and the sums of the gradient of D `(B, K J, H, P)`; writes `direct` and `outgoing`."""
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    shape = tiling.batch, tiling.chunks * tiling.tiles, tiling.heads, tiling.channels
    skip_sums = decays.new_empty((0, *shape[1:]) if D is None else shape)
    grad_inputs.launch(
        (tiling.heads * tiling.tiles, tiling.chunks, tiling.batch),
        **{"x": Heads.of(x), "B": Heads.of(B), "C": Heads.of(C), "D": Skip.of(D), "grad": Heads.of(grad_y)},
        decays=decays,
        grads=grads,
        grad_x=grad_x,
        direct=direct,
        outgoing=outgoing,
        skip_sums=skip_sums,
        **tiling.arguments,
    )
    return grad_x, skip_sums


def _grad_products(
    grad_y: Tensor, x: Tensor, B: Tensor, C: Tensor, decays: Tensor, tiling: Tiling
) -> tuple[Tensor, Tensor]:
    """The gradients of the products `(B, K, G, parts, T, T)`, and the sums of paths `(B, H, J, K T)`."""
    parts, tiles, chunk = tiling.parts, tiling.tiles, tiling.chunk
    products = decays.new_empty(tiling.batch, tiling.chunks, tiling.groups, parts, chunk, chunk)
    paths = decays.new_empty(tiling.batch, tiling.heads, tiles, tiling.padded)
    grad_products.launch(
        (tiling.groups * parts * tiles * tiles, tiling.chunks, tiling.batch),
        **{"x": Heads.of(x), "B": Heads.of(B), "C": Heads.of(C), "grad": Heads.of(grad_y)},
        decays=decays,
        products=products,
        paths=paths,
        parts=parts,
        **tiling.arguments,
    )
    return products, paths


def _grad_weights(
    source: Tensor,
    own: Tensor | None,
    other: Tensor,
    states: Tensor,
    decays: Tensor,
    products: Tensor,
    incoming: Tensor | None,
    tiling: Tiling,
) -> Tensor:
    """The gradient of C, which is `own`, or of B where that is absent; writes `incoming`."""
    parts = tiling.parts
    shape = (parts, tiling.batch, tiling.length, tiling.groups, tiling.states)
    sums = torch.empty(shape, dtype=other.dtype if parts == 1 else torch.float32, device=other.device)
    grad_weights.launch(
        (tiling.groups * parts * tiling.tiles * tiling.blocks, tiling.chunks, tiling.batch),
        source=Heads.of(source),
        own=None if own is None else Heads.of(own),
        other=Heads.of(other),
        states=states,
        decays=decays,
        products=products,
        incoming=incoming,
        result=sums,
        parts=parts,
        OF_C=own is not None,
        **tiling.arguments,
    )
    return sums[0] if parts == 1 else sums.sum(0).to(other.dtype)


_OPERATOR = {"forward": _run_forward, "fake": _empty_results, "backward": _run_backward}
_operator, _ = ssd_operator(f"{NAMESPACE}::ssd_triton", **_OPERATOR)


def supports_ssd(x: Tensor, *others: Any) -> bool:
    """Not double precision, for which GPUs have no fast products, and not heads of more than 128 channels."""
    *tensors, _, _ = others
    return x.shape[3] <= MAX_CHANNELS and runs_kernels(x, *tensors)


def ssd_triton(
    x: Tensor,
    d: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    state: Tensor | None,
    starts: Tensor | None,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    """The output in the dtype of x, and the last state in float32; for the arguments see `loop_ssd`."""
    dtype = x.dtype if x.dtype == B.dtype == C.dtype else torch.float32
    tensors = x.to(dtype), d, A, B.to(dtype), C.to(dtype), D, state
    y, last, _ = _operator(*tensors, starts, chunk_size_of(tensors[0], B, chunk_size), needs_gradient(*tensors))
    return y, last
