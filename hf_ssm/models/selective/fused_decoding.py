"""One position through a Mamba model by one compiled kernel, where nothing in its blocks asks for anything else.

Legend: `B` batch, `L` length, `H` hidden size.
"""

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from transformers.activations import SiLUActivation

from hf_ssm.models.selective.mixer_selective import OutputProjection, SelectiveMixer
from hf_ssm.modules.block import Block
from hf_ssm.modules.norms import LayerNorm, NoNorm, RMSNorm
from hf_ssm.modules.plain import is_plain
from hf_ssm.modules.selective_scan import SelectiveScan
from hf_ssm.modules.short_convolution import ShortConvolution
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.cpu.calling import is_plain_call
from hf_ssm.ops.cpu_kernels import BlockOptions, BlocksStep, BlockWeights
from hf_ssm.ops.kernels import compiled

__all__ = ["step_of_blocks"]

# With more rows, products of matrices read the weights less often.
_LARGEST_BATCH = 8

# What a block remembers, by the names of its state.
_MEMORIES = ("short_conv", "scan")

# A block and its parts, and what they may be.
_PARTS: dict[str, tuple[type, ...]] = {
    "": (Block,),
    "norm1": (LayerNorm, NoNorm, RMSNorm),
    "dropout": (nn.Dropout,),
    "mixer": (SelectiveMixer,),
    "mixer.in_proj": (nn.Linear,),
    "mixer.conv1d": (ShortConvolution,),
    "mixer.activation": (nn.SiLU, SiLUActivation),
    "mixer.scan": (SelectiveScan,),
    "mixer.scan.x_proj": (nn.Linear,),
    "mixer.scan.dt_proj": (nn.Linear,),
    "mixer.out_proj": (OutputProjection,),
}


def step_of_blocks(
    blocks: nn.ModuleList,
    norm: nn.Module | None,
    hidden_states: Tensor,
    mask: Tensor | None,
    states: Sequence[LayerState],
) -> list[Tensor] | None:
    """One position through all blocks of a model, or `None` where each block has to be called.

    The kernel serves Mamba blocks of real states in float32 on a CPU, with the memory of the positions before, without
    gradients, padding, MLP, Sobolev filter, dropout and rescaling, as long as no module is of another class (adapters,
    quantisation) or hooked.

    Args:
        blocks: The blocks.
        norm: Behind the last one.
        hidden_states: `(B, L, H)`.
        mask: `(B, L)` or `None`.
        states: Changed in place.

    Returns:
        The output of each block, `(B, 1, H)`, the last after the norm; or `None`.
    """
    batch, length, _ = hidden_states.shape
    if mask is not None or not states or length != 1 or batch > _LARGEST_BATCH or torch.is_grad_enabled():
        return None
    if not compiled(hidden_states.device) or torch.is_autocast_enabled("cpu"):
        return None
    memories = [state.tensors.get(name) for name in _MEMORIES for state in states]
    watched = states[0].constants.get("blocks_step")
    # Most often they are what the last step gave, of which all is known.
    given = None if watched is None else watched.given
    known = given is not None and given.are(memories)
    if not _may_step(hidden_states) or not (known or _may_step(*memories)):
        return None
    if watched is None or not watched.holds(blocks, norm):
        if not _can_step(blocks, norm):
            return None
        watched = states[0].constants["blocks_step"] = _Watched(blocks, norm)
    joined = given.joined if given is not None and known else _join(memories)
    outputs, *joined = watched.step(hidden_states, *joined)
    watched.given = given = _Memories(*joined)
    for index, state in enumerate(states):
        state.tensors["short_conv"], state.tensors["scan"] = given.parts[index], given.parts[len(states) + index]
    return list(outputs.unbind(0))


def _may_step(*tensors: Tensor | None) -> bool:
    return all(t is not None and t.dtype == torch.float32 for t in tensors) and is_plain_call(*tensors)


class _Memories:
    """The memories of all blocks as the kernel takes them, and those of each block, which are parts of them."""

    def __init__(self, pasts: Tensor, states: Tensor):
        self.joined = pasts, states
        self.parts = (*pasts.transpose(2, 3).unbind(0), *states.unbind(0))

    def are(self, memories: Sequence[Tensor | None]) -> bool:
        """Whether the memories of the blocks are these very tensors."""
        return len(memories) == len(self.parts) and all(map(is_, memories, self.parts))


def _join(memories: list[Any]) -> tuple[Tensor, Tensor]:
    count = len(memories) // 2
    return torch.stack([past.transpose(1, 2) for past in memories[:count]]), torch.stack(memories[count:])


def _can_step(blocks: nn.ModuleList, norm: nn.Module | None) -> bool:
    """Whether the blocks have no more and no other parts than the kernel knows."""
    parts = [(norm, _PARTS["norm1"])] if norm is not None else []
    for block in blocks:
        for path, kinds in _PARTS.items():
            try:
                parts.append((block.get_submodule(path), kinds))
            except AttributeError:
                return False
    if not all(is_plain(part, *kinds) for part, kinds in parts):
        return False
    parameters = (parameter for part, _ in parts for parameter in part._parameters.values())
    if not all(parameter is None or _is_simple(parameter) for parameter in parameters):
        return False
    if not all(_is_known(block) for block in blocks):
        return False
    # One loop serves all blocks, and their norm is also the last.
    alike = {(_options(block), *_sizes(_weights(block))) for block in blocks}
    first: Any = blocks[0].norm1
    last = norm is None or (type(norm) is type(first) and getattr(norm, "eps", 0.0) == getattr(first, "eps", 0.0))
    return len(alike) == 1 and last


def _is_known(block: Any) -> bool:
    scan = block.mixer.scan
    filtered = scan.A_imag is not None or scan.has_sobolev_filter or scan.dt_bias is None
    return (
        not filtered and block.mlp is None and not block.mixer.bidirectional and not _is_disturbed(scan, block.dropout)
    )


def _is_simple(parameter: Tensor) -> bool:
    simple = type(parameter) is nn.Parameter and parameter.device.type == "cpu" and parameter.dtype == torch.float32
    return simple and parameter.is_contiguous()


def _is_disturbed(scan: Any, dropout: Any) -> bool:
    """Whether something is to be done that comes and goes."""
    return scan.rescaling is not None or (dropout.training and dropout.p > 0)


def _weights(block: Any) -> BlockWeights:
    norm, mixer, scan = block.norm1, block.mixer, block.mixer.scan
    return BlockWeights(
        *_norm_weights(norm),
        in_weight=mixer.in_proj.weight,
        in_bias=mixer.in_proj.bias,
        conv_weight=mixer.conv1d.weight,
        conv_bias=mixer.conv1d.bias,
        x_weight=scan.x_proj.weight,
        dt_weight=scan.dt_proj.weight,
        dt_bias=scan.dt_bias,
        A=scan.A if scan.is_raw else scan.A_log,
        skip=scan.D,
        out_weight=mixer.out_proj.weight,
        out_bias=mixer.out_proj.bias,
    )


def _sizes(w: BlockWeights) -> list[torch.Size]:
    return [t.shape for t in (w.in_weight, w.conv_weight, w.dt_weight, w.A)]


def _norm_weights(norm: nn.Module | None) -> tuple[Any, Any]:
    return getattr(norm, "weight", None), getattr(norm, "bias", None)


def _options(block: Any) -> BlockOptions:
    return BlockOptions(
        norm={NoNorm: "none", LayerNorm: "layer", RMSNorm: "rms"}[type(block.norm1)],
        epsilon=getattr(block.norm1, "eps", 0.0),
        norm_first=block.norm_first,
        residual=block.use_residual,
        logarithmic=not block.mixer.scan.is_raw,
    )


class _Watched:
    """The step of blocks that `_can_step`, and all that has to stay for it to be the right one."""

    def __init__(self, blocks: nn.ModuleList, norm: nn.Module | None):
        self.blocks, self.norm = blocks, norm
        self.passing = [(block.get_submodule("mixer.scan"), block.dropout) for block in blocks]
        self.places: list[tuple[dict[str, Any], str]] = []
        for index, block in enumerate(blocks):
            for path in _PARTS:
                owner, _, name = path.rpartition(".")
                self.places.append(
                    (block.get_submodule(owner)._modules if path else blocks._modules, name or str(index))
                )
        self.modules: list[Any] = [own[name] for own, name in self.places]
        every = [*self.modules, *([] if norm is None else [norm])]
        self.every, self.kinds = every, [type(module) for module in every]
        self.parameter_places = [(module._parameters, name) for module in every for name in module._parameters]
        self.parameters = [own[name] for own, name in self.parameter_places]
        self.tensors = [parameter for parameter in self.parameters if parameter is not None]
        # The step keeps hold of the memory of its weights: no other parameter can have their addresses.
        self.step = BlocksStep([_weights(block) for block in blocks], _options(blocks[0]), _norm_weights(norm))
        self.addresses = [tensor.data_ptr() for tensor in self.tensors]
        # What the last step gave, of whichever copy of a cache.
        self.given: _Memories | None = None

    def holds(self, blocks: nn.ModuleList, norm: nn.Module | None) -> bool:
        """Whether parts and parameters are those of then, and nobody has hooked or moved them since."""
        # Written for speed, as all of it runs at each position.
        if blocks is not self.blocks or norm is not self.norm:
            return False
        if not all(map(is_, [own.get(name) for own, name in self.places], self.modules)):
            return False
        if not all(map(is_, [own.get(name) for own, name in self.parameter_places], self.parameters)):
            return False
        if [*map(type, self.every)] != self.kinds or [*map(Tensor.data_ptr, self.tensors)] != self.addresses:
            return False
        for module in self.every:
            # What is left of `is_plain`, where there are no gradients.
            own = module.__dict__
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
                return False
        return not any(_is_disturbed(*pair) for pair in self.passing) and not _has_any_global_hook()
