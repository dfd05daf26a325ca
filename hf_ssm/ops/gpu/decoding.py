"""What the Triton kernels of one position share: the in-projection of a block, and the call of blocks.

Dimensions: `B` batch, `H` hidden size.

Between the kernels all numbers are float32. Nothing waits for the device and no shape depends on values, so that
the kernels can be captured in a CUDA graph.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.decoding import NO_FINAL_NORM, BlockShapes, FinalNorm
from hf_ssm.ops.gpu.arguments import as_bytes
from hf_ssm.ops.gpu.kernels import runs_kernels
from hf_ssm.ops.gpu.projection import Projection, add_norm

__all__ = ["BlocksOnGPU", "dense", "held", "in_projection", "supports_blocks"]


def held(weight: Any) -> Any:
    """A tensor that keeps the memory of a weight alive, without its gradient; `None` for `None`."""
    return None if weight is None else weight.detach()


def dense(t: Tensor) -> Tensor:
    """The tensor itself if the axes after the first are dense, else a copy."""
    return t if t[:1].is_contiguous() else t.contiguous()


def supports_blocks(weights: Sequence[Any], options: Any, final_norm: FinalNorm = NO_FINAL_NORM) -> bool:
    """Contiguous weights in single or half precision, all on one device; dtypes may differ."""
    tensors = [t for block in (*weights, final_norm) for t in block if t is not None]
    is_dense = all(t.is_contiguous() and not t.is_complex() for t in tensors)
    return is_dense and len({t.device for t in tensors}) == 1 and runs_kernels(*tensors)


def in_projection(w: Any, options: Any, **arguments: Any) -> Projection:
    """The in-projection of a block, with the norm before it, if there is one, and the short convolution after it.

    Args:
        w: Weights of the block.
        options: Of all blocks.
        **arguments: Further arguments of the kernel `project`.
    """
    norm = options.norm if options.norm_first else "none"
    if norm != "none":
        arguments |= {"norm_weight": w.norm_weight, "norm_bias": w.norm_bias}
    return Projection(
        w.in_weight,
        w.in_bias,
        norm,
        epsilon=options.epsilon,
        conv_weight=w.conv_weight,
        conv_bias=w.conv_bias,
        channels=len(w.conv_weight),
        TAPS=w.conv_weight.shape[-1],
        **arguments,
    )


class BlocksOnGPU:
    """One position of all blocks of a model.

    Args:
        blocks: Of each block a function that launches its kernels. Its arguments are the input `(B, H)`, the output
            `(B, H)`, written, without a norm that follows the block; the mask `(B,)` of bytes, 0 at rows that keep
            their states, or `None`; the states of the convolution and the scan before (read) and after (written); and
            the scratch memory, tensors `(B, size)`. All are contiguous.
        weights: Of each block.
        options: Of all blocks.
        final_norm: Weight and bias of the norm after the last block.
        shapes: Of all tensors.
        scratch: How many float32 numbers the kernels of a block pass to each other, for each row.
    """

    def __init__(
        self,
        blocks: Sequence[Callable[..., None]],
        weights: Sequence[Any],
        options: Any,
        final_norm: FinalNorm,
        shapes: BlockShapes,
        scratch: Sequence[int],
    ):
        shapes.check_weights(weights)
        self.blocks, self.shapes, self.scratch = blocks, shapes, scratch
        norm = partial(add_norm, kind=options.norm, epsilon=options.epsilon)
        if options.norm_first:
            last = partial(norm, weight=held(final_norm[0]), bias=held(final_norm[1]))
            self.norms: list[Callable[[Tensor], None] | None] = [None] * (len(weights) - 1) + [last]
        else:
            self.norms = [partial(norm, weight=held(w.norm_weight), bias=held(w.norm_bias)) for w in weights]

    def __call__(
        self, hidden: Tensor, pasts: Tensor, states: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.shapes.check_inputs(hidden, pasts, states, len(self.blocks))
        batch, pasts, states = len(hidden), pasts.contiguous(), states.contiguous()
        if mask is not None and (mask.shape != (batch,) or mask.dtype != torch.bool):
            raise ValueError(f"mask must be a bool for each of {batch} rows, got {tuple(mask.shape)} of {mask.dtype}")
        moving = as_bytes(mask)
        outputs = torch.empty(len(self.blocks), *hidden.shape, dtype=torch.float32, device=hidden.device)
        source = hidden.to(torch.float32).reshape(batch, -1)
        new_pasts, new_states = torch.empty_like(pasts), torch.empty_like(states)
        scratch = [torch.empty(batch, size, dtype=torch.float32, device=hidden.device) for size in self.scratch]
        for number, (block, norm) in enumerate(zip(self.blocks, self.norms, strict=True)):
            target = outputs[number].view(batch, -1)
            memory = pasts[number], states[number], new_pasts[number], new_states[number]
            block(source, target, moving, *memory, *scratch)
            if norm is not None:
                norm(target)
            source = target
        return outputs, new_pasts, new_states
