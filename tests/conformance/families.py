"""Variants of the families that the conformance tests run on."""

from dataclasses import dataclass
from typing import Any

from hf_ssm.models.registry import FAMILIES, Family

__all__ = ["ROWS", "Row"]

_TINY = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "pad_token_id": 0}

# Arguments of the configuration by family and variant. A registered family without an entry is tested in its default
# configuration.
_VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "Hyena": {"implicit": {"max_position_embeddings": 64, "filter_order": 16}, "s4d": {"filter_type": "s4d"}},
    # By the name in a file, which transformers looks up there.
    "Hyena2": {
        "short": {"num_hidden_layers": 2, "mixer_types": ["short_conv", "full_attention"]},
        "medium": {"num_hidden_layers": 2, "mixer_types": ["medium_conv", "long_conv"], "medium_filter_length": 12},
    },
    # By the name in a file, as above.
    "Hybrid": {
        "jamba": {"mixer_types": ["selective", "full_attention"], "intermediate_size": 48},
        "two": {"mixer_types": ["s5", "ssd"], "mixers": {"ssd": {"head_dim": 16}, "s5": {"state_size": 8}}},
    },
    "SSD": {"mamba2": {"head_dim": 16, "n_groups": 2}},
    "Mamba3": {"rank2": {"head_dim": 16, "n_groups": 2, "mimo_rank": 2}},
    "ConvS5": {"patches": {"patch_size": 2}},
    "S4": {"s4d": {}, "s4": {"kernel_type": "s4"}},
    "FlowState": {
        "legs": {"decoder_dim": 8, "decoder_patch_len": 4},
        "mlp": {"decoder_type": "four", "decoder_dim": 7, "mlp_type": "transformer", "out_gating": True},
    },
    "S5": {"blocks": {"num_blocks": 2}},
    "LinOSS": {"damped": {}, "implicit": {"discretization": "im", "damping": False}},
    "SelectiveSSM": {
        "mamba": {"block": "mamba"},
        # Its paper has one layer; two layers without norms would raise the input to the ninth power.
        "plain": {"block": "plain", "norm_type": "rms", "use_residual": True},
    },
}


@dataclass(frozen=True)
class Row:
    """A family in one of its variants.

    Args:
        family: Entry of the registry.
        variant: Name of the variant, unique in the family.
        config: Arguments of the configuration besides those that all families share.
    """

    family: Family
    variant: str
    config: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.family.name}_{self.variant}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of inputs that the models are tested with."""
        kinds = {"ForVideoPrediction": ("videos",), "ForPrediction": ("series",)}
        own = (kind for head, kind in kinds.items() if head in self.family.model_classes)
        return next(own, ("tokens", "signals"))

    def build_config(self, **arguments: Any) -> Any:
        """A configuration small enough for a test."""
        shared = {name: value for name, value in _TINY.items() if hasattr(self.family.config_class, name)}
        if self.family.name == "Hybrid":
            # Of the layers.
            del shared["state_size"]
        return self.family.config_class(**(shared | self.config | arguments))


ROWS = tuple(
    Row(family, variant, config)
    for family in FAMILIES.values()
    for variant, config in _VARIANTS.get(family.name, {"default": {}}).items()
)
