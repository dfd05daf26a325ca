"""Activations by name."""

from torch import nn
from transformers.activations import ACT2FN

__all__ = ["build_activation"]


def build_activation(config) -> nn.Module:
    """The activation `hidden_act` of a configuration.

    Raises:
        ValueError: An unknown name.
    """
    if config.hidden_act not in ACT2FN:
        raise ValueError(f"`hidden_act` must be one of {', '.join(sorted(ACT2FN))}, got {config.hidden_act!r}.")
    return ACT2FN[config.hidden_act]
