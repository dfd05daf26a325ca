"""The compiled CPU kernels where they are installed, and nothing where they are not.

The code that travels with a checkpoint has no kernels of its own: there, this module takes those of an installed hf_ssm
whose kernels are called in the same way. All other modules take kernels from here.
"""

__all__ = [
    "AVAILABLE",
    "BlockOptions",
    "BlockWeights",
    "BlocksStep",
    "can_transpose",
    "copy_transposed",
    "fused_selective_scan",
    "scan_step",
    "short_conv_after",
    "short_conv_compiled",
]

# How the callers of this version call the kernels: see `hf_ssm.ops.cpu.INTERFACE`.
_INTERFACE = 1

AVAILABLE = False
"""Whether there are kernels (which need numba besides)."""

try:
    from hf_ssm.ops.cpu import INTERFACE

    if INTERFACE != _INTERFACE:
        raise ImportError("hf_ssm has kernels of another interface")
    from hf_ssm.ops.cpu.decoding import BlockOptions, BlocksStep, BlockWeights, scan_step
    from hf_ssm.ops.cpu.selective_scan import fused_selective_scan
    from hf_ssm.ops.cpu.short_conv import short_conv_after, short_conv_compiled
    from hf_ssm.ops.cpu.transpose import can_transpose, copy_transposed

    AVAILABLE = True
except ImportError:
    # Without kernels `kernels.compiled` is false, so nothing calls them.
    BlockOptions = BlocksStep = BlockWeights = None  # type: ignore[misc, assignment]
    scan_step = fused_selective_scan = None  # type: ignore[assignment]
    short_conv_after = short_conv_compiled = can_transpose = copy_transposed = None  # type: ignore[assignment]
