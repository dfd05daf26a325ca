"""Fused single-token decoding; falls back to the blocks where one of them is non-standard.

Dimensions: `B` batch, `L` length, `H` hidden size.
"""

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from hf_ssm.modules.projection import has_standard_forward
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.backends import first_enabled
from hf_ssm.ops.context import is_plain_call

__all__ = ["FUSED_NORMS", "fused_step", "standard_parts"]


class _Limits(NamedTuple):
    """What the kernels of a backend compute with.

    Attributes:
        batch: Largest batch. For larger ones, matrix products read the weights less often, or as rarely and faster.
        masks: Whether rows of the batch may be padding.
        dtypes: Of hidden states, weights and the inputs of convolutions; the states of scans are in float32.
    """

    batch: int
    masks: bool
    dtypes: tuple[torch.dtype, ...]


_LIMITS = {
    "numba": _Limits(8, False, (torch.float32,)),
    "triton": _Limits(16, True, (torch.float32, torch.bfloat16, torch.float16)),
}

FUSED_NORMS = {nn.Identity: "none", nn.LayerNorm: "layer", nn.RMSNorm: "rms"}
"""Classes of norms that the kernels compute, and their names there."""


def fused_step(
    blocks: nn.ModuleList,
    norm: nn.Module | None,
    hidden_states: Tensor,
    mask: Tensor | None,
    states: Sequence[LayerState],
    read: Callable[[Any], tuple[Any, Any] | None],
    find: Callable[..., Any],
) -> list[Tensor] | None:
    """Compute one position of all blocks by compiled kernels, without calling the modules.

    Supported are blocks that continue a sequence, in float32 on a CPU and in single or half precision on a GPU, without
    gradients, MLP, Sobolev filter, dropout or rescaling; on a CPU without a mask. All modules must be of the standard
    classes and without hooks, which excludes adapters, quantisation, parametrisations and offloading. This is checked
    at every position, since it may change between two of them; no check waits for a GPU.

    Args:
        blocks: The blocks.
        norm: The norm after the last block.
        hidden_states: `(B, L, H)`.
        mask: `(B, L)` or `None`; rows without a token keep their states, and their outputs are meaningless.
        states: States of the blocks, updated in place.
        read: The weights of a block, a named tuple of tensors and `None`, and its options, a named tuple with an
            `epsilon`; `None` unless the block computes what the kernel does.
        find: Called with the weights of all blocks, the options, and weight and bias of the norm; returns a function of
            the hidden states and the states of convolutions and scans, or `None`.

    Returns:
        The output of each block, `(B, 1, H)`, the last after the norm; `None` if the blocks must be called.
    """
    # A compiled or exported program would be one of this batch size only.
    if torch.compiler.is_compiling() or not states:
        return None
    device = hidden_states.device
    backend = first_enabled(_LIMITS, device.type)
    if backend is None or hidden_states.shape[1] != 1 or len(hidden_states) > _LIMITS[backend].batch:
        return None
    if mask is not None and not _LIMITS[backend].masks:
        return None
    if torch.is_grad_enabled() or torch.is_autocast_enabled(device.type):
        return None
    memories: list[Any] = [state.tensors.get(name) for name in ("short_conv", "scan") for state in states]
    if not all(t is not None and t.device == device for t in memories) or not is_plain_call(hidden_states, *memories):
        return None
    pasts, scans = memories[: len(states)], memories[len(states) :]
    if any(t.dtype != pasts[0].dtype for t in pasts) or any(t.dtype != torch.float32 for t in scans):
        return None
    if any(t.dtype not in _LIMITS[backend].dtypes for t in (hidden_states, pasts[0])):
        return None
    step = _find_step(blocks, norm, states[0].constants, read, find, backend, device)
    if step is None:
        return None
    constants = states[0].constants
    known, all_pasts, all_scans = constants.get("blocks_memories", ((), None, None))
    if len(known) != len(memories) or not all(map(is_, known, memories)):
        # Not the views of the last position's result, which saves 4 % of a position.
        all_pasts, all_scans = torch.stack([past.transpose(1, 2) for past in pasts]), torch.stack(scans)
    masks = () if mask is None else (mask[:, 0],)
    outputs, all_pasts, all_scans = step(hidden_states, all_pasts, all_scans, *masks)
    memories = [*all_pasts.transpose(2, 3).unbind(0), *all_scans.unbind(0)]
    for state, past, scan in zip(states, memories, memories[len(states) :], strict=False):
        state.tensors["short_conv"], state.tensors["scan"] = past, scan
    constants["blocks_memories"] = memories, all_pasts, all_scans
    return _as_from_blocks(blocks[0], outputs, hidden_states.dtype)


def _as_from_blocks(block: Any, outputs: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The outputs in the dtypes of those of the blocks, and of the norm after them."""
    if outputs.dtype == dtype:
        return list(outputs.unbind(0))
    is_precise = (
        block.residual_in_fp32 and block.use_residual and (block.norm_first or type(block.norm1) is nn.Identity)
    )
    *inner, last = (outputs if is_precise else outputs.to(dtype)).unbind(0)
    return [*inner, last.to(dtype)]


def _find_step(
    blocks: nn.ModuleList,
    norm: nn.Module | None,
    constants: dict[str, Any],
    read: Callable[[Any], tuple[Any, Any] | None],
    find: Callable[..., Any],
    backend: str,
    device: torch.device,
) -> Any:
    """The compiled step of the blocks as they are now, from the last position if nothing has changed; or `None`."""
    if _has_any_global_hook():
        return None
    all_read = []
    for block in blocks:
        found = read(block)
        if found is None:
            return None
        all_read.append(found)
    weights, (options, *others) = [w for w, _ in all_read], [o for _, o in all_read]
    final = (None, None) if norm is None else (norm._parameters.get("weight"), norm._parameters.get("bias"))
    tensors = [t for part in (*weights, final) for t in part]
    if norm is not None and (
        not has_standard_forward(norm, type(blocks[0].norm1)) or getattr(norm, "eps", 0.0) != options.epsilon
    ):
        return None
    addresses = [0 if t is None else t.data_ptr() for t in tensors]
    known = constants.get("blocks_step")
    if known is not None:
        # The step keeps its weights alive, so that a tensor of the same address is the same memory.
        step, before, before_addresses, *before_options = known
        if before_options == [options, backend] and before_addresses == addresses and all(map(is_, before, tensors)):
            return step
    # Only some blocks may have biases.
    shapes = ({t.shape for t in same if t is not None} for same in zip(*weights, strict=True))
    if any(len(found) > 1 for found in shapes) or any(other != options for other in others):
        return None
    if not all(t is None or _is_plain_parameter(t, device, _LIMITS[backend].dtypes) for t in tensors):
        return None
    step = find(weights, options, final)
    constants["blocks_step"] = step, tensors, addresses, options, backend
    return step


def standard_parts(*owned: tuple[Any, dict[str, tuple[type, ...]]]) -> list[Any] | None:
    """Modules and their parts, if all parts are of the given classes and none of the modules has hooks, else `None`.

    Args:
        *owned: Modules, each with the classes of its parts by name.

    Returns:
        The parts, in order.
    """
    # Reads the dictionaries of the modules: their attributes take several times as long.
    parts = []
    for owner, names in owned:
        for name, kinds in names.items():
            module = owner._modules.get(name)
            if type(module) not in kinds:
                return None
            parts.append(module)
    for module in (*(owner for owner, _ in owned), *parts):
        own = {} if module is None else module.__dict__
        if own and (own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own):
            return None
    return parts


def _is_plain_parameter(parameter: Tensor, device: torch.device, dtypes: tuple[torch.dtype, ...]) -> bool:
    """Not a subclass (as of quantised weights), and such as the kernels read it."""
    return (
        type(parameter) is nn.Parameter
        and parameter.device == device
        and parameter.dtype in dtypes
        and parameter.is_contiguous()
    )
