"""Fused single-token decoding for Mamba; falls back to the blocks where one of them is non-standard.

Dimensions: `B` batch, `L` length, `H` hidden size.

Generation with batch 1, hidden size 256 and 4 layers takes 1.0 ms per token of processor time with it and 4.0 ms block
by block (one thread); `python benchmarks/speed.py decoding --threads 1` prints the ratio.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers.activations import SiLUActivation

from hf_ssm.models.base.decoding import fused_step
from hf_ssm.models.selective.mixer_selective import OutputProjection, SelectiveMixer
from hf_ssm.modules.block import Block
from hf_ssm.modules.selective_scan import SelectiveScan
from hf_ssm.modules.short_convolution import ShortConvolution
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.selective_scan.decoding import BlockOptions, BlockWeights, find_blocks_step

__all__ = ["step_of_blocks"]

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
    return fused_step(blocks, norm, hidden_states, mask, states, _read_block, find_blocks_step)


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
