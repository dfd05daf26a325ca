"""The convolutional state space model ConvS5 with its parameters and its Sobolev filter.

Legend: `B` batch, `T` frames, `h` height, `w` width, `D` channels, `P` real states at each pixel, `S` = P / 2 stored
conjugate pairs, `J` blocks of the state matrix, `k` size of a spatial kernel, `κ` size of the neighbourhood that the
output at a pixel depends on.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hf_ssm.modules.operator import (
    SequenceOperator,
    check_stored,
    fp32_parameter,
    materialized,
    scale_entries_,
    theory_flags,
)
from hf_ssm.modules.roles import ParameterRole
from hf_ssm.modules.rows import Reading, Rows
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.context import no_autocast
from hf_ssm.ops.conv_ssm import conv_ssm
from hf_ssm.ops.long_conv import StreamingConvolution, long_conv
from hf_ssm.ops.lti.discretize import discretize_pairs
from hf_ssm.ops.lti.hippo import initial_eigenvalues, legs_nplr
from hf_ssm.ops.sharing import whole_length
from hf_ssm.ops.sobolev import causal_taps
from hf_ssm.theory.mimo import MIMOSystem, kernel_matrix, kernel_matrix_norm, kernel_matrix_tau
from hf_ssm.utils.processes import Processes

__all__ = ["ConvS5"]

# Numbers of a kernel matrix that is computed as a whole, for reports.
_LARGEST_KERNEL = 2**28


class ConvS5(SequenceOperator):
    r"""x_t = Ā ⊙ x_{t-1} + B̄ ∗ u_t, y_t = 2 Re(C ∗ x_t) + D ∗ u_t at every pixel, with spatial convolutions B, C and D.

    A is diagonal and shared by all pixels, with one step size for each state. The state matrix is initialised as J
    equal diagonal blocks of HiPPO-LegS (or another `init`); B and C are normal matrices in its eigenbasis, with the
    variance of LeCun's initialisation. Complex parameters are stored as real pairs in a last dimension of size 2. All
    parameters, and the computation, are in float32 or better.

    The Sobolev filter is applied to u along time, at each pixel (Yu et al. 2025, Appendix F).

    τ is that of S5 (`theory.mimo.matrix_tau`): away from the border, the output at a pixel is that of a system with
    several inputs, all channels of the neighbourhood of κ x κ pixels that B and C, or D, reach. Mean and variance of a
    channel by lag are those over videos and pixels; τ is the mean over output channels.

    Args:
        config: A `ConvS5Config`.
        layer_idx: Which layer it is part of.

    Source: Smith et al. 2023 (ConvS5), Section 3; Smith, Warrington & Linderman 2023 (S5), Section 3.3 and
    Appendix B.1 (initialisation); Yu et al. 2025, eqs. (5) and (14) (scale and shift of the frequencies).
    """

    def __init__(self, config, layer_idx: int):
        size, pairs = config.hidden_size, config.state_size // 2
        super().__init__(size, use_skip=False, **theory_flags(config, layer_idx))
        self.init = config.init
        self.discretization = config.discretization
        self.time_step_range = config.time_step_min, config.time_step_max
        self.frequency_scale, self.frequency_shift = config.frequency_scale, config.frequency_shift
        self.state_size, self.blocks = config.state_size, config.num_blocks
        self.log_dt = fp32_parameter(pairs)
        self.log_A_real = fp32_parameter(pairs)
        self.A_imag = fp32_parameter(pairs)
        self.B = fp32_parameter(pairs, size, config.input_kernel_size, config.input_kernel_size, 2)
        self.C = fp32_parameter(size, pairs, config.output_kernel_size, config.output_kernel_size, 2)
        if config.use_skip:
            self.D = fp32_parameter(size, size, config.skip_kernel_size, config.skip_kernel_size)

    def initial_parameters(self) -> dict[str, Tensor]:
        values = super().initial_parameters()
        size = self.state_size // self.blocks
        eigenvalues = initial_eigenvalues(self.init, size, self.frequency_scale, self.frequency_shift)
        eigenvalues = eigenvalues.repeat(self.blocks)
        low, high = (math.log(bound) for bound in self.time_step_range)
        # V* B and C V, one of each conjugate pair; the variance is one over the number of terms of a sum.
        inputs = self._in_eigenbasis(self.B[..., 0].shape) * self.B[0, ..., 0].numel() ** -0.5
        outputs = self._in_eigenbasis(self.C[..., 0].transpose(0, 1).shape) * (2 * self.C[0, ..., 0].numel()) ** -0.5
        values |= {
            "log_dt": low + (high - low) * torch.rand(self.log_dt.shape),
            "log_A_real": (-eigenvalues.real).log(),
            "A_imag": eigenvalues.imag,
            "B": torch.view_as_real(inputs.contiguous()),
            "C": torch.view_as_real(outputs.conj().resolve_conj().transpose(0, 1).contiguous()),
        }
        if self.D is not None:
            values["D"] = torch.randn(self.D.shape) * self.D[0].numel() ** -0.5
        return values

    def _in_eigenbasis(self, shape: torch.Size) -> Tensor:
        """V* R with R normal `(P, ...)`, of the given shape `(S, ...)`; complex normal where V is the identity."""
        if self.init != "legs":
            return torch.randn(shape, dtype=torch.complex128)
        vectors = legs_nplr(self.state_size // self.blocks)[3]
        real = torch.randn(self.blocks, vectors.shape[0], shape[1:].numel(), dtype=torch.float64)
        return (vectors.mH @ real.to(vectors.dtype)).reshape(shape)

    def parameter_roles(self) -> dict[str, ParameterRole]:
        return super().parameter_roles() | {
            "log_dt": ParameterRole("step_size", "log", is_dynamics=True),
            "log_A_real": ParameterRole("A_real", "log_negative", is_dynamics=True),
            "A_imag": ParameterRole("A_imag", is_dynamics=True),
            "B": ParameterRole("B", is_dynamics=True),
            "C": ParameterRole("C"),
        }

    @property
    def has_recurrent_state(self) -> bool:
        return not self.has_sobolev_filter

    def state_space(self) -> tuple[Tensor, Tensor, Tensor]:
        """The discrete model as real pairs: Ā `(S, 2)`, B̄ `(S, D, k, k, 2)` and C `(D, S, k, k, 2)`."""
        eigenvalues = -self.log_A_real.exp(), self.A_imag
        discrete, gain = discretize_pairs(*eigenvalues, self.log_dt.exp(), self.discretization)
        real, imag = (part.view(-1, 1, 1, 1) for part in gain.unbind(-1))
        b_real, b_imag = self.B.unbind(-1)
        b = torch.stack([real * b_real - imag * b_imag, real * b_imag + imag * b_real], dim=-1)
        return discrete, b, self.C

    def forward(self, inputs: Tensor, rows: Rows = Rows(), state: LayerState | None = None) -> Tensor:
        """The model over all frames.

        Args:
            inputs: `(B, T, h, w, D)`.
            rows: What is known of the rows; all frames are read.
            state: Continue from this state, which is changed in place.

        Returns:
            The output `(B, T, h, w, D)`.
        """
        with no_autocast(inputs.device):
            precise = inputs.to(self.B.dtype)
            if rows.observer is not None:
                # An observer that rescales changes C, which is read below.
                self.observe(rows, precise.permute(0, 2, 3, 1, 4).flatten(0, 2))
            filtered = self._filtered(precise, rows, state)
            system = self.state_space()
            # `ops/conv_ssm.py` has the loop over frames that this computes.
            outputs, after = conv_ssm(filtered, *system, self.D, None if state is None else state.get("scan"))
            if state is not None:
                state.put("scan", after)
        return outputs.to(inputs.dtype)

    def _filtered(self, inputs: Tensor, rows: Rows, state: LayerState | None) -> Tensor:
        """The input after the Sobolev filter over time, `(B, T, h, w, D)`."""
        if not self.has_sobolev_filter:
            return inputs
        # Pixels as further channels, so that the stream of a state has the batch as its first dimension.
        signals, pixels = inputs.flatten(2), inputs.shape[2] * inputs.shape[3]

        def taps(count: int) -> Tensor:
            return self._taps(inputs, count).repeat(pixels, 1)

        if state is None:
            filtered = long_conv(signals, taps(whole_length(signals)))
        else:
            filtered = state.streams.setdefault("sobolev", StreamingConvolution()).extend(signals, taps)
        return filtered.view_as(inputs)

    def _taps(self, like: Tensor, length: int) -> Tensor:
        """The causal filter of each channel, `(D, length)`."""
        order = self._order(like)
        taps = causal_taps(length, 0.0 if order is None else order, self.sobolev_frequency, 1.0)
        return taps.to(like).expand(self.channels, -1)

    @torch.no_grad()
    def scale_output_(self, factor: Tensor, channels: slice) -> None:
        """Multiply C, in place."""
        check_stored(self, "C")
        scale_entries_(self.C, factor, lambda weight: weight[channels])

    # τ and reports

    @property
    def neighbourhood(self) -> int:
        """κ: the output at a pixel depends on the inputs of the κ x κ pixels around it."""
        reach = self.B.shape[-2] + self.C.shape[-2] - 1
        return reach if self.D is None else max(reach, self.D.shape[-1])

    def system(self, length: int, dtype: torch.dtype = torch.float32) -> MIMOSystem:
        """The model of the output at a pixel away from the border, with D κ² inputs, `(channel, row, column)`.

        Its states are those of the k_C² pixels that C reaches, and of the feed-through, which remembers nothing.

        Args:
            length: Number of taps of the Sobolev filter, if there is one.
            dtype: Precision, at least that of the parameters.
        """
        dtype = torch.promote_types(dtype, self.C.dtype)
        a, b, c = (torch.complex(*part.to(dtype).unbind(-1)) for part in self.state_space())
        size, reach, seen = self.neighbourhood, c.shape[-1], b.shape[-1]
        margin = (size - reach - seen + 1) // 2
        shifted = [
            nn.functional.pad(b, (column, size - seen - column, row, size - seen - row))
            for row in range(margin, margin + reach)
            for column in range(margin, margin + reach)
        ]
        states = [(a.repeat_interleave(reach**2), torch.stack(shifted, 1).flatten(0, 1).flatten(1), c.flatten(1))]
        if self.D is not None:
            skip = self.D.to(c.dtype)
            edge, count = (size - skip.shape[-1]) // 2, skip[0].numel()
            delta = torch.eye(count, dtype=c.dtype, device=c.device).view(count, *skip.shape[1:])
            # y = 2 Re c x.
            states.append((a.new_zeros(count), nn.functional.pad(delta, (edge,) * 4).flatten(1), skip.flatten(1) / 2))
        a, b, c = (torch.cat(parts, dim) for parts, dim in zip(zip(*states, strict=True), (0, 0, 1), strict=True))
        taps = None
        if self.has_sobolev_filter:
            taps = self._taps(a.real, length).repeat_interleave(size**2, dim=0)
        return MIMOSystem(a, b, c, None, taps)

    def tau(self, reading: Reading, processes: Processes | None = None) -> Tensor:
        length = reading.inputs.shape[1]
        length = length if processes is None else processes.largest(length, reading.inputs.device)
        system = self.system(length, reading.inputs.dtype)
        if self.tau_statistics != "batch":
            return kernel_matrix_norm(system, length, 1 if self.tau_statistics == "unit" else 2).mean().to(self.C.dtype)
        moments = self._moments(reading, length, processes)
        moments = (moment.repeat_interleave(self.neighbours, dim=1) for moment in moments)
        return kernel_matrix_tau(system, length, *moments).mean().to(self.C.dtype)

    @property
    def neighbours(self) -> int:  # type: ignore[override]
        """κ²: each input channel once for each pixel of the neighbourhood, as in the kernel matrix."""
        return self.neighbourhood**2

    def mean_kernel(
        self, length: int, means: Mapping[str, Tensor], direction: str = "forward", group: int = 0
    ) -> Tensor:
        """The kernel matrix of a pixel away from the border, `(D, D κ², length)`.

        Raises:
            ValueError: More than 2^28 numbers.
        """
        count = (self.channels * self.neighbourhood) ** 2 * length
        if count > _LARGEST_KERNEL:
            raise ValueError(
                f"The kernel matrix of {self.channels} channels, {self.neighbourhood}² pixels and {length} frames has "
                f"{count} numbers, more than {_LARGEST_KERNEL}: give shorter videos."
            )
        with materialized(self):
            return kernel_matrix(self.system(length, torch.float64), length)
