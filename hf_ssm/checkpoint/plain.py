"""What the code of a checkpoint computes more plainly than hf_ssm: definitions that replace others, and fixed calls.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps of the kernel.

The definitions here have the names, signatures and results of those that they replace, up to rounding.
"""

from collections.abc import Callable, Sequence
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
    "StreamingConvolution",
    "long_conv",
    "narrowing_of",
]

REPLACED = frozenset({"StreamingConvolution", "long_conv"})
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


class StreamingConvolution:
    """The causal convolution of a sequence that arrives in chunks: it keeps all inputs.

    Args:
        longest: Largest number of positions; default no limit.

    Attributes:
        history: All inputs seen, `(B, length, D)`; `None` before the first chunk.
    """

    def __init__(self, longest: int | None = None) -> None:
        self.longest = longest
        self.history: Tensor | None = None
        # (D, K), without a graph.
        self._taps: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of inputs seen."""
        return 0 if self.history is None else self.history.shape[1]

    @classmethod
    def from_history(cls, history: Tensor, longest: int | None = None) -> "StreamingConvolution":
        """The stream that has seen these inputs, `(B, L, D)`."""
        stream = cls(longest)
        stream.history = history
        return stream

    def extend(self, u: Tensor, taps: Callable[[int], Tensor]) -> Tensor:
        """The outputs at the positions of the next chunk `(B, L, D)`; `taps(n)` are the first `n` taps `(D, n)`."""
        length = self.length + u.shape[1]
        if self.longest is not None and length > self.longest:
            raise ValueError(
                f"the sequence would have {length} positions, but the implicit filter has taps for {self.longest} "
                "(`max_position_embeddings`): shorten the sequence, or train a model with a larger value"
            )
        kernel = self._first_taps(length, taps)
        dtype = torch.promote_types(u.dtype, kernel.dtype)
        seen = [] if self.history is None else [self.history.to(dtype)]
        self.history = torch.cat([*seen, u.to(dtype)], dim=1)
        if u.shape[1] == 1:
            return (self.history * kernel.flip(-1).T).sum(1, keepdim=True).to(u.dtype)
        return long_conv(self.history, kernel)[:, -u.shape[1] :].to(u.dtype)

    def _first_taps(self, count: int, taps: Callable[[int], Tensor]) -> Tensor:
        """The first taps, kept where no gradient is required; at least twice as many as before are requested."""
        if torch.is_grad_enabled():
            return taps(count)
        kept = 0 if self._taps is None else self._taps.shape[1]
        if self._taps is None or kept < count:
            self._taps = taps(min(max(count, 2 * kept), self.longest or 2 * count)).clone()
        return self._taps[:, :count]

    def __getstate__(self) -> dict[str, Any]:
        # Only leaves of an autograd graph can be copied.
        return {name: v.detach() if isinstance(v, Tensor) else v for name, v in self.__dict__.items()}

    def detach_(self) -> None:
        """Cut the stream off the autograd graph of its inputs."""
        self.__dict__.update(self.__getstate__())

    def select(self, index: Tensor) -> None:
        """Keep, reorder or repeat rows of the batch, as in a beam search: rows in their new order, `(new B,)`."""
        if self.history is not None:
            self.history = self.history.index_select(0, index.to(self.history.device))

    def keep_last(self, count: int) -> None:
        """Keep the last `count` inputs, where those before are zeros."""
        if self.history is not None:
            self.history = self.history[:, max(0, self.length - count) :]

    @classmethod
    def join(cls, streams: "Sequence[StreamingConvolution]") -> "StreamingConvolution":
        """One stream with the rows of all `streams`, which have the same taps; shorter ones get leading zeros."""
        histories = [stream.history for stream in streams if stream.history is not None]
        length = max(stream.length for stream in streams)
        padded = [F.pad(history, (0, 0, length - history.shape[1], 0)) for history in histories]
        return cls.from_history(torch.cat(padded), streams[0].longest)
