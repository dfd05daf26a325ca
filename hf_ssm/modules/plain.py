"""Which modules do just what their class says, so that a faster way to the same numbers may pass them by."""

from torch import nn
from torch.nn.modules.module import _has_any_global_hook

__all__ = ["is_plain"]


def is_plain(module: nn.Module, *kinds: type) -> bool:
    """Whether the module is of one of these very classes, and calling it is calling their `forward`, nothing else.

    It is not where someone hooked it, quantised it, added an adapter or a parametrisation, or (as accelerate does)
    gave it a `forward` of its own.
    """
    return (
        type(module) in kinds
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        and not module._backward_pre_hooks
        and "forward" not in module.__dict__
        and not _has_any_global_hook()
    )
