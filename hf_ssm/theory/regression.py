"""The generalisation bound of linear regression that motivates τ.

Source: Liu & Li 2024, Section 3.2, eq. (2) and Appendix B.
"""

import math

__all__ = ["linear_regression_bound", "squared_loss_rademacher_bound"]


def squared_loss_rademacher_bound(radius: float, norm_bound: float, num_samples: int) -> float:
    """An upper bound on the empirical Rademacher complexity of the squared losses: 2 r R (r R + 1) / √n.

    The functions are (x, y) ↦ (θᵀx - y)² with ‖θ‖₂ ≤ R, on n samples with ‖x‖₂ ≤ r and |y| ≤ 1.

    Args:
        radius: r.
        norm_bound: R.
        num_samples: n.

    Raises:
        ValueError: A negative or infinite r or R, or n below 1.

    Source: Liu & Li 2024, Appendix B.
    """
    for name, value in (("radius", radius), ("norm_bound", norm_bound)):
        if not 0 <= value < math.inf:
            raise ValueError(f"`{name}` must be finite and not negative, got {value}.")
    if num_samples < 1:
        raise ValueError(f"`num_samples` must be at least 1, got {num_samples}.")
    size = radius * norm_bound
    return 2 * size * (size + 1) / math.sqrt(num_samples)


def linear_regression_bound(
    radius: float, norm_bound: float, num_samples: int, failure_probability: float = 0.05
) -> float:
    """A bound on sup_θ |L_n(θ) - L(θ)| of the mean squared error, over all θ with ‖θ‖₂ ≤ R.

    With probability at least 1 - δ over n independent samples with ‖x‖₂ ≤ r and |y| ≤ 1, the gap is at most
    4 r R (r R + 1) / √n + 3 (r R + 1)² √(log(4/δ) / 2n). The same quantity bounds the output of the model,
    |θᵀx| ≤ r R. The size of the output at the start of training and its growth in training should therefore be
    controlled. This argument leads to τ, the rescaling and the regulariser.

    The paper leaves the constant open. The constants here are those of its proof, with two changes: the loss is at most
    (r R + 1)², where the proof has the larger bound 2 r² R² + 2, and log(2/δ) becomes log(4/δ), because the lemma
    bounds one side of the gap only.

    Args:
        radius: r.
        norm_bound: R.
        num_samples: n.
        failure_probability: δ.

    Raises:
        ValueError: An error of `squared_loss_rademacher_bound`, or δ outside of (0, 1).

    Source: Liu & Li 2024, eq. (2) and Appendix B; Lemma B.1 is Theorem 3.3 of Mohri, Rostamizadeh & Talwalkar.
    """
    if not 0 < failure_probability < 1:
        raise ValueError(f"`failure_probability` must lie between 0 and 1, got {failure_probability}.")
    complexity = squared_loss_rademacher_bound(radius, norm_bound, num_samples)
    largest_loss = (radius * norm_bound + 1) ** 2
    deviation = math.sqrt(math.log(4 / failure_probability) / (2 * num_samples))
    return 2 * complexity + 3 * largest_loss * deviation
