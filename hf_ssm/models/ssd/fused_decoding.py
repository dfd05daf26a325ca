"""Fused single-token decoding for Mamba-2; falls back to the blocks where one of them is non-standard."""

from typing import Any

from torch import nn
from transformers.activations import SiLUActivation

from hf_ssm.modules.block import Block
from hf_ssm.modules.norms import GatedRMSNorm
from hf_ssm.modules.projection import OutputProjection
from hf_ssm.modules.short_convolution import ShortConvolution
from hf_ssm.modules.ssd import SSDScan
from hf_ssm.ops.ssd.decoding import SSDBlockOptions, SSDBlockWeights

__all__ = ["read_ssd_block"]

_BLOCK_NORMS = {nn.Identity: "none", nn.LayerNorm: "layer", nn.RMSNorm: "rms"}
# Classes of the modules of a mixer.
_SSD_PARTS = {
    "in_proj": (nn.Linear,),
    "conv1d": (ShortConvolution,),
    "activation": (nn.SiLU, SiLUActivation),
    "scan": (SSDScan,),
    "norm": (GatedRMSNorm, type(None)),
    "out_proj": (OutputProjection,),
}


def read_ssd_block(mixer_class: type[nn.Module], block: Any) -> tuple[SSDBlockWeights, SSDBlockOptions] | None:
    """Weights and options of a block with a mixer of this class; `None` unless it computes what the kernel does.

    The kernel computes blocks with real states, without MLP, Sobolev filter, dropout or rescaling, whose modules are of
    the standard classes and without hooks.
    """
    # Reads the dictionaries of the modules: their attributes take several times as long.
    if type(block) is not Block or type(block._modules["mixer"]) is not mixer_class:
        return None
    mixer: Any = block._modules["mixer"]
    norm1: Any = block._modules["norm1"]
    dropout: Any = block._modules["dropout"]
    modules: list[Any] = [block, mixer, norm1, dropout]
    if type(norm1) not in _BLOCK_NORMS or type(dropout) is not nn.Dropout:
        return None
    for name, kinds in _SSD_PARTS.items():
        part = mixer._modules.get(name)
        if type(part) not in kinds:
            return None
        modules.append(part)
    for module in modules:
        own = {} if module is None else module.__dict__
        if own and (own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own):
            return None
    in_proj, conv, _, scan, gated, out_proj = modules[4:]
    if block.mlp is not None or mixer.bidirectional or scan.A_imag is not None or scan.C_scale is not None:
        return None
    if scan.has_sobolev_filter or scan.rescaling is not None or (dropout.training and dropout.p > 0):
        return None
    parameters: dict[str, Any] = scan._parameters
    if not {"A_log", "D", "dt_bias"} <= parameters.keys():
        return None
    weights = SSDBlockWeights(
        norm_weight=norm1._parameters.get("weight"),
        norm_bias=norm1._parameters.get("bias"),
        in_weight=in_proj._parameters["weight"],
        in_bias=in_proj._parameters["bias"],
        conv_weight=conv._parameters["weight"],
        conv_bias=conv._parameters["bias"],
        dt_bias=parameters["dt_bias"],
        A_log=parameters["A_log"],
        skip=parameters["D"],
        gate_weight=None if gated is None else gated._parameters["weight"],
        out_weight=out_proj._parameters["weight"],
        out_bias=out_proj._parameters["bias"],
    )
    options = SSDBlockOptions(
        norm=_BLOCK_NORMS[type(norm1)],
        epsilon=getattr(norm1, "eps", 0.0),
        norm_first=block.norm_first,
        residual=block.use_residual,
        groups=scan.groups_of_heads,
        gate_epsilon=0.0 if gated is None else gated.epsilon,
        norm_before_gate=gated is not None and gated.norm_before_gate,
        dt_limit=scan.time_step_limit,
    )
    return weights, options
