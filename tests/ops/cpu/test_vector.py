"""The vector types of the compiled kernels, lane by lane against numpy."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")

from hf_ssm.ops.cpu import vector, vectors
from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import load_some, pointer, store_some, total
from hf_ssm.ops.cpu.vectors import F, load, splat, store
from hf_ssm.ops.cpu.vectors import pointer as pointer_to

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
# `vectors` are those of scans, `vector` those of decoding.
KINDS = pytest.mark.parametrize(
    ("module", "dtype"), [(vectors, np.float32), (vector, np.float32), (vector, np.float64)]
)


def applied(module: Any, name: str) -> Callable[..., np.ndarray]:
    """A function of one array, a multiple of 16 long, that computes a function of its vectors."""
    operation = getattr(module, name)

    @kernel
    def run(source, target, like, count):
        x, y = pointer(source, like), pointer(target, like)
        for i in range(0, count, 16):
            store_some(y, i, operation(load_some(x, i, 16)), 16)

    @kernel
    def run_single(source, target, like, count):
        x, y = pointer_to(source, 0), pointer_to(target, 0)
        for i in range(0, count, 16):
            store(y, i, operation(load(x, i)))

    def call(values: np.ndarray) -> np.ndarray:
        values = np.ascontiguousarray(values)
        result = np.full_like(values, np.nan)
        used = run if module is vector else run_single
        used(values.ctypes.data, result.ctypes.data, values.dtype.type(0), len(values))
        return result

    return call


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x.astype(np.longdouble), 0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x.astype(np.longdouble)))


def exp2(x: np.ndarray) -> np.ndarray:
    return np.exp2(x.astype(np.longdouble))


@KINDS
@pytest.mark.parametrize("expected", [exp2, sigmoid, softplus])
def test_functions_are_accurate_to_a_few_units_in_the_last_place(expected, module, dtype):
    values = np.concatenate([np.linspace(-80, 80, 16 * 500), np.geomspace(1e-30, 1, 16)]).astype(dtype)
    found = applied(module, expected.__name__)(values)
    errors = np.abs(found / expected(values) - 1)
    # The rounding of x log2(e), which an exponential multiplies by |x|, comes with that of the polynomial.
    bound = (4 if expected is exp2 else 80) * np.finfo(dtype).eps
    assert errors.max() < bound


@KINDS
def test_the_ends_of_the_range(module, dtype):
    values = np.zeros(16, dtype)
    values[:8] = [-np.inf, -1e5, np.inf, 1e5, np.nan, 0, 1, -1]
    assert list(applied(module, "exp2")(values)[:8]) == pytest.approx(
        [0, 0, math.inf, math.inf, math.nan, 1, 2, 0.5], rel=1e-6, nan_ok=True
    )
    assert list(applied(module, "sigmoid")(values)[:6]) == pytest.approx([0, 0, 1, 1, math.nan, 0.5], nan_ok=True)
    limits = [0, 0, math.inf, 1e5, math.nan, math.log(2)]
    assert list(applied(module, "softplus")(values)[:6]) == pytest.approx(limits, rel=1e-6, nan_ok=True)


@DTYPES
def test_part_of_a_vector_touches_nothing_beyond(dtype):
    @kernel
    def run(source, target, like, lanes):
        value = load_some(pointer(source, like), 1, lanes)
        store_some(pointer(target, like), 2, value, lanes)
        return total(value)

    source = np.arange(20, dtype=dtype)
    for lanes in (0, 1, 7, 15, 16):
        target = np.full(20, -1, dtype)
        found = run(source.ctypes.data, target.ctypes.data, dtype(0), lanes)
        expected = np.full(20, -1, dtype)
        expected[2 : 2 + lanes] = source[1 : 1 + lanes]
        np.testing.assert_array_equal(target, expected)
        assert found == source[1 : 1 + lanes].sum()


def test_operators_among_vectors_and_numbers():
    three = F(3)

    @kernel
    def run(source, target):
        x, y = pointer_to(source, 0), pointer_to(target, 16)
        a, b = load(x, 0), load(x, 16)
        store(y, 0, (a + b) * (three - a) / (b * b + three))
        store(y, 16, splat(vectors.total(a)))

    a, b = np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32)
    source, target = np.concatenate([a, b]), np.zeros(64, np.float32)
    run(source.ctypes.data, target.ctypes.data)
    expected = [np.zeros(16), (a + b) * (3 - a) / (b * b + 3), np.full(16, a.sum()), np.zeros(16)]
    np.testing.assert_allclose(target, np.concatenate(expected), rtol=1e-5, atol=1e-6)
