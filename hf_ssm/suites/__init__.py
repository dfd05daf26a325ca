"""Benchmark suites: tasks of public data sets or of own tables, baselines, and one table of the results."""

from hf_ssm.suites.published import SUITES
from hf_ssm.suites.reading import read_suite
from hf_ssm.suites.runner import Contender, Run, run_suite
from hf_ssm.suites.task import Suite, Task

__all__ = ["SUITES", "Contender", "Run", "Suite", "Task", "read_suite", "run_suite"]
