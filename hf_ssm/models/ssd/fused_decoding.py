"""Fused single-token decoding for Mamba-2; falls back to the blocks where one of them is non-standard.

`python benchmarks/speed.py decoding2 --threads 1` prints what it gains.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import Tensor, nn

from hf_ssm.models.base.fused_decoding import FUSED_MODULES, FUSED_WEIGHTS, FusedBlocks, fused_options, fused_step
from hf_ssm.modules.norms import GatedRMSNorm
from hf_ssm.modules.ssd import SSDScan
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.ssd_decoding import SSDBlockOptions, SSDBlockWeights, find_ssd_blocks_step

__all__ = ["step_of_ssd_blocks"]

_SSD_SCAN_WEIGHTS = {
    "mixer.scan.dt_bias": "dt_bias",
    "mixer.scan.A_log": "A_log",
    "mixer.scan.D": "skip",
    "mixer.norm.weight": "gate_weight",
}


def _read_ssd_options(block: Any) -> SSDBlockOptions | None:
    scan, gated = block.mixer.scan, block.mixer.norm
    if scan.dt_bias is None or scan.D is None or scan.has_sobolev_filter:
        return None
    return SSDBlockOptions(
        **fused_options(block),
        groups=scan.groups_of_heads if gated is None else gated.groups,
        gate_epsilon=0.0 if gated is None else gated.epsilon,
        norm_before_gate=gated is not None and gated.norm_before_gate,
        dt_limit=scan.time_step_limit,
    )


@cache
def _fused_mamba2(mixer: Any) -> FusedBlocks:
    modules = FUSED_MODULES | {"mixer": (mixer,), "mixer.scan": (SSDScan,), "mixer.norm": (GatedRMSNorm,)}
    weights = FUSED_WEIGHTS | _SSD_SCAN_WEIGHTS
    return FusedBlocks(modules, weights, SSDBlockWeights, _read_ssd_options, find_ssd_blocks_step)


def step_of_ssd_blocks(
    mixer: Any,
    blocks: nn.ModuleList,
    norm: nn.Module | None,
    hidden_states: Tensor,
    states: Sequence[LayerState],
) -> list[Tensor] | None:
    """`fused_step` of blocks around mixers of the class `mixer`, with real states."""
    return fused_step(_fused_mamba2(mixer), blocks, norm, hidden_states, states)
