"""τ of the outputs of a layer's mixing matrix, with the correlation between channels: `theory.mixing` on a model.

Legend: `D` channels of one operator.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_ssm.analysis.recording import model_inputs
from hf_ssm.modules.block import Block
from hf_ssm.modules.long_convolution import LongConvolution
from hf_ssm.modules.observers import Observer, measured_tau, observing
from hf_ssm.modules.operator import SequenceOperator, operators_in
from hf_ssm.modules.rows import Reading, is_shared
from hf_ssm.theory.mixing import mixed_tau
from hf_ssm.utils.checks import check_batch, check_model
from hf_ssm.utils.evaluation import evaluating, unwrapped
from hf_ssm.utils.processes import Processes, is_sharded

__all__ = ["measure_mixed_tau", "mixers_of", "operator_mixed_tau"]


def mixers_of(model: nn.Module) -> dict[SequenceOperator, nn.Module]:
    """The mixer of each long convolution of a model, which has the matrix that mixes its channels.

    Raises:
        ValueError: An operator of another kind.
    """
    mixers: dict[SequenceOperator, nn.Module] = {}
    for block in (part for part in model.modules() if isinstance(part, Block)):
        for name, operator in operators_in(block):
            if not isinstance(operator, LongConvolution):
                raise ValueError(
                    f"τ behind the mixing matrix is for long convolutions (S4, S4D, Hyena): {name!r} is a "
                    f"{type(operator).__name__}, which mixes channels itself or has a gate before the mixing matrix. "
                    "Use the mean of τ over the channels (rescale_by='mean')."
                )
            mixers[operator] = block.mixer
    return mixers


def _mixing_matrix(mixer: nn.Module, group: int, operator: SequenceOperator) -> Tensor | None:
    """The matrix that the output of a convolution is multiplied by, `(outputs, D)`; `None` where there is none.

    Of a gated linear unit, the half that is not the gate. Hyena's convolutions but the last one have none.
    """
    projection: Any = getattr(mixer, "out_proj", None)
    if projection is None or isinstance(projection, nn.Identity) or group < operator.groups - 1:
        return None
    weight: Tensor = projection.weight
    if is_sharded(weight) or weight.shape[1] != operator.channels // operator.groups:
        raise ValueError(
            "τ behind the mixing matrix needs the whole matrix, but the matrix of shape "
            f"{tuple(weight.shape)} is split over processes. Use the mean of τ over the channels (rescale_by='mean')."
        )
    return weight[: len(weight) // 2] if getattr(mixer, "output_glu", False) else weight


def operator_mixed_tau(
    operator: SequenceOperator, reading: Reading, mixer: nn.Module, processes: Processes | None = None
) -> Tensor:
    """The mean of `theory.mixing.mixed_tau` over outputs and directions, for the inputs of a long convolution.

    Activations and gates between the convolution and the matrix count as the identity, as in Liu & Li 2024, Section
    4.2. Without a matrix, and with `tau_statistics` other than `"batch"`, the result is the mean of τ over the
    channels.

    Args:
        operator: The convolution.
        reading: The inputs of the convolution.
        mixer: Its mixer, see `mixers_of`.
        processes: The processes whose rows are one batch.

    Raises:
        ValueError: Processes share the matrix or the positions of the rows.
    """
    if is_shared(reading.layout):
        raise ValueError(
            "τ behind the mixing matrix needs whole rows, but processes share the positions of these rows (context "
            "parallelism). Use the mean of τ over the channels (rescale_by='mean')."
        )
    matrix = _mixing_matrix(mixer, reading.group, operator)
    if matrix is None or operator.tau_statistics != "batch":
        return measured_tau(operator, reading, processes)
    ahead, *behind = reading.kernel
    options: dict[str, Any] = {"documents": reading.layout, "processes": processes}
    taus = [mixed_tau(ahead, matrix, reading.inputs, reading.mask, **options)]
    for kernel in behind:
        # In reversed time, with the first tap at its lag.
        first, length = operator.backward_first_lag, kernel.shape[-1]
        shifted = F.pad(kernel[:, : length - first], (first, 0))
        inputs = _flip(reading.inputs, reading.layout)
        mask = None if reading.mask is None else _flip(reading.mask, reading.layout)
        options["documents"] = None if reading.layout is None else reading.layout.reversed()
        taus.append(mixed_tau(shifted, matrix, inputs, mask, **options))
    return torch.stack(taus).mean().to(next(operator.parameters()).dtype)


def _flip(sequences: Tensor, layout: Any) -> Tensor:
    flipped: Tensor = sequences.flip(1) if layout is None else layout.flip(sequences)
    return flipped


class _Meter(Observer):
    """τ behind the mixing matrix of each operator and group."""

    def __init__(self, mixers: Mapping[SequenceOperator, nn.Module]):
        self.mixers = mixers
        self.taus: dict[SequenceOperator, list[Tensor]] = {}

    def __call__(self, operator: SequenceOperator, reading: Reading) -> None:
        found = operator_mixed_tau(operator, reading, self.mixers[operator])
        self.taus.setdefault(operator, []).append(found)


@torch.no_grad()
def measure_mixed_tau(model: Any, batch: Mapping[str, Any]) -> Tensor:
    """τ of each layer behind its mixing matrix, with the covariance between channels.

    The result differs from `model(**batch, output_tau=True).tau`, the mean over channels, if channels are correlated,
    and by the norm of the rows of the matrix: see `hf_ssm.theory.mixing`.

    Args:
        model: An S4 or Hyena model.
        batch: Its keyword inputs, of many rows; labels are ignored.

    Returns:
        `(num_hidden_layers,)`.

    Raises:
        TypeError: An argument of another type.
        ValueError: A layer without a long convolution.
    """
    check_model(model)
    check_batch("batch", batch)
    meter = _Meter(mixers_of(model))
    inner = unwrapped(model)
    blocks = [block for block in model.modules() if isinstance(block, Block)]
    with observing(blocks, meter), evaluating(model):
        inner(**model_inputs(batch, next(inner.parameters()).device), use_cache=False)
    layers = [[operator for _, operator in operators_in(block)] for block in blocks]
    return torch.stack(
        [torch.stack([tau for op in layer for tau in meter.taus[op]]).mean() for layer in layers if layer]
    )
