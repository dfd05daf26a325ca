"""Kernels for CPUs, compiled by numba when they are first called; importing a module of operators imports no numba."""

INTERFACE = 1
"""Counts the ways in which `hf_ssm.ops.cpu_kernels` has called them: one more with each change of a signature, or of
what an argument means. Code that came with a checkpoint compares it with its own."""
