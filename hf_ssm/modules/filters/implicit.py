"""Hyena's implicit kernels: a sine MLP of the position, with an exponential window.

Legend: `C` channels, `K` directions (1, or 2 for a two-sided convolution), `L` length, `N` state size, `H` = N / 2
stored conjugate pairs. Kernels have the shape `(K, C, L)`; the second direction holds the taps that look ahead, the
nearest first.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from hf_ssm.modules.filters.base import LongFilter
from hf_ssm.modules.operator import check_stored, fp32_empty, fp32_parameter, scale_entries_
from hf_ssm.modules.roles import ParameterRole
from hf_ssm.ops.context import is_exporting
from hf_ssm.ops.lti.transfer import taps_response

__all__ = ["ImplicitFilter"]

# Longer kernels are computed in pieces of this many positions, to bound the memory of intermediate results.
_POSITIONS = 1 << 16


class ImplicitFilter(LongFilter):
    """Hyena's filter: positional embedding, sine MLP, exponential window.

    z(t) = [t/(T-1), cos(f w), -sin(f w)] with w = 2πt/T and bands f; then linear maps with sin(ω ·) between them; the
    result is multiplied by exp(-δ t/(T-1)) + shift, with a decay rate δ per channel. T is the longest input, so that
    the kernel at a lag does not depend on the length of the batch.

    `frequency_scale` multiplies, and `frequency_shift` adds to, the bands f and the activation frequency ω.

    With `positions="stored"`, the embedding z of all positions `(T, E)`, the time axis t/(T-1) `(T,)` and the decay
    rates `(C,)` are buffers, initialised by these formulas, so that a checkpoint keeps the numbers it was trained
    with. With `"learned"`, z is a parameter. With `"computed"` there are no such tensors.

    Raises:
        ValueError: A length over T.

    Source: Poli et al. 2023 (Hyena); Nguyen et al. 2023 (HyenaDNA).
    """

    frequency: Tensor
    positions: Tensor
    time: Tensor
    decay_rates: Tensor

    def __init__(
        self,
        channels: int,
        directions: int,
        *,
        longest: int,
        embedding_size: int,
        width: int,
        num_inner_layers: int,
        activation_frequency: float,
        train_frequency: bool,
        window_shift: float,
        positions: str = "computed",
        frequency_scale: float = 1.0,
        frequency_shift: float = 0.0,
    ):
        super().__init__(channels, directions)
        self.longest = longest
        self.embedding_size = embedding_size
        self.window_shift = window_shift
        self.frequency_scale = frequency_scale
        self.frequency_shift = frequency_shift
        self.activation_frequency = activation_frequency
        self.sizes = [embedding_size, *[width] * (num_inner_layers + 1), directions * channels]
        for layer, (before, after) in enumerate(pairwise(self.sizes)):
            self.register_parameter(f"weight_{layer}", fp32_parameter(after, before))
            if layer < num_inner_layers + 1:
                self.register_parameter(f"bias_{layer}", fp32_parameter(after))
        self._register("frequency", width, train=train_frequency)
        self.has_stored_positions = positions != "computed"
        if self.has_stored_positions:
            self._register("positions", longest, embedding_size, train=positions == "learned")
            self._register("time", longest, train=False)
            self._register("decay_rates", channels, train=False)
        # A parametrisation moves a parameter away.
        self._trained = list(self._parameters)

    def _register(self, name: str, *shape: int, train: bool) -> None:
        """A parameter, or a buffer if it is not trained: transformers enables gradients of all loaded parameters."""
        if train:
            self.register_parameter(name, fp32_parameter(*shape))
        else:
            self.register_buffer(name, fp32_empty(*shape))

    def initial_parameters(self) -> dict[str, Tensor]:
        omega = self._shifted(torch.tensor(self.activation_frequency))
        values = {"frequency": omega.expand(self.sizes[1])}
        if self.has_stored_positions:
            like = torch.empty(0)
            positions, time = self._computed_positions(0, self.longest, like)
            values |= {"positions": positions, "time": time[:, 0], "decay_rates": self._computed_rates(like)[:, 0]}
        # PyTorch's default for linear layers instead of initializer_range: the window expects outputs of order one.
        for layer, size in enumerate(self.sizes[:-1]):
            for name in (f"weight_{layer}", f"bias_{layer}"):
                if hasattr(self, name):
                    values[name] = torch.empty(getattr(self, name).shape).uniform_(-(size**-0.5), size**-0.5)
        return values

    def parameter_roles(self) -> dict[str, ParameterRole]:
        roles = {"frequency": ParameterRole("filter_frequency", is_dynamics=True)}
        roles["positions"] = ParameterRole("other", is_dynamics=True)
        return {name: roles.get(name, ParameterRole("filter_mlp")) for name in self._trained}

    @property
    def num_taps(self) -> int | None:
        return self.longest

    def _shifted(self, frequency: Tensor) -> Tensor:
        return self.frequency_scale * frequency + self.frequency_shift

    def kernel(self, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
        if length > self.longest:
            raise ValueError(
                f"The input has {length} positions, but the implicit filter is defined on "
                f"`max_position_embeddings`={self.longest}: shorten the input, or train a model with a larger value."
            )
        # The same pieces with and without gradients, so that results are bit-identical.
        if is_exporting() or length <= _POSITIONS:
            return self._taps(0, length, dtype)
        bounds = [(start, min(start + _POSITIONS, length)) for start in range(0, length, _POSITIONS)]
        if torch.is_grad_enabled():
            return torch.cat([self._taps(start, stop, dtype) for start, stop in bounds], dim=-1)
        first = self._taps(*bounds[0], dtype)
        kernel = first.new_empty(*first.shape[:-1], length)
        kernel[..., : first.shape[-1]] = first
        for start, stop in bounds[1:]:
            kernel[..., start:stop] = self._taps(start, stop, dtype)
        return kernel

    def _taps(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """The taps from lag `start` to `stop`, `(K, C, stop - start)`."""
        frequency = self._in_precision(self.frequency, dtype)
        hidden, time = self._positions(start, stop, frequency)
        *inner, last = range(len(self.sizes) - 1)
        for layer in inner:
            weight, bias = (self._in_precision(getattr(self, f"{name}_{layer}"), dtype) for name in ("weight", "bias"))
            hidden = torch.sin(frequency * (hidden @ weight.T + bias))
        output = self._in_precision(getattr(self, f"weight_{last}"), dtype)
        kernel = (output @ hidden.T).unflatten(0, (self.directions, self.channels))
        return kernel * (torch.exp(-self._decay_rates(output) * time.T) + self.window_shift)

    def response(self, omega: Tensor, rows: Tensor | None = None) -> Tensor:
        taps = self.kernel(self.longest, torch.float64).flatten(0, 1)
        return taps_response(omega, taps if rows is None else taps[rows])

    def _positions(self, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The positional embedding `(L, embedding_size)`, and the time axis `(L, 1)` in units of the longest input."""
        if not self.has_stored_positions:
            return self._computed_positions(start, stop, like)
        # While a program is exported, a slice would compare the length with that of the buffers.
        steps = torch.arange(start, stop, device=self.time.device)
        positions, time = (part.index_select(0, steps).to(like.dtype) for part in (self.positions, self.time))
        return positions, time.unsqueeze(-1)

    def _computed_positions(self, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.arange(start, stop, device=like.device, dtype=like.dtype).unsqueeze(-1)
        time = steps / max(self.longest - 1, 1)
        bands = (self.embedding_size - 1) // 2
        frequencies = self._shifted(torch.linspace(1e-4, bands - 1, bands, device=like.device, dtype=like.dtype))
        phase = (2 * math.pi / self.longest) * steps * frequencies
        return torch.cat([time, phase.cos(), -phase.sin()], dim=-1), time

    def _decay_rates(self, like: Tensor) -> Tensor:
        """δ of each channel, `(C, 1)`."""
        if not self.has_stored_positions:
            return self._computed_rates(like)
        return self.decay_rates.to(like.dtype).unsqueeze(-1)

    def _computed_rates(self, like: Tensor) -> Tensor:
        # The window falls to 1 % after 0.3 (fastest channel) to 1.5 (slowest) times the longest input.
        slow, fast = (-math.log(1e-2) / fraction for fraction in (1.5, 0.3))
        return torch.linspace(slow, fast, self.channels, device=like.device, dtype=like.dtype).unsqueeze(-1)

    @torch.no_grad()
    def scale_(self, factor: float | Tensor, channels: slice) -> None:
        name = f"weight_{len(self.sizes) - 2}"
        check_stored(self, name)
        rows = self.directions, self.channels
        scale_entries_(getattr(self, name), factor, lambda weight: weight.unflatten(0, rows)[:, channels])
