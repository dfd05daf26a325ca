"""The out-projection of the mixers, and the test of whether a fused path may bypass a module."""

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

__all__ = ["OutputProjection", "has_standard_forward"]


def has_standard_forward(module: nn.Module | None, *kinds: type) -> bool:
    """Whether calling a module does what `forward` of one of these classes does, so that a fused path may bypass it.

    It does not if the module is of another class (a subclass, as of adapters, quantisation and parametrisations), has
    hooks, or has a `forward` of its own, as accelerate gives it.
    """
    if type(module) not in kinds:
        return False
    # There is no public way to list hooks. Plain dictionary lookups, since decoding does this at every position.
    own = module.__dict__
    return not (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "forward" in own
        or _has_any_global_hook()
    )


class OutputProjection(nn.Linear):
    """Projection back to the residual stream, with PyTorch's uniform initialisation times `gain`."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, gain: float = 1.0):
        super().__init__(in_features, out_features, bias=bias)
        self.gain = gain

    def initial_parameters(self) -> dict[str, Tensor]:
        """Fresh values of the parameters by name."""
        bound = self.gain * self.in_features**-0.5
        values = {"weight": torch.empty(self.weight.shape).uniform_(-bound, bound)}
        return values if self.bias is None else values | {"bias": torch.zeros(self.bias.shape)}
