"""States of causal models after the beginnings that several sequences share.

Legend: `B` beginnings, `R` sequences.
"""

import copy
from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.long_conv.branching import BranchedConvolution

__all__ = ["branched", "can_branch"]

_ATTENTION = (DynamicLayer, DynamicSlidingWindowLayer)


def can_branch(cache: Any) -> bool:
    """Whether several tokens at once can be read after what a model of transformers has returned as `past_key_values`.

    True for keys and values of attention. Recurrent models of transformers continue from their states by single tokens
    only.
    """
    return isinstance(cache, DynamicCache) and all(type(layer) in _ATTENTION for layer in cache.layers)


def branched(cache: Any, rows: Tensor) -> Any:
    """A cache of R sequences, each of which continues one of the B sequences of `cache`, which is not changed.

    Args:
        cache: The `past_key_values` that a model has returned.
        rows: The beginning of each sequence, `(R,)`, int64.
    """
    if isinstance(cache, SSMCache):
        branches = cache.empty_copy()
        layers: list[Any] = [_branched_layer(layer, rows) for layer in cache.states]
        branches.layers = layers
        branches.length = cache.length
        branches.tokens_seen = None if cache.tokens_seen is None else cache.tokens_seen[rows]
        return branches
    branches = copy.deepcopy(cache)
    branches.batch_select_indices(rows)
    return branches


def _branched_layer(layer: LayerState, rows: Tensor) -> LayerState:
    part = type(layer)()
    part.tensors = {name: value.index_select(0, rows) for name, value in layer.tensors.items()}
    streams: dict[str, Any] = {name: BranchedConvolution(stream, rows) for name, stream in layer.streams.items()}
    part.streams = streams
    part.constants = layer.constants
    return part
