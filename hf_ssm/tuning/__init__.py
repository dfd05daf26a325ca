"""Tuning with theory: a diagnosis without training, six runs and a comparison, a search space for optuna."""

from hf_ssm.tuning.decision import Decision, decide
from hf_ssm.tuning.diagnosis import Baseline, Diagnosis, LabelFrequency, Recommendation, diagnose
from hf_ssm.tuning.runs import Outcome, Runner, outcome_of, run_in_process
from hf_ssm.tuning.space import SearchSpace
from hf_ssm.tuning.tuner import Trial, TuningResult, tune

__all__ = [
    "Baseline",
    "Decision",
    "Diagnosis",
    "LabelFrequency",
    "Outcome",
    "Recommendation",
    "Runner",
    "SearchSpace",
    "Trial",
    "TuningResult",
    "decide",
    "diagnose",
    "outcome_of",
    "run_in_process",
    "tune",
]
