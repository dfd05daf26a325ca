"""Models that are divided among processes."""

from hf_ssm.parallel.sharding import shard_model

__all__ = ["shard_model"]
