"""Vectors of 16 floating point numbers for compiled kernels, as LLVM vectors for AVX-512, AVX2 or NEON.

The compiler does not vectorise loops with exponentials, so kernels use explicit vectors. Memory is addressed by typed
pointers (`pointer`), created from `Tensor.data_ptr()`, and by numbers of elements. All functions support float32 and
float64 and propagate NaN.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import models, register_model

__all__ = [
    "LANES",
    "add",
    "constant",
    "exp2",
    "fma",
    "load",
    "load_as",
    "load_some",
    "load_some_as",
    "maximum",
    "minimum",
    "mul",
    "pointer",
    "sigmoid",
    "softplus",
    "splat",
    "store_some",
    "sub",
    "total",
]

LANES = 16
# The decorator removes the typing context from the parameters, which type checkers do not know.
intrinsic: Any = numba_intrinsic
# Products and sums may be contracted, and the sign of zero may change; sums are not reordered.
_FLAGS = ("contract", "nsz")


class Vector(types.Type):
    """Numba's type of a vector; `scalar` is the type of its numbers."""

    def __init__(self, scalar: types.Float):
        self.scalar = scalar
        super().__init__(name=f"Vector({scalar}, {LANES})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector):
        super().__init__(manager, kind, ir.VectorType(_element(kind), LANES))


def _element(kind: Vector) -> ir.Type:
    return ir.FloatType() if kind.scalar == types.float32 else ir.DoubleType()


class _Emitter:
    """Vector instructions for one type, in the block of a builder."""

    def __init__(self, builder: Any, kind: Vector):
        self.builder, self.single = builder, kind.scalar == types.float32
        self.element = _element(kind)
        self.type = ir.VectorType(self.element, LANES)
        self.integer = ir.IntType(32 if self.single else 64)
        self.integers = ir.VectorType(self.integer, LANES)
        # Bits of the mantissa, and the exponent of 1.
        self.mantissa, self.bias = (23, 127) if self.single else (52, 1023)

    def const(self, value: float) -> ir.Constant:
        value = float(np.float32(value)) if self.single else float(value)
        return ir.Constant(self.type, [ir.Constant(self.element, value)] * LANES)

    def int_const(self, value: int) -> ir.Constant:
        return ir.Constant(self.integers, [ir.Constant(self.integer, value)] * LANES)

    def call(self, name: str, *values: Any) -> Any:
        suffix = f"v{LANES}{'f32' if self.single else 'f64'}"
        signature = ir.FunctionType(self.type, [self.type] * len(values))
        function = cgutils.get_or_insert_function(self.builder.module, signature, f"llvm.{name}.{suffix}")
        return self.builder.call(function, values)

    def add(self, x: Any, y: Any) -> Any:
        return self.builder.fadd(x, y, flags=_FLAGS)

    def sub(self, x: Any, y: Any) -> Any:
        return self.builder.fsub(x, y, flags=_FLAGS)

    def mul(self, x: Any, y: Any) -> Any:
        return self.builder.fmul(x, y, flags=_FLAGS)

    def div(self, x: Any, y: Any) -> Any:
        return self.builder.fdiv(x, y, flags=_FLAGS)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return self.call("fma", x, y, z)

    def absolute(self, x: Any) -> Any:
        return self.call("fabs", x)

    # A comparison with NaN is false and selects the second operand; so the bound comes first to propagate NaN.

    def maximum(self, bound: Any, x: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", bound, x), bound, x)

    def minimum(self, bound: Any, x: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered("<", bound, x), bound, x)

    def polynomial(self, x: Any, coefficients: Sequence[float]) -> Any:
        """Highest power first."""
        value = self.const(coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.fma(value, x, self.const(coefficient))
        return value

    def exp2(self, x: Any) -> Any:
        """2^n 2^f with n the nearest integer; beyond the range of the exponent, exactly 0 or infinite."""
        x = self.minimum(self.const(self.bias + 1), self.maximum(self.const(-self.bias), x))
        n = self.call("rint", x)
        power = self.polynomial(self.sub(x, n), _EXP2_SINGLE if self.single else _EXP2_DOUBLE)
        shifted = self.builder.shl(self.builder.fptosi(n, self.integers), self.int_const(self.mantissa))
        return self.builder.bitcast(self.builder.add(self.builder.bitcast(power, self.integers), shifted), self.type)

    def exp_of_minus(self, x: Any) -> Any:
        return self.exp2(self.mul(x, self.const(-1 / math.log(2))))

    def sigmoid(self, x: Any) -> Any:
        one = self.const(1)
        return self.div(one, self.add(one, self.exp_of_minus(x)))

    def softplus(self, x: Any) -> Any:
        """max(x, 0) + log(1 + e) with e = exp(-|x|), the logarithm as 2 artanh(e / (2 + e)), without branches."""
        e = self.exp_of_minus(self.absolute(x))
        s = self.div(e, self.add(self.const(2), e))
        series = self.polynomial(self.mul(s, s), _ARTANH_SINGLE if self.single else _ARTANH_DOUBLE)
        return self.fma(self.mul(self.const(2), s), series, self.maximum(self.const(0), x))


# 2^f on [-1/2, 1/2] within 1e-7: the minimax polynomial (relative error) among those that are 1 at 0.
_EXP2_SINGLE = (0.0013264738954603672, 0.009671512991189957, 0.05550733581185341, 0.24022242426872253, 0.693146978, 1.0)
_EXP2_DOUBLE = tuple(math.log(2) ** k / math.factorial(k) for k in range(13, -1, -1))
# artanh(s) / s in powers of s² <= 1/9.
_ARTANH_SINGLE = tuple(1 / (2 * k + 1) for k in range(7, -1, -1))
_ARTANH_DOUBLE = tuple(1 / (2 * k + 1) for k in range(16, -1, -1))


@intrinsic
def pointer(typing: Any, address: Any, like: Any) -> Any:
    """The address (an integer) as a pointer to numbers of the type of the scalar `like`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(types.int64, like), generate


def _place(builder: Any, kind: Vector, at: Any, index: Any) -> Any:
    """The address of a vector, and of its first number."""
    first = builder.gep(at, [index])
    return builder.bitcast(first, ir.VectorType(_element(kind), LANES).as_pointer())


def _access(kind: Vector, instruction: Any) -> Any:
    instruction.align = kind.scalar.bitwidth // 8
    return instruction


@intrinsic
def load(typing: Any, at: Any, index: Any) -> Any:
    """`at[index : index + 16]`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.return_type
        return _access(kind, builder.load(_place(builder, kind, *arguments)))

    return Vector(at.dtype)(at, types.intp), generate


@intrinsic
def load_as(typing: Any, at: Any, index: Any, like: Any) -> Any:
    """`at[index : index + 16]` in the type of the scalar `like`; `at` may point to int8, or to bfloat16 as uint16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, stored = signature.return_type, signature.args[0].dtype
        place, align = _stored_place(builder, stored, *arguments[:2])
        loaded = builder.load(place)
        loaded.align = align
        return _converted(builder, kind, stored, loaded)

    return Vector(like)(at, types.intp, like), generate


@intrinsic
def load_some_as(typing: Any, at: Any, index: Any, lanes: Any, like: Any) -> Any:
    """`at[index : index + lanes]` padded with zeros, as `load_as`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, stored = signature.return_type, signature.args[0].dtype
        place, align = _stored_place(builder, stored, *arguments[:2])
        vector = ir.VectorType(_stored_element(stored), LANES)
        result = cgutils.alloca_once(builder, vector)
        with builder.if_else(_is_whole(builder, arguments[2]), likely=True) as (whole, part):
            with whole:
                loaded = builder.load(place)
                loaded.align = align
                builder.store(loaded, result)
            with part:
                number = ir.Constant(ir.IntType(32), align)
                given = place, number, _mask(builder, arguments[2]), ir.Constant(vector, None)
                letter = "f" if isinstance(stored, types.Float) else "i"
                name = f"llvm.masked.load.v{LANES}{letter}{stored.bitwidth}.p0"
                signature_ = ir.FunctionType(vector, [argument.type for argument in given])
                function = cgutils.get_or_insert_function(builder.module, signature_, name)
                builder.store(builder.call(function, given), result)
        return _converted(builder, kind, stored, builder.load(result))

    return Vector(like)(at, types.intp, types.intp, like), generate


def _stored_element(stored: Any) -> ir.Type:
    if isinstance(stored, types.Float):
        return _element(Vector(stored))
    return ir.IntType(stored.bitwidth)


def _stored_place(builder: Any, stored: Any, at: Any, index: Any) -> tuple[Any, int]:
    """The address of a vector of stored numbers, and its alignment."""
    pointer_type = ir.VectorType(_stored_element(stored), LANES).as_pointer()
    return builder.bitcast(builder.gep(at, [index]), pointer_type), stored.bitwidth // 8


def _converted(builder: Any, kind: Vector, stored: Any, value: Any) -> Any:
    """A vector of stored numbers in the type of `kind`."""
    if isinstance(stored, types.Float):
        return value
    emitter = _Emitter(builder, kind)
    integers = ir.VectorType(ir.IntType(32), LANES)
    if stored == types.int8:
        return builder.sitofp(builder.sext(value, integers), emitter.type)
    # The upper half of a float32.
    shift = ir.Constant(integers, [ir.Constant(ir.IntType(32), 16)] * LANES)
    single = ir.VectorType(ir.FloatType(), LANES)
    number = builder.bitcast(builder.shl(builder.zext(value, integers), shift), single)
    return number if emitter.single else builder.fpext(number, emitter.type)


def _mask(builder: Any, lanes: Any) -> Any:
    """Mask of the first `lanes` of 16 lanes."""
    kind = ir.VectorType(lanes.type, LANES)
    numbers = ir.Constant(kind, [ir.Constant(lanes.type, i) for i in range(LANES)])
    return builder.icmp_signed("<", numbers, _spread(builder, kind, lanes))


def _spread(builder: Any, kind: ir.VectorType, value: Any) -> Any:
    undefined = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _is_whole(builder: Any, lanes: Any) -> Any:
    return builder.icmp_signed(">=", lanes, ir.Constant(lanes.type, LANES))


def _masked(builder: Any, kind: Vector, name: str, result: ir.Type, arguments: Sequence[Any]) -> Any:
    """LLVM's masked load or store, whose name ends in the types of vector and pointer."""
    suffix = f"v{LANES}f{kind.scalar.bitwidth}.p0"
    signature = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.masked.{name}.{suffix}")
    return builder.call(function, arguments)


@intrinsic
def load_some(typing: Any, at: Any, index: Any, lanes: Any) -> Any:
    """`at[index : index + lanes]` padded with zeros, for up to 16 `lanes`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, emitter = signature.return_type, _Emitter(builder, signature.return_type)
        place, lanes = _place(builder, kind, *arguments[:2]), arguments[2]
        result = cgutils.alloca_once(builder, emitter.type)
        with builder.if_else(_is_whole(builder, lanes), likely=True) as (whole, part):
            with whole:
                builder.store(_access(kind, builder.load(place)), result)
            with part:
                align = ir.Constant(ir.IntType(32), kind.scalar.bitwidth // 8)
                given = place, align, _mask(builder, lanes), emitter.const(0)
                builder.store(_masked(builder, kind, "load", emitter.type, given), result)
        return builder.load(result)

    return Vector(at.dtype)(at, types.intp, types.intp), generate


@intrinsic
def store_some(typing: Any, at: Any, index: Any, value: Any, lanes: Any) -> Any:
    """`at[index : index + lanes] = value[:lanes]`, for up to 16 `lanes`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[2]
        place, value, lanes = _place(builder, kind, arguments[0], arguments[1]), arguments[2], arguments[3]
        with builder.if_else(_is_whole(builder, lanes), likely=True) as (whole, part):
            with whole:
                _access(kind, builder.store(value, place))
            with part:
                align = ir.Constant(ir.IntType(32), kind.scalar.bitwidth // 8)
                given = value, place, align, _mask(builder, lanes)
                _masked(builder, kind, "store", ir.VoidType(), given)
        return context.get_dummy_value()

    return types.void(at, types.intp, Vector(at.dtype), types.intp), generate


@intrinsic
def splat(typing: Any, value: Any) -> Any:
    """A vector with this number in all its lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.return_type
        return _spread(builder, ir.VectorType(_element(kind), LANES), arguments[0])

    return Vector(value)(value), generate


@intrinsic
def constant(typing: Any, value: Any, like: Any) -> Any:
    """A vector with the number `value` in all its lanes, in the type of the scalar `like`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = _element(signature.return_type)
        number = arguments[0] if element == ir.DoubleType() else builder.fptrunc(arguments[0], element)
        return _spread(builder, ir.VectorType(element, LANES), number)

    return Vector(like)(types.float64, like), generate


def _operation(name: str, operands: int, meaning: str) -> Callable[..., Any]:
    """The intrinsic of a method of `_Emitter` that maps vectors to a vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(_Emitter(builder, signature.return_type), name)(*arguments)

    def one(typing: Any, x: Any) -> Any:
        return x(x), generate

    def two(typing: Any, x: Any, y: Any) -> Any:
        return x(x, y), generate

    def three(typing: Any, x: Any, y: Any, z: Any) -> Any:
        return x(x, y, z), generate

    function = (one, two, three)[operands - 1]
    function.__name__, function.__qualname__, function.__doc__ = name, name, meaning
    return intrinsic(function)


add = _operation("add", 2, "`x + y`.")
sub = _operation("sub", 2, "`x - y`.")
mul = _operation("mul", 2, "`x y`.")
fma = _operation("fma", 3, "`x y + z`, rounded once.")
maximum = _operation("maximum", 2, "`max(bound, x)`; propagates NaN of `x`.")
minimum = _operation("minimum", 2, "`min(bound, x)`; propagates NaN of `x`.")
exp2 = _operation("exp2", 1, "`2^x`.")
sigmoid = _operation("sigmoid", 1, "`1 / (1 + exp(-x))`.")
softplus = _operation("softplus", 1, "`log(1 + exp(x))`.")


@intrinsic
def total(typing: Any, x: Any) -> Any:
    """The sum of the lanes, in an order that depends on the machine."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emitter = _Emitter(builder, signature.args[0])
        kind = ir.FunctionType(emitter.element, [emitter.element, emitter.type])
        name = f"llvm.vector.reduce.fadd.v{LANES}f{signature.return_type.bitwidth}"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(function, [ir.Constant(emitter.element, 0.0), arguments[0]], fastmath=("reassoc",))

    return x.scalar(x), generate
