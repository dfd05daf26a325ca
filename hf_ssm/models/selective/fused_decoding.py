"""Fused single-token decoding for Mamba; falls back to the blocks where one of them is non-standard.

Dimensions: `B` batch, `L` length, `H` hidden size.

Generation with batch 1, hidden size 256 and 4 layers takes 1.0 ms per token of processor time with it and 4.0 ms block
by block (one thread); `python benchmarks/speed.py decoding --threads 1` prints the ratio.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers.activations import SiLUActivation

from hf_ssm.models.base.fused_decoding import FUSED_NORMS, fused_step, standard_parts
from hf_ssm.models.selective.mixer_selective import OutputProjection, SelectiveMixer
from hf_ssm.modules.block import Block
from hf_ssm.modules.selective_scan import SelectiveScan
from hf_ssm.modules.short_convolution import ShortConvolution
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.selective_scan.decoding import BlockOptions, BlockWeights, find_blocks_step

__all__ = ["step_of_blocks"]

# Classes of the modules of a block, of its mixer and of its scan.
_BLOCK_PARTS = {"norm1": tuple(FUSED_NORMS), "dropout": (nn.Dropout,)}
_MIXER_PARTS = {
    "in_proj": (nn.Linear,),
    "conv1d": (ShortConvolution,),
    "activation": (nn.SiLU, SiLUActivation),
    "out_proj": (OutputProjection,),
}
_SCAN_PARTS: dict[str, tuple[type, ...]] = {"x_proj": (nn.Linear,), "dt_proj": (nn.Linear,)}


def step_of_blocks(
    blocks: nn.ModuleList,
    norm: nn.Module | None,
    hidden_states: Tensor,
    mask: Tensor | None,
    states: Sequence[LayerState],
) -> list[Tensor] | None:
    """`fused_step` of Mamba blocks with real states."""
    return fused_step(blocks, norm, hidden_states, mask, states, _read_block, find_blocks_step)


def _read_block(block: Any) -> tuple[BlockWeights, BlockOptions] | None:
    """Weights and options of a block; `None` unless it computes what the kernel does."""
    if type(block) is not Block or type(mixer := block._modules["mixer"]) is not SelectiveMixer:
        return None
    if type(scan := mixer._modules["scan"]) is not SelectiveScan:
        return None
    parts = standard_parts((block, _BLOCK_PARTS), (mixer, _MIXER_PARTS), (scan, _SCAN_PARTS))
    if parts is None:
        return None
    norm, dropout, in_proj, conv, _, out_proj, x_proj, dt_proj = parts
    if block.mlp is not None or mixer.bidirectional or scan.A_imag is not None or scan.has_sobolev_filter:
        return None
    if dropout.training and dropout.p > 0:
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
        norm=FUSED_NORMS[type(norm)],
        epsilon=getattr(norm, "eps", 0.0),
        norm_first=block.norm_first,
        residual=block.use_residual,
        logarithmic=not scan.is_raw,
    )
    return weights, options
