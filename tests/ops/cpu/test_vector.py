"""The vector type of the compiled kernels, lane by lane against numpy."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")

from hf_ssm.ops.cpu import vector
from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import load, load_some, pointer, store, store_some, total

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def applied(operation: Any) -> Callable[..., np.ndarray]:
    """A function of one array, a multiple of 16 long, that runs `operation` on its vectors."""

    @kernel
    def run(source, target, like, count):
        x, y = pointer(source, like), pointer(target, like)
        for i in range(0, count, 16):
            store(y, i, operation(load(x, i)))

    def call(values: np.ndarray) -> np.ndarray:
        values = np.ascontiguousarray(values)
        result = np.full_like(values, np.nan)
        run(values.ctypes.data, result.ctypes.data, values.dtype.type(0), len(values))
        return result

    return call


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x.astype(np.longdouble), 0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x.astype(np.longdouble)))


def exp2(x: np.ndarray) -> np.ndarray:
    return np.exp2(x.astype(np.longdouble))


@DTYPES
@pytest.mark.parametrize("expected", [exp2, sigmoid, softplus])
def test_functions_are_accurate_to_a_few_units_in_the_last_place(expected, dtype):
    values = np.concatenate([np.linspace(-80, 80, 16 * 500), np.geomspace(1e-30, 1, 16)]).astype(dtype)
    found = applied(getattr(vector, expected.__name__))(values)
    errors = np.abs(found / expected(values) - 1)
    # The rounding of x log2(e), which an exponential multiplies by |x|, comes with that of the polynomial.
    bound = (4 if expected is exp2 else 80) * np.finfo(dtype).eps
    assert errors.max() < bound


@DTYPES
@pytest.mark.parametrize("name", ["cos", "sin"])
def test_circular_functions_of_turns(name, dtype):
    values = np.concatenate([np.linspace(-300, 300, 16 * 500), np.linspace(-1, 1, 16 * 16 + 1)[:-1]]).astype(dtype)
    # Whole turns are taken off exactly.
    expected = getattr(np, name)(2 * np.pi * np.fmod(values.astype(np.longdouble), 1))
    found = applied(getattr(vector, f"{name}_turns"))(values)
    assert np.abs(found - expected).max() < 4 * np.finfo(dtype).eps
    ends = applied(getattr(vector, f"{name}_turns"))(np.array([np.nan, np.inf, -np.inf, 0.5, 0.25, 0] * 8, dtype))
    assert np.isnan(ends[:3]).all()
    np.testing.assert_allclose(ends[3:6], [-1, 0, 1] if name == "cos" else [0, 1, 0], atol=2 * np.finfo(dtype).eps)


@DTYPES
def test_the_ends_of_the_range(dtype):
    values = np.zeros(16, dtype)
    values[:8] = [-np.inf, -1e5, np.inf, 1e5, np.nan, 0, 1, -1]
    assert list(applied(vector.exp2)(values)[:8]) == pytest.approx(
        [0, 0, math.inf, math.inf, math.nan, 1, 2, 0.5], rel=1e-6, nan_ok=True
    )
    assert list(applied(vector.sigmoid)(values)[:6]) == pytest.approx([0, 0, 1, 1, math.nan, 0.5], nan_ok=True)
    limits = [0, 0, math.inf, 1e5, math.nan, math.log(2)]
    assert list(applied(vector.softplus)(values)[:6]) == pytest.approx(limits, rel=1e-6, nan_ok=True)


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


@DTYPES
def test_arithmetic(dtype):
    @kernel
    def run(source, target, like):
        x = pointer(source, like)
        a, b, c = load(x, 0), load(x, 16), load(x, 32)
        y = pointer(target, like)
        store(y, 0, vector.fma(a, b, c))
        store(y, 16, vector.sub(vector.add(a, b), vector.div(c, vector.splat(x[0]))))
        store(y, 32, vector.mul(vector.maximum(a, b), vector.minimum(b, vector.absolute(c))))

    a, b, c = np.random.default_rng(0).normal(size=(3, 16)).astype(dtype)
    source, target = np.concatenate([a, b, c]), np.empty(48, dtype)
    run(source.ctypes.data, target.ctypes.data, dtype(0))
    expected = np.concatenate([a * b + c, a + b - c / a[0], np.maximum(a, b) * np.minimum(b, np.abs(c))])
    np.testing.assert_allclose(target, expected, rtol=8 * np.finfo(dtype).eps, atol=8 * np.finfo(dtype).eps)


@DTYPES
def test_constants_and_pointers(dtype):
    @kernel
    def run(target, like):
        y = vector.shifted(pointer(target, like), 16)
        vector.prefetch(y, 1 << 40)
        store(y, 0, vector.constant(0.1, like))

    target = np.zeros(48, dtype)
    run(target.ctypes.data, dtype(0))
    np.testing.assert_array_equal(target, np.repeat(np.array([0, 0.1, 0], dtype), 16))


def test_masked_lanes_of_nan_do_not_spread():
    values = np.zeros(16, np.float32)
    values[3] = np.nan
    found = applied(vector.softplus)(values)
    assert np.isnan(found[3])
    assert np.isfinite(np.delete(found, 3)).all()
