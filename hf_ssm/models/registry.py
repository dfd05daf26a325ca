"""Which model classes there are: the families, their heads, and the Auto class of each head. Imports no torch."""

from .configuration_common import SSMConfig
from .configuration_hyena import HyenaConfig
from .configuration_s4 import S4Config
from .configuration_selective import SelectiveSSMConfig

FAMILIES: dict[str, type[SSMConfig]] = {"Hyena": HyenaConfig, "S4": S4Config, "SelectiveSSM": SelectiveSSMConfig}
"""How the names of a family's model classes begin, and its configuration."""

HEADS = {
    "Model": "AutoModel",
    "ForCausalLM": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForSignalRegression": "AutoModelForTimeSeriesPrediction",
}
"""How they end, and the Auto class that loads them."""


def modeling_module(config_class: type[SSMConfig]) -> str:
    """The module of the model classes of a family."""
    return config_class.__module__.replace(".configuration_", ".modeling_")


__all__ = ["FAMILIES", "HEADS", "modeling_module"]
