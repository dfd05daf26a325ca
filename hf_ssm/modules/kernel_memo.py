"""What is known of a kernel already when a checkpointed layer is run again.

Gradient checkpointing runs the forward pass of a layer twice with the same weights: once for its output, and once more,
within the backward pass, for what the gradients need.
"""

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable

import torch
from torch import Tensor

__all__ = ["KernelMemo"]


class KernelMemo:
    """Spectra of the kernels of one layer, from its forward pass to its recomputation; no values depend on it.

    They are stored in a forward pass that is going to be run again, and handed out, once, in a recomputation with the
    same parameters at the same versions (every change in place counts a version on). A forward pass that is none
    trusts nothing that is stored, so that not even a change by way of `Tensor.data`, which counts nothing, shows. Each
    forward pass forgets what the one before it has left.

    Threads may share it: what one of them lacks, it computes. Copies and pickles are empty.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def __reduce__(self) -> tuple[type["KernelMemo"], tuple[()]]:
        return KernelMemo, ()

    def forget(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._made: weakref.ref[Tensor] | None = None
            self._versions: list[tuple[Tensor, int | None]] = []
            self._spectra: dict[Hashable, Tensor | None] = {}

    def __len__(self) -> int:
        return len(self._spectra)

    def watch(self, kernels: Tensor | None, parameters: Iterable[Tensor]) -> None:
        """A pass begins.

        Args:
            kernels: The kernels just made, or `None` if the layer is not checkpointed.
            parameters: All that they are made of.
        """
        repeated = _is_recomputation()
        # Where nothing holds the graph of the gradients back, the spectrum stays in it.
        if kernels is None or not (repeated or _is_checkpointed()):
            if self._made is not None:
                self.forget()
            return
        versions = [(p, None if p.is_inference() else p._version) for p in parameters]
        with self._lock:
            spectra = self._spectra if repeated and self._is_same(versions) else {}
            self._made, self._versions, self._spectra = weakref.ref(kernels), versions, spectra

    def _is_same(self, versions: list[tuple[Tensor, int | None]]) -> bool:
        # By identity: the comparison of tensors is that of their elements.
        return len(versions) == len(self._versions) and all(
            one is other and version == before
            for (one, version), (other, before) in zip(versions, self._versions, strict=True)
        )

    def spectrum(self, kernels: Tensor, use: Hashable, transform: Callable[[], Tensor | None]) -> Tensor | None:
        """The spectrum of (some of) the kernels, or `None` where the convolution may do as it likes.

        Args:
            kernels: The kernels the convolution was given.
            use: What it depends on besides: which channels, for what length and dtype of inputs.
            transform: Computes it.
        """
        with self._lock:
            if self._made is None or self._made() is not kernels:
                return None
            if _is_recomputation():
                return self._spectra.pop(use, None)
        spectrum = transform()
        with self._lock:
            if self._made is not None and self._made() is kernels:
                self._spectra[use] = spectrum
        return spectrum


def _is_recomputation() -> bool:
    """Whether gradients are being computed, in this thread."""
    return torch._C._current_graph_task_id() != -1


def _is_checkpointed() -> bool:
    """Whether this forward pass, if it is one of training, leaves no graph behind or one without tensors."""
    return not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
