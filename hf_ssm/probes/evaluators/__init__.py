"""Evaluators: the values of masked variants of a sequence, by full passes or from states; see README.md."""

from hf_ssm.probes.evaluators.full_passes import Evaluator, probing, variants
from hf_ssm.probes.evaluators.incremental import IncrementalEvaluator, evaluator_for

__all__ = ["Evaluator", "IncrementalEvaluator", "evaluator_for", "probing", "variants"]
