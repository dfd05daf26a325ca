"""Which parameters get which learning rate and weight decay.

By name, as attributes of parameters do not survive loading.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["StateMatrixDecay", "is_decayed", "is_dynamics", "is_sobolev_order", "is_state_matrix"]

# Step sizes and state matrices; and what plays their part in Hyena's other filters.
_DYNAMICS = {
    "filter": frozenset({"log_dt", "log_A_real", "A_imag", "B", "P", "frequency", "frequencies", "positions"}),
    **dict.fromkeys(("scan", "reverse_scan"), frozenset({"A", "A_log", "A_imag", "dt_bias"})),
}
# How a parameter changes where A is multiplied by a factor: -exp of it is the real part of A, it is a part of A itself,
# or A = diag(λ) - P P* is quadratic in it.
_SCALE_STATE_MATRIX: dict[str, Callable[[Tensor, float], Any]] = {
    **dict.fromkeys(("log_A_real", "A_log"), lambda parameter, factor: parameter.add_(math.log(factor))),
    **dict.fromkeys(("A", "A_imag"), lambda parameter, factor: parameter.mul_(factor)),
    "P": lambda parameter, factor: parameter.mul_(math.sqrt(factor)),
}
_NORMS = frozenset({"norm", "norm1", "norm2"})
_NOT_DECAYED = frozenset({"D", "bias", "sobolev_order"})


def _own_name(parameter_name: str) -> str:
    return parameter_name.rsplit(".", 1)[-1]


def is_dynamics(parameter_name: str) -> bool:
    """Whether the parameter is a step size, a state matrix or a frequency: own learning rate, no decay.

    Source: Liu & Li 2024, Appendix A.1 (Δ, A and B by Adam with a small rate).
    """
    *_, owner, name = ["", *parameter_name.split(".")]
    return name in _DYNAMICS.get(owner, ())


def is_state_matrix(parameter_name: str) -> bool:
    """Whether the parameter is a part of a state matrix A (neither Δ nor B)."""
    return is_dynamics(parameter_name) and _own_name(parameter_name) in _SCALE_STATE_MATRIX


class StateMatrixDecay:
    """Weight decay of the state matrices, decoupled as in AdamW: A ← (1 - η λ) A before each step.

    A itself decays, not what it is stored as: decay of log(-Re A) would pull the real part towards -1, so that a slow
    mode would forget faster, and decay of A makes all modes slower. In the stored parameters it is
    log(-Re A) + log(1 - η λ), (1 - η λ) Im A and, where A = diag(Λ) - P P*, √(1 - η λ) P.

    Use it as a hook: `optimizer.register_step_pre_hook(StateMatrixDecay(model.named_parameters(), 0.1))`. Like AdamW,
    it passes over parameters without a gradient, and η is the learning rate of the parameter's group at that step.

    Args:
        named_parameters: Of the model; those that are no part of a state matrix are left alone.
        weight_decay: λ.

    Raises:
        ValueError: None of the parameters is part of a state matrix.

    Source: Liu & Li 2024, Appendix A.4 ("weight decay on the hidden matrix A"), which does not say how A was stored.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float):
        self.weight_decay = weight_decay
        self._scale = {
            id(parameter): _SCALE_STATE_MATRIX[_own_name(name)]
            for name, parameter in named_parameters
            if is_state_matrix(name)
        }
        if not self._scale:
            raise ValueError(
                f"`dynamics_weight_decay`={weight_decay} has nothing to act on: the model has no state matrix. "
                "Leave it at 0, or take a state space model (for Hyena, filter_type='s4d' or 's4')."
            )

    @torch.no_grad()
    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Called before each step of the optimizer."""
        for group in optimizer.param_groups:
            factor = 1 - float(group["lr"]) * self.weight_decay
            for parameter in group["params"]:
                scale = self._scale.get(id(parameter))
                if scale is not None and parameter.grad is not None:
                    scale(parameter, factor)


def is_sobolev_order(parameter_name: str) -> bool:
    """Whether the parameter is a trainable β: own learning rate, no decay (Yu et al. 2025, Table 4)."""
    return _own_name(parameter_name) == "sobolev_order"


def is_decayed(parameter_name: str) -> bool:
    """Whether weight decay applies: not to dynamics, norms, biases, feed-throughs and Sobolev orders."""
    is_norm = any(part in _NORMS for part in parameter_name.split("."))
    return not is_norm and not is_dynamics(parameter_name) and _own_name(parameter_name) not in _NOT_DECAYED
