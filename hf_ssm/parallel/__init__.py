"""One model on several devices."""

from hf_ssm.parallel.context import join_positions, join_sequences, split_sequences
from hf_ssm.parallel.sharding import shard_model

__all__ = [
    "join_positions",
    "join_sequences",
    "shard_model",
    "split_sequences",
]
