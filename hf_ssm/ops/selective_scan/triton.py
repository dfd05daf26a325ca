"""The selective scan by Triton kernels: custom operators, chunks and gradients.

Dimensions: `B` batch, `L` length, `D` channels, `N` states, `K` chunks, `S` segments, `P` planes, 1 for real and 2 for
complex states.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from hf_ssm.ops.context import NAMESPACE
from hf_ssm.ops.gpu.arguments import dense_rows, with_strides
from hf_ssm.ops.gpu.kernels import runs_kernels
from hf_ssm.ops.operators import needs_gradient
from hf_ssm.ops.selective_scan.arguments import ScanTensors
from hf_ssm.ops.selective_scan.operators import selective_scan_operator
from hf_ssm.ops.selective_scan.triton_backward import BLOCK_D, cotangent_ends, scan_backward
from hf_ssm.ops.selective_scan.triton_forward import SEGMENT, carry, chunk_ends, scan
from hf_ssm.ops.selective_scan.triton_tiles import scaled_matrix

__all__ = ["chunk_positions", "scan_triton", "supports_scan"]

# Chunks cost a second exponential for each state. From this number of sequences times channels on, there are enough
# programs for a GPU without them; below, chunks make up for what is missing to the second number.
_ENOUGH, _WANTED = 16384, 65536
_MAX_STATES = 64


def chunk_positions(batch: int, length: int, channels: int) -> int:
    """Positions of a chunk, a multiple of `SEGMENT`; the number of chunks depends on the sizes only."""
    rows = max(1, batch * channels)
    chunks = 1 if rows >= _ENOUGH else min(-(-length // SEGMENT), -(-_WANTED // rows))
    return -(-length // (chunks * SEGMENT)) * SEGMENT


def _planes(t: Tensor) -> Tensor:
    """`(..., D, N)` -> `(..., P, N, D)`, float32."""
    t = t.resolve_conj()
    parts = torch.stack([t.real, t.imag], dim=-3) if t.is_complex() else t.unsqueeze(-3)
    return parts.float().transpose(-1, -2).contiguous()


def _joined(planes: Tensor) -> Tensor:
    """The inverse of `_planes`."""
    parts = planes.transpose(-1, -2)
    if parts.shape[-3] == 1:
        return parts.squeeze(-3).contiguous()
    return torch.complex(*(part.contiguous() for part in parts.unbind(-3)))


def _strided(**tensors: Tensor | None) -> dict[str, Any]:
    """Tensors `(B, L, ...)` and their strides, as the arguments of a kernel; complex numbers as pairs of real ones."""
    rows: dict[str, Tensor | None] = {}
    for name, t in tensors.items():
        if t is None:
            rows[name] = None
        elif t.is_complex():
            rows[name] = torch.view_as_real(t.resolve_conj().contiguous()).flatten(-2)
        else:
            rows[name] = dense_rows(t)
    return with_strides(("batch", "row"), **rows)


class _Job:
    """What the launches of a scan share.

    Attributes:
        sizes: Arguments of all kernels that follow from the shapes.
        chunks: Number of chunks.
    """

    def __init__(self, args: ScanTensors, softplus: bool):
        u, delta, A, B, C, D, z, bias, _ = args
        self.batch, self.length, self.channels = u.shape
        self.states, self.planes = A.shape[1], 2 if A.is_complex() else 1
        self.device, self.A = u.device, scaled_matrix(A.resolve_conj())
        chunk = chunk_positions(*u.shape)
        self.chunks = -(-self.length // chunk)
        self.state = {
            "A": self.A,
            "channels": self.channels,
            "COMPLEX": A.is_complex(),
            "STATES": self.states,
            "BLOCK_N": triton.next_power_of_2(self.states),
        }
        self.step = {
            **self.state,
            **_strided(delta=delta),
            "bias": None if bias is None else bias.contiguous(),
            "length": self.length,
            "chunk": chunk,
            "SOFTPLUS": softplus,
            "SHARED": delta.shape[-1] < self.channels,
            "SHARED_BIAS": bias is not None and bias.shape[0] < self.channels,
        }
        self.everything = {**self.step, **_strided(u=u, z=z, B=B, C=C), "D": None if D is None else D.contiguous()}

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def states_of(self, *lead: int) -> Tensor:
        return self.empty(*lead, self.planes, self.states, self.channels)

    def grid(self, meta: Any) -> tuple[int, int, int]:
        return triton.cdiv(self.channels, meta["BLOCK_D"]), self.chunks, self.batch

    def carried(self, kernel: Any, state: Tensor | None, reverse: bool, arguments: dict[str, Any]) -> Tensor | None:
        """State that enters each chunk, `(B, K, P, N, D)`, from `(B, P, N, D)`; `kernel` computes what chunks add."""
        if self.chunks == 1 or self.batch == 0:
            return state
        ends, before = self.states_of(self.batch, self.chunks), self.states_of(self.batch, self.chunks)
        spans = self.empty(self.batch, self.chunks, self.channels)
        kernel.launch(self.grid, **self.step, **arguments, ends=ends, spans=spans)
        carry.launch(
            lambda meta: (triton.cdiv(self.channels, meta["BLOCK_D"]), self.batch),
            **self.state,
            **{"ends": ends, "spans": spans, "state": state, "before": before},
            chunks=self.chunks,
            REVERSE=reverse,
        )
        return before

    def some(self, *names: str) -> dict[str, Any]:
        """Inputs and their strides."""
        return {key: self.everything[key] for name in names for key in (name, f"{name}_batch", f"{name}_row")}


def _run_forward(args: ScanTensors, delta_softplus: bool, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the last state and, with `keep`, the states before each segment for the backward."""
    job, u = _Job(args, delta_softplus), args.u
    state = None if args.state is None else _planes(args.state)
    before = job.carried(chunk_ends, state, False, job.some("u", "B"))
    y = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    saved = job.states_of(job.batch, -(-job.length // SEGMENT)) if keep else None
    last = job.states_of(job.batch)
    scan.launch(job.grid, **job.everything, before=before, y=y, saved=saved, last=last, SEGMENT=SEGMENT)
    return y, _joined(last), u.new_empty(0, dtype=torch.float32) if saved is None else saved


def _empty_results(args: ScanTensors, delta_softplus: bool, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    u, A = args.u, args.A
    (batch, length, channels), states = u.shape, A.shape[1]
    y = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    size = (batch, (length + SEGMENT - 1) // SEGMENT, 2 if A.is_complex() else 1, states, channels)
    kind = torch.complex64 if A.is_complex() else torch.float32
    last = torch.empty((batch, channels, states), dtype=kind, device=u.device)
    return y, last, u.new_empty(size if keep else (0,), dtype=torch.float32)


def _run_backward(
    grad_y: Tensor,
    grad_last: Tensor | None,
    args: ScanTensors,
    delta_softplus: bool,
    saved: Tensor,
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of u, delta, A, B, C, D, z, the bias and the initial state."""
    job, (u, delta, z) = _Job(args, delta_softplus), (args.u, args.delta, args.z)
    grad = _strided(grad=grad_y)
    state = None if grad_last is None else _planes(grad_last)
    after = job.carried(cotangent_ends, state, True, {**grad, **job.some("C", "z")})
    blocks = triton.cdiv(job.channels, BLOCK_D)
    rows, place = (blocks, job.batch, job.length), (job.batch, job.chunks)
    shared = job.step["SHARED"]
    grad_u = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    outputs = {
        "grad_u": grad_u,
        "grad_delta": job.empty(*rows) if shared else torch.empty_like(grad_u, dtype=delta.dtype),
        "grad_z": None if z is None else torch.empty_like(grad_u, dtype=z.dtype),
        "grad_weights": job.empty(*rows, 2, job.states, job.planes),
        "sums": job.empty(*place, job.states * job.planes + 2, job.channels),
        "grad_state": job.states_of(job.batch),
    }
    tiles = SEGMENT // min(c.kwargs["TILE"] for c in scan_backward.configs)
    scratch = job.states_of(*place, tiles)
    kept = {"saved": saved, "after": after, "scratch": scratch}
    scan_backward.launch(job.grid, **job.everything, **grad, **outputs, **kept, SEGMENT=SEGMENT)
    return _gathered(outputs, args)


def _gathered(sums: dict[str, Any], args: ScanTensors) -> list[Tensor | None]:
    """The gradients in the dtypes of the tensors, from the sums that the kernel has written."""
    u, delta, A, B, C, D, _, bias, state = args
    totals = sums["sums"].sum((0, 1))
    of_A, of_D, of_bias = _joined(totals[:-2].unflatten(0, (-1, A.shape[1]))), totals[-2], totals[-1]
    weights = sums["grad_weights"].sum(0)
    of_B, of_C = (torch.view_as_complex(weights) if A.is_complex() else weights.squeeze(-1)).unbind(2)
    if bias is not None and bias.shape[0] < u.shape[-1]:
        of_bias = of_bias.sum(0, keepdim=True)
    shared = delta.shape[-1] < u.shape[-1]
    return [
        sums["grad_u"],
        sums["grad_delta"].sum(0).unsqueeze(-1).to(delta.dtype) if shared else sums["grad_delta"],
        of_A.to(A.dtype),
        of_B.to(B.dtype).clone(memory_format=torch.contiguous_format),
        of_C.to(C.dtype).clone(memory_format=torch.contiguous_format),
        None if D is None else of_D.to(D.dtype, copy=True),
        sums["grad_z"],
        None if bias is None else of_bias.to(bias.dtype, copy=True),
        None if state is None else _joined(sums["grad_state"]).to(state.dtype),
    ]


_OPERATOR = {"forward": _run_forward, "fake": _empty_results, "backward": _run_backward}
_forward, _ = selective_scan_operator(f"{NAMESPACE}::selective_scan_triton", **_OPERATOR)


def supports_scan(args: ScanTensors, delta_softplus: bool, needs_last: bool) -> bool:
    """Arithmetic in float32, and a number of states that fits in the registers."""
    return args.A.shape[1] * (2 if args.A.is_complex() else 1) <= _MAX_STATES and runs_kernels(*args)


def scan_triton(args: ScanTensors, delta_softplus: bool, needs_last: bool) -> tuple[Tensor, Tensor]:
    """The output and the last state."""
    y, last, _ = _forward(*args, delta_softplus, needs_gradient(*args))
    return y, last
