"""Kernels for CPUs, compiled by numba when they are first called; importing a module of operators imports no numba."""
