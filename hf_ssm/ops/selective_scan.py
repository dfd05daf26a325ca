"""Selective scan: a diagonal state space model whose step, input weights and output weights vary along the sequence.

Dimensions: `B` batch, `L` length, `D` channels, `N` stored states per channel, `R` rows of real numbers that they are
(`N`, or for complex states `2 N`).

With `d_t = softplus(delta_t + delta_bias)` (or without the softplus),

    x_t = exp(d_t A) x_{t-1} + d_t B_t u_t,        y_t = (Σ_n C_t x_t + D u_t) SiLU(z_t);

of complex states one of each conjugate pair is stored, and `2 Re Σ_n C_t x_t` stands in place of the sum.

Sources: Gu & Dao 2023 (Mamba), eq. (2) and Algorithm 2, with `d B` as the discretised B; Honarpisheh et al. 2025, eqs.
(8), (13) and (14), for a step that all channels share.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.integrations import use_kernel_func_from_hub_with_fallback

from hf_ssm.ops.autocast import no_autocast
from hf_ssm.ops.chunked_scan import LOG2_E, ChunkedScan
from hf_ssm.ops.cpu.calling import is_plain_call
from hf_ssm.ops.cpu_kernels import fused_selective_scan, scan_step
from hf_ssm.ops.kernels import compiled, hub, reference

# The most states that mamba_ssm's CUDA kernel takes.
_HUB_KERNEL_STATES = 256
# A step of which the softplus is 0 in every type, float16 included.
_NO_STEP = -1e4


class _Arguments(NamedTuple):
    """The tensors of a scan, or with one axis less of a step; a step's `state` is the one before it."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None = None
    z: Tensor | None = None
    delta_bias: Tensor | None = None
    state: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The real type of the arithmetic."""
        double = (torch.float64, torch.complex128)
        return torch.float64 if any(t is not None and t.dtype in double for t in self) else torch.float32

    def cast(self, dtype: torch.dtype) -> Iterator[Any]:
        """Each tensor in the real `dtype` or its complex partner; None stays None."""
        partner = torch.complex128 if dtype == torch.float64 else torch.complex64
        for t in self:
            yield t if t is None or t.dtype in (dtype, partner) else t.to(partner if t.is_complex() else dtype)


def _check(args: _Arguments, axes: str = "batch, length", state: str = "initial_state") -> None:
    """Shapes and kinds of all arguments; `axes` are those before the channels, `state` is that argument's name."""
    if args.u.dim() != axes.count(",") + 2 or 0 in args.u.shape[1:]:
        meaning = f"({axes}, channels), at least 1 of each after the batch"
        raise ValueError(f"u must have shape {meaning}, got {tuple(args.u.shape)}")
    *lead, channels = args.u.shape
    if args.A.dim() != 2 or len(args.A) != channels:
        raise ValueError(f"A must have shape (channels, states) with channels = {channels}, got {tuple(args.A.shape)}")
    states, per_channel, shared = args.A.shape[1], (*lead, channels), (*lead, 1)
    # A bias of one number belongs to a step of one number; for a step per channel it is a slip.
    biases = [(channels,), (1,)] if args.delta.shape == shared else [(channels,)]
    expected: dict[str, tuple[Tensor | None, str, Sequence[tuple[int, ...]]]] = {
        "u": (args.u, f"({axes}, channels)", [per_channel]),
        "delta": (args.delta, f"({axes}, channels or 1)", [per_channel, shared]),
        "z": (args.z, f"({axes}, channels)", [per_channel]),
        "D": (args.D, "(channels,)", [(channels,)]),
        "delta_bias": (args.delta_bias, "(channels,)", biases),
        "B": (args.B, f"({axes}, states)", [(*lead, states)]),
        "C": (args.C, f"({axes}, states)", [(*lead, states)]),
        state: (args.state, "(batch, channels, states)", [(lead[0], channels, states)]),
    }
    for name, (value, meaning, shapes) in expected.items():
        if value is None:
            continue
        if value.shape not in shapes:
            choices = " or ".join(map(str, shapes))
            raise ValueError(f"{name} must have shape {meaning} = {choices}, got {tuple(value.shape)}")
        if name in ("B", "C", state) and value.is_complex() != args.A.is_complex():
            kind = "complex" if args.A.is_complex() else "real"
            raise ValueError(f"{name} must be {kind} as A ({args.A.dtype}) is, got {value.dtype}")
        if name not in ("B", "C", state) and not value.is_floating_point():
            raise ValueError(f"{name} must be of a real floating point type, got {value.dtype}")


def _check_mask(args: _Arguments, mask: Tensor | None) -> None:
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be of type torch.bool, true at the positions that count, got {mask.dtype}")
    if mask.shape != args.u.shape[:2]:
        expected = tuple(args.u.shape[:2])
        raise ValueError(f"mask must have shape (batch, length) = {expected}, got {tuple(mask.shape)}")


def _without(masked: Tensor | None, args: _Arguments) -> _Arguments:
    """The arguments with zeros along the sequence where it is masked, so that nothing of there spreads."""
    if masked is None:
        return args
    along = (name for name in ("u", "delta", "B", "C", "z") if getattr(args, name) is not None)
    return args._replace(**{name: getattr(args, name).masked_fill(masked, 0) for name in along})


def _masked(mask: Tensor | None) -> Tensor | None:
    """`(B, L)` true at what counts -> `(B, L, 1)` true at what does not."""
    return None if mask is None else ~mask.unsqueeze(-1)


def _zero(t: Tensor, masked: Tensor | None) -> Tensor:
    return t if masked is None else t.masked_fill(masked, 0)


def _step_sizes(delta: Tensor, delta_bias: Tensor | None, delta_softplus: bool) -> Tensor:
    delta = delta if delta_bias is None else delta + delta_bias
    return F.softplus(delta) if delta_softplus else delta


def _skip_and_gate(y: Tensor, u: Tensor, D: Tensor | None, z: Tensor | None) -> Tensor:
    y = y if D is None else torch.addcmul(y, u, D)
    return y if z is None else y * F.silu(z)


def _decay(d: Tensor, A: Tensor) -> Tensor:
    """`exp(d A)` of broadcast real `d` and real or complex `A`; torch's own complex exponential is slow."""
    if A.is_complex():
        return torch.polar(torch.exp2(d * LOG2_E * A.real), d * A.imag)
    return torch.exp2(d * LOG2_E * A)


def _contract(a: Tensor, b: Tensor) -> Tensor:
    """`Σ_n a b`, of complex factors `2 Re Σ_n a b`."""
    total = (a * b).sum(-1)
    return 2 * total.real if total.is_complex() else total


def selective_scan_reference(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    initial_state: Tensor | None = None,
    return_last_state: bool = False,
    mask: Tensor | None = None,
) -> Any:
    """`selective_scan` as the plain loop over positions; same arguments."""
    args = _Arguments(u, delta, A, B, C, D, z, delta_bias, initial_state)
    _check(args)
    _check_mask(args, mask)
    out_dtype, masked = u.dtype, _masked(mask)
    u, delta, A, B, C, D, z, delta_bias, state = _without(masked, args).cast(args.dtype)
    state = A.new_zeros(len(u), *A.shape) if state is None else state
    d = _step_sizes(delta, delta_bias, delta_softplus)
    rows = []
    for t in range(u.shape[1]):
        after = torch.exp(d[:, t, :, None] * A) * state + (d[:, t] * u[:, t])[:, :, None] * B[:, t, None]
        state = after if masked is None else torch.where(masked[:, t, None], state, after)
        rows.append(_contract(C[:, t, None], state))
    y = torch.stack(rows, dim=1)
    y = y if D is None else y + D * u
    y = y if z is None else y * z * torch.sigmoid(z)
    y = _zero(y, masked)
    return (y.to(out_dtype), state) if return_last_state else y.to(out_dtype)


# The chunked scan is real throughout. Complex states are `paired`, their real rows above their imaginary rows: every
# sum is then a real matrix product, and only the products with the decay know about pairs. Channels stand innermost,
# which makes the inner loops of torch long and contiguous.


def _rows(t: Tensor) -> Tensor:
    """`(..., N)` -> `(..., R)`, real."""
    return torch.cat([t.real, t.imag], dim=-1) if t.is_complex() else t


def _chunked_scan(args: _Arguments, delta_softplus: bool, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The output and the last state, on any device."""
    masked = _masked(mask)
    u, delta, A, B, C, D, z, delta_bias, state = _without(masked, args).cast(args.dtype)
    state = A.new_zeros(len(u), *A.shape) if state is None else state
    d = _zero(_step_sizes(delta, delta_bias, delta_softplus), masked)
    paired = A.is_complex()
    # 2 Re c x is the real product of the rows of 2 conj(c) with the rows of x.
    rows = (_rows(A).t(), _rows(B), _rows(2 * C.conj() if paired else C), _rows(state).transpose(1, 2))
    with no_autocast(u.device):
        inputs = (t.contiguous() for t in (d, d * u, *rows))
        y, last = ChunkedScan.apply(*inputs, paired, torch.is_grad_enabled())
    last = last.transpose(1, 2)
    last = torch.complex(*last.chunk(2, dim=-1)) if paired else last
    return _zero(_skip_and_gate(y, u, D, z), masked).to(args.u.dtype), last.contiguous()


def _fused_scan(args: _Arguments, delta_softplus: bool, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The compiled kernel of a CPU."""
    *tensors, state = args.cast(args.dtype)
    y, last = fused_selective_scan(tuple(tensors), state, mask, delta_softplus)
    return y.to(args.u.dtype), last


@use_kernel_func_from_hub_with_fallback("selective_scan_fn", "mamba_ssm")
def hub_selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """mamba_ssm's own signature, channels first: `u`, `delta`, `z` `(B, D, L)`; `B`, `C` `(B, N, L)`."""
    u, delta, B, C = (t.transpose(1, 2) for t in (u, delta, B, C))
    z = None if z is None else z.transpose(1, 2)
    y, last = _chunked_scan(_Arguments(u, delta, A, B, C, D, z, delta_bias), delta_softplus)
    return (y.transpose(1, 2), last) if return_last_state else y.transpose(1, 2)


def _hub_scan(args: _Arguments, delta_softplus: bool, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`hub_selective_scan` with what its kernel asks for: one type along the sequence, float32 for the rest."""
    masked = _masked(mask)
    u, delta, A, B, C, D, z, bias, _ = _without(masked, args)
    if masked is not None and not delta_softplus and bias is not None:
        delta, bias = delta + bias, None
    if masked is not None:
        delta = delta.masked_fill(masked, _NO_STEP if delta_softplus else 0)
    dtype = reduce(torch.promote_types, (t.dtype for t in (u, delta, B, C, z) if t is not None))
    u, delta, B, C = (t.to(dtype).transpose(1, 2) for t in (u, delta.expand_as(u), B, C))
    z = None if z is None else z.to(dtype).transpose(1, 2)
    D = None if D is None else D.float()
    bias = None if bias is None else bias.float().expand(len(A)).contiguous()
    y, last = hub_selective_scan(u, delta, A.float(), B, C, D, z, bias, delta_softplus, return_last_state=True)
    return _zero(y.transpose(1, 2), masked).to(args.u.dtype), last


def _uses_hub_kernel(args: _Arguments) -> bool:
    """Whether mamba_ssm's CUDA kernel can take these arguments."""
    simple = args.state is None and not args.A.is_complex() and args.A.shape[1] <= _HUB_KERNEL_STATES
    return simple and hub(args.u.device) and args.dtype == torch.float32


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    initial_state: Tensor | None = None,
    return_last_state: bool = False,
    mask: Tensor | None = None,
) -> Any:
    """The selective scan of the module's head, differentiable once in every argument.

    On a CPU with numba a compiled kernel runs. Elsewhere, and wherever the CUDA kernel does not apply, the sequence is
    run in chunks. Both keep the states at some boundaries only for the backward and recompute the others, so that
    nothing of `B L D N` numbers is ever held. On CUDA, with real states that start from zero, transformers'
    `selective_scan_fn` of mamba_ssm is called (its kernel has no gradient through the last state, so it is passed by
    where that gradient is due). See `hf_ssm.ops.kernels` for the choice.

    Args:
        u: Input `(B, L, D)`, `L >= 1`.
        delta: Step sizes before bias and softplus, `(B, L, D)`, or `(B, L, 1)` for a step that all channels share.
        A: State matrix `(D, N)`, real or complex; positive entries grow and are not clamped.
        B: Input weights `(B, L, N)`, complex if and only if `A` is; so are `C` and `initial_state`.
        C: Output weights `(B, L, N)`.
        D: Skip `(D,)`, default none.
        z: Gate before its SiLU `(B, L, D)`, default none.
        delta_bias: `(D,)`, or `(1,)` for a shared step, default none.
        delta_softplus: Whether the softplus is taken of `delta + delta_bias`.
        initial_state: State before the first position `(B, D, N)`, default zero.
        return_last_state: Whether to return the state after the last position too.
        mask: `(B, L)`, bool, default none. A masked position (false) is as though it were not there: the state stays
            as it is across it, `y` is 0 there and so are the gradients, whatever stands at it.

    Returns:
        `y` `(B, L, D)` in the dtype of `u`, or `(y, last_state)` with `last_state` `(B, D, N)` in the dtype of the
        arithmetic: float64 if anything given is double, else float32 (complex with complex `A`).

    Raises:
        ValueError: Shapes or types do not fit, the sequence is empty, or complex and real arguments are mixed.
    """
    if reference():
        tensors = u, delta, A, B, C, D, z, delta_bias
        return selective_scan_reference(*tensors, delta_softplus, initial_state, return_last_state, mask)
    args = _Arguments(u, delta, A, B, C, D, z, delta_bias, initial_state)
    _check(args)
    _check_mask(args, mask)
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in args)
    if _uses_hub_kernel(args) and not (learns and return_last_state):
        scan = _hub_scan
    elif compiled(u.device):
        scan = _fused_scan
    else:
        scan = _chunked_scan
    y, last = scan(args, delta_softplus, mask)
    return (y, last) if return_last_state else y


def _steps_compiled(*tensors: Tensor | None) -> bool:
    """Whether the compiled step can take these tensors; of complex states it knows nothing."""
    given = [t for t in tensors if t is not None]
    simple = all(compiled(t.device) and not t.is_complex() for t in given)
    return simple and is_plain_call(*given)


def selective_scan_step(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
) -> tuple[Tensor, Tensor]:
    """One position of `selective_scan`.

    Args:
        u: Input `(B, D)`.
        delta: `(B, D)` or `(B, 1)`.
        A: `(D, N)`.
        B: `(B, N)`.
        C: `(B, N)`.
        state: State before the position `(B, D, N)`, complex as `A` is; left as it was.
        D: `(D,)`, default none.
        z: `(B, D)`, default none.
        delta_bias: `(D,)`, or `(1,)` for a shared step, default none.
        delta_softplus: As in `selective_scan`.

    Returns:
        `y` `(B, D)` in the dtype of `u`, and the new state `(B, D, N)` in the dtype of the arithmetic.

    Raises:
        ValueError: As in `selective_scan`.
    """
    args = _Arguments(u, delta, A, B, C, D, z, delta_bias, state)
    _check(args, axes="batch", state="state")
    out_dtype = u.dtype
    u, delta, A, B, C, D, z, delta_bias, state = args.cast(args.dtype)
    d = _step_sizes(delta, delta_bias, delta_softplus)
    if _steps_compiled(u, d, A, B, C, state, D, z):
        y, state = scan_step(u, d.expand_as(u), A, B, C, state, D, z)
        return y.to(out_dtype), state
    state = torch.addcmul((d * u).unsqueeze(-1) * B.unsqueeze(1), _decay(d.unsqueeze(-1), A), state)
    return _skip_and_gate(_contract(C.unsqueeze(1), state), u, D, z).to(out_dtype), state


def scan_matrix(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None) -> Tensor:
    """The scan as a matrix that multiplies its input, `y = M u` without gate: the attention that it amounts to.

    `M[t, j] = Σ_n C_t exp(A Σ_{j<k<=t} d_k) d_j B_j` for `j <= t` (of complex states `2 Re Σ_n`), `D` added on the
    diagonal. It holds a few tensors of `B D L L` numbers in float64, whatever `N`.

    Args:
        delta: Step sizes as they enter the recurrence, after bias and softplus, `(B, L, D)` or `(B, L, 1)`.
        A: `(D, N)`.
        B: `(B, L, N)`.
        C: `(B, L, N)`.
        D: `(D,)`, default none.

    Returns:
        `(B, D, L, L)`, lower triangular, float64 if anything given is double, else float32.

    Raises:
        ValueError: As in `selective_scan`.

    Source: Honarpisheh et al. 2025, eq. (20), there delayed by one position; here, as in the authors' code, the
    output sees the current input.
    """
    if delta.dim() != 3 or delta.shape[1] < 1:
        raise ValueError(f"delta must have shape (batch, length >= 1, channels or 1), got {tuple(delta.shape)}")
    args = _Arguments(delta.new_zeros(()).expand(*delta.shape[:2], len(A)), delta, A, B, C, D)
    _check(args)
    _, delta, A, B, C, D, *_ = args.cast(torch.float64)
    d = delta.transpose(1, 2)
    total = d.cumsum(-1)
    # Above the diagonal the sums would be negative and the exponentials of a stable A might overflow.
    span = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril()
    matrix = torch.zeros((), dtype=torch.float64, device=delta.device)
    for n in range(A.shape[1]):
        weight = C[:, None, :, None, n] * B[:, None, None, :, n]
        term = _decay(span, A[:, None, None, n]) * weight
        matrix = matrix + (2 * term.real if term.is_complex() else term)
    matrix = (matrix * d.unsqueeze(-2)).tril()
    if D is not None:
        matrix.diagonal(dim1=-2, dim2=-1).add_(D.unsqueeze(-1))
    return matrix.to(args.dtype)
