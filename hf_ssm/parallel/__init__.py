"""One model on several devices."""

from hf_ssm.parallel.context import join_positions, join_sequences, split_sequences
from hf_ssm.parallel.sharding import shard_model
from hf_ssm.parallel.tensor import clip_grad_norm_, tensor_parallel

__all__ = [
    "clip_grad_norm_",
    "join_positions",
    "join_sequences",
    "shard_model",
    "split_sequences",
    "tensor_parallel",
]
