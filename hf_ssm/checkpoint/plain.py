"""What the code of a checkpoint computes more plainly than hf_ssm: definitions that replace others, and fixed calls.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps of the kernel.

The definitions here have the names, signatures and results of those that they replace, up to rounding.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.checkpoint.simplify import Narrowing
from hf_ssm.ops.long_conv.fft import fft_length

__all__ = [
    "ABSENT",
    "FIXED_CALLS",
    "REPLACED",
    "SHOWN",
    "long_conv",
    "narrowing_of",
]

REPLACED = frozenset({"long_conv"})
"""Names that mean the definitions of this module, wherever they are defined."""

FIXED_CALLS: dict[str, Any] = {
    # Programs are exported from hf_ssm.
    "is_exporting": False,
    # As under `plain_operations`: no operators with kernels or derivatives of their own.
    "in_function_transform": True,
    # A checkpoint is loaded by those who trust its code; weights that do not fit are reported by transformers.
    "check_fit": None,
    # Processes share sequences by `hf_ssm.parallel`.
    "is_shared": False,
    "self._scans": False,
    **dict.fromkeys(("Halo", "ByChannel", "SegmentScan")),
    # It is not that of another library.
    "foreign_arguments": None,
    "foreign_config": None,
    # Modules give operations shapes that fit.
    **dict.fromkeys(("check_discretization", "check_dt_limit", "check_scan_tensors", "check_short_conv")),
    **dict.fromkeys(("check_initial", "check_ssd_tensors", "check_system", "self._check_shapes")),
}
"""Functions (and methods, as `self.NAME`) that are not part of a checkpoint, and what calls of them return."""

ABSENT = frozenset(
    {
        *("FusedGeneration", "SSDModel._step_states", "SelectiveSSMModel._step_states"),
        *("LongConvolution._scans", "LongConvolution._scanned", "LongConvolution._by_recurrence"),
        *("SelectiveScan._decay", "SSDScan._continued", "SSDScan._decay", "MIMOStateSpace._product"),
        *("Recurrence.power", "Recurrence.carried", "_DenseRecurrence.power", "_DenseRecurrence.carried"),
    }
)
"""Classes and methods that are not part of a checkpoint."""

SHOWN = frozenset({"Block", "SSMModel"})
"""Classes that belong to the modeling file, although all families use them: what a reader of a model looks for."""


def narrowing_of(config: Any) -> Narrowing:
    """What a configuration decides: types of layers, and filters of long convolutions."""
    types = tuple(sorted({*(getattr(config, "mixer_types", None) or ())}))
    combined = hasattr(config, "mixer_config")
    layers = [config.mixer_config(kind) for kind in types] if combined else [config]
    kinds = {getattr(each, "filter_type", getattr(each, "kernel_type", None)) for each in layers} - {None}
    tables = {"FILTERS": kinds, **({"MIXERS": types, "MIXER_CONFIGS": types} if combined else {})}
    low_rank = {kind == "s4" for kind in kinds}
    return Narrowing(
        tuple((name, tuple(sorted(keys))) for name, keys in tables.items() if keys),
        (("low_rank", low_rank.pop()),) if len(low_rank) == 1 else (),
    )


def long_conv(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None = None) -> Tensor:
    """Causal or two-sided convolution along the length, one kernel per channel.

    `y[t] = Σ_{j<=t} kernel[t-j] u[j] + Σ_{j>t} backward_kernel[j-t-1] u[j]`, zero outside the input.

    Args:
        u: Input `(B, L, D)`.
        kernel: Taps of lag 0, 1, ..., `(D, K)`.
        backward_kernel: Taps of lag -1, -2, ..., `(D, K2)`; without it the convolution is causal.

    Returns:
        `(B, L, D)` in the dtype of `u`; half precision is computed in float32.
    """
    length = u.shape[1]
    dtype = torch.promote_types(torch.promote_types(u.dtype, kernel.dtype), torch.float32)
    taps = kernel[:, :length].to(dtype)
    ahead = None if backward_kernel is None else backward_kernel[:, : length - 1].to(dtype).flip(-1)
    # The length that hf_ssm takes, for the same rounding.
    n_fft = fft_length(length, taps.shape[1], 0 if ahead is None else ahead.shape[1])
    if ahead is not None:
        taps = torch.cat([F.pad(taps, (0, n_fft - taps.shape[1] - ahead.shape[1])), ahead], dim=-1)
    spectrum = torch.fft.rfft(u.to(dtype).mT, n=n_fft) * torch.fft.rfft(taps, n=n_fft)
    return torch.fft.irfft(spectrum, n=n_fft)[..., :length].mT.to(u.dtype)
