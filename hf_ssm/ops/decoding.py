"""Parts that the steps of one position of all blocks share: the search for an implementation, and checks of shapes.

For a single position each operation of torch costs more to call than to compute. On a CPU one compiled kernel computes
all blocks; there is no other implementation.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_ssm.ops.backends import is_enabled

__all__ = ["LINEAR_MAPS", "NO_FINAL_NORM", "BlockShapes", "FinalNorm", "ScaledRows", "find_step"]

LINEAR_MAPS = frozenset({"in_weight", "x_weight", "dt_weight", "out_weight"})
"""The weights of a block that are linear maps, which may be `ScaledRows`."""

FinalNorm = tuple[Tensor | None, Tensor | None]
"""Weight and bias of the norm after the last block."""

NO_FINAL_NORM: FinalNorm = (None, None)


class ScaledRows(NamedTuple):
    """A matrix in int8 with a scale for each row.

    Attributes:
        values: `(rows, columns)`, int8.
        scales: What each row is multiplied by, `(rows, 1)`, floating point.
    """

    values: Tensor
    scales: Tensor

    @property
    def shape(self) -> torch.Size:
        """`(rows, columns)`."""
        return self.values.shape


class BlockShapes(NamedTuple):
    """The shapes of the tensors of a step.

    Attributes:
        weights: Of the weights of a block, in order.
        past, state: Of the states of a convolution and of a scan, for one row of the batch.
        width: Hidden size.
    """

    weights: tuple[tuple[int, ...], ...]
    past: tuple[int, ...]
    state: tuple[int, ...]
    width: int

    def check_weights(self, blocks: Sequence[Any]) -> None:
        """Raise `ValueError` for the first weight, in named tuples, that has another shape."""
        for block in blocks:
            for name, tensor, shape in zip(block._fields, block, self.weights, strict=True):
                if tensor is not None and tensor.shape != shape:
                    raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")

    def check_inputs(self, hidden: Tensor, pasts: Tensor, states: Tensor, count: int) -> None:
        """Raise `ValueError` for the first argument of the step of `count` blocks that has another shape."""
        batch = len(hidden)
        if hidden.shape[-1] != self.width or hidden.numel() != batch * self.width:
            raise ValueError(f"hidden must have {self.width} numbers for each row, got {tuple(hidden.shape)}")
        for name, memory, of_row in (("pasts", pasts, self.past), ("states", states, self.state)):
            expected = (count, batch, *of_row)
            if memory.shape != expected:
                raise ValueError(f"{name} must have shape {expected}, got {tuple(memory.shape)}")


def find_step(
    step: tuple[str, str], weights: Sequence[Any], options: Any, final_norm: FinalNorm = NO_FINAL_NORM
) -> Callable[..., tuple[Tensor, Tensor, Tensor]] | None:
    """The compiled step of blocks with these weights.

    It keeps the memory of the weights alive and reads changes in place. Dimensions: `B` batch, `K` taps.

    Args:
        step: Module and name of the class of the step.
        weights: Of each block, of the same shapes; all contiguous, on the CPU and of one real dtype, but that weights
            of float32 steps may be stored in bfloat16, and linear maps as `ScaledRows`.
        options: The same for all blocks.
        final_norm: Weight and bias of the norm after the last block, `(hidden size,)` or `None`.

    Returns:
        `None` where compiled kernels do not run, else a function of

        - `hidden`, `(B, hidden size)`, or with further axes of length 1,
        - `pasts`, the inputs of each block's convolution at the `K - 1` positions before, oldest first,
          `(number of blocks, B, K - 1, channels of the convolution)`,
        - `states`, the state of each block's scan after the position before, `(number of blocks, B, ...)`,

        `states` in the dtype of the state matrix, the others in this or bfloat16. It returns new tensors: the outputs
        of the blocks, `(number of blocks, *hidden.shape)`, the last after the final norm, in the dtype of `states`, and
        the next `pasts` and `states` in their dtypes. It raises a ValueError where shapes do not fit.

    Raises:
        ValueError: A weight of another shape.
    """
    if not is_enabled("numba") or any(isinstance(t, Tensor) and t.device.type != "cpu" for t in weights[0]):
        return None
    module, name = step
    compiled: Any = getattr(importlib.import_module(module), name)(tuple(weights), options, final_norm)
    return compiled
