"""What every operator that mixes positions has: a feed-through, the Sobolev filter, τ and the rescaling by it.

Legend: `B` batch, `L` length, `D` channels.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.ops.long_conv import long_conv
from hf_ssm.ops.sobolev import zero_phase_taps
from hf_ssm.theory.complexity import filter_norm, tau
from hf_ssm.theory.moments import lag_moments
from hf_ssm.utils.processes import Processes, all_processes

__all__ = ["SequenceOperator", "loaded", "precise_memory", "precise_parameter", "theory_flags"]

# The zero-phase filter is sampled on this many frequencies whatever the length of the input, so that its taps depend
# on the lag alone and padding changes nothing. Odd (no node at the Nyquist frequency) and quick to transform.
ZERO_PHASE_GRID = 3**3 * 5**4


@contextmanager
def loaded(*modules: nn.Module) -> Iterator[None]:
    """Have the weights of modules at hand that are read outside their `forward`.

    Where accelerate keeps weights elsewhere, its hooks bring them for the time of a `forward`.
    """
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
    """The flags of a configuration that `SequenceOperator` takes, for the layer `layer_idx`."""
    return {
        "sobolev_order": config.sobolev_orders[layer_idx],
        "sobolev_mode": config.sobolev_mode,
        "sobolev_frequency": config.sobolev_frequency,
        "sobolev_trainable": config.sobolev_trainable,
        "tau_statistics": config.tau_statistics,
        "tau_detach_statistics": config.tau_detach_statistics,
    }


def precise_memory(*shape: int) -> Tensor:
    """Uninitialised memory, never in half precision, where steps and frequencies lose their meaning."""
    return torch.empty(shape, dtype=torch.promote_types(torch.get_default_dtype(), torch.float32))


def precise_parameter(*shape: int) -> nn.Parameter:
    """A parameter in `precise_memory`."""
    return nn.Parameter(precise_memory(*shape))


class SequenceOperator(nn.Module):
    """Base of the long convolution and the selective scan.

    In a distributed run (`torch.distributed`, several processes) the rows of all processes are one batch to τ, in
    training mode and while rescaling; all processes then have to ask for τ together, as they do in data parallel
    training. In evaluation mode the rows of a process are a batch, and one alone may ask.

    Args:
        channels: D.
        use_skip: Whether there is a feed-through.
        sobolev_order: β.
        sobolev_mode, sobolev_frequency, sobolev_trainable, tau_statistics, tau_detach_statistics: See `SSMConfig`.

    Source: Yu et al. 2025, eqs. (3) and (8); Liu & Li 2024, Algorithms 1 and 2.
    """

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
        self.initial_order = sobolev_order
        self.sobolev_mode = sobolev_mode
        self.sobolev_frequency = sobolev_frequency
        self.tau_statistics = tau_statistics
        self.tau_detach_statistics = tau_detach_statistics
        self.D = precise_parameter(channels) if use_skip else None
        self.sobolev_order = precise_parameter(channels) if sobolev_trainable else None
        # While a list, the forward pass rescales the parameters before it uses them and appends the τ it found.
        self.rescaling: list[Tensor] | None = None

    def initial_parameters(self) -> dict[str, Tensor]:
        """Fresh values of its own parameters by name."""
        values = {}
        if self.D is not None:
            values["D"] = torch.randn(self.D.shape)
        if self.sobolev_order is not None:
            values["sobolev_order"] = torch.full(self.sobolev_order.shape, self.initial_order)
        return values

    def scale_(self, factor: Tensor, channels: slice) -> None:
        """Multiply, in place, the output parameters other than D."""
        raise NotImplementedError

    @staticmethod
    def _at_least_single(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """`model.bfloat16()` and the like: steps, frequencies and kernels lose their meaning in half precision."""

        def moved_at_least_single(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if tensor.is_floating_point() and moved.dtype in (torch.float16, torch.bfloat16):
                return tensor.to(device=moved.device, dtype=torch.promote_types(tensor.dtype, torch.float32))
            return moved

        return moved_at_least_single

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
        """The step size by which the filter measures frequencies."""
        return 1.0

    def _filter_both_ways(self, inputs: Tensor, channels: slice | list[int], mask: Tensor | None) -> Tensor:
        """The zero-phase filter (1 + |s|)^β of the tokens, `(B, L, D)`."""
        order = self._order(inputs)
        if order is None:
            return inputs
        step = self._time_step(inputs)
        order = order[channels] if order.dim() else order
        step = step[channels] if isinstance(step, Tensor) else step
        taps = zero_phase_taps(ZERO_PHASE_GRID, order, self.sobolev_frequency, step)
        taps = taps[..., : inputs.shape[1] + 1].to(inputs).expand(inputs.shape[-1], -1)
        filtered = long_conv(inputs, taps[:, :-1], taps[:, 1:])
        return filtered if mask is None else filtered * mask.unsqueeze(-1)

    def _processes(self) -> Processes | None:
        """Whose rows are one batch with ours; `None` where there are no others."""
        return all_processes() if self.training or self.rescaling is not None else None

    def _longest(self, inputs: Tensor) -> int:
        """Length of the inputs, of those of all `_processes` the largest."""
        processes = self._processes()
        return inputs.shape[1] if processes is None else processes.largest(inputs.shape[1], inputs.device)

    def _tau(self, kernel: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Mean over channels of τ at the last token, of the kernel `(..., D, L)`, with the L of `_longest`."""
        if self.tau_statistics != "batch":
            return filter_norm(kernel, 1 if self.tau_statistics == "unit" else 2).mean()
        return tau(kernel, *self._moments(kernel, inputs, mask)).mean()

    def _moments(
        self, kernel: Tensor, inputs: Tensor, mask: Tensor | None, *, from_first: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the inputs, `(L, D)`, by distance, for the kernel `(..., D, L)`."""
        inputs = inputs.detach() if self.tau_detach_statistics else inputs
        length, processes = kernel.shape[-1], self._processes()
        return lag_moments(inputs, mask, from_first=from_first, length=length, processes=processes)

    @torch.no_grad()
    def _rescale_(self, value: Tensor, channels: slice = slice(None)) -> Tensor:
        """Divide C and D by √τ, in place (Liu & Li 2024, eq. (7)), and return the factor."""
        if not math.isfinite(value) or value <= 0:
            raise ValueError(
                f"τ of a layer is {value.item()}: rescaling needs a positive, finite τ. Look for an input that is "
                "constant zero (τ = 0), or for NaN or huge values in the batch or the weights."
            )
        factor = value.rsqrt()
        self.scale_(factor, channels)
        if self.D is not None:
            self.D.data[channels] *= factor
        return factor
