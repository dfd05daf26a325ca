"""Bytes and operations of the Triton kernels: formulas, which tests compare with counts, and rates of GPUs."""
