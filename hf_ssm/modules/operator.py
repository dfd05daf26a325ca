"""Operators that mix positions: their protocol, feed-through, Sobolev filter and τ.

Legend: `B` batch, `L` length, `D` channels, `F` frequencies.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from hf_ssm.modules.roles import ParameterRole
from hf_ssm.modules.rows import Reading, Rows, zero_padding
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.long_conv import StreamingConvolution, long_conv
from hf_ssm.ops.sharing import alone, whole_length, whole_rows
from hf_ssm.ops.sobolev import causal_taps, zero_phase_taps
from hf_ssm.utils.processes import Processes, is_sharded

__all__ = [
    "FilteredInput",
    "SequenceOperator",
    "check_stored",
    "fp32_empty",
    "fp32_parameter",
    "materialized",
    "operators_in",
    "scale_entries_",
    "theory_flags",
]

# The zero-phase filter is sampled on a grid that does not depend on the length of the input, so that its taps depend on
# the lag alone and padding changes nothing. Odd (no node at the Nyquist frequency) and fast to transform.
ZERO_PHASE_GRID = 3**3 * 5**4


@contextmanager
def materialized(*modules: nn.Module) -> Iterator[None]:
    """Materialise accelerate-offloaded weights that are read outside `forward`."""
    hooked: list[tuple[nn.Module, Any]] = [
        (module, module._hf_hook) for module in modules if hasattr(module, "_hf_hook")
    ]
    for module, hook in hooked:
        hook.pre_forward(module)
    try:
        yield
    finally:
        for module, hook in hooked:
            hook.post_forward(module, None)


def theory_flags(config, layer_idx: int) -> dict[str, Any]:
    """The arguments of `SequenceOperator` that a configuration holds, for the layer `layer_idx`."""
    return {
        "sobolev_order": config.sobolev_orders[layer_idx],
        "sobolev_mode": config.sobolev_mode,
        "sobolev_frequency": config.sobolev_frequency,
        "sobolev_trainable": config.sobolev_trainable,
        "tau_statistics": config.tau_statistics,
        "tau_detach_statistics": config.tau_detach_statistics,
    }


def fp32_empty(*shape: int) -> Tensor:
    """Uninitialised memory in float32 or better: step sizes and frequencies lose their meaning in half precision."""
    return torch.empty(shape, dtype=torch.promote_types(torch.get_default_dtype(), torch.float32))


def check_stored(module: nn.Module, name: str) -> None:
    """Raise `ValueError` for a parameter that cannot be changed in place, because it is computed from others."""
    if is_parametrized(module, name):
        raise ValueError(
            f"Rescaling changes `{name}` in place, but a parametrisation or an adapter computes `{name}`: rescale the "
            "model before you add the parametrisation or adapter, or merge it first."
        )


def scale_entries_(parameter: Tensor, factor: float | Tensor, entries: Callable[[Tensor], Tensor]) -> None:
    """Multiply the view `entries(parameter)` in place; of a parameter that FSDP2 shards, the local part of the view."""
    if not is_sharded(parameter):
        entries(parameter.detach()).mul_(factor)
        return
    sharded: Any = parameter
    local = sharded.to_local()
    factors = torch.ones(parameter.shape, dtype=local.dtype, device=local.device)
    entries(factors).mul_(factor)
    # Whoever has such a parameter has imported the module.
    distribute: Any = torch.distributed.tensor.distribute_tensor
    mesh, placements = sharded.device_mesh, sharded.placements
    local.mul_(distribute(factors, mesh, placements, src_data_rank=None).to_local().to(local.device))


def fp32_parameter(*shape: int) -> nn.Parameter:
    """An uninitialised parameter in float32 or better."""
    return nn.Parameter(fp32_empty(*shape))


class SequenceOperator(nn.Module):
    """Base of all operators that mix positions: long convolution, selective scan, and those of further families.

    A subclass provides `forward(inputs, ..., rows, state)` and overrides the methods of the protocol that it needs:

    - `forward` calls `observe` before it mixes positions, and multiplies its kernel by the result, if there is one.
      With a `state` (`LayerState`) it continues the sequences of that state, and updates it.
    - `attention_matrix(inputs, mask, channels)`: the matrix that it multiplies a sequence with (`None` by default).
    - `frequency_response(omega, rows)`: of each kernel (`None` by default), where row k C + c is channel c of direction
      k; with `response_features`, `has_graded_response` and `support` its total variation is computed accurately.
    - `bound_norms(...)`: the norms in the bound of Honarpisheh et al. 2025; for a scan without them, `no_bound` is the
      reason.

    Args:
        channels: D.
        use_skip: Whether there is a feed-through.
        sobolev_order: β.
        sobolev_mode, sobolev_frequency, sobolev_trainable, tau_statistics, tau_detach_statistics: See `SSMConfig`.

    Source: Yu et al. 2025, eqs. (3) and (8); Liu & Li 2024, Algorithms 1 and 2.
    """

    is_time_invariant: ClassVar[bool] = True
    """Whether the same kernel acts at all positions."""
    directions: int = 1
    """1, or 2 if one operator has a kernel for each direction of time."""
    direction: str = "forward"
    """`"backward"` for an operator whose mixer reverses the inputs."""
    backward_first_lag: int = 1
    """Lag of the first tap of the backward kernel, which is 1 where the input at the position itself is not part."""
    groups: int = 1
    """Convolutions that share one kernel generator; group g owns the channels g, g + groups, ..."""
    neighbours: int = 1
    """Inputs of the kernel for each channel of `Reading.inputs`: the pixels that a spatial convolution reads."""
    attention_matrix: Any = None
    frequency_response: Any = None
    bound_norms: Any = None
    no_bound: ClassVar[str | None] = None

    def __init__(
        self,
        channels: int,
        *,
        use_skip: bool = True,
        sobolev_order: float = 0.0,
        sobolev_mode: str = "causal",
        sobolev_frequency: str = "normalized",
        sobolev_trainable: bool = False,
        tau_statistics: str = "batch",
        tau_detach_statistics: bool = True,
    ):
        super().__init__()
        self.channels = channels
        self.initial_order = sobolev_order
        self.sobolev_mode = sobolev_mode
        self.sobolev_frequency = sobolev_frequency
        self.tau_statistics = tau_statistics
        self.tau_detach_statistics = tau_detach_statistics
        self.D = fp32_parameter(channels) if use_skip else None
        self.sobolev_order = fp32_parameter(channels) if sobolev_trainable else None

    # Protocol

    def initial_parameters(self) -> dict[str, Tensor]:
        """Initial values of its own parameters by name (some are random draws)."""
        values = {}
        if self.D is not None:
            values["D"] = torch.randn(self.D.shape)
        if self.sobolev_order is not None:
            values["sobolev_order"] = torch.full(self.sobolev_order.shape, self.initial_order)
        return values

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Roles of its own parameters by name."""
        own = {"D": self.D, "sobolev_order": self.sobolev_order}
        return {name: ParameterRole(name) for name, parameter in own.items() if parameter is not None}

    def fp32_parameters(self) -> list[str]:
        """Names of the parameters and submodules that stay in float32 in a half-precision model."""
        return [name for name, parameter in self.named_parameters(recurse=False) if parameter is not None]

    def scale_output_(self, factor: Tensor, channels: slice) -> None:
        """Multiply, in place, the parameters other than D in which the kernel of these channels is linear."""
        raise NotImplementedError

    def mean_kernel(
        self, length: int, means: Mapping[str, Tensor], direction: str = "forward", group: int = 0
    ) -> Tensor:
        """The kernel seen from the last token, `(D, length)`, with feed-through and causal Sobolev filter.

        `(D, D, length)` where outputs depend on all channels: to output h from input i at `[h, i]`.

        Args:
            length: Number of lags.
            means: Mean of each of `Reading.statistics` by distance to the last token, `(length, ...)`.
            direction: `"backward"` for the kernel that runs from the end of the sequence.
            group: Which of the convolutions that share a kernel generator.
        """
        raise NotImplementedError

    @property
    def has_recurrent_state(self) -> bool:
        """Whether incremental execution keeps a state of fixed size (otherwise it keeps past inputs)."""
        return False

    @property
    def is_causal(self) -> bool:
        """Whether the output at a position depends on this and earlier positions only."""
        return not (self.has_sobolev_filter and self.sobolev_mode == "zero_phase")

    def time_step(self, dtype: torch.dtype = torch.float32) -> Tensor | float:
        """Δ of each channel, `(D,)`, or 1.0 where the operator has no step size."""
        return 1.0

    def response_features(self, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Centres in [0, π] and widths of the bends of the response, both `(R, n)`; `None` where not known."""
        return None

    @property
    def has_graded_response(self) -> bool:
        """Whether bends of the response are known and its values at single frequencies are cheap."""
        return False

    @property
    def support(self) -> int | None:
        """Number of taps that are not zero; `None` for an infinite kernel."""
        return None

    # What operators share

    @staticmethod
    def _at_least_fp32(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """`fn` of `nn.Module._apply` (as in `model.bfloat16()`), with results in float32 instead of half precision."""

        def moved_at_least_fp32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if tensor.is_floating_point() and moved.dtype in (torch.float16, torch.bfloat16):
                return tensor.to(device=moved.device, dtype=torch.promote_types(tensor.dtype, torch.float32))
            return moved

        return moved_at_least_fp32

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SequenceOperator":
        # Own parameters stay in float32; projections below may be in half precision.
        if recurse:
            for child in self.children():
                child._apply(fn)
        super()._apply(self._at_least_fp32(fn), recurse=False)
        return self

    @property
    def has_sobolev_filter(self) -> bool:
        """Whether β is trained, or is not 0."""
        return self.sobolev_order is not None or self.initial_order != 0

    def _order(self, like: Tensor) -> Tensor | None:
        """β, a number or `(D,)`, or `None` where there is no filter."""
        if self.sobolev_order is not None:
            return self.sobolev_order.to(like.dtype)
        return like.new_tensor(self.initial_order) if self.initial_order != 0 else None

    def _time_step(self, like: Tensor) -> Tensor | float:
        """The step size by which the Sobolev filter measures frequencies."""
        return 1.0

    def _zero_phase(self, inputs: Tensor, rows: Rows, channels: slice | list[int] = slice(None)) -> Tensor:
        """The zero-phase filter (1 + |s|)^β of the tokens, `(B, L, D)`; of each document by itself."""
        order = self._order(inputs)
        if order is None:
            return inputs
        step = self._time_step(inputs)
        order = order[channels] if order.dim() else order
        step = step[channels] if isinstance(step, Tensor) else step
        taps = zero_phase_taps(ZERO_PHASE_GRID, order, self.sobolev_frequency, step, whole_length(inputs) + 1)
        taps = taps.to(inputs).expand(inputs.shape[-1], -1)
        return zero_padding(long_conv(inputs, taps[:, :-1], taps[:, 1:]), rows.mask)

    # Observation

    def observe(
        self,
        rows: Rows,
        inputs: Tensor,
        *,
        kernel: Any = None,
        statistics: Mapping[str, Tensor] | None = None,
        group: int = 0,
    ) -> Tensor | None:
        """Show `rows.observer`, if there is one, what this call mixes; see `Reading` for the arguments.

        Returns:
            The factor by which the observer has multiplied the kernel of this operator, or `None`.
        """
        if rows.observer is None:
            return None
        inputs, mask = whole_rows(inputs, rows.mask)
        statistics = {name: whole_rows(values, None)[0] for name, values in (statistics or {}).items()}
        with alone():
            factor: Tensor | None = rows.observer(self, Reading(inputs, mask, group, kernel, statistics))
        return factor

    def longest(self, inputs: Tensor, rows: Rows) -> int:
        """Length of the longest rows of this process, or of all processes whose rows an observer takes as one batch."""
        processes = None if rows.observer is None else rows.observer.processes(self)
        length = whole_length(inputs)
        return length if processes is None else processes.largest(length, inputs.device)

    def tau(self, reading: Reading, processes: Processes | None = None) -> Tensor:
        """Mean over channels and directions of τ at the last token (backward: at the first), in the stored precision.

        Args:
            reading: What the operator mixes. The kernels, `(D, length)` for each direction, have the length of the
                longest rows of all processes.
            processes: The processes whose rows are one batch.

        Source: Liu & Li 2024, eq. (6).
        """
        kernels: Any = reading.kernel
        # Checkpoints do not carry what only training and analysis compute.
        theory: Any = importlib.import_module("hf_ssm.theory.tau")
        taus = []
        for kernel, from_first in zip(kernels, (False, True), strict=False):
            if self.tau_statistics != "batch":
                taus.append(theory.filter_norm(kernel, 1 if self.tau_statistics == "unit" else 2))
                continue
            length, first = kernel.shape[-1], self.backward_first_lag if from_first else 0
            mean, variance = self._moments(reading, length, processes, from_first=from_first)
            taus.append(theory.tau(kernel[:, : length - first], mean[first:], variance[first:]))
        return torch.stack(taus).mean().to(next(self.parameters()).dtype)

    def _moments(
        self, reading: Reading, length: int, processes: Processes | None, *, from_first: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the inputs by lag, `(length, D)`."""
        inputs = reading.inputs.detach() if self.tau_detach_statistics else reading.inputs
        theory: Any = importlib.import_module("hf_ssm.theory.moments")
        moments: tuple[Tensor, Tensor] = theory.lag_moments(
            inputs, reading.mask, from_first=from_first, length=length, processes=processes
        )
        return moments

    @torch.no_grad()
    def scale_(self, factor: Tensor, channels: slice = slice(None)) -> None:
        """Multiply, in place, the kernel and the feed-through of these channels.

        Raises:
            ValueError: A parameter that cannot be changed in place, see `check_stored`.
        """
        check_stored(self, "D")
        self.scale_output_(factor, channels)
        if self.D is not None:
            scale_entries_(self.D, factor, lambda skip: skip[channels])


class FilteredInput(SequenceOperator):
    """Base of operators with a recurrent state, whose input passes the Sobolev filter (Yu et al. 2025, Appendix F)."""

    @property
    def has_recurrent_state(self) -> bool:
        return not self.has_sobolev_filter

    def filter_input(
        self,
        inputs: Tensor,
        rows: Rows = Rows(),
        state: LayerState | None = None,
        channels: slice | list[int] = slice(None),
    ) -> Tensor:
        """The input of these channels after the Sobolev filter, `(B, L, D)`."""
        if not self.has_sobolev_filter:
            return inputs
        precise = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        if self.sobolev_mode == "zero_phase":
            return self._zero_phase(precise, rows, channels).to(inputs.dtype)
        taps = partial(self._taps, precise, channels)
        if state is not None:
            filtered = state.streams.setdefault("sobolev", StreamingConvolution()).extend(precise, taps)
        else:
            filtered = long_conv(precise, taps(whole_length(inputs)))
        return zero_padding(filtered, rows.mask).to(inputs.dtype)

    def _taps(self, like: Tensor, channels: slice | list[int], length: int) -> Tensor:
        order = self._order(like)
        order = order[channels] if order is not None and order.dim() else order
        taps = causal_taps(length, 0.0 if order is None else order, self.sobolev_frequency, 1.0)
        return taps.to(like).expand(like.shape[-1], -1)


def operators_in(module: nn.Module) -> Iterator[tuple[str, SequenceOperator]]:
    """Relative name and module of each operator in use, to read its parameters outside `forward`.

    The copies that PEFT keeps of replaced modules (`original_module`) are left out.

    Raises:
        ValueError: An operator has an adapter on its parameters, which changes them during `forward` only.
    """
    for name, part in module.named_modules():
        base_layer: Any = getattr(part, "get_base_layer", None)
        if base_layer is not None and isinstance(base_layer(), SequenceOperator) and not getattr(part, "merged", False):
            raise ValueError(
                f"`{name}` has an adapter on its parameters (`target_parameters`), which are read outside `forward` "
                "here: merge the adapter first, `model = model.merge_and_unload()`."
            )
        if isinstance(part, SequenceOperator) and "original_module" not in name.split("."):
            yield name, part
