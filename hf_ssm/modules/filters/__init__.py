"""Generators of long convolution kernels: state space (S4D, S4), implicit (Hyena) and sinusoid filters."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hf_ssm.modules.filters.base import LongFilter
from hf_ssm.modules.filters.implicit import ImplicitFilter
from hf_ssm.modules.filters.sinusoid import SinusoidFilter
from hf_ssm.modules.filters.state_space import StateSpaceFilter

__all__ = ["ImplicitFilter", "LongFilter", "SinusoidFilter", "StateSpaceFilter", "build_filter"]


def build_filter(config, kind: str, channels: int) -> LongFilter:
    """The filter of a configuration.

    Args:
        config: A `HyenaConfig` or `S4Config`.
        kind: `"implicit"`, `"sinusoid"`, `"s4d"` or `"s4"`.
        channels: Number of kernels per direction.
    """
    return FILTERS[kind](
        channels,
        2 if config.bidirectional else 1,
        config,
        frequency_scale=config.frequency_scale,
        frequency_shift=config.frequency_shift,
    )


def _implicit(channels: int, directions: int, config, **frequencies: Any) -> LongFilter:
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


def _sinusoid(channels: int, directions: int, config, **frequencies: Any) -> LongFilter:
    window = {"window": config.sinusoid_window, "inclusive": config.sinusoid_inclusive}
    return SinusoidFilter(channels, directions, **window, **frequencies)


def _state_space(channels: int, directions: int, config, *, low_rank: bool = False, **frequencies: Any) -> LongFilter:
    return StateSpaceFilter(
        channels,
        directions,
        state_size=config.state_size,
        low_rank=low_rank,
        init=config.init,
        discretization=config.discretization,
        time_step_range=(config.time_step_min, config.time_step_max),
        n_ssm=config.n_ssm,
        **frequencies,
    )


FILTERS: dict[str, Callable[..., LongFilter]] = {
    "implicit": _implicit,
    "sinusoid": _sinusoid,
    "s4d": _state_space,
    "s4": partial(_state_space, low_rank=True),
}
"""Functions that build filters."""
