"""Sequences that do not fit on one device."""

from hf_ssm.parallel.context import join_positions, join_sequences, split_sequences

__all__ = ["join_positions", "join_sequences", "split_sequences"]
