"""Probes: the tokens that a model looks at."""

from hf_ssm.probes.attention import attention_matrix
from hf_ssm.probes.deep_lift import deep_lift, deep_lift_rules
from hf_ssm.probes.masking import MaskingProbe
from hf_ssm.probes.results import MaskingResult, MaskingResults

__all__ = ["MaskingProbe", "MaskingResult", "MaskingResults", "attention_matrix", "deep_lift", "deep_lift_rules"]
