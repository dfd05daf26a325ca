"""Generators of long convolution kernels: state space (S4D, S4), implicit (Hyena) and sinusoid filters."""

from collections.abc import Callable
from functools import partial

from hf_ssm.modules.filters.base import LongFilter
from hf_ssm.modules.filters.implicit import ImplicitFilter
from hf_ssm.modules.filters.sinusoid import SinusoidFilter
from hf_ssm.modules.filters.state_space import StateSpaceFilter

__all__ = ["ImplicitFilter", "LongFilter", "SinusoidFilter", "StateSpaceFilter", "build_filter"]

FILTERS: dict[str, Callable[..., LongFilter]] = {
    "implicit": ImplicitFilter,
    "sinusoid": SinusoidFilter,
    "s4d": StateSpaceFilter,
    "s4": partial(StateSpaceFilter, low_rank=True),
}


def build_filter(config, kind: str, channels: int) -> LongFilter:
    """The filter of a `HyenaConfig` or `S4Config`, of a kind in `FILTERS`, with so many kernels per direction."""
    return FILTERS[kind](config, channels)
