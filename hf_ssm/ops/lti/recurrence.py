"""Recurrences of linear time-invariant state space models, by steps and by blocks, from any state.

Dimensions: `B` batch, `L` length, `D` channels, `N` real states, `H = N // 2` stored conjugate pairs, `M` length of a
block, `K` blocks.

The model is `x[t] = A_bar x[t-1] + B_bar u[t]`, `y[t] = C x[t] + skip u[t]`: a state includes the input at its own
position, and the kernel is `C A_bar^l B_bar`, as in `diagonal.py` and `dplr.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from hf_ssm.ops.blocks import block_count, in_blocks
from hf_ssm.ops.context import is_exporting
from hf_ssm.ops.linear_scan import as_complex, linear_scan
from hf_ssm.ops.long_conv import long_conv
from hf_ssm.ops.lti.diagonal import check_system, working_dtype
from hf_ssm.ops.lti.discretize import bilinear, bilinear_dense, zoh, zoh_dense
from hf_ssm.ops.lti.dplr import dplr_real
from hf_ssm.ops.lti.krylov import times_powers

__all__ = ["Recurrence", "diagonal_recurrence", "dplr_recurrence"]

# Length of a block, a power of two. Longer blocks cost more within blocks and need fewer steps between them.
_BLOCK_LENGTH = 64


class _BlockTables(NamedTuple):
    """Matrices that map the inputs of a block and the state before it to its outputs and the state at its end.

    In the precision of the parameters. States are real, with alternating `(Re x, Im x)` for a diagonal model.
    """

    local: torch.Tensor  # (D, M, M), inputs to outputs
    inward: torch.Tensor  # (D, M, N), inputs to the state
    outward: torch.Tensor  # (D, N, M), the state to outputs
    carry: torch.Tensor  # A_bar^M, the state to the state; double for a diagonal model, transposed for a dense one


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A discrete model with its constants; created by `diagonal_recurrence` and `dplr_recurrence`.

    Constants and states are in double precision: with a small step size, the rounding errors of thousands of small
    changes of a state accumulate. Blocks are computed in the precision of the parameters. Gradients flow to the inputs,
    the state and the parameters.

    States are `(B, D, H)` complex for a diagonal model and `(B, D, N)` real for a DPLR model; zero before the first
    input. A copy or a pickle of a recurrence holds values without their autograd graph.

    Attributes:
        a_bar: `A_bar`, `(D, H)` complex or `(D, N, N)` real.
        b_bar: `B_bar`, `(D, H)` complex or `(D, N)` real.
        c: `C` for real states, `(D, N)`.
        skip: `(D,)`, or `None` for no feed-through.
        dtype: The precision of the parameters, float32 or float64.
    """

    a_bar: torch.Tensor
    b_bar: torch.Tensor
    c: torch.Tensor
    skip: torch.Tensor | None
    dtype: torch.dtype

    def initial_state(self, batch: int) -> torch.Tensor:
        """The zero state of `batch` sequences."""
        return self.b_bar.new_zeros(batch, *self.b_bar.shape)

    def step(self, u: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One position.

        Args:
            u: Input `(B, D)`.
            state: The state before it.

        Returns:
            The output `(B, D)` in the dtype of `u`, and the new state.

        Raises:
            ValueError: Shapes do not fit.
        """
        self._check_shapes(u, 2, state)
        inputs = u.to(torch.float64)
        state = self._update(inputs.unsqueeze(-1), state)
        y = torch.linalg.vecdot(self._to_real(state), self.c)
        return (y if self.skip is None else torch.addcmul(y, self.skip, inputs)).to(u.dtype), state

    def extend(
        self, u: torch.Tensor, state: torch.Tensor | None, taps: Callable[[int], torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs `(B, L, D)` of the next chunk, and the state after it.

        The beginning of a sequence is convolved, so that the outputs do not depend on whether a state is kept.

        Args:
            u: The chunk, `(B, L, D)`.
            state: The state before it, in any precision, or with the real parts before the imaginary parts of a complex
                one; `None` at the beginning.
            taps: Function that returns the first `n` taps of the whole kernel, `(D, n)`.
        """
        length: Any = u.shape[1]
        if is_exporting() and state is not None and type(length) is not int:
            raise ValueError(
                "An exported program that continues from a cache of state space filters reads one token: give "
                "`input_ids` of the shape (batch, 1), and leave the second dimension out of `dynamic_shapes`."
            )
        if state is None and length > 1:
            after = self.advance(u)
            return long_conv(u, taps(length)), after
        if state is None:
            state = self.initial_state(u.shape[0])
        state = (as_complex(state) if self.b_bar.is_complex() else state).to(self.b_bar.dtype)
        if length > 1:
            return self.scan(u, state)
        y, after = self.step(u[:, 0], state)
        return y.unsqueeze(1), after

    def scan(self, u: torch.Tensor, state: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """A chunk of a sequence: by blocks of 64 positions, and by steps for the remainder.

        Args:
            u: Inputs `(B, L, D)`.
            state: The state before them; default the zero state.

        Returns:
            The outputs `(B, L, D)` in the dtype of `u`, and the state after the last input.

        Raises:
            ValueError: Shapes do not fit, or the chunk is empty.
        """
        inputs, single, state = self._aligned(u, state)
        outputs = []
        for t in range(single):
            y, state = self.step(inputs[:, t], state)
            outputs.append(y.unsqueeze(1))
        if inputs.shape[1] > single:
            y, state = self._scan_blocks(inputs[:, single:], state)
            outputs.append(y)
        return torch.cat(outputs, dim=1)[:, -u.shape[1] :].to(u.dtype), state

    def advance(self, u: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
        """The state after a chunk, as of `scan`, without the outputs; same arguments and errors."""
        if is_exporting() and state is None:
            return self._exported_end(u)
        inputs, single, state = self._aligned(u, state)
        for t in range(single):
            state = self._update(inputs[:, t].to(torch.float64).unsqueeze(-1), state)
        if inputs.shape[1] > single:
            blocks = self._to_blocks(inputs[:, single:])
            _, state = self._carry_over(blocks, state, self._tables())
        return state

    def _exported_end(self, u: torch.Tensor) -> torch.Tensor:
        """`advance` from the zero state, for any number of positions: the blocks begin with those that hold none."""
        count = block_count(u.shape[1], _BLOCK_LENGTH)
        blocks = in_blocks(u.to(self.dtype).flip(1), 1, _BLOCK_LENGTH, count).flip(1, 2).permute(3, 0, 1, 2)
        tables = self._tables()
        arriving = self._from_real(blocks @ tables.inward.unsqueeze(1))
        _, last = self._carry(arriving, self.initial_state(u.shape[0]).transpose(0, 1), tables.carry)
        return last.transpose(0, 1).to(self.b_bar.dtype)

    def power(self, length: int) -> torch.Tensor:
        """`A_bar` to the power `length`, in the form of `A_bar`."""
        return self.a_bar**length

    def carried(self, power: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """The state that a result of `power` makes of a state."""
        return power * state

    def _aligned(self, u: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, int, torch.Tensor]:
        """Inputs in the working precision, the number of them before whole blocks, and the state."""
        self._check_shapes(u, 3, state)
        inputs, length = u.to(self.dtype), u.shape[1]
        if state is None and length >= _BLOCK_LENGTH:
            # Leading zeros do not change the zero state.
            return F.pad(inputs, (0, 0, -length % _BLOCK_LENGTH, 0)), 0, self.initial_state(u.shape[0])
        return inputs, length % _BLOCK_LENGTH, self.initial_state(u.shape[0]) if state is None else state

    @staticmethod
    def _to_blocks(u: torch.Tensor) -> torch.Tensor:
        """`(B, K M, D)` -> `(D, B K, M)`."""
        return u.permute(2, 0, 1).unflatten(-1, (-1, _BLOCK_LENGTH)).flatten(1, 2)

    def _carry_over(
        self, blocks: torch.Tensor, state: torch.Tensor, tables: _BlockTables
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The states before each block, real, `(D, B, K, N)`, and the last state."""
        arriving = self._from_real(blocks @ tables.inward).unflatten(1, (state.shape[0], -1))
        before, last = self._carry(arriving, state.transpose(0, 1), tables.carry)
        return self._to_real(before).to(self.dtype), last.transpose(0, 1).to(self.b_bar.dtype).contiguous()

    def _scan_blocks(self, u: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`scan` for a length of `K M`."""
        tables, blocks = self._tables(), self._to_blocks(u)
        before, state = self._carry_over(blocks, state, tables)
        y = torch.baddbmm(blocks @ tables.local, before.flatten(1, 2), tables.outward)
        return y.unflatten(1, (u.shape[0], -1)).flatten(2).permute(1, 2, 0), state

    def _check_shapes(self, u: torch.Tensor, dims: int, state: torch.Tensor | None) -> None:
        channels = self.c.shape[0]
        if u.dim() != dims or u.shape[-1] != channels or 0 in u.shape:
            wanted = "(batch >= 1, channels)" if dims == 2 else "(batch >= 1, length >= 1, channels)"
            raise ValueError(f"u must have shape {wanted} with channels = {channels}, got {tuple(u.shape)}")
        if state is not None and state.shape != (u.shape[0], *self.b_bar.shape):
            raise ValueError(
                f"state must have shape {(u.shape[0], *self.b_bar.shape)} for this model and u, got "
                f"{tuple(state.shape)}; start with initial_state"
            )

    def _tables(self) -> _BlockTables:
        # Tables that are part of an autograd graph can be used for one backward pass only.
        constants = (self.a_bar, self.b_bar, self.c, self.skip)
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in constants):
            return self._make_tables()
        return self._kept_tables

    @cached_property
    def _kept_tables(self) -> _BlockTables:
        with torch.no_grad():
            return self._make_tables()

    def _local(self, kernel: torch.Tensor) -> torch.Tensor:
        """The Toeplitz matrix of the first `M` taps `(D, M)` and the skip, `[j, i]` from input j to output i."""
        if self.skip is not None:
            kernel = torch.cat([kernel[:, :1] + self.skip.unsqueeze(-1), kernel[:, 1:]], dim=-1)
        return F.pad(kernel, (_BLOCK_LENGTH - 1, 0)).unfold(-1, _BLOCK_LENGTH, 1).flip(1).to(self.dtype)

    def __getstate__(self) -> dict[str, Any]:
        # Only leaves of an autograd graph can be copied; tables are recomputed.
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: v.detach() if isinstance(v, torch.Tensor) else v for name, v in values.items()}

    # Where the two forms of `A_bar` differ.

    def _update(self, u: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """The state after the input `(B, D, 1)`."""
        raise NotImplementedError

    def _carry(
        self, arriving: torch.Tensor, state: torch.Tensor, carry: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The states before each block, `(D, B, K, ...)`, and at the end; `arriving` is what each block adds to it."""
        raise NotImplementedError

    def _make_tables(self) -> _BlockTables:
        raise NotImplementedError

    @staticmethod
    def _to_real(state: torch.Tensor) -> torch.Tensor:
        return state

    @staticmethod
    def _from_real(state: torch.Tensor) -> torch.Tensor:
        return state


class _DiagonalRecurrence(Recurrence):
    def _update(self, u: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(self.b_bar * u, self.a_bar, state)

    def _carry(
        self, arriving: torch.Tensor, state: torch.Tensor, carry: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ends = linear_scan(carry, arriving.permute(1, 2, 0, 3), state.transpose(0, 1)).permute(2, 0, 1, 3)
        return torch.cat([state.unsqueeze(2), ends[:, :, :-1]], dim=2), ends[:, :, -1]

    def _make_tables(self) -> _BlockTables:
        a_bar, b_bar = self.a_bar.unsqueeze(1), self.b_bar.unsqueeze(1)
        c = self._from_real(self.c).conj().unsqueeze(1)
        powers, power = torch.ones_like(a_bar), a_bar
        while powers.shape[1] < _BLOCK_LENGTH:
            powers = torch.cat([powers, power * powers], dim=1)
            power = power * power
        kernel = (c * b_bar * powers).sum(-1).real
        inward = self._to_real(b_bar * powers.flip(1)).to(self.dtype)
        outward = self._to_real((c * a_bar * powers).conj().resolve_conj()).to(self.dtype).mT
        return _BlockTables(self._local(kernel), inward, outward, power.squeeze(1))

    @staticmethod
    def _to_real(state: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(state).flatten(-2)

    @staticmethod
    def _from_real(state: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex(state.unflatten(-1, (-1, 2)))


@dataclass(frozen=True, eq=False)
class _DenseRecurrence(Recurrence):
    """With `drift`, `A_bar - I` transposed, in the precision of the parameters, which halves the memory traffic."""

    drift: torch.Tensor

    def power(self, length: int) -> torch.Tensor:
        return torch.linalg.matrix_power(self.a_bar, length)

    def carried(self, power: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return (power @ state.unsqueeze(-1)).squeeze(-1)

    def _update(self, u: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        change = torch.bmm(state.to(self.dtype).transpose(0, 1), self.drift)
        return torch.addcmul(state, self.b_bar, u) + change.transpose(0, 1)

    def _carry(
        self, arriving: torch.Tensor, state: torch.Tensor, carry: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if is_exporting():
            return arriving, times_powers(arriving.flip(2), carry.unsqueeze(1)).sum(2)
        before = []
        for arrived in arriving.unbind(2):
            before.append(state.to(self.dtype))
            state = torch.baddbmm(arrived, before[-1], carry)
        return torch.stack(before, dim=2), state

    def _make_tables(self) -> _BlockTables:
        power, right, left = self.a_bar, self.b_bar.unsqueeze(-1), self.c.unsqueeze(-2)
        while right.shape[-1] < _BLOCK_LENGTH:
            right = torch.cat([right, power @ right], dim=-1)
            left = torch.cat([left, left @ power], dim=-2)
            power = power @ power
        kernel = (left @ self.b_bar.unsqueeze(-1)).squeeze(-1)
        inward, outward = right.flip(-1).mT.to(self.dtype), (left @ self.a_bar).mT.to(self.dtype)
        return _BlockTables(self._local(kernel), inward, outward, power.mT.to(self.dtype))


def diagonal_recurrence(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    discretization: str = "zoh",
    skip: torch.Tensor | None = None,
) -> Recurrence:
    """The recurrence whose impulse response is `diagonal_kernel`, with a feed-through.

    Args:
        a: Eigenvalues `(D, H)`, complex, real part negative.
        b: Input weights `(D, H)`.
        c: Output weights `(D, H)`.
        dt: Step sizes `(D,)`, positive.
        discretization: `"zoh"` or `"bilinear"`.
        skip: Feed-through `(D,)`; default none.

    Returns:
        A `Recurrence` with complex states `(B, D, H)`; its `dtype` is float64 if one of a, b, c is complex128, else
        float32.

    Raises:
        ValueError: Shapes or types do not fit, or unknown discretization.

    Source: Gu et al. 2022 (S4D), eqs. (2) and (3); the blocks are original.
    """
    check_system(1, discretization, dt, a=a, b=b, c=c)
    dtype = working_dtype(a, b, c)
    a, b, c = (t.to(torch.complex128) for t in (a, b, c))
    a_bar, b_bar = (zoh if discretization == "zoh" else bilinear)(a, b, dt.to(torch.float64).unsqueeze(-1))
    c_real = torch.view_as_real((2 * c).conj().resolve_conj()).flatten(-2)
    return _DiagonalRecurrence(a_bar, b_bar, c_real, _checked_skip(skip, dt), dtype)


def dplr_recurrence(
    lam: torch.Tensor,
    p: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    discretization: str = "bilinear",
    skip: torch.Tensor | None = None,
) -> Recurrence:
    """The recurrence whose impulse response is `dplr_kernel`, with a feed-through.

    A step costs a dense matrix-vector product of size `N` per channel.

    Args:
        lam: Diagonal part `(D, H)`, complex, real part negative.
        p: Low-rank factor `(D, H)`.
        b: Input weights `(D, H)`.
        c: Output weights `(D, H)`.
        dt: Step sizes `(D,)`, positive.
        discretization: `"bilinear"` or `"zoh"`.
        skip: Feed-through `(D,)`; default none.

    Returns:
        A `Recurrence` with real states `(B, D, N)`, `(Re x, Im x)` of the stored half; its `dtype` is float64 if one
        of lam, p, b, c is complex128, else float32.

    Raises:
        ValueError: Shapes or types do not fit, or unknown discretization.

    Source: Gu, Goel & Ré 2022 (S4), eq. (3); the blocks are original.
    """
    check_system(1, discretization, dt, lam=lam, p=p, b=b, c=c)
    dtype = working_dtype(lam, p, b, c)
    a, b_real, c_real = dplr_real(*(t.to(torch.complex128) for t in (lam, p, b, c)))
    a_bar, b_bar = (zoh_dense if discretization == "zoh" else bilinear_dense)(a, b_real, dt.to(torch.float64))
    drift = (a_bar - torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)).mT.to(dtype).contiguous()
    return _DenseRecurrence(a_bar, b_bar, c_real, _checked_skip(skip, dt), dtype, drift)


def _checked_skip(skip: torch.Tensor | None, dt: torch.Tensor) -> torch.Tensor | None:
    if skip is None:
        return None
    if skip.shape != dt.shape:
        raise ValueError(f"skip must have shape (channels,) = {tuple(dt.shape)}, got {tuple(skip.shape)}")
    return skip.to(torch.float64)
