"""Parts that the compiled kernels for CPUs share: their compilation by numba, and vectors."""
