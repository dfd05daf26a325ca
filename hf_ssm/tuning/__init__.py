"""Tuning with theory: six runs and a comparison, a search space for optuna, and runs over lists of values."""

from hf_ssm.tuning.decision import Decision, decide
from hf_ssm.tuning.runs import Outcome, Runner, outcome_of, run_in_process
from hf_ssm.tuning.tuner import TuningResult, tune

__all__ = ["Decision", "Outcome", "Runner", "TuningResult", "decide", "outcome_of", "run_in_process", "tune"]
