"""Custom operators of the selective scan by compiled kernels."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from hf_ssm.ops.operators import differentiable_operator
from hf_ssm.ops.selective_scan.arguments import ScanTensors
from hf_ssm.ops.selective_scan.reference import loop_scan

__all__ = ["selective_scan_operator"]


def _plain_output(args: ScanTensors, delta_softplus: bool, keep: bool) -> tuple[Tensor, Tensor]:
    return loop_scan(args, delta_softplus, True)


selective_scan_operator: Callable[..., tuple[Any, Any]] = partial(
    differentiable_operator,
    tensors=ScanTensors,
    options="bool delta_softplus, bool keep",
    plain=_plain_output,
    outputs=2,
    keeps=True,
)
"""Declares the operator of an implementation, from its `name`, `forward`, `fake` and `backward`."""
