"""Attributions of bases in the format that TF-MoDISco reads, with their completeness.

Source of the format: tfmodisco-lite, whose `modisco motifs -s ohe.npz -a shap.npz` reads arrays `(N, 4, L)`.

Legend: `N` sequences, `L` bases, `R` references.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_ssm.data.motif_files import check_tangermeme
from hf_ssm.data.records import as_records
from hf_ssm.inference.model import check_finite
from hf_ssm.inference.one_hot import OneHotModel, one_hot_of
from hf_ssm.probes.deep_lift import deep_lift_rules
from hf_ssm.probes.reading import check_choice
from hf_ssm.utils.evaluation import evaluating

__all__ = ["METHODS", "BaseAttributions", "BaseAttributor", "base_attributions"]

METHODS = ("deep_lift", "in_silico_mutagenesis")
# Share of the size of the attributions by which their sum may miss the difference of the outputs.
_MISSED = 0.01


@dataclass(frozen=True)
class BaseAttributions:
    """Attributions of all bases of sequences.

    Attributes:
        one_hot: `(N, 4, L)`, int8: A, C, G, T.
        hypothetical: `(N, 4, L)`, float32: the contribution that each base would have at each position. Those of the
            bases that are there are the attributions.
        output: `(N,)`, float64: what is explained.
        difference: `(N,)`, float64: the output minus the mean output of the references; NaN for
            "in_silico_mutagenesis", whose attributions have no reference.
    """

    one_hot: np.ndarray
    hypothetical: np.ndarray
    output: np.ndarray
    difference: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """The sum of the attributions of each sequence, `(N,)`: equal to `difference` where they are complete."""
        return np.asarray((self.hypothetical.astype(np.float64) * self.one_hot).sum((1, 2)))


def base_attributions(
    model: Any,
    tokenizer: Any,
    sequences: Iterable[Any],
    target: int | None = None,
    *,
    method: str = "deep_lift",
    references: int = 20,
    seed: int = 0,
    max_tokens_per_batch: int = 16384,
) -> BaseAttributions:
    """Hypothetical contributions of all bases of sequences, as TF-MoDISco reads them.

    Needs tangermeme (the extra `genomics`).

    Args:
        model: A classifier or regressor of sequences; with "in_silico_mutagenesis" also a language model.
        tokenizer: Its tokenizer, a fast one; with one token for each base for "deep_lift".
        sequences: DNA of one length, without N: texts, mappings with a column "sequence", or a Dataset. Lower-case
            letters are read as capitals.
        target: Number of the class or value; default: class 1 of two, or the only value. The explained output is the
            log-odds of the class if there are two, its log-probability if there are more, the value, or the
            log-likelihood.
        method: "deep_lift" (default): DeepLIFT by the rules of `hf_ssm.deep_lift_rules`, the mean over references; the
            sum of the attributions is the difference between the output and that of the references.
            "in_silico_mutagenesis": the output with each base at each position minus the mean over the four bases; the
            model reads 4 L sequences for each sequence.
        references: Dinucleotide-preserving shuffles of each sequence, for "deep_lift", default 20.
        seed: Seed of the shuffles.
        max_tokens_per_batch: Largest number of tokens in a batch, default 16384.

    Raises:
        ImportError: tangermeme is missing.
        ValueError: A sequence has other letters than A, C, G, T or another length; the target is unknown; the model is
            of another kind, or has operations without a rule, so that the attributions are not complete.
    """
    attributor = BaseAttributor(
        OneHotModel(model, tokenizer, max_tokens_per_batch=max_tokens_per_batch),
        target,
        method=method,
        references=references,
        seed=seed,
    )
    return attributor.attributions([record.sequence for record in as_records(sequences)])


class BaseAttributor:
    """Computes `base_attributions`, whose arguments it takes; those of a sequence do not depend on the others."""

    def __init__(
        self,
        model: OneHotModel,
        target: int | None = None,
        *,
        method: str = "deep_lift",
        references: int = 20,
        seed: int = 0,
    ):
        check_tangermeme("base attributions")
        check_choice("method", method, METHODS)
        if references < 1:
            raise ValueError(f"`references`={references}: give a positive number.")
        self.method, self.references, self.seed = method, references, seed
        self._scalar = _Scalar(model, target)
        if method == "deep_lift" and not model.is_differentiable:
            raise ValueError(
                "'deep_lift' needs a classifier or regressor that reads one strand, with one token for each base; "
                f"this {type(model.model).__name__} reads both strands, or its tokenizer joins bases: use "
                "'in_silico_mutagenesis'."
            )

    def check(self, sequences: Sequence[str]) -> Tensor:
        """The one-hot sequences; raises `ValueError` for letters other than A, C, G, T, or different lengths."""
        one_hot = one_hot_of(sequences)
        if (one_hot.sum(1) == 0).any():
            number = int((one_hot.sum(1) == 0).any(1).nonzero()[0])
            raise ValueError(
                f"sequence {number} has other letters than A, C, G and T: leave the sequence out, or cut these "
                "letters off."
            )
        return one_hot

    def attributions(self, sequences: Sequence[str]) -> BaseAttributions:
        """The attributions of sequences."""
        one_hot = self.check(sequences)
        reader = self._scalar.model.reader
        options: dict[str, Any] = {
            "batch_size": max(1, reader.max_tokens_per_batch // (2 * one_hot.shape[-1])),
            "device": reader.device,
        }
        with evaluating(self._scalar.model.model):
            output = self._outputs(one_hot, options)
            if self.method == "deep_lift":
                hypothetical, difference = self._deep_lift(one_hot, output, options)
            else:
                from tangermeme.saturation_mutagenesis import saturation_mutagenesis

                hypothetical = saturation_mutagenesis(self._scalar, one_hot, hypothetical=True, fast=False, **options)
                difference = torch.full_like(output, torch.nan)
        check_finite(hypothetical)
        arrays = (one_hot, hypothetical.float(), output, difference)
        return BaseAttributions(*(array.detach().cpu().numpy() for array in arrays))

    def _outputs(self, one_hot: Tensor, options: dict[str, Any]) -> Tensor:
        from tangermeme.predict import predict

        return predict(self._scalar, one_hot, **options)[:, 0].double()

    def _deep_lift(self, one_hot: Tensor, output: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
        from tangermeme.deep_lift_shap import deep_lift_shap

        with torch.enable_grad(), deep_lift_rules(self._scalar), warnings.catch_warnings():
            # The completeness is checked below, relative to the size of the attributions.
            warnings.simplefilter("ignore", RuntimeWarning)
            found = deep_lift_shap(
                self._scalar,
                one_hot,
                n_shuffles=self.references,
                random_state=self.seed,
                hypothetical=True,
                return_references=True,
                **options,
            )
        of_references = self._outputs(found.references.flatten(0, 1).to(torch.int8), options)
        difference = output - of_references.reshape(len(one_hot), -1).mean(1)
        parts = found.attributions.double() * one_hot
        missed, size = (parts.sum((1, 2)) - difference).abs(), parts.abs().sum((1, 2))
        if (missed > _MISSED * size + 1e-3 * (1 + output.abs())).any():
            worst = (missed / size).max()
            raise ValueError(
                f"'deep_lift' has no rules for some operations of {type(self._scalar.model.model).__name__}: the "
                f"attributions miss the change of the output by {worst:.1%} of their size. Use "
                "'in_silico_mutagenesis'."
            )
        return found.attributions, difference


class _Scalar(nn.Module):
    """The explained output, `(B, 1)`, of one-hot sequences `(B, 4, L)`."""

    def __init__(self, model: OneHotModel, target: int | None):
        super().__init__()
        self.model, self.target = model, 0
        config = model.model.config
        self.kind = "value"
        if model.reader.head != "class":
            if target is not None:
                raise ValueError(f"`target`={target}: a language model has no target: leave `target` out.")
            return
        count = int(config.num_labels)
        if target is None and count > 2:
            raise ValueError(f"`target` is missing: the model has {count} outputs; give the number of one output.")
        self.target = min(1, count - 1) if target is None else int(target)
        if not 0 <= self.target < count:
            raise ValueError(f"`target`={target}: give a number from 0 to {count - 1}.")
        self.kind = ("log_odds" if count == 2 else "log_probability") if model.is_exclusive else "value"

    def forward(self, one_hot: Tensor) -> Tensor:
        outputs = self.model(one_hot)
        if self.kind == "log_odds":
            outputs = outputs[:, [self.target]] - outputs[:, [1 - self.target]]
        elif self.kind == "log_probability":
            outputs = outputs.log_softmax(-1)[:, [self.target]]
        else:
            outputs = outputs[:, [self.target]]
        return outputs
