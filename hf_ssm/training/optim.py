"""Which parameters get which learning rate and weight decay.

By name, as attributes of parameters do not survive loading.
"""

__all__ = ["is_decayed", "is_dynamics", "is_sobolev_order"]

# Step sizes and state matrices; and what plays their part in Hyena's other filters.
_DYNAMICS = {
    "filter": frozenset({"log_dt", "log_A_real", "A_imag", "B", "P", "frequency", "frequencies"}),
    **dict.fromkeys(("scan", "reverse_scan"), frozenset({"A", "A_log", "A_imag", "dt_bias"})),
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


def is_sobolev_order(parameter_name: str) -> bool:
    """Whether the parameter is a trainable β: own learning rate, no decay (Yu et al. 2025, Table 4)."""
    return _own_name(parameter_name) == "sobolev_order"


def is_decayed(parameter_name: str) -> bool:
    """Whether weight decay applies: not to dynamics, norms, biases, feed-throughs and Sobolev orders."""
    is_norm = any(part in _NORMS for part in parameter_name.split("."))
    return not is_norm and not is_dynamics(parameter_name) and _own_name(parameter_name) not in _NOT_DECAYED
