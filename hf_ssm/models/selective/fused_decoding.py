"""Fused single-token decoding for Mamba; falls back to the blocks where one of them is non-standard.

Dimensions: `B` batch, `L` length, `H` hidden size.

Generation with batch 1, hidden size 256 and 4 layers takes 1.0 ms per token of processor time with it and 4.0 ms block
by block (one thread); `python benchmarks/speed.py decoding --threads 1` prints the ratio.
"""

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from transformers.activations import SiLUActivation

from hf_ssm.models.selective.mixer_selective import OutputProjection, SelectiveMixer, has_standard_forward
from hf_ssm.modules.block import Block
from hf_ssm.modules.selective_scan import SelectiveScan
from hf_ssm.modules.short_convolution import ShortConvolution
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.backends import is_enabled
from hf_ssm.ops.context import is_plain_call
from hf_ssm.ops.selective_scan.decoding import BlockOptions, BlockWeights, find_blocks_step

__all__ = ["step_of_blocks"]

# For larger batches, matrix products read the weights less often than the kernel does.
_MAX_BATCH = 8

_NORMS = {nn.Identity: "none", nn.LayerNorm: "layer", nn.RMSNorm: "rms"}

# Classes of the modules of a block, of its mixer and of its scan.
_BLOCK_PARTS = {"norm1": tuple(_NORMS), "dropout": (nn.Dropout,)}
_MIXER_PARTS = {
    "in_proj": (nn.Linear,),
    "conv1d": (ShortConvolution,),
    "activation": (nn.SiLU, SiLUActivation),
    "out_proj": (OutputProjection,),
}
_SCAN_PARTS = {"x_proj": (nn.Linear,), "dt_proj": (nn.Linear,)}


def step_of_blocks(
    blocks: nn.ModuleList,
    norm: nn.Module | None,
    hidden_states: Tensor,
    mask: Tensor | None,
    states: Sequence[LayerState],
) -> list[Tensor] | None:
    """Compute one position of all blocks in one compiled kernel, without calling the modules.

    Supported are Mamba blocks with real states in float32 on a CPU that continue a sequence, without gradients, mask,
    MLP, Sobolev filter, dropout or rescaling. All modules must be of the standard classes and without hooks, which
    excludes adapters, quantisation, parametrisations and offloading. This is checked at every position, since it may
    change between two of them.

    Args:
        blocks: The blocks.
        norm: The norm after the last block.
        hidden_states: `(B, L, H)`.
        mask: `(B, L)` or `None`.
        states: States of the blocks, updated in place.

    Returns:
        The output of each block, `(B, 1, H)`, the last after the norm; `None` if the blocks must be called.
    """
    # A compiled or exported program would be one of this batch size only.
    if torch.compiler.is_compiling() or mask is not None or not states:
        return None
    if hidden_states.shape[1] != 1 or len(hidden_states) > _MAX_BATCH:
        return None
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not is_enabled("numba"):
        return None
    memories: list[Any] = [state.tensors.get(name) for name in ("short_conv", "scan") for state in states]
    if not all(t is not None and t.is_cpu and t.dtype == torch.float32 for t in (hidden_states, *memories)):
        return None
    if not is_plain_call(hidden_states, *memories):
        return None
    step = _find_step(blocks, norm, states[0].constants)
    if step is None:
        return None
    constants = states[0].constants
    known, pasts, scans = constants.get("blocks_memories", ((), None, None))
    if len(known) != len(memories) or not all(map(is_, known, memories)):
        # Not the views of the last position's result, which saves 4 % of a position.
        pasts = torch.stack([past.transpose(1, 2) for past in memories[: len(states)]])
        scans = torch.stack(memories[len(states) :])
    outputs, pasts, scans = step(hidden_states, pasts, scans)
    memories = [*pasts.transpose(2, 3).unbind(0), *scans.unbind(0)]
    for state, past, scan in zip(states, memories, memories[len(states) :], strict=False):
        state.tensors["short_conv"], state.tensors["scan"] = past, scan
    constants["blocks_memories"] = memories, pasts, scans
    return list(outputs.unbind(0))


def _find_step(blocks: nn.ModuleList, norm: nn.Module | None, constants: dict[str, Any]) -> Any:
    """The compiled step of the blocks as they are now, from the last position if nothing has changed; or `None`."""
    if _has_any_global_hook():
        return None
    read = []
    for block in blocks:
        found = _read_block(block)
        if found is None:
            return None
        read.append(found)
    weights, (options, *others) = [w for w, _ in read], [o for _, o in read]
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
        step, before, before_addresses, before_options = known
        if before_options == options and before_addresses == addresses and all(map(is_, before, tensors)):
            return step
    shapes = {(w.in_weight.shape, w.conv_weight.shape, w.dt_weight.shape, w.A.shape) for w in weights}
    if len(shapes) > 1 or any(other != options for other in others):
        return None
    if not all(t is None or _is_plain_parameter(t) for t in tensors):
        return None
    step = find_blocks_step(weights, options, final)
    constants["blocks_step"] = step, tensors, addresses, options
    return step


def _read_block(block: Any) -> tuple[BlockWeights, BlockOptions] | None:
    """Weights and options of a block; `None` unless it computes what the kernel does."""
    # Reads the dictionaries of the modules: their attributes take several times as long.
    if type(block) is not Block or type(mixer := block._modules["mixer"]) is not SelectiveMixer:
        return None
    if type(scan := mixer._modules["scan"]) is not SelectiveScan:
        return None
    modules: list[Any] = [block, mixer, scan]
    for owner, names in ((block, _BLOCK_PARTS), (mixer, _MIXER_PARTS), (scan, _SCAN_PARTS)):
        for name, kinds in names.items():
            module = owner._modules.get(name)
            if type(module) not in kinds:
                return None
            modules.append(module)
    for module in modules:
        own = module.__dict__
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
            return None
    norm, dropout, in_proj, conv, _, out_proj, x_proj, dt_proj = modules[3:]
    if block.mlp is not None or mixer.bidirectional or scan.A_imag is not None or scan.has_sobolev_filter:
        return None
    if scan.rescaling is not None or (dropout.training and dropout.p > 0):
        return None
    parameters: dict[str, Any] = scan._parameters
    if (dt_bias := parameters.get("dt_bias")) is None:
        return None
    weights = BlockWeights(
        norm_weight=norm._parameters.get("weight"),
        norm_bias=norm._parameters.get("bias"),
        in_weight=in_proj._parameters["weight"],
        in_bias=in_proj._parameters["bias"],
        conv_weight=conv._parameters["weight"],
        conv_bias=conv._parameters["bias"],
        x_weight=x_proj._parameters["weight"],
        dt_weight=dt_proj._parameters["weight"],
        dt_bias=dt_bias,
        A=parameters["A" if scan.is_raw else "A_log"],
        skip=parameters.get("D"),
        out_weight=out_proj._parameters["weight"],
        out_bias=out_proj._parameters["bias"],
    )
    options = BlockOptions(
        norm=_NORMS[type(norm)],
        epsilon=getattr(norm, "eps", 0.0),
        norm_first=block.norm_first,
        residual=block.use_residual,
        logarithmic=not scan.is_raw,
    )
    return weights, options


def _is_plain_parameter(parameter: Tensor) -> bool:
    """Not a subclass (as of quantised weights), and such as the kernel reads it."""
    return (
        type(parameter) is nn.Parameter
        and parameter.is_cpu
        and parameter.dtype == torch.float32
        and parameter.is_contiguous()
    )
