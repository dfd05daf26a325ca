"""Generators of long convolution kernels: state space (S4D, S4), implicit (Hyena) and sinusoid filters.

Legend: `C` channels, `K` directions (1, or 2 for a two-sided convolution), `L` length, `N` state size, `H` = N / 2
stored conjugate pairs. Kernels have the shape `(K, C, L)`; the second direction holds the taps that look ahead, the
nearest first. Every kernel is linear in the parameters that `scale_` multiplies.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from hf_ssm.modules.operator import precise_memory, precise_parameter
from hf_ssm.ops.hippo import initial_eigenvalues, legs_nplr
from hf_ssm.ops.lti_kernel import diagonal_kernel, dplr_kernel, sinusoid_kernel
from hf_ssm.ops.transfer import diagonal_response, dplr_response, sinusoid_response, taps_response

__all__ = ["ImplicitFilter", "LongFilter", "SinusoidFilter", "StateSpaceFilter", "build_filter"]

# Longer kernels are computed piece by piece, by so many positions or taps, lest what leads to them takes several times
# their memory.
_POSITIONS, _TAPS = 1 << 16, 1 << 22


class LongFilter(nn.Module):
    """Base: a kernel of any length for each of `channels` channels, in one or two directions."""

    def __init__(self, channels: int, directions: int):
        super().__init__()
        self.channels = channels
        self.directions = directions

    def forward(self, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The kernel of shape `(K, C, length)`, computed in `dtype`, or in that of the parameters if it is better.

        It is the caller's, who may change it in place.
        """
        raise NotImplementedError

    def response(self, omega: Tensor, rows: Tensor | None = None) -> Tensor:
        """The response of the kernel to frequencies, Σ_l k_l e^{-iωl} over all its taps.

        Args:
            omega: In radians per sample, `(F,)`, or `(R, F)` for frequencies of each row's own.
            rows: Which kernels, numbers `(R,)`: row k C + c is channel c of direction k, in its own direction of time.
                Default: all, R = K C.

        Returns:
            `(R, F)`, complex128.
        """
        raise NotImplementedError

    def time_step(self, dtype: torch.dtype = torch.float32) -> Tensor | float:
        """Δ of each channel, `(C,)`, or 1.0 where the filter has no step size."""
        return 1.0

    @property
    def num_taps(self) -> int | None:
        """Number of taps there are; `None` where there is no limit."""
        return None

    def initial_parameters(self) -> dict[str, Tensor]:
        """Fresh values of the parameters and buffers by name (some are random draws)."""
        raise NotImplementedError

    def scale_(self, factor: float | Tensor, channels: slice) -> None:
        """Multiply the kernel of some channels, in place, by scaling the parameters it is linear in."""
        raise NotImplementedError

    @staticmethod
    def _precise(parameter: Tensor, dtype: torch.dtype) -> Tensor:
        return parameter.to(torch.promote_types(parameter.dtype, dtype))


class StateSpaceFilter(LongFilter):
    r"""Kernel of a state space model, k_l = C Ā^l B̄, with a diagonal (S4D) or diagonal plus rank-one (S4) matrix.

    The real part of the eigenvalues is -exp(log_A_real), so that the model stays stable. Complex parameters are stored
    as real pairs in a last dimension of size 2. Both directions share Δ, A and B.

    Source: Liu & Li 2024, Appendix A.2 (models); Yu et al. 2025, eq. (5) (frequency scale).
    """

    def __init__(
        self,
        channels: int,
        directions: int,
        *,
        state_size: int,
        low_rank: bool,
        init: str,
        discretization: str,
        time_step_range: tuple[float, float],
        frequency_scale: float = 1.0,
        frequency_shift: float = 0.0,
    ):
        super().__init__(channels, directions)
        self.state_size = state_size
        self.low_rank = low_rank
        self.init = init
        self.discretization = discretization
        self.time_step_range = time_step_range
        self.frequency_scale = frequency_scale
        self.frequency_shift = frequency_shift
        pairs = state_size // 2
        self.log_dt = precise_parameter(channels)
        self.log_A_real = precise_parameter(channels, pairs)
        self.A_imag = precise_parameter(channels, pairs)
        self.B = precise_parameter(channels, pairs, 2)
        self.C = precise_parameter(directions, channels, pairs, 2)
        if low_rank:
            self.P = precise_parameter(channels, pairs, 2)

    def initial_parameters(self) -> dict[str, Tensor]:
        pairs = self.state_size // 2
        eigenvalues = initial_eigenvalues(self.init, self.state_size, self.frequency_scale, self.frequency_shift)
        if self.init == "legs":
            _, low_rank, inputs, _ = legs_nplr(self.state_size)
        else:
            low_rank = torch.randn(self.channels, pairs, dtype=torch.complex128)
            inputs = torch.ones(pairs, dtype=torch.complex128)
        low, high = (math.log(bound) for bound in self.time_step_range)
        shape = (self.channels, pairs)
        values = {
            "log_dt": low + (high - low) * torch.rand(self.channels),
            "log_A_real": (-eigenvalues.real).log().expand(shape),
            "A_imag": eigenvalues.imag.expand(shape),
            "B": torch.view_as_real(inputs.expand(shape).contiguous()),
            "C": torch.view_as_real(torch.randn(self.directions, *shape, dtype=torch.complex128)),
        }
        if self.low_rank:
            values["P"] = torch.view_as_real(low_rank.expand(shape).contiguous())
        return values

    def state_space(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """The continuous model: `a`, `b` (and `p` for S4) of shape `(C, H)` and `c` of shape `(K, C, H)`, complex."""
        matrices = {
            "a": torch.complex(-self._precise(self.log_A_real, dtype).exp(), self._precise(self.A_imag, dtype)),
            "b": torch.view_as_complex(self._precise(self.B, dtype).contiguous()),
            "c": torch.view_as_complex(self._precise(self.C, dtype).contiguous()),
        }
        if self.low_rank:
            matrices["p"] = torch.view_as_complex(self._precise(self.P, dtype).contiguous())
        return matrices

    def time_step(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return self._precise(self.log_dt, dtype).exp()

    def _rows(self, dtype: torch.dtype) -> tuple[dict[str, Tensor], Tensor]:
        """The continuous model of every row of the kernel, matrices `(K C, H)`, and Δ, `(K C,)`."""
        model = self.state_space(dtype)
        # Both directions have their own C alone.
        flat = {name: matrix.expand_as(model["c"]).flatten(0, 1) for name, matrix in model.items()}
        return flat, self.time_step(dtype).repeat(self.directions)

    def forward(self, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
        model, dt = self._rows(dtype)
        a, b, c = model["a"], model["b"], model["c"]
        if self.low_rank:
            kernel = dplr_kernel(a, model["p"], b, c, dt, length, self.discretization)
        else:
            kernel = diagonal_kernel(a, b, c, dt, length, self.discretization)
        return kernel.unflatten(0, (self.directions, self.channels))

    def response(self, omega: Tensor, rows: Tensor | None = None) -> Tensor:
        model, dt = self._rows(torch.float64)
        if rows is not None:
            model, dt = {name: matrix[rows] for name, matrix in model.items()}, dt[rows]
        a, b, c = model["a"], model["b"], model["c"]
        if self.low_rank:
            return dplr_response(omega, a, model["p"], b, c, dt, self.discretization)
        return diagonal_response(omega, a, b, c, dt, self.discretization)

    @torch.no_grad()
    def scale_(self, factor: float | Tensor, channels: slice) -> None:
        self.C[:, channels] *= factor


class ImplicitFilter(LongFilter):
    """Hyena's filter: positional embedding, sine MLP, exponential window.

    z(t) = [t/(T-1), cos(f w), -sin(f w)] with w = 2πt/T and bands f; then linear maps with sin(ω ·) between them; the
    result is multiplied by exp(-δ t/(T-1)) + shift, with a decay rate δ per channel. T is the longest input, so that
    the kernel at a lag does not depend on the length of the batch.

    `frequency_scale` multiplies, and `frequency_shift` adds to, the bands f and the activation frequency ω.

    With `positions="stored"`, the embedding z of all positions `(T, E)`, the time axis t/(T-1) `(T,)` and the decay
    rates `(C,)` are buffers that begin as these formulas say, and with `"learned"` z is a parameter besides. So a
    checkpoint keeps the very numbers it was trained with. With `"computed"` there are none.

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
            self.register_parameter(f"weight_{layer}", precise_parameter(after, before))
            if layer < num_inner_layers + 1:
                self.register_parameter(f"bias_{layer}", precise_parameter(after))
        self._register("frequency", width, train=train_frequency)
        self.has_stored_positions = positions != "computed"
        if self.has_stored_positions:
            self._register("positions", longest, embedding_size, train=positions == "learned")
            self._register("time", longest, train=False)
            self._register("decay_rates", channels, train=False)

    def _register(self, name: str, *shape: int, train: bool) -> None:
        """A parameter, or a buffer: transformers has every parameter of a checkpoint it loads want gradients."""
        if train:
            self.register_parameter(name, precise_parameter(*shape))
        else:
            self.register_buffer(name, precise_memory(*shape))

    def initial_parameters(self) -> dict[str, Tensor]:
        omega = self._shifted(torch.tensor(self.activation_frequency))
        values = {"frequency": omega.expand(self.sizes[1])}
        if self.has_stored_positions:
            like = torch.empty(0)
            positions, time = self._computed_positions(0, self.longest, like)
            values |= {"positions": positions, "time": time[:, 0], "decay_rates": self._computed_rates(like)[:, 0]}
        # PyTorch's default for linear layers: the window expects outputs of order one, whatever the residual
        # stream's initializer_range is.
        for layer, size in enumerate(self.sizes[:-1]):
            for name in (f"weight_{layer}", f"bias_{layer}"):
                if name in self._parameters:
                    values[name] = torch.empty(self.get_parameter(name).shape).uniform_(-(size**-0.5), size**-0.5)
        return values

    @property
    def num_taps(self) -> int | None:
        return self.longest

    def _shifted(self, frequency: Tensor) -> Tensor:
        return self.frequency_scale * frequency + self.frequency_shift

    def forward(self, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
        if length > self.longest:
            raise ValueError(
                f"The input has {length} positions, but the implicit filter is defined on "
                f"`max_position_embeddings`={self.longest}: shorten the input, or train a model with a larger value."
            )
        if length <= _POSITIONS:
            return self._taps(0, length, dtype)
        # The same pieces with and without gradients, so that the digits are the same too.
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
        frequency = self._precise(self.frequency, dtype)
        hidden, time = self._positions(start, stop, frequency)
        *inner, last = range(len(self.sizes) - 1)
        for layer in inner:
            weight, bias = (self._precise(self.get_parameter(f"{name}_{layer}"), dtype) for name in ("weight", "bias"))
            hidden = torch.sin(frequency * (hidden @ weight.T + bias))
        output = self._precise(self.get_parameter(f"weight_{last}"), dtype)
        kernel = (output @ hidden.T).unflatten(0, (self.directions, self.channels))
        return kernel * (torch.exp(-self._decay_rates(output) * time.T) + self.window_shift)

    def response(self, omega: Tensor, rows: Tensor | None = None) -> Tensor:
        taps = self(self.longest, torch.float64).flatten(0, 1)
        return taps_response(omega, taps if rows is None else taps[rows])

    def _positions(self, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The positional embedding `(L, embedding_size)`, and the time axis `(L, 1)` in units of the longest input."""
        if not self.has_stored_positions:
            return self._computed_positions(start, stop, like)
        positions, time = (part[start:stop].to(like.dtype) for part in (self.positions, self.time))
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
        output = self.get_parameter(f"weight_{len(self.sizes) - 2}")
        output.unflatten(0, (self.directions, self.channels))[:, channels] *= factor


class SinusoidFilter(LongFilter):
    """k_t = c₁ cos(2π a₁ t / U) + c₂ sin(2π a₂ t / U) for t < U, and 0 beyond.

    The frequencies a are drawn uniformly from [0, U/8] periods per window, times `frequency_scale`, plus
    `frequency_shift`; the amplitudes c are normal with variance 1/U, so that the kernel has an expected squared
    norm of one.

    Source: Nishikawa & Suzuki 2025, Section 3 (gated convolution layer) and Appendix D (as a state space model).
    """

    def __init__(
        self, channels: int, directions: int, *, window: int, frequency_scale: float = 1.0, frequency_shift: float = 0.0
    ):
        super().__init__(channels, directions)
        self.window = window
        self.frequency_scale = frequency_scale
        self.frequency_shift = frequency_shift
        self.amplitudes = precise_parameter(2, directions, channels)
        self.frequencies = precise_parameter(2, directions, channels)

    def initial_parameters(self) -> dict[str, Tensor]:
        draw = torch.rand(self.frequencies.shape) * self.window / 8
        return {
            "amplitudes": torch.randn(self.amplitudes.shape) / math.sqrt(self.window),
            "frequencies": self.frequency_scale * draw + self.frequency_shift,
        }

    def forward(self, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
        (c1, c2), (a1, a2) = (self._precise(p, dtype).flatten(1) for p in (self.amplitudes, self.frequencies))
        if torch.is_grad_enabled() or len(c1) * length <= _TAPS:
            kernel = sinusoid_kernel(c1, c2, a1, a2, self.window, length)
        else:
            kernel = c1.new_empty(len(c1), length)
            size = max(1, _TAPS // length)
            parts = (slice(start, start + size) for start in range(0, len(c1), size))
            for part in parts:
                kernel[part] = sinusoid_kernel(c1[part], c2[part], a1[part], a2[part], self.window, length)
        return kernel.unflatten(0, (self.directions, self.channels))

    def response(self, omega: Tensor, rows: Tensor | None = None) -> Tensor:
        amplitudes, frequencies = self.amplitudes.flatten(1), self.frequencies.flatten(1)
        if rows is not None:
            amplitudes, frequencies = amplitudes[:, rows], frequencies[:, rows]
        return sinusoid_response(omega, amplitudes[0], amplitudes[1], frequencies[0], frequencies[1], self.window)

    @torch.no_grad()
    def scale_(self, factor: float | Tensor, channels: slice) -> None:
        self.amplitudes[:, :, channels] *= factor


def build_filter(config, kind: str, channels: int) -> LongFilter:
    """The filter of a configuration.

    Args:
        config: A `HyenaConfig` or `S4Config`.
        kind: `"implicit"`, `"sinusoid"`, `"s4d"` or `"s4"`.
        channels: Number of kernels per direction.
    """
    directions = 2 if config.bidirectional else 1
    frequencies = {"frequency_scale": config.frequency_scale, "frequency_shift": config.frequency_shift}
    if kind == "implicit":
        return ImplicitFilter(
            channels,
            directions,
            longest=config.max_position_embeddings,
            embedding_size=config.filter_emb_dim,
            width=config.filter_order,
            num_inner_layers=config.num_inner_mlps,
            activation_frequency=config.filter_activation_frequency,
            train_frequency=config.filter_train_frequency,
            window_shift=config.filter_window_shift,
            positions=config.filter_positions,
            **frequencies,
        )
    if kind == "sinusoid":
        return SinusoidFilter(channels, directions, window=config.sinusoid_window, **frequencies)
    return StateSpaceFilter(
        channels,
        directions,
        state_size=config.state_size,
        low_rank=kind == "s4",
        init=config.init,
        discretization=config.discretization,
        time_step_range=(config.time_step_min, config.time_step_max),
        **frequencies,
    )
