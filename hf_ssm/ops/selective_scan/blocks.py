"""The selective scan of blocks of channels, each with its own input and output weights, and a bias of each channel.

Dimensions: `B` batch, `L` length, `D` channels, `K` blocks of `D / K` channels, `N` stored states per channel.

With `w_t = B_t[block of the channel] + bias[channel]`,

    x_t = exp(d_t A) x_{t-1} + d_t w_t u_t,        y_t = (Σ_n C_t[block of the channel] x_t + D u_t) SiLU(z_t).

Each block is a selective scan. Without a bias, the kernels of `selective_scan` run; with a bias, the weights differ
from channel to channel, and PyTorch runs (`chunked.py`).

Source: Yu & Erichson 2025 (Block-Biased Mamba), eq. (7) and Algorithm 2, with `d B` as the discretised B, as in Mamba.
"""

import torch
from torch import Tensor

from hf_ssm.ops.backends import Implementation, Operation
from hf_ssm.ops.context import no_autocast
from hf_ssm.ops.selective_scan import selective_scan_extend
from hf_ssm.ops.selective_scan.arguments import ScanTensors, skip_and_gate, sum_over_states
from hf_ssm.ops.selective_scan.chunked import chunked_scan

__all__ = ["block_scan", "block_scan_reference"]


def block_scan(
    u: Tensor,
    d: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    bias: Tensor | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The scan of the module's docstring, differentiable in every argument.

    Args:
        u: Input `(B, L, D)`, `L >= 1`.
        d: Step sizes as they enter the recurrence, `(B, L, D)`.
        A: State matrix `(D, N)`, real or complex.
        B: Input weights of each block `(B, L, K, N)`, complex if and only if `A` is; so are `C`, `bias` and
            `initial_state`.
        C: Output weights of each block `(B, L, K, N)`.
        bias: Input weights of each channel `(D, N)`, added to those of its block; default none.
        D: Skip `(D,)`, default none.
        z: Gate before its SiLU `(B, L, D)`, default none.
        initial_state: State before the first position `(B, D, N)`, default zero.

    Returns:
        `y` `(B, L, D)` in the dtype of `u`, and the last state `(B, D, N)` in the dtype of the arithmetic: float64 if
        an argument is in double precision, else float32 (complex with complex `A`).

    Raises:
        ValueError: Shapes do not fit.
    """
    check_blocks(u, A, B, C, bias)
    with no_autocast(u.device):
        y, last = _BLOCK_SCAN(ScanTensors(u, d, A, B, C, D, z, bias, initial_state))
    return y.to(u.dtype), last


def block_scan_reference(
    u: Tensor,
    d: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    bias: Tensor | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`block_scan` as loops over channels and positions; same arguments."""
    check_blocks(u, A, B, C, bias)
    return _loop_block_scan(ScanTensors(u, d, A, B, C, D, z, bias, initial_state))


def check_blocks(u: Tensor, A: Tensor, B: Tensor, C: Tensor, bias: Tensor | None) -> None:
    """Raise a ValueError where the shapes of blocks do not fit; the scans check the others."""
    if B.dim() != 4 or B.shape != C.shape or len(A) % B.shape[2] or B.shape[3] != A.shape[-1]:
        raise ValueError(
            f"B and C must have shape (batch, length, blocks, states = {A.shape[-1]}) with a number of blocks that "
            f"divides the {len(A)} channels, got {tuple(B.shape)} and {tuple(C.shape)}"
        )
    if bias is not None and bias.shape != A.shape:
        raise ValueError(f"bias must have shape (channels, states) = {tuple(A.shape)}, got {tuple(bias.shape)}")
    if u.shape[-1] != len(A):
        raise ValueError(f"u must have {len(A)} channels like A, got shape {tuple(u.shape)}")


def _block_scan(args: ScanTensors) -> tuple[Tensor, Tensor]:
    """The output and the last state; `args.delta_bias` is the bias of the input weights."""
    size, parts = len(args.A) // args.B.shape[2], []
    for block in range(args.B.shape[2]):
        at = slice(block * size, (block + 1) * size)
        D, bias = (None if t is None else t[at] for t in (args.D, args.delta_bias))
        z, state = None if args.z is None else args.z[..., at], None if args.state is None else args.state[:, at]
        u, d, A = args.u[..., at], args.delta[..., at], args.A[at]
        B, C = args.B[:, :, block], args.C[:, :, block]
        parts.append(_SCAN_OF_BLOCK(ScanTensors(u, d, A, B, C, D, z, None, state), bias))
    outputs, states = zip(*parts, strict=True)
    return torch.cat(outputs, dim=-1), torch.cat(states, dim=1)


def _fused_scan(args: ScanTensors, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    return selective_scan_extend(*args[:8], False, args.state)


def _chunked_scan(args: ScanTensors, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    return chunked_scan(args, False, True, bias)


def _loop_block_scan(args: ScanTensors) -> tuple[Tensor, Tensor]:
    u, d, A, B, C, D, z, bias, state = args.cast(args.dtype)
    states = [A.new_zeros(len(u), A.shape[1]) if state is None else state[:, i] for i in range(len(A))]
    y = torch.zeros_like(u)
    for i, a in enumerate(A):
        block = i * B.shape[2] // len(A)
        for t in range(u.shape[1]):
            weights = B[:, t, block] if bias is None else B[:, t, block] + bias[i]
            step = d[:, t, i, None]
            states[i] = torch.exp(step * a) * states[i] + step * weights * u[:, t, i, None]
            y[:, t, i] = sum_over_states(C[:, t, block], states[i])
    return skip_and_gate(y, u, D, z), torch.stack(states, dim=1)


# The kernels have no bias.
_FUSED = Implementation(_fused_scan, lambda args, bias: bias is None)
_SCAN_OF_BLOCK = Operation(numba=_FUSED, triton=_FUSED, torch=_chunked_scan)
_BLOCK_SCAN = Operation(torch=_block_scan, reference=_loop_block_scan)
