"""What the tests of the kernels share: parity of values and gradients, and counts of loads, stores and operations."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from costs.rates import Cost
from torch import Tensor

from hf_ssm.ops.backends import use_backend

# Relative to the largest number of a result: rounding of the arithmetic, and of results in half precision.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def _as_tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _double(t: Any) -> Any:
    if not isinstance(t, Tensor) or not (t.is_floating_point() or t.is_complex()):
        return t
    double = t.detach().to(torch.complex128 if t.is_complex() else torch.float64)
    return double.requires_grad_(t.requires_grad)


def assert_near(actual: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """The largest difference is at most `tolerance` of the largest expected number (at least of 1e-3)."""
    assert actual.shape == expected.shape, what
    assert torch.isfinite(torch.view_as_real(actual) if actual.is_complex() else actual).all(), f"{what} is not finite"
    wide = actual.detach().to(expected.dtype)
    error = (wide - expected.detach()).abs().max().item() if actual.numel() else 0.0
    scale = max(1e-3, expected.detach().abs().max().item()) if actual.numel() else 1.0
    assert error <= tolerance * scale, f"{what}: error {error:.3g} of {scale:.3g}, allowed {tolerance:.3g}"


def assert_parity(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    arguments: Sequence[Any],
    tolerance: float | None = None,
    **options: Any,
) -> None:
    """Values and gradients of `function` by Triton kernels equal those of `reference` in double precision.

    Args:
        function: The operation; called with `arguments` and `options` while the backend is `"triton"`.
        reference: The same in plain PyTorch, called with the arguments in double precision.
        arguments: Tensors, of which those that require gradients are differentiated, and others.
        tolerance: Largest error of a result, relative to its largest number; default: that of the coarsest dtype.
    """
    dtypes = [t.dtype for t in arguments if isinstance(t, Tensor)]
    tolerance = max(TOLERANCE.get(dtype, 0.0) for dtype in dtypes) if tolerance is None else tolerance
    wide = [_double(t) for t in arguments]
    expected = _as_tuple(reference(*wide, **options))
    generator = torch.Generator().manual_seed(7)
    cotangents = [torch.randn(e.shape, dtype=e.dtype, generator=generator) for e in expected]
    with use_backend("triton"):
        results = _as_tuple(function(*arguments, **options))
        for number, (result, value) in enumerate(zip(results, expected, strict=True)):
            assert_near(result.cpu(), value, tolerance, f"result {number}")
        inputs = [t for t in arguments if isinstance(t, Tensor) and t.requires_grad]
        if not inputs:
            return
        given = [c.to(r.device, r.dtype) for c, r in zip(cotangents, results, strict=True)]
        grads = torch.autograd.grad(results, inputs, given, allow_unused=True)
    wide_inputs = [t for t in wide if isinstance(t, Tensor) and t.requires_grad]
    given = [g.cpu().to(c.dtype) for g, c in zip(given, cotangents, strict=True)]
    wide_grads = torch.autograd.grad(expected, wide_inputs, given, allow_unused=True)
    places = [n for n, t in enumerate(arguments) if isinstance(t, Tensor) and t.requires_grad]
    for place, grad, value in zip(places, grads, wide_grads, strict=True):
        if value is None:
            assert grad is None or not grad.any()
            continue
        assert grad is not None, f"argument {place} has no gradient"
        assert_near(grad.cpu(), value, tolerance, f"gradient of argument {place}")


class Counter:
    """Addresses and operations of the launches inside `counted`."""

    def __init__(self) -> None:
        self.launches: list[dict[int, int]] = []
        self.requested = self.written = self.exponentials = self.products = self.local = 0
        self.program: tuple[Any, set[int]] = (None, set())

    @property
    def cost(self) -> Cost:
        """Bytes that are read in the first launch that needs them, in total, and written; operations."""
        read = sum(size for launch in self.launches for size in launch.values())
        return Cost(read, self.requested - read, self.written, self.exponentials, self.products, 0, self.local)


@contextmanager
def counted() -> Iterator[Counter]:
    """Count what kernels load, store and compute in Triton's interpreter.

    A number that is loaded several times in one launch is read once and reread otherwise. Masked elements of loads and
    stores do not count; operations on them do. Products of any dtype count as those of float32, since the interpreter
    converts them.
    """
    from triton.runtime import interpreter

    builder, counter = interpreter.interpreter_builder, Counter()
    load, store, unary, dot = (
        builder.create_masked_load,
        builder.create_masked_store,
        builder.unary_op,
        builder.create_dot,
    )
    binary, execute = builder.binary_op, interpreter.GridExecutor.__call__
    special = (np.exp, np.exp2, np.log, np.log2, np.sin, np.cos, np.sqrt)

    def counted_load(ptrs: Any, mask: Any, *rest: Any) -> Any:
        size = ptrs.get_element_ty().primitive_bitwidth // 8
        at = np.broadcast_to(ptrs.data, np.broadcast_shapes(ptrs.data.shape, mask.data.shape))[
            np.broadcast_to(mask.data, np.broadcast_shapes(ptrs.data.shape, mask.data.shape)).astype(bool)
        ]
        counter.requested += at.size * size
        number = len(counter.launches), builder.grid_idx
        if counter.program[0] != number:
            counter.program = number, set()
        known = counter.program[1]
        counter.local += size * (at.size - len(set(at.tolist()) - known))
        known.update(at.tolist())
        counter.launches[-1].update(dict.fromkeys(at.tolist(), size))
        return load(ptrs, mask, *rest)

    def counted_store(ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        counter.written += int(mask.data.astype(bool).sum()) * (ptrs.get_element_ty().primitive_bitwidth // 8)
        return store(ptrs, value, mask, *rest)

    def counted_unary(arg: Any, op: Any) -> Any:
        counter.exponentials += arg.data.size if op in special else 0
        return unary(arg, op)

    def counted_binary(lhs: Any, rhs: Any, op: Any) -> Any:
        # A division takes a reciprocal.
        counter.exponentials += lhs.data.size if op is np.divide and lhs.dtype.scalar.is_floating() else 0
        return binary(lhs, rhs, op)

    def counted_dot(a: Any, b: Any, *rest: Any) -> Any:
        counter.products += 2 * a.data.size * b.data.shape[-1]
        return dot(a, b, *rest)

    def counted_launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        counter.launches.append({})
        return execute(self, *args, **kwargs)

    patches = {
        "create_masked_load": counted_load,
        "create_masked_store": counted_store,
        "unary_op": counted_unary,
        "binary_op": counted_binary,
        "create_dot": counted_dot,
    }
    for name, function in patches.items():
        setattr(builder, name, function)
    interpreter.GridExecutor.__call__ = counted_launch
    try:
        yield counter
    finally:
        for name in patches:
            delattr(builder, name)
        interpreter.GridExecutor.__call__ = execute


def assert_counted(counter: Counter, cost: Cost, *, reread: float = 0.0, local: bool = False) -> None:
    """What the launches inside `counted` load, store and compute is `cost`.

    Args:
        counter: Of the launches.
        cost: The expected numbers.
        reread: Relative difference that is allowed in the bytes that are read again.
        local: Whether the cost knows which of these the same program has read before.
    """
    found = counter.cost
    assert (found.read, found.written, found.exponentials) == (cost.read, cost.written, cost.exponentials)
    # The interpreter does not distinguish the types of products.
    assert found.products == cost.products + cost.half_products
    assert found.reread == pytest.approx(cost.reread, rel=reread)
    assert not local or found.local == cost.local
