"""What a model looks at."""

from hf_ssm.probes.attention import attention_matrix

__all__ = ["attention_matrix"]
