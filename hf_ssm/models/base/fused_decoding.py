"""Fused single-token decoding: kernels that compute one position of all blocks without calling their modules.

Whether they compute what the modules do is decided by `_Decision.of`, from the classes, hooks, options and parameters
of all modules. A decision holds until the end of `generate`, or until a module gets a hook. In a loop that a caller
writes, modules can change between two tokens in ways that leave no common trace (an adapter, another parameter, moved
weights), so that there a decision holds as long as all attributes of the modules are the same objects.

Dimensions: `B` batch, `L` length, `H` hidden size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import chain
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from transformers import GenerationMixin
from transformers.activations import SiLUActivation

from hf_ssm.modules.block import Block
from hf_ssm.modules.projection import has_standard_forward
from hf_ssm.modules.short_convolution import ShortConvolution
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.backends import is_enabled
from hf_ssm.ops.context import is_plain_call
from hf_ssm.ops.decoding import ScaledRows

__all__ = ["FUSED_MODULES", "FUSED_WEIGHTS", "FusedBlocks", "FusedGeneration", "fused_options", "fused_step"]


# For larger batches, matrix products read the weights less often, or as rarely and faster.
_MAX_BATCH = 8
# Of hidden states, weights and the inputs of convolutions; the states of scans are in float32.
_DTYPES = (torch.float32, torch.bfloat16)
_END = object()

_NORMS = {nn.Identity: "none", nn.LayerNorm: "layer", nn.RMSNorm: "rms"}

FUSED_MODULES: dict[str, tuple[type, ...]] = {
    "": (Block,),
    "norm1": tuple(_NORMS),
    "dropout": (nn.Dropout,),
    "mixer.in_proj": (nn.Linear,),
    "mixer.conv1d": (ShortConvolution,),
    "mixer.activation": (nn.SiLU, SiLUActivation),
    "mixer.out_proj": (nn.Linear,),
}
"""The classes of the modules that blocks of all families have, by path."""

FUSED_WEIGHTS = {
    f"{path}.{kind}": f"{name}_{kind}"
    for path, name in {"norm1": "norm", "mixer.in_proj": "in", "mixer.conv1d": "conv", "mixer.out_proj": "out"}.items()
    for kind in ("weight", "bias")
}
"""The names in the weights of a step of the parameters of these modules, by path."""


def fused_options(block: Any) -> dict[str, Any]:
    """The options that the steps of all families have, of a block of these modules."""
    norm = block.norm1
    return {
        **{"norm": _NORMS[type(norm)], "epsilon": getattr(norm, "eps", 0.0)},
        **{"norm_first": block.norm_first, "residual": block.use_residual},
    }


class FusedBlocks(NamedTuple):
    """The blocks of a family that a compiled step computes.

    Attributes:
        modules: The classes of each module that a block may have, by path.
        weights: The names in the weights of the step of each parameter that a block may have, by path.
        weights_class: Named tuple of tensors and `None`.
        read_options: The options of a block, a named tuple with an `epsilon`; `None` unless the step computes them.
        find: Called with the weights of all blocks, the options, and weight and bias of the norm; returns a function of
            the hidden states and the states of convolutions and scans, or `None`.
    """

    modules: Mapping[str, tuple[type, ...]]
    weights: Mapping[str, str]
    weights_class: Callable[..., Any]
    read_options: Callable[[Any], Any]
    find: Callable[..., Any]


# Differs from call to call of `generate`; `None` outside.
_generation: ContextVar[object] = ContextVar("hf_ssm_generation", default=None)


class FusedGeneration(GenerationMixin):
    """Base of causal language models whose blocks have a fused step."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. The modules stay as they are until it returns."""
        token = _generation.set(object())
        try:
            parent: Any = super()
            return parent.generate(*args, **kwargs)
        finally:
            _generation.reset(token)


def fused_step(
    kind: FusedBlocks,
    blocks: nn.ModuleList,
    norm: nn.Module | None,
    hidden_states: Tensor,
    states: Sequence[LayerState],
) -> list[Tensor] | None:
    """Compute one position of all blocks by a compiled kernel on the CPU, without calling the modules.

    Supported are blocks that continue a sequence, in float32 or bfloat16, without gradients, MLP, Sobolev filter,
    dropout or rescaling. All modules must be of the standard classes and without hooks, which excludes
    adapters, parametrisations and offloading. Of quantised weights, those of torchao's `Int8WeightOnlyConfig` are
    supported.

    Args:
        kind: The blocks of the family.
        blocks: The blocks.
        norm: The norm after the last block.
        hidden_states: `(B, L, H)`.
        states: States of the blocks, updated in place.

    Returns:
        The output of each block, `(B, 1, H)`, the last after the norm; `None` if the blocks must be called.
    """
    # A compiled or exported program would be one of this batch size only.
    if torch.compiler.is_compiling() or not states:
        return None
    memories: list[Any] = [state.tensors.get(name) for name in ("short_conv", "scan") for state in states]
    if not is_enabled("numba") or not _admits(hidden_states, memories):
        return None
    constants = states[0].constants
    decision = constants.get("fused_decision")
    if decision is None or not decision.holds():
        decision = constants["fused_decision"] = _Decision.of(kind, blocks, norm)
        if decision is None:
            return None
    views, pasts, scans = constants.get("fused_memories", ((), None, None))
    if len(views) != len(memories) or not all(map(is_, views, memories)):
        # Not the views of the last position's result, which saves 4 % of a position.
        pasts = torch.stack([past.transpose(1, 2) for past in memories[: len(states)]])
        scans = torch.stack(memories[len(states) :])
    outputs, pasts, scans = decision.step(hidden_states, pasts, scans)
    memories = [*pasts.transpose(2, 3).unbind(0), *scans.unbind(0)]
    for state, past, scan in zip(states, memories, memories[len(states) :], strict=False):
        state.tensors["short_conv"], state.tensors["scan"] = past, scan
    constants["fused_memories"] = memories, pasts, scans
    return _in_dtypes_of_blocks(blocks[0], outputs, hidden_states.dtype)


def _admits(hidden_states: Tensor, memories: Sequence[Any]) -> bool:
    """Whether the kernel computes with these tensors: a single position, and states `memories` before it."""
    pasts, scans = memories[: len(memories) // 2], memories[len(memories) // 2 :]
    if hidden_states.shape[1] != 1 or len(hidden_states) > _MAX_BATCH:
        return False
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    if not all(t is not None and t.device.type == "cpu" for t in (hidden_states, *memories)):
        return False
    if not is_plain_call(hidden_states, *memories):
        return False
    if any(t.dtype != pasts[0].dtype for t in pasts) or any(t.dtype != torch.float32 for t in scans):
        return False
    return hidden_states.dtype in _DTYPES and pasts[0].dtype in _DTYPES


def _in_dtypes_of_blocks(block: Any, outputs: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The outputs in the dtypes of those of the blocks, and of the norm after them."""
    if outputs.dtype == dtype:
        return list(outputs.unbind(0))
    is_precise = (
        block.residual_in_fp32 and block.use_residual and (block.norm_first or type(block.norm1) is nn.Identity)
    )
    *inner, last = (outputs if is_precise else outputs.to(dtype)).unbind(0)
    return [*inner, last.to(dtype)]


class _Decision(NamedTuple):
    """That a compiled step computes what modules do.

    Attributes:
        step: The step, which keeps the memory of the weights alive and reads changes in place.
        generation: The call of `generate` in which it was made.
        modules: The blocks with all their modules, and the norm after them.
        tables: The dictionaries of the modules: attributes, parameters, buffers, submodules and hooks.
        hooks: Those of hooks.
        values: The classes of the modules and the values in these dictionaries.
        parameters: Parameters of the modules.
        addresses: Their memory; a tensor of the same address is the same memory, since the step keeps it alive.
    """

    step: Callable[..., Any]
    generation: object
    modules: list[nn.Module]
    tables: list[dict[str, Any]]
    hooks: list[dict[int, Callable[..., Any]]]
    values: list[Any]
    parameters: list[Tensor]
    addresses: list[int]

    @classmethod
    def of(cls, kind: FusedBlocks, blocks: nn.ModuleList, norm: nn.Module | None) -> "_Decision | None":
        """The decision for blocks and norm as they are now; `None` if the blocks must be called."""
        if _has_any_global_hook():
            return None
        modules = [*blocks.modules(), *([] if norm is None else [norm])]
        all_options = [kind.read_options(block) if _is_standard(kind, block) else None for block in blocks]
        options = all_options[0]
        if options is None or any(other != options for other in all_options):
            return None
        if norm is not None and (
            not has_standard_forward(norm, type(blocks[0].norm1)) or getattr(norm, "eps", 0.0) != options.epsilon
        ):
            return None
        parameters: list[Tensor] = [p for module in modules for p in module.parameters(recurse=False)]
        if not all(_is_plain_parameter(parameter) or _scaled_rows(parameter) for parameter in parameters):
            return None
        weights = [_weights_of(kind, block) for block in blocks]
        # Only some blocks may have biases.
        shapes = ({t.shape for t in same if t is not None} for same in zip(*weights, strict=True))
        if any(len(different) > 1 for different in shapes):
            return None
        step = kind.find(weights, options, (getattr(norm, "weight", None), getattr(norm, "bias", None)))
        if step is None:
            return None
        tables: list[Any] = []
        for m in modules:
            tables += m.__dict__, m._parameters, m._buffers, m._modules, m._forward_hooks, m._forward_pre_hooks
        hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        values, addresses = [*_values(modules, tables)], [*map(_address, parameters)]
        return cls(step, _generation.get(), modules, tables, hooks, values, parameters, addresses)

    def holds(self) -> bool:
        """Whether the decision would be the same now."""
        if self.generation is not None and self.generation is _generation.get():
            # A logits processor may add a hook.
            return not (any(map(len, self.hooks)) or _has_any_global_hook())
        return (
            all(map(is_, _values(self.modules, self.tables), self.values))
            and self.addresses == [*map(_address, self.parameters)]
            and not _has_any_global_hook()
        )


def _values(modules: Sequence[nn.Module], tables: Sequence[dict[str, Any]]) -> Iterator[Any]:
    """The classes of modules and the values in their dictionaries; the end differs from any of these."""
    return chain(map(type, modules), chain.from_iterable(map(dict.values, tables)), (_END,))


def _is_standard(kind: FusedBlocks, block: nn.Module) -> bool:
    """Whether all modules of a block are among those of the kind, without hooks or dropout, and its parameters, too."""
    for path, module in block.named_modules(remove_duplicate=False):
        if not has_standard_forward(module, *kind.modules.get(path, ())):
            return False
        if isinstance(module, nn.Dropout) and module.training and module.p > 0:
            return False
    if any(True for _ in block.buffers()):
        return False
    return all(path in kind.weights for path, _ in block.named_parameters(remove_duplicate=False))


def _weights_of(kind: FusedBlocks, block: nn.Module) -> Any:
    parameters = block.named_parameters(remove_duplicate=False)
    present = {kind.weights[path]: _scaled_rows(parameter) or parameter for path, parameter in parameters}
    return kind.weights_class(**(dict.fromkeys(kind.weights.values()) | present))


def _is_plain_parameter(parameter: Tensor) -> bool:
    """Whether it is not a subclass (as of quantised weights), and such as the kernel reads it."""
    return (
        type(parameter) is nn.Parameter
        and parameter.device.type == "cpu"
        and parameter.dtype in _DTYPES
        and parameter.is_contiguous()
    )


def _scaled_rows(parameter: Any) -> ScaledRows | None:
    """The int8 weights of a linear map that torchao has quantised row by row; `None` for any other parameter."""
    if type(parameter).__name__ != "Int8Tensor" or type(parameter).__module__.partition(".")[0] != "torchao":
        return None
    values, scales, zeros = parameter.qdata, parameter.scale, parameter.zero_point
    # Neither quantised activations, nor scales of other blocks, nor zeros elsewhere.
    is_weight_only = all(
        getattr(parameter, name, None) is None for name in ("act_quant_kwargs", "act_quant_scale", "act_pre_scale")
    )
    by_rows = values.dim() == 2 and values.is_contiguous() and scales.shape == (len(values), 1)
    if not (is_weight_only and by_rows and scales.dtype == torch.float32 and scales.device.type == "cpu"):
        return None
    return None if zeros is not None and bool(zeros.any()) else ScaledRows(values, scales)


def _address(parameter: Any) -> int:
    """Of the memory of a parameter of the step."""
    rows = None if type(parameter) is nn.Parameter else getattr(parameter, "qdata", None)
    address: int = (parameter if rows is None else rows).data_ptr()
    return address
