"""Norms by name, and the gated norm of Mamba-2.

Legend: `B` batch, `L` length, `D` hidden size (channels of the gated norm).
"""

from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.modules.projection import has_standard_forward
from hf_ssm.ops.context import is_in_backward
from hf_ssm.ops.decoding import rms_norm_step
from hf_ssm.utils.processes import Processes, all_processes

__all__ = ["GatedRMSNorm", "MaskedBatchNorm", "RMSPlusNorm", "build_norm", "normalized"]


class MaskedBatchNorm(nn.BatchNorm1d):
    """Batch norm over the channels of `(B, L, D)`, with the statistics of the tokens that the mask keeps.

    In training mode these are the tokens of all processes of a distributed run, which all have to call it. Activation
    checkpointing, which computes a layer a second time in the backward pass, updates the running statistics once.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None or not self.training:
            return self._normalized(hidden_states.flatten(0, 1)).view_as(hidden_states)
        output = hidden_states.new_zeros(hidden_states.shape)
        output[mask] = self._normalized(hidden_states[mask])
        return output

    def _normalized(self, tokens: Tensor) -> Tensor:
        """The norm of `(N, D)`."""
        processes = all_processes() if self.training else None
        if processes is not None:
            return self._normalized_over(processes, tokens)
        if not (self.training and is_in_backward()):
            return super().forward(tokens)
        # Copies instead of `None`: checkpointing compares the number of saved tensors with that of the forward pass.
        mean, variance = self.running_mean.clone(), self.running_var.clone()
        return nn.functional.batch_norm(tokens, mean, variance, self.weight, self.bias, training=True, eps=self.eps)

    def _normalized_over(self, processes: Processes, tokens: Tensor) -> Tensor:
        """The norm of `(N, D)` with the statistics of the tokens of all processes, in float32 or better."""
        values = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        sums = processes.sum(torch.cat([values.sum(0), values.new_full((1,), len(values))]))
        # No token at all, or one, gives no statistics; values are not read on a GPU.
        count = sums[-1].detach().clamp(min=1)
        mean = sums[:-1] / count
        centred = values - mean
        variance = processes.sum(centred.square().sum(0)) / count
        if not is_in_backward():
            self._update(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        return (centred * torch.rsqrt(variance + self.eps) * self.weight + self.bias).to(tokens.dtype)

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor) -> None:
        """Add statistics `(D,)` to the running ones."""
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
        self.running_var.lerp_(variance.to(self.running_var), self.momentum)


class GatedRMSNorm(nn.Module):
    """RMS norm of y ⊙ SiLU(z), or RMS norm of y times SiLU(z); the mean square is that of each group of channels.

    Args:
        channels: D.
        groups: Number of groups of consecutive channels.
        epsilon: ε, added to the mean square.
        norm_before_gate: Apply the gate to the output instead of the input.

    Source: Dao & Gu 2024 (Mamba-2), Section 7.
    """

    parameter_quantity = "norm"

    def __init__(self, channels: int, groups: int = 1, epsilon: float = 1e-5, norm_before_gate: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.groups, self.epsilon, self.norm_before_gate = groups, epsilon, norm_before_gate

    def initial_parameters(self) -> dict[str, Tensor]:
        """Initial values by name."""
        return {"weight": torch.ones(self.weight.shape)}

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, groups={self.groups}, epsilon={self.epsilon}"

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        """`(B, L, D)` from y and z, both `(B, L, D)`; computed in float32 or better."""
        dtype, precise = hidden_states.dtype, torch.promote_types(hidden_states.dtype, torch.float32)
        hidden_states, gate = hidden_states.to(precise), nn.functional.silu(gate.to(precise))
        if not self.norm_before_gate:
            hidden_states = hidden_states * gate
        output = self.weight * self.normed(hidden_states).to(dtype)
        return output * gate.to(dtype) if self.norm_before_gate else output

    def normed(self, hidden_states: Tensor) -> Tensor:
        """`(B, L, D)` divided by the root mean square of each group."""
        grouped = hidden_states.unflatten(-1, (self.groups, -1))
        return _rms_normed(grouped, self.epsilon).flatten(-2)


class RMSPlusNorm(nn.RMSNorm):
    """RMS norm with ε beside the root, w ⊙ x / (rms(x) + ε), as in StripedHyena; in float32 or better."""

    def initial_parameters(self) -> dict[str, Tensor]:
        """Initial values by name."""
        return {"weight": torch.ones(self.weight.shape)}

    def forward(self, hidden_states: Tensor) -> Tensor:
        precise = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
        normed = precise / precise.square().mean(-1, keepdim=True).sqrt().add(self.eps or 0.0)
        return (self.weight * normed).to(hidden_states.dtype)


def build_norm(config) -> nn.Module:
    """The norm of a configuration, for `normalized`.

    All but the batch norm are torch's own classes, which libraries for attributions and quantisation look up.
    """
    if config.norm_type == "none":
        return nn.Identity()
    kind = {"batch": MaskedBatchNorm, "layer": nn.LayerNorm, "rms": nn.RMSNorm, "rms_plus": RMSPlusNorm}[
        config.norm_type
    ]
    return kind(config.hidden_size, eps=config.layer_norm_epsilon)


def normalized(
    norm: nn.Module, hidden_states: Tensor, mask: Tensor | None, norm_type: str, is_residual_fp32: bool = False
) -> Tensor:
    """The norm of `(B, L, D)`; only batch norm needs the mask.

    Args:
        norm: A result of `build_norm`, or a wrapper around it.
        hidden_states: `(B, L, D)`.
        mask: `(B, L)` or `None`, true at tokens.
        norm_type: That of the configuration.
        is_residual_fp32: Whether the hidden states are converted to the precision of the norm before.

    Raises:
        TypeError: The batch norm has become a `SyncBatchNorm`, whose channels are another axis.
    """
    if isinstance(norm, nn.SyncBatchNorm):
        raise TypeError(
            "The batch norm of a model of hf_ssm uses the statistics of all processes already: leave out "
            "`SyncBatchNorm.convert_sync_batchnorm` (and `sync_batchnorm=True` of trainers)."
        )
    if is_residual_fp32 and isinstance(weight := getattr(norm, "weight", None), Tensor):
        hidden_states = hidden_states.to(weight.dtype)
    if torch.jit.is_tracing() and isinstance(norm, nn.RMSNorm) and not isinstance(norm, RMSPlusNorm):
        return norm.weight * _rms_normed(hidden_states, norm.eps)
    if hidden_states.shape[1] == 1 and has_standard_forward(norm, nn.RMSNorm):
        rms_norm: Any = norm
        stepped = rms_norm_step(hidden_states, rms_norm.weight, rms_norm.eps)
        if stepped is not None:
            return stepped
    output: Tensor = norm(hidden_states, mask) if norm_type == "batch" else norm(hidden_states)
    return output


def _rms_normed(hidden_states: Tensor, epsilon: float | None) -> Tensor:
    """`hidden_states` divided by their root mean square."""
    if torch.jit.is_tracing():
        # The ONNX exporter of traced programs does not know torch's function.
        epsilon = torch.finfo(hidden_states.dtype).eps if epsilon is None else epsilon
        return hidden_states * torch.rsqrt(hidden_states.square().mean(-1, keepdim=True) + epsilon)
    return nn.functional.rms_norm(hidden_states, hidden_states.shape[-1:], None, epsilon)
