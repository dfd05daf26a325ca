"""Fused single-token decoding for Mamba-2; falls back to the blocks where one of them is non-standard.

Dimensions: `B` batch, `L` length, `H` hidden size. `python benchmarks/speed.py decoding2 --threads 1` prints what it
gains.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.activations import SiLUActivation

from hf_ssm.models.base.fused_decoding import FUSED_NORMS, fused_step, standard_parts
from hf_ssm.modules.block import Block
from hf_ssm.modules.norms import GatedRMSNorm
from hf_ssm.modules.projection import OutputProjection
from hf_ssm.modules.short_convolution import ShortConvolution
from hf_ssm.modules.ssd import SSDScan
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.ssd.decoding import SSDBlockOptions, SSDBlockWeights, find_ssd_blocks_step

__all__ = ["step_of_ssd_blocks"]

# Classes of the modules of a block and of its mixer.
_SSD_BLOCK_PARTS = {"norm1": tuple(FUSED_NORMS), "dropout": (nn.Dropout,)}
_SSD_MIXER_PARTS: dict[str, tuple[type, ...]] = {
    "in_proj": (nn.Linear,),
    "conv1d": (ShortConvolution,),
    "activation": (nn.SiLU, SiLUActivation),
    "out_proj": (OutputProjection,),
    "scan": (SSDScan,),
    "norm": (GatedRMSNorm, type(None)),
}


def step_of_ssd_blocks(
    mixer: type[nn.Module],
    blocks: nn.ModuleList,
    norm: nn.Module | None,
    hidden_states: Tensor,
    mask: Tensor | None,
    states: Sequence[LayerState],
) -> list[Tensor] | None:
    """`fused_step` of blocks around mixers of the class `mixer`, with real states."""
    return fused_step(blocks, norm, hidden_states, mask, states, partial(_read_ssd_block, mixer), find_ssd_blocks_step)


def _read_ssd_block(kind: type[nn.Module], block: Any) -> tuple[SSDBlockWeights, SSDBlockOptions] | None:
    """Weights and options of a block; `None` unless it computes what the kernel does."""
    if type(block) is not Block or type(mixer := block._modules["mixer"]) is not kind:
        return None
    parts = standard_parts((block, _SSD_BLOCK_PARTS), (mixer, _SSD_MIXER_PARTS))
    if parts is None:
        return None
    norm, dropout, in_proj, conv, _, out_proj, scan, gated = parts
    if block.mlp is not None or mixer.bidirectional or scan.A_imag is not None or scan.has_sobolev_filter:
        return None
    if scan.C_scale is not None or (dropout.training and dropout.p > 0):
        return None
    parameters: dict[str, Any] = scan._parameters
    if any(parameters.get(name) is None for name in ("dt_bias", "A_log", "D")):
        return None
    weights = SSDBlockWeights(
        norm_weight=norm._parameters.get("weight"),
        norm_bias=norm._parameters.get("bias"),
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
        norm=FUSED_NORMS[type(norm)],
        epsilon=getattr(norm, "eps", 0.0),
        norm_first=block.norm_first,
        residual=block.use_residual,
        groups=scan.groups_of_heads if gated is None else gated.groups,
        gate_epsilon=0.0 if gated is None else gated.epsilon,
        norm_before_gate=gated is not None and gated.norm_before_gate,
        dt_limit=scan.time_step_limit,
    )
    return weights, options
