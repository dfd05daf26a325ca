"""Metrics as modules of the evaluate library."""

from collections.abc import Callable
from typing import Any

import datasets
import evaluate

from hf_ssm.metrics import functional

_LIU_LI = """@inproceedings{liu2024generalization,
  title = {From Generalization Analysis to Optimization Designs for State Space Models},
  author = {Liu, Fusheng and Li, Qianxiao},
  booktitle = {International Conference on Machine Learning},
  year = {2024}
}"""
_YU = """@inproceedings{yu2025tuning,
  title = {Tuning Frequency Bias of State Space Models},
  author = {Yu, Annan and Lyu, Dongwei and Lim, Soon Hoe and Mahoney, Michael W. and Erichson, N. Benjamin},
  booktitle = {International Conference on Learning Representations},
  year = {2025}
}"""
_HONARPISHEH = """@article{honarpisheh2025generalization,
  title = {Generalization Error Analysis for Selective State-Space Models Through the Lens of Attention},
  author = {Honarpisheh, Arya and Bozdag, Mustafa and Camps, Octavia and Sznaier, Mario},
  year = {2025}
}"""
_GORODKIN = """@article{gorodkin2004comparing,
  title = {Comparing two {K}-category assignments by a {K}-category correlation coefficient},
  author = {Gorodkin, Jan},
  journal = {Computational Biology and Chemistry},
  volume = {28},
  pages = {367--374},
  year = {2004}
}"""


def _number_features(rows: bool = True, references: str = "float64") -> list[datasets.Features]:
    """Features of numbers per example and, with `rows`, of lists of numbers per example."""
    # float64 also for classes: evaluate would truncate fractions to integers, and `functional` rejects them.
    flat = {"predictions": datasets.Value("float64"), "references": datasets.Value(references)}
    nested = {name: datasets.List(value) for name, value in flat.items()}
    return [datasets.Features(columns) for columns in ([flat, nested] if rows else [flat])]


class _FunctionMetric(evaluate.Metric):
    """A metric computed by a function of `hf_ssm.metrics.functional`, whose docstring is the description."""

    function: Callable[..., Any]
    features_of_columns: Any = _number_features()
    reference = ""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=(self.function.__doc__ or "").strip(),
            citation=self.reference,
            inputs_description="",
            features=self.features_of_columns,
            license="Apache-2.0",
        )

    def _compute(self, **columns: Any) -> dict[str, Any]:
        result = self.function(**columns)
        return result if isinstance(result, dict) else {self.name: result}


def _metric(name: str, function: Callable[..., Any], **attributes: Any) -> type[_FunctionMetric]:
    """A class whose name becomes, in lower case, that of the metric."""
    return type(name, (_FunctionMetric,), {"function": staticmethod(function), **attributes})


METRICS: dict[str, type[_FunctionMetric]] = {
    "accuracy": _metric("Accuracy", functional.accuracy),
    "f1": _metric("F1", functional.macro_f1),
    "generalization_gap": _metric(
        "GeneralizationGap",
        functional.generalization_gap,
        features_of_columns=_number_features(rows=False, references="string"),
        reference=_HONARPISHEH,
    ),
    "mcc": _metric("MCC", functional.matthews_correlation, reference=_GORODKIN),
    "pass_rate": _metric("PassRate", functional.pass_rate, reference=_YU),
    "perplexity": _metric("Perplexity", functional.perplexity),
    "tau": _metric(
        "Tau",
        functional.tau,
        features_of_columns=datasets.Features({"predictions": datasets.List(datasets.Value("float64"))}),
        reference=_LIU_LI,
    ),
}
"""Name to the class of the metric."""
