"""Causal long convolutions of sequences that share their beginning.

Dimensions: `B` shared beginnings, `R` sequences, `L` length of a piece, `D` channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.long_conv import long_conv
from hf_ssm.ops.long_conv.streaming import StreamingConvolution, Taps

__all__ = ["BranchedConvolution"]


class BranchedConvolution:
    """Continues each of R sequences from one of the B sequences that a stream has read.

    The stream's inputs contribute to the outputs of every branch equally, so this part is computed once for each
    beginning, whereas repeated rows of a `StreamingConvolution` compute it for each sequence.

    Args:
        stream: What has read the beginnings; it is not changed.
        rows: The beginning of each sequence, `(R,)`, int64.
    """

    def __init__(self, stream: StreamingConvolution, rows: Tensor):
        self._stream, self._rows = stream, rows
        # Inputs of the branches, (R, L, D), if they have read any.
        self._inputs: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of inputs seen."""
        return self._stream.length + (0 if self._inputs is None else self._inputs.shape[1])

    def extend(self, u: Tensor, taps: Taps) -> Tensor:
        """Compute, as `StreamingConvolution.extend`, the outputs `(R, L, D)` at the positions of the piece `u`."""
        history = self._stream.history
        assert history is not None
        kernel = self._stream.first_taps(self.length + u.shape[1], taps)
        dtype = torch.promote_types(u.dtype, kernel.dtype)
        before = 0 if self._inputs is None else self._inputs.shape[1]
        self._inputs = u.to(dtype) if self._inputs is None else torch.cat([self._inputs, u.to(dtype)], dim=1)
        count = self._inputs.shape[1]
        shared = long_conv(F.pad(history.to(dtype), (0, 0, 0, count)), kernel)[:, -u.shape[1] :]
        separate = long_conv(self._inputs, kernel[:, :count])[:, before:]
        return (shared[self._rows] + separate).to(u.dtype)
