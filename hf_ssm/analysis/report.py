"""The theory report of a model and a data set: complexity, frequencies, bounds, parameter changes.

Legend: `C` kernels of one convolution in one direction.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from hf_ssm import plotting
from hf_ssm.analysis import tables
from hf_ssm.analysis.bounds import ModelBound, generalization_bound
from hf_ssm.analysis.complexity import LayerComplexity, layer_complexities
from hf_ssm.analysis.frequency import (
    AlphaRecommendation,
    FrequencyResponse,
    alpha_recommendation,
    frequency_responses,
)
from hf_ssm.analysis.recording import OperatorRecord, record_operators, sequence_operators
from hf_ssm.analysis.variation import Variation, layer_variations
from hf_ssm.modules.roles import QUANTITIES
from hf_ssm.ops.long_conv import next_fast_len
from hf_ssm.utils.checks import check_batch, check_iterable, check_model
from hf_ssm.utils.evaluation import unwrapped

__all__ = ["BANDS", "TheoryReport", "theory_report"]

BANDS = (0.0, math.pi / 16, math.pi / 4, math.pi)
"""Ends of the frequency bands of the report, in radians per sample."""

REPORT_NAME = "report.json"
# Different from the file names of a run: a report may be written into the folder of a checkpoint.
_TAU, _RESPONSE, _MOVEMENT = "tau.png", "responses.png", "movement.png"
FILES = (REPORT_NAME, *(f"{name[:-3]}{form}" for name in (_TAU, _RESPONSE, _MOVEMENT) for form in ("png", "svg")))
"""What `save_json` and `save_pictures` write."""

_FEWEST_FREQUENCIES = 513


@dataclasses.dataclass(frozen=True)
class TheoryReport:
    """What `theory_report` returns.

    Attributes:
        model: `class`, `family`, `layers`, `parameters`, and whether the weights were `rescaled`.
        data: Measured `rows`, the length of the `longest`, `num_sequences` n, and the caller's `data`.
        complexity: τ, ψ²/√n and the filter norms of each layer.
        bands: Ends of the frequency bands, radians per sample.
        responses: Of all long convolutions; none for selective models.
        variation: Total variation by layer and direction.
        alpha: The useful range of `frequency_scale` without data, or the reason why there is none.
        alpha_of_layers: The same from the spectrum of each layer's inputs.
        bound: Of Honarpisheh et al., or the reason why there is none.
        movement: Relative change of each group of parameters in training; empty if unknown.
        settings: The caller's `settings`.
        is_time_invariant: Whether the kernels of all operators are the same at all positions.
    """

    model: dict[str, Any]
    data: dict[str, Any]
    complexity: list[LayerComplexity]
    bands: tuple[float, ...]
    responses: list[FrequencyResponse]
    variation: list[Variation]
    alpha: AlphaRecommendation | str
    alpha_of_layers: dict[int, AlphaRecommendation | str]
    bound: ModelBound | str
    movement: dict[str, float | None]
    settings: dict[str, Any]
    is_time_invariant: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Everything but the responses, as plain values for a JSON file; numbers that are not finite are `None`."""
        return _plain(
            {
                "versions": _versions(),
                "settings": self.settings,
                "model": self.model,
                "data": self.data,
                "complexity": [
                    {**dataclasses.asdict(layer), "tau_of_channels": layer.tau_of_channels.tolist()}
                    for layer in self.complexity
                ],
                "bands": list(self.bands),
                "total_variation": [dataclasses.asdict(part) for part in self.variation],
                "alpha": _as_dict(self.alpha),
                "alpha_of_layers": {layer: _as_dict(found) for layer, found in self.alpha_of_layers.items()},
                "bound": _as_dict(self.bound),
                "movement": self.movement,
            }
        )

    def to_text(self) -> str:
        """Tables for a terminal."""
        return tables.plain_text(tables.tables_of(self))

    def to_markdown(self) -> str:
        """The section "Theory report" of a model card, its tables below headings of the third level."""
        return "## Theory report\n\n" + tables.markdown(tables.tables_of(self))

    def save_pictures(self, folder: str | Path, unit: str = "sample") -> list[Path]:
        """Write the figures (τ and, if there are any, responses and movement) to a folder; return their paths.

        Args:
            folder: An existing folder.
            unit: Name of a position on the axis of frequencies, such as "base".

        Raises:
            ImportError: matplotlib is not installed.
        """
        folder = Path(folder)
        plotting.plot_tau(self.complexity, folder / _TAU)
        written = [folder / _TAU]
        if self.responses:
            title = "Frequency response of each convolution"
            length = self.data["longest"]
            plotting.plot_frequency_responses([], self.responses, folder / _RESPONSE, title, length=length, unit=unit)
            written.append(folder / _RESPONSE)
        if self.movement:
            changes = {QUANTITIES[group]: change for group, change in self.movement.items()}
            plotting.plot_parameter_change(changes, folder / _MOVEMENT)
            written.append(folder / _MOVEMENT)
        return written

    def save_json(self, path: str | Path) -> None:
        """Write `to_dict` as a JSON file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _versions() -> dict[str, str]:
    # Parts of the package may not import the package itself.
    package = __name__.partition(".")[0]
    return {package: sys.modules[package].__version__, **{name: version(name) for name in ("torch", "transformers")}}


def _as_dict(part: Any) -> Any:
    return {"none": part} if isinstance(part, str) else part.to_dict()


def _plain(value: Any) -> Any:
    """A value as JSON types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def theory_report(
    model: Any,
    batches: Iterable[Mapping[str, Any]],
    *,
    num_sequences: int | None = None,
    bands: Sequence[float] = BANDS,
    movement: Mapping[str, float | None] | None = None,
    data: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> TheoryReport:
    """Compute the theory report of a model on data.

    Args:
        model: A model of hf_ssm, bare or with a head; it is not changed.
        batches: Keyword inputs of the model (tensors), for example from a `DataLoader`; labels are ignored. All of
            them are kept in memory.
        num_sequences: n, the number of training sequences, for ψ²/√n and the bound; default: the rows of the batches.
        bands: Ends of the frequency bands, ascending, in radians per sample in [0, π].
        movement: Relative change of each group of parameters, from `relative_change` or `changes_in_log`.
        data: Description of the data, copied into the report.
        settings: Anything else, copied into the report.
        progress: Show a progress bar.

    Raises:
        TypeError: An argument of another type.
        ValueError: The model has no long convolution or selective scan, or parameters that are not finite; there is no
            batch; `num_sequences` is not positive; bands out of order or range.

    Source: Liu & Li 2024; Yu et al. 2025; Honarpisheh et al. 2025.
    """
    check_model(model)
    check_iterable("batches", batches, "batches (keyword inputs of the model)")
    _check_finite(model)
    batches = list(batches)
    for batch in batches:
        check_batch("batches", batch)
    shown = logging.tqdm(batches, unit="batch", disable=not progress)
    records = record_operators(model, shown, num_frequencies=_enough_frequencies(batches))
    complexity = layer_complexities(records, num_sequences)
    rows = records[0].num_sequences
    n = rows if num_sequences is None else num_sequences
    operators = [operator for _, _, operator in sequence_operators(model)]
    has_responses = any(operator.frequency_response is not None for operator in operators)
    responses = frequency_responses(model) if has_responses else []
    base = getattr(unwrapped(model), "config", None)
    family = str(getattr(base, "model_type", "")).removeprefix("hf_ssm_")
    return TheoryReport(
        model={
            "class": type(model).__name__,
            "family": family,
            "layers": len(complexity),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "rescaled": bool(getattr(base, "rescaled", False)),
            "frequency_scale": getattr(base, "frequency_scale", None),
        },
        data={**(data or {}), "rows": rows, "longest": records[0].longest, "num_sequences": n},
        complexity=complexity,
        bands=tuple(float(edge) for edge in bands),
        responses=responses,
        variation=layer_variations(responses, bands),
        alpha=_alpha(base, None),
        alpha_of_layers={layer.layer: _alpha(base, _power(records, layer.layer)) for layer in complexity},
        bound=_bound(unwrapped(model), batches, n),
        movement=dict(movement or {}),
        settings=dict(settings or {}),
        is_time_invariant=all(operator.is_time_invariant for operator in operators),
    )


def _check_finite(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise ValueError(f"{name} holds NaN or infinite values: training diverged, and no report is possible.")


def _enough_frequencies(batches: Sequence[Mapping[str, Any]]) -> int:
    """A grid from 0 to π that holds the spectrum of the longest row."""
    longest = max(
        (
            value.shape[1]
            for batch in batches
            for value in batch.values()
            if isinstance(value, Tensor) and value.dim() > 1
        ),
        default=1,
    )
    return max(_FEWEST_FREQUENCIES, next_fast_len(-(-longest // 2)) + 1)


def _power(records: Sequence[OperatorRecord], layer: int) -> Tensor:
    """The power of the inputs of the operators of a layer, `(C, F)`."""
    own = [record for record in records if record.layer == layer and record.direction == "forward"]
    return torch.cat([record.power for record in own if record.power is not None])


def _alpha(config: Any, power: Tensor | None) -> AlphaRecommendation | str:
    try:
        return alpha_recommendation(config, power)
    except ValueError as error:
        return str(error)


def _bound(model: Any, batches: Sequence[Mapping[str, Any]], num_sequences: int) -> ModelBound | str:
    try:
        return generalization_bound(model, batches, num_sequences=num_sequences)
    except ValueError as error:
        return str(error)
