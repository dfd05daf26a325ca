"""The table of families that the conformance run tests: another family is another row."""

from dataclasses import dataclass, field
from typing import Any

import hf_ssm

__all__ = ["ROWS", "Row"]

_TINY = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "pad_token_id": 0}


@dataclass(frozen=True)
class Row:
    """A family in one of its variants.

    Args:
        family: Prefix of its class names, as in `HyenaConfig`.
        variant: What sets it apart from the other rows of the family; one word.
        config: Arguments of its configuration, beside those that all families share.
    """

    family: str
    variant: str
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.family}_{self.variant}"

    @property
    def exists(self) -> bool:
        """Whether the installed package has the family."""
        return hasattr(hf_ssm, f"{self.family}Config")

    @property
    def config_class(self) -> Any:
        return getattr(hf_ssm, f"{self.family}Config")

    def model_class(self, head: str) -> Any:
        return getattr(hf_ssm, f"{self.family}{head}")

    def build_config(self, **arguments: Any) -> Any:
        """A configuration small enough for a test."""
        return self.config_class(**(_TINY | self.config | arguments))


ROWS = tuple(
    row
    for row in (
        Row("Hyena", "implicit", {"max_position_embeddings": 64, "filter_order": 16}),
        Row("Hyena", "s4d", {"filter_type": "s4d"}),
        Row("S4", "s4d"),
        Row("S4", "s4", {"kernel_type": "s4"}),
        Row("SelectiveSSM", "mamba", {"block": "mamba"}),
        # Its paper has one layer; two without norms would raise the input to the ninth power.
        Row("SelectiveSSM", "plain", {"block": "plain", "norm_type": "rms", "use_residual": True}),
    )
    if row.exists
)
