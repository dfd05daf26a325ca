"""Liu & Li's measure τ as a module of the evaluate library."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np

from hf_ssm.metrics.base import StreamedMetric, Sums, finite, no_example, numbers

_DESCRIPTION = """
The measure τ of state space models: how large the output at the last position is, given the inputs' mean and variance.

For a channel with the convolution kernel k and inputs of mean μ and variance K, by the distance ℓ to the last position,
√τ = Σ_ℓ |k_ℓ| √K_ℓ + |Σ_ℓ k_ℓ μ_ℓ|; the τ of a layer is the mean over its channels. τ / √n, n the number of training
sequences, leads the bound of the generalisation error; a layer that was rescaled has τ = 1 on that batch.

The default configuration sums up the τ of layers that models of hf_ssm return (`output_tau=True`); the configuration
`channels` computes the τ of a layer from kernels and moments, of any model.
"""

_CITATION = """
@inproceedings{liu2024generalization,
  title = {From Generalization Analysis to Optimization Designs for State Space Models},
  author = {Liu, Fusheng and Li, Qianxiao},
  booktitle = {International Conference on Machine Learning},
  year = {2024}
}
"""

_INPUTS = """
Args:
    predictions (floats): one row for each batch, `(batches, layers)`: τ of each layer, which for models of hf_ssm is
        `model(..., output_tau=True).tau`. Each batch has the same weight.
    kernels, means, variances (floats): instead of `predictions` in the configuration `channels`: one row for each
        channel of the layer, `(channels, L)`: k, μ and K by distance to the last position.
    num_sequences (int): n, the number of training sequences; default None: no τ / √n.

Returns:
    tau (float): at least 0, in the squared unit of the output; the sum over layers, as the regulariser has it. In the
        configuration `channels`: the mean over channels.
    tau_per_layer (list of floats): only without `channels`; τ of each layer, the mean over batches.
    measure (float): τ / √n of the sum; only with `num_sequences`.

Examples:
    >>> metric = hf_ssm.metrics.load("tau")
    >>> metric.compute(predictions=[[1.0, 4.0], [3.0, 4.0]])
    {'tau': 6.0, 'tau_per_layer': [2.0, 4.0]}
    >>> metric = hf_ssm.metrics.load("tau", "channels")
    >>> metric.compute(kernels=[[1.0, 0.5]], means=[[1.0, 0.0]], variances=[[0.0, 4.0]], num_sequences=16)
    {'tau': 4.0, 'measure': 1.0}
"""

_COLUMNS = {"default": ("predictions",), "channels": ("kernels", "means", "variances")}


class Tau(StreamedMetric):
    """τ of the layers of a model."""

    options: ClassVar[Mapping[str, Any]] = {"num_sequences": None}

    def _info(self) -> evaluate.MetricInfo:
        row = datasets.Sequence(datasets.Value("float64"))
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(dict.fromkeys(self._of_config(_COLUMNS), row)),
            license="Apache-2.0",
        )

    def _count(self, columns: Mapping[str, Any]) -> Sums:
        matrices = {name: _matrix(name, column) for name, column in columns.items()}
        if self.config_name == "channels":
            return _of_channels(**matrices)
        taus = matrices["predictions"]
        if (taus < 0).any():
            raise ValueError(f"`predictions` must hold τ, which is not negative, got {taus.min()}")
        # A batch without rows has no layers either.
        return {("layer", taus.shape[1]): len(taus), **dict(enumerate(taus.sum(axis=0).tolist()))} if taus.size else {}

    def _score(self, sums: Sums, options: Mapping[str, Any]) -> dict[str, Any]:
        number = options["num_sequences"]
        if number is not None and number < 1:
            raise ValueError(f"`num_sequences` must be at least 1, got {number}")
        if not sums:
            raise no_example()
        of_channels = self.config_name == "channels"
        result = {"tau": sums["tau"] / sums["channels"]} if of_channels else _of_layers(sums)
        return result if number is None else {**result, "measure": result["tau"] / math.sqrt(number)}


def _matrix(name: str, column: Any) -> np.ndarray:
    values, shape = numbers(name, column)
    if values.size and (len(shape) != 2 or not isinstance(shape[1], int)):
        raise ValueError(f"`{name}` must have rows of one length, got the shape {shape}")
    return finite(name, values).reshape(shape if values.size else (0, 0))


def _of_channels(kernels: np.ndarray, means: np.ndarray, variances: np.ndarray) -> Sums:
    if not kernels.shape == means.shape == variances.shape:
        shapes = ", ".join(map(str, (kernels.shape, means.shape, variances.shape)))
        raise ValueError(f"`kernels`, `means` and `variances` must be of one shape, got {shapes}")
    if (variances < 0).any():
        raise ValueError(f"`variances` must not be negative, got {variances.min()}")
    root = (np.abs(kernels) * np.sqrt(variances)).sum(axis=1) + np.abs((kernels * means).sum(axis=1))
    return {"tau": float(np.square(root).sum()), "channels": len(root)} if len(root) else {}


def _of_layers(sums: Sums) -> dict[str, Any]:
    """Mean over batches; ("layer", number of layers) -> batches tells how many of both there were."""
    sizes = {key[1]: batches for key, batches in sums.items() if isinstance(key, tuple)}
    if len(sizes) > 1:
        raise ValueError(f"`predictions` must have one column for each layer of one model, got {sorted(sizes)} columns")
    ((layers, batches),) = sizes.items()
    taus = [sums[layer] / batches for layer in range(layers)]
    return {"tau": sum(taus), "tau_per_layer": taus}
