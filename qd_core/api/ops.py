"""Functions of `qd.` that work in kernels and in Python scope.

In kernels a call has the meaning of `qd_core.frontend.intrinsics`; in Python scope the functions here run, on Python
numbers, NumPy arrays
and `qd.Matrix`.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, NoReturn

import numpy as np

from qd_core.api.matrix import Matrix, Vector
from qd_core.dtypes import DType
from qd_core.errors import QuadrantsSyntaxError
from qd_core.frontend.annotations import as_dtype
from qd_core.frontend.calls import static
from qd_core.frontend.functions import func, pyfunc, real_func
from qd_core.frontend.lower import kernel_meaning
from qd_core.frontend.values import NdRange

__all__ = [
    "abs", "acos", "asin", "assume_in_range", "atan2", "atomic_add", "atomic_and", "atomic_cas", "atomic_exchange",
    "atomic_max", "atomic_min", "atomic_mul", "atomic_or", "atomic_sub", "atomic_xor", "bit_cast", "bit_shr",
    "block_local", "cache_read_only", "cast", "ceil", "clz", "cos", "exp", "floor", "frexp", "func", "grouped", "isinf",
    "isnan", "log", "loop_config", "max", "mesh_local", "min", "ndrange", "no_activate", "one", "popcnt", "pow", "pure",
    "pyfunc", "randn", "random", "raw_div", "raw_mod", "real_func", "rescale_index", "round", "rsqrt", "select", "sgn",
    "sin", "sqrt", "static", "static_assert", "static_print", "stop_grad", "tan", "tanh", "volatile_load", "zero",
]  # fmt: skip

OnArrays = Callable[[Any], Any] | Callable[[Any, Any], Any] | Callable[[Any, Any, Any], Any]


def _apply(f: OnArrays, *args: Any) -> Any:
    """Apply a NumPy function; matrices give a matrix."""
    plain = [np.asarray(a) if isinstance(a, Matrix) else a for a in args]
    call: Callable[..., Any] = f
    result = call(*plain)
    return Matrix(result) if builtins.any(isinstance(a, Matrix) for a in args) else result


def _real(x: Any) -> Any:
    return float(x) if isinstance(x, (int, bool)) else x


def _unary(name: str, f: OnArrays, doc: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return _apply(f, _real(x))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return kernel_meaning(name)(function)


sin = _unary("sin", np.sin, "Sine of an angle in radians.")
cos = _unary("cos", np.cos, "Cosine of an angle in radians.")
tan = _unary("tan", np.tan, "Tangent of an angle in radians.")
asin = _unary("asin", np.arcsin, "Inverse sine, in [-pi/2, pi/2].")
acos = _unary("acos", np.arccos, "Inverse cosine, in [0, pi].")
tanh = _unary("tanh", np.tanh, "Hyperbolic tangent.")
exp = _unary("exp", np.exp, "Exponential function.")
log = _unary("log", np.log, "Natural logarithm.")
sqrt = _unary("sqrt", np.sqrt, "Square root; NaN below zero.")
rsqrt = _unary("rsqrt", lambda x: 1 / np.sqrt(x), "Reciprocal of the square root.")


@kernel_meaning("atan2")
def atan2(y: Any, x: Any) -> Any:
    """Angle of the point (x, y), in (-pi, pi]."""
    return _apply(np.arctan2, y, x)


def _rounded(f: OnArrays, x: Any, dtype: Any) -> Any:
    result = _apply(f, _real(x))
    return result if dtype is None else cast(result, dtype)


@kernel_meaning("floor")
def floor(x: Any, dtype: Any = None) -> Any:
    """Largest integer not above ``x``, as a real number unless ``dtype`` is given."""
    return _rounded(np.floor, x, dtype)


@kernel_meaning("ceil")
def ceil(x: Any, dtype: Any = None) -> Any:
    """Smallest integer not below ``x``, as a real number unless ``dtype`` is given."""
    return _rounded(np.ceil, x, dtype)


@kernel_meaning("round")
def round(x: Any, dtype: Any = None) -> Any:
    """Nearest integer, half away from zero, as a real number unless ``dtype`` is given."""
    return _rounded(lambda v: np.trunc(v + np.copysign(0.5, v)), x, dtype)


@kernel_meaning("abs")
def abs(x: Any) -> Any:
    """Absolute value."""
    return _apply(np.abs, x)


@kernel_meaning("sgn")
def sgn(x: Any) -> Any:
    """-1, 0 or 1 by sign, in the type of ``x``."""
    return _apply(np.sign, x)


@kernel_meaning("frexp")
def frexp(x: Any) -> tuple[Any, Any]:
    """Mantissa, of magnitude in [0.5, 1), and exponent (i32) of ``x``: their product with 2**exponent is ``x``."""
    mantissa, exponent = np.frexp(np.asarray(_real(x)))
    if isinstance(x, Matrix):
        return Matrix(mantissa), Matrix(exponent)
    return mantissa[()], exponent[()]


@kernel_meaning("stop_grad")
def stop_grad(x: Any) -> Any:
    """``x`` as a constant to derivatives. In a kernel, of an array: what the rest of the block reads is constant."""
    return x


@kernel_meaning("isnan")
def isnan(x: Any) -> Any:
    """Whether ``x`` is not a number."""
    return _apply(np.isnan, x)


@kernel_meaning("isinf")
def isinf(x: Any) -> Any:
    """Whether ``x`` is an infinity."""
    return _apply(np.isinf, x)


@kernel_meaning("popcnt")
def popcnt(x: Any) -> Any:
    """Number of one bits of an integer; Python integers count as i32."""
    return _apply(_popcnt, x)


@kernel_meaning("clz")
def clz(x: Any) -> Any:
    """Number of leading zero bits of an integer; Python integers count as i32."""
    return _apply(_clz, x)


def _bits(x: Any) -> np.ndarray[Any, Any]:
    value = np.asarray(x & 0xFFFFFFFF, np.uint32) if isinstance(x, int) else np.asarray(x)
    return value.view(f"u{value.dtype.itemsize}")


def _popcnt(x: Any) -> Any:
    return np.bitwise_count(_bits(x)).astype(np.int32)[()]


def _clz(x: Any) -> Any:
    bits = _bits(x)
    width = np.zeros(bits.shape, np.int32)
    while bits.any():
        width, bits = width + (bits != 0), bits >> 1
    return (np.int32(_bits(x).dtype.itemsize * 8) - width)[()]


@kernel_meaning("max")
def max(*args: Any) -> Any:
    """Largest of the arguments, element by element; of a number and NaN, the number."""
    return reduce(lambda a, b: _apply(np.fmax, a, b), args)


@kernel_meaning("min")
def min(*args: Any) -> Any:
    """Smallest of the arguments, element by element; of a number and NaN, the number."""
    return reduce(lambda a, b: _apply(np.fmin, a, b), args)


@kernel_meaning("pow")
def pow(base: Any, exponent: Any) -> Any:
    """``base ** exponent``."""
    return base**exponent


@kernel_meaning("raw_div")
def raw_div(a: Any, b: Any) -> Any:
    """Quotient of integers, rounded toward zero."""
    return _apply(lambda x, y: np.trunc(np.divide(x, y)).astype(np.result_type(x, y)), a, b)


@kernel_meaning("raw_mod")
def raw_mod(a: Any, b: Any) -> Any:
    """Remainder with the sign of the dividend."""
    return _apply(np.fmod, a, b)


@kernel_meaning("bit_shr")
def bit_shr(x: Any, amount: Any) -> Any:
    """Shift right, filling with zeros."""
    value = np.asarray(x)
    return np.right_shift(
        value.view(f"u{value.dtype.itemsize}"), np.asarray(amount).astype(f"u{value.dtype.itemsize}")
    ).view(value.dtype)[()]


def _where(condition: Any, a: Any, b: Any) -> Any:
    return np.where(condition, a, b)[()]


@kernel_meaning("select")
def select(condition: Any, a: Any, b: Any) -> Any:
    """``a`` where ``condition`` holds, else ``b``; both are evaluated."""
    return _apply(_where, condition, a, b)


@kernel_meaning("cast")
def cast(x: Any, dtype: Any) -> Any:
    """``x`` converted to a scalar type."""
    kind = _dtype(dtype)
    return x.cast(kind) if isinstance(x, Matrix) else kind(x)


@kernel_meaning("bit_cast")
def bit_cast(x: Any, dtype: Any) -> Any:
    """The bits of ``x`` as a type of the same width."""
    return np.asarray(x).view(_dtype(dtype).numpy)[()]


def _dtype(dtype: Any) -> DType:
    kind = as_dtype(dtype)
    if kind is None:
        raise TypeError(f"expected a scalar type, got {dtype!r}")
    return kind


@kernel_meaning("zero")
def zero(x: Any) -> Any:
    """Zero of the type and shape of ``x``."""
    return _apply(lambda v: np.zeros_like(v)[()], x)


@kernel_meaning("one")
def one(x: Any) -> Any:
    """One of the type and shape of ``x``."""
    return _apply(lambda v: np.ones_like(v)[()], x)


# -- random numbers ---------------------------------------------------------------------------------------------------
@kernel_meaning("random")
def random(dtype: Any = float) -> NoReturn:
    """A random number: a real uniform in [0, 1), an integer with all bits random.

    It is a function of `random_seed`, the launch, the parallel iteration and how many that iteration drew before; every
    device gives the same, and so does the launch's derivative. In kernels only.
    """
    raise QuadrantsSyntaxError("qd.random is only available in kernels", hint="in Python scope, use numpy.random")


@kernel_meaning("randn")
def randn(dtype: Any = float) -> NoReturn:
    """A normally distributed random number, of mean 0 and variance 1; see `random`."""
    raise QuadrantsSyntaxError("qd.randn is only available in kernels", hint="in Python scope, use numpy.random")


# -- iteration --------------------------------------------------------------------------------------------------------
@kernel_meaning("ndrange")
def ndrange(*bounds: Any, axes: Iterable[int] | None = None) -> NdRange:
    """Box of one stop, or (start, stop) pair, an axis: iterate over its points in row-major order, in kernels in
    parallel.

    Parameters
    ----------
    *bounds : int or (int, int)
        One an axis.
    axes : sequence of int, optional
        Order in which the axes are nested, outermost first.
    """
    return NdRange(bounds, None if axes is None else tuple(axes))


@kernel_meaning("grouped")
def grouped(box: Any) -> Any:
    """Iterate over ``box`` with an index vector in place of one index an axis."""
    return (Vector(list(point)) for point in box)


# -- directives: their effect is on the compilation of a kernel -------------------------------------------------------
@kernel_meaning("static_print")
def static_print(*args: Any, **kwargs: Any) -> None:
    """Print while the kernel is compiled."""
    print(*args, **kwargs)


@kernel_meaning("static_assert")
def static_assert(condition: Any, msg: str = "") -> None:
    """Refuse the kernel unless ``condition``, known at compile time, holds."""
    if not condition:
        raise AssertionError(msg)


@kernel_meaning("loop_config")
def loop_config(**hints: Any) -> None:
    """Hints for the next loop: ``serialize``, ``block_dim``, ``parallelize``, ``name``. No effect in Python scope."""


def _hint(name: str, doc: str) -> Callable[..., None]:
    def function(*arrays: Any) -> None:
        pass

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc} Accepted for compatibility: what a kernel computes does not depend on it."
    return kernel_meaning(name)(function)


def pure(function: Any) -> Any:
    """Promise that a kernel uses nothing but its arguments: accepted for compatibility, returns ``function``."""
    return function


block_local = _hint("block_local", "Hint: keep what a block of iterations reads of these arrays close to it.")
cache_read_only = _hint("cache_read_only", "Hint: read these arrays through a cache for constants.")
mesh_local = _hint("mesh_local", "Hint: keep what a patch reads of these arrays close to it.")
no_activate = _hint("no_activate", "Hint: accesses find all elements of these nodes in place.")


@pyfunc
def _rescaled(index: Any, own: Any, other: Any) -> Any:
    return index * (other // own) if static(other > own) else index // (own // other)


@pyfunc
def rescale_index(a: Any, b: Any, I: Any) -> Any:  # noqa: E741
    """Index into ``b`` of what lies where ``I`` is in ``a``: each axis scaled by the ratio of the shapes."""
    return Vector([_rescaled(I[k], a.shape[k], b.shape[k]) for k in range(len(I))])


@kernel_meaning("volatile_load")
def volatile_load(x: Any) -> Any:
    """Value of an array element, read anew."""
    return x


@kernel_meaning("assume_in_range")
def assume_in_range(value: Any, base: Any, low: Any, high: Any) -> Any:
    """Promise that ``base + low <= value < base + high``; checked in debug mode."""
    return value


# -- atomics ----------------------------------------------------------------------------------------------------------
def _atomic(kind: str, doc: str) -> Callable[..., Any]:
    name = f"atomic_{kind}"

    def function(place: Any, *values: Any) -> NoReturn:
        raise QuadrantsSyntaxError(
            f"qd.{name} is only available in kernels", hint="in Python scope, assign: x[i] = ..."
        )

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc} Returns the old value."
    return kernel_meaning(name)(function)


atomic_add = _atomic("add", "Add to an array element or variable.")
atomic_sub = _atomic("sub", "Subtract from an array element or variable.")
atomic_mul = _atomic("mul", "Multiply an array element or variable.")
atomic_exchange = _atomic("exchange", "Store a value.")
atomic_cas = _atomic(
    "cas", "``atomic_cas(place, expected, desired)``: store an integer where the place holds the expected one."
)
atomic_min = _atomic("min", "Store the smaller of old and given value.")
atomic_max = _atomic("max", "Store the larger of old and given value.")
atomic_and = _atomic("and", "Bitwise and with an integer.")
atomic_or = _atomic("or", "Bitwise or with an integer.")
atomic_xor = _atomic("xor", "Bitwise exclusive or with an integer.")
