"""Perplexity per token as a module of the evaluate library."""

from collections.abc import Mapping
from typing import Any

import evaluate
import numpy as np

from hf_ssm.metrics.base import IGNORED_LABEL, StreamedMetric, Sums, no_example, number_features, pairs, whole

_DESCRIPTION = """
Perplexity per token: exp of the mean negative log-likelihood over all tokens that are predicted.

The mean is over tokens, not over sequences or batches, which differ in length. It is computed from likelihoods that a
model gave, for any tokenizer; only perplexities with the same tokens can be compared. Labels of -100 (padding, tokens
that are not masked) do not count. A likelihood that is NaN makes the perplexity NaN: that of a model that has diverged.
"""

_CITATION = """
@article{jelinek1977perplexity,
  title = {Perplexity -- a measure of the difficulty of speech recognition tasks},
  author = {Jelinek, Fred and Mercer, Robert L. and Bahl, Lalit R. and Baker, James K.},
  journal = {The Journal of the Acoustical Society of America},
  volume = {62},
  number = {S1},
  pages = {S63},
  year = {1977}
}
"""

_INPUTS = """
Args:
    predictions (floats): -log p of each token, in nats, `(n,)` or `(n, L)`, as `cross_entropy(logits, labels,
        reduction="none")` of torch gives it; rows may differ in length. In the configuration `sums`: the sum of it over
        the tokens that a row stands for, `(n,)`.
    references (whole numbers): the labels, that is the tokens themselves, in the same shape; -100 is left out. In the
        configuration `sums`: the number of tokens that a row stands for.

Returns:
    perplexity (float): at least 1, no unit; 1 is best, the number of words in the vocabulary is chance.

Examples:
    >>> metric = hf_ssm.metrics.load("perplexity")
    >>> result = metric.compute(predictions=[[0.7, 0.7, 9.0], [0.7, 0.7, 0.7]], references=[[3, 1, -100], [4, 1, 5]])
    >>> round(result["perplexity"], 4)  # exp(0.7)
    2.0138
    >>> metric = hf_ssm.metrics.load("perplexity", "sums")
    >>> round(metric.compute(predictions=[1.4, 2.1], references=[2, 3])["perplexity"], 4)
    2.0138
"""


class Perplexity(StreamedMetric):
    """exp of the mean surprise per token."""

    def _info(self) -> evaluate.MetricInfo:
        features = {
            "default": number_features("float64", "int64"),
            "sums": number_features("float64", "int64", rows=False),
        }
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=self._of_config(features),
            license="Apache-2.0",
        )

    def _count(self, columns: Mapping[str, Any]) -> Sums:
        nats, references = pairs(columns)
        nats, references = nats.astype(np.float64), whole("references", references)
        if self.config_name == "sums":
            if (references < 0).any():
                raise ValueError(f"`references`, numbers of tokens, must not be negative, got {references.min()}")
            return {"nats": float(nats.sum()), "tokens": int(references.sum())}
        nats = nats[references != IGNORED_LABEL]
        # Rounding may take a token that is certain below 0, but not far.
        if (nats < -1e-5).any():
            raise ValueError(f"`predictions` must be -log p, which is not negative, got {nats.min()}: turn the sign")
        return {"nats": float(nats.sum()), "tokens": nats.size}

    def _score(self, sums: Sums, options: Mapping[str, Any]) -> dict[str, Any]:
        if not sums.get("tokens"):
            raise no_example()
        with np.errstate(over="ignore"):
            return {"perplexity": float(np.exp(sums["nats"] / sums["tokens"]))}
