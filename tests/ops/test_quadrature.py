"""Adaptive integrals against scipy and closed forms."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate

from hf_ssm.ops.quadrature import adaptive_integral


def ends(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_peaks_kinks_and_smooth_functions_in_one_call():
    width = ends(1e-7, 0.3)

    def function(x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        peak = width[which.clamp(max=1)].unsqueeze(-1)
        lorentzian = peak / (peak.square() + (x - 0.123456).square())
        return torch.where((which == 2).unsqueeze(-1), torch.sin(5 * x).abs(), lorentzian)

    # The first function in two panels, the second in one, the third in three, the fourth nowhere.
    owner = torch.tensor([0, 0, 1, 2, 2, 2])
    found = adaptive_integral(function, ends(-1, 0.5, -1, -1, 0, 2), ends(0.5, 1, 1, 0, 2, 3), owner, 4, 1e-11)
    peaks = [math.atan((1 - 0.123456) / w) - math.atan((-1 - 0.123456) / w) for w in width.tolist()]
    kinks = [-1, *(k * math.pi / 5 for k in range(-1, 5)), 3]
    kinked = sum(integrate.quad(lambda x: abs(math.sin(5 * x)), a, b)[0] for a, b in itertools.pairwise(kinks))
    np.testing.assert_allclose(found, [*peaks, kinked, 0.0], rtol=1e-10)


def test_what_cannot_be_integrated_is_an_error():
    panel = ends(0.0), ends(1.0), torch.zeros(1, dtype=torch.long), 1
    with pytest.raises(ValueError, match="does not converge"):
        adaptive_integral(lambda x, _: 1 / x, *panel)
    with pytest.raises(ValueError, match="not finite"):
        adaptive_integral(lambda x, _: torch.full_like(x, math.nan), *panel)
