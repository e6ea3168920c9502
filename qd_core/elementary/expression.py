"""Arithmetic notation over the builder, so that the library reads like the formulas it implements.

An :class:`Expr` pairs a builder with a value; Python numbers become constants of the other operand's type. Real
arithmetic is marked ``exact="contract"`` (see `ir.ops`): every formula here stays valid whether or not products are
fused into sums.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Value

__all__ = ["Expr", "Format", "Reduced", "fast_two_sum", "format_of", "frexp", "polynomial", "protected", "where"]


@dataclass(frozen=True, slots=True)
class Format:
    """Layout of a binary floating-point type.

    Attributes
    ----------
    real, signed, unsigned : DType
        The type and the integers of its width.
    mantissa : int
        Explicit fraction bits.
    bias : int
        Exponent bias.
    """

    real: DType
    signed: DType
    unsigned: DType
    mantissa: int
    bias: int

    @property
    def magic(self) -> float:
        """1.5 * 2**mantissa: adding it rounds to an integer, which then stands in the low bits of the sum."""
        return 1.5 * 2.0**self.mantissa

    @property
    def sign_mask(self) -> int:
        """The sign bit as an unsigned integer."""
        return 1 << (self.real.bits - 1)

    @property
    def half_mask(self) -> int:
        """Mask that keeps sign, exponent and so few fraction bits that a product of two such numbers is exact."""
        return (1 << self.real.bits) - (1 << (self.mantissa // 2 + 1))


_FORMATS = {dt.f32: Format(dt.f32, dt.i32, dt.u32, 23, 127), dt.f64: Format(dt.f64, dt.i64, dt.u64, 52, 1023)}


def format_of(dtype: DType) -> Format:
    """Return the layout of f32 or f64."""
    return _FORMATS[dtype]


@contextmanager
def protected(b: Builder) -> Generator[None]:
    """Mark real arithmetic emitted in the block so that fast math may only contract it; what is strict stays so."""
    before = b.exact
    b.exact = "strict" if before == "strict" else "contract"
    try:
        yield
    finally:
        b.exact = before


class Expr:
    """A value with operators; comparisons give u1, ``&``, ``|``, ``^``, ``~`` are bitwise (logical on u1)."""

    __slots__ = ("b", "value")

    def __init__(self, b: Builder, value: Value) -> None:
        self.b, self.value = b, value

    @property
    def dtype(self) -> DType:
        """Type of the value."""
        return self.value.type

    def lift(self, other: Expr | float) -> Expr:
        """Return ``other`` as an expression, a Python number as a constant of this type."""
        return other if isinstance(other, Expr) else Expr(self.b, self.b.const(self.value.type, other))

    def apply(self, name: str, *others: Expr | float) -> Expr:
        """Emit operation ``name`` with this value first."""
        return Expr(self.b, self.b.emit(name, self.value, *(self.lift(o).value for o in others)))

    def cast(self, to: DType) -> Expr:
        """Convert the number."""
        return Expr(self.b, self.b.cast(self.value, to))

    def bitcast(self, to: DType) -> Expr:
        """Reinterpret the bits."""
        return Expr(self.b, self.b.bitcast(self.value, to))

    def bits(self) -> Expr:
        """Bits of a real number as an unsigned integer."""
        return self.bitcast(format_of(self.dtype).unsigned)

    def upper_half(self) -> Expr:
        """Leading half of a real number's significant bits: products of two such halves are exact."""
        fmt = format_of(self.dtype)
        return (self.bits() & fmt.half_mask).bitcast(fmt.real)

    def sign_bit(self) -> Expr:
        """Sign bit of a real number, in place, as an unsigned integer."""
        return self.bits() & format_of(self.dtype).sign_mask

    def flip_sign(self, sign: Expr) -> Expr:
        """Exclusive or of a real number's bits with ``sign``."""
        return (self.bits() ^ sign).bitcast(self.dtype)

    def __add__(self, other: Expr | float) -> Expr:
        return self.apply("add", other)

    def __sub__(self, other: Expr | float) -> Expr:
        return self.apply("sub", other)

    def __mul__(self, other: Expr | float) -> Expr:
        return self.apply("mul", other)

    def __truediv__(self, other: Expr | float) -> Expr:
        return self.apply("div", other)

    def __radd__(self, other: float) -> Expr:
        return self.lift(other) + self

    def __rsub__(self, other: float) -> Expr:
        return self.lift(other) - self

    def __rmul__(self, other: float) -> Expr:
        return self * other

    def __rtruediv__(self, other: float) -> Expr:
        return self.lift(other) / self

    def __neg__(self) -> Expr:
        return self.apply("neg")

    def __abs__(self) -> Expr:
        return self.apply("abs")

    def __and__(self, other: Expr | int) -> Expr:
        return self.apply("and", other)

    def __or__(self, other: Expr | int) -> Expr:
        return self.apply("or", other)

    def __xor__(self, other: Expr | int) -> Expr:
        return self.apply("xor", other)

    def __invert__(self) -> Expr:
        return self.apply("not")

    def __lshift__(self, other: Expr | int) -> Expr:
        return self.apply("shl", other)

    def __rshift__(self, other: Expr | int) -> Expr:
        return self.apply("sar", other)

    def __lt__(self, other: Expr | float) -> Expr:
        return self.apply("lt", other)

    def __le__(self, other: Expr | float) -> Expr:
        return self.apply("le", other)

    def __gt__(self, other: Expr | float) -> Expr:
        return self.apply("gt", other)

    def __ge__(self, other: Expr | float) -> Expr:
        return self.apply("ge", other)

    def equals(self, other: Expr | float) -> Expr:
        """Compare for equality, as u1."""
        return self.apply("eq", other)


def frexp(b: Builder, value: Value) -> tuple[Value, Value]:
    """Return mantissa m, of magnitude in [0.5, 1), and exponent e (i32) of a real ``value``, which is m * 2**e.

    Zeros, infinities and NaN are their own mantissa, with exponent 0.
    """
    fmt = format_of(dt.f64 if value.type is dt.f64 else dt.f32)
    x = Expr(b, b.cast(value, fmt.real))
    with protected(b):
        small = abs(x) < 2.0 ** (1 - fmt.bias)
        scaled = where(small, x * 2.0**fmt.mantissa, x)
        field = (1 << (fmt.real.bits - 1)) - (1 << fmt.mantissa)
        biased = ((scaled.bits() & field) >> fmt.mantissa).cast(dt.i32)
        mantissa = ((scaled.bits() & ~field) | ((fmt.bias - 1) << fmt.mantissa)).bitcast(fmt.real)
        exponent = biased - (fmt.bias - 1) - where(small, Expr(b, b.const(dt.i32, fmt.mantissa)), 0)
        plain = x.equals(0.0) | biased.equals(2 * fmt.bias + 1)
    return b.cast(where(plain, x, mantissa).value, value.type), where(plain, exponent * 0, exponent).value


def where(condition: Expr, a: Expr | float, b: Expr | float) -> Expr:
    """Return ``a`` where ``condition`` holds, else ``b``; at least one of them is an expression."""
    like = a if isinstance(a, Expr) else b
    assert isinstance(like, Expr)
    return Expr(like.b, like.b.select(condition.value, like.lift(a).value, like.lift(b).value))


def polynomial(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """Horner's rule; ``coefficients`` from the constant term up."""
    result = x.lift(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result * x + c
    return result


@dataclass(frozen=True, slots=True)
class Reduced:
    """|x| = quadrant * pi/2 + (high + low); only the two lowest bits of ``quadrant`` (unsigned) mean something."""

    high: Expr
    low: Expr
    quadrant: Expr


def fast_two_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return the rounded sum and its error, for |a| >= |b| or a = 0 (Dekker 1971)."""
    s = a + b
    return s, b - (s - a)
