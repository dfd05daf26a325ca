"""Autocast, where it must not reach."""

from contextlib import AbstractContextManager, nullcontext

import torch


def no_autocast(device: torch.device) -> AbstractContextManager:
    """Kernels, scans and τ are computed as they are written, not in the precision of the matrix products around."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
