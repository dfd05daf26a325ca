"""Linear scan: the recurrence `x_t = a_t ⊙ x_{t-1} + b_t`, elementwise, with all states as its result.

Dimensions: `B` batch, `L` length, `S` states, `M` product of the axes between the length and the states.

- `reference.py`: the loop over positions;
- `parallel.py`: PyTorch, all blocks of a sequence at once.

The adjoint of the scan is a scan in the other direction with the conjugate of `a`, so that the backward keeps `a` and
the states only.

Sources: Blelloch 1990, "Prefix sums and their applications", Section 1.4.1; Smith, Warrington & Linderman 2023 (S5),
Section 2.2 and App. H, for state space models.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from hf_ssm.ops.backends import Operation
from hf_ssm.ops.context import no_autocast
from hf_ssm.ops.linear_scan.parallel import parallel_scan
from hf_ssm.ops.linear_scan.reference import loop_scan

__all__ = ["as_complex", "linear_scan", "linear_scan_reference"]

_LINEAR_SCAN = Operation(torch=parallel_scan, reference=loop_scan)


def linear_scan(a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, reverse: bool = False) -> Tensor:
    """All states of `x_t = a_t ⊙ x_{t-1} + b_t`, differentiable any number of times in every argument.

    The gradient of a complex argument is torch's: that of a real loss is `∂/∂Re + i ∂/∂Im`. Blocks are joined by
    products of `a` over many positions; where such a product overflows, the states are not finite.

    Args:
        a: Decays, broadcastable to `b`, with 1 or `L` positions, or `(S,)`: the same at all positions. Real or complex.
        b: Inputs `(B, L, ..., S)`, real or complex, `L >= 1`.
        initial_state: State before the first position `(B, ..., S)`; default zero.
        reverse: Whether the scan begins at the last position, `x_t = a_t ⊙ x_{t+1} + b_t`, and `initial_state` is the
            state after it.

    Returns:
        `(B, L, ..., S)`, in the dtype to which those of the arguments promote, at least float32.

    Raises:
        ValueError: Shapes do not fit, the sequence is empty, or a tensor is neither real nor complex floating point.

    Source: Smith, Warrington & Linderman 2023, Section 2.2.
    """
    return _canonical_scan(_LINEAR_SCAN, a, b, initial_state, reverse)


def linear_scan_reference(
    a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, reverse: bool = False
) -> Tensor:
    """`linear_scan` as a loop over positions; same arguments."""
    return _canonical_scan(loop_scan, a, b, initial_state, reverse)


def as_complex(state: Tensor) -> Tensor:
    """A state as complex numbers, of which the last dimension may hold the real parts before the imaginary parts."""
    return state if state.is_complex() else torch.complex(*state.chunk(2, dim=-1))


def _canonical_scan(scan: Callable[..., Tensor], a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    """Call an implementation with `a` `(1 or B, 1 or L, 1 or M, S)`, `b` `(B, L, M, S)` and `state` `(B, M, S)`."""
    _check_scan(a, b, state)
    dtype = _scan_dtype(a, b, state)
    batch, length, *middle, states = b.shape
    if a.dim() == 1:
        a = a.view(1, 1, 1, -1)
    else:
        a = a.reshape((1,) * (b.dim() - a.dim()) + a.shape)
        if all(size == 1 for size in a.shape[2:-1]):
            a = a.reshape(a.shape[0], a.shape[1], 1, a.shape[-1])
        else:
            a = a.expand(*a.shape[:2], *middle, a.shape[-1]).flatten(2, -2)
    a = a.expand(*a.shape[:3], states)
    lines = b.reshape(batch, length, -1, states)
    state = None if state is None else state.reshape(batch, -1, states)
    with no_autocast(b.device):
        x: Tensor = scan(a.to(dtype), lines.to(dtype), None if state is None else state.to(dtype), reverse)
    return x.reshape(b.shape)


def _scan_dtype(*tensors: Tensor | None) -> torch.dtype:
    dtype = torch.float32
    for t in tensors:
        dtype = dtype if t is None else torch.promote_types(dtype, t.dtype)
    return dtype


def _check_scan(a: Tensor, b: Tensor, state: Tensor | None) -> None:
    """Raise a ValueError where shapes or types do not fit."""
    for name, t in (("a", a), ("b", b), ("initial_state", state)):
        if t is not None and not (t.is_floating_point() or t.is_complex()):
            raise ValueError(f"{name} must be of a real or complex floating point type, got {t.dtype}")
    if b.dim() < 3 or 0 in b.shape:
        raise ValueError(
            f"b must have shape (batch, length, ..., states) with sizes of at least 1, got {tuple(b.shape)}"
        )
    fits = a.dim() <= b.dim() and all(n in (1, m) for n, m in zip(a.shape[::-1], b.shape[::-1], strict=False))
    if not fits or a.dim() == 0:
        raise ValueError(
            f"a must have shape (states,) = ({b.shape[-1]},) or be broadcastable to b {tuple(b.shape)}, with 1 or "
            f"{b.shape[1]} positions, got {tuple(a.shape)}"
        )
    expected = (b.shape[0], *b.shape[2:])
    if state is not None and state.shape != expected:
        raise ValueError(f"initial_state must have shape (batch, ..., states) = {expected}, got {tuple(state.shape)}")
