"""Custom operators of the state space duality by compiled kernels."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from hf_ssm.ops.operators import differentiable_operator
from hf_ssm.ops.ssd.chunked import chunked_ssd

__all__ = ["ScanInputs", "ssd_operator"]


class ScanInputs(NamedTuple):
    """The tensors of an implementation of the scan; see `loop_ssd`."""

    x: Tensor
    d: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    state: Tensor | None
    starts: Tensor | None


def _plain_ssd_output(args: ScanInputs, chunk: int, keep: bool) -> tuple[Tensor, Tensor]:
    y, last = chunked_ssd(*args, chunk)
    return y.to(args.x.dtype), last


ssd_operator: Callable[..., tuple[Any, Any]] = partial(
    differentiable_operator,
    tensors=ScanInputs,
    options="SymInt chunk, bool keep",
    plain=_plain_ssd_output,
    outputs=2,
    keeps=True,
)
"""Declares the operator of an implementation, from its `name`, `forward`, `fake` and `backward`."""
