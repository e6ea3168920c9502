"""Exponential, logarithm and hyperbolic tangent."""

from __future__ import annotations

import math

from qd_core import dtypes as dt
from qd_core.elementary import coefficients as table
from qd_core.elementary.expression import Expr, Format, format_of, polynomial, where

__all__ = ["exp", "exp_kernel", "log", "nearest", "scale", "split", "tanh"]

# Beyond these the result is 0 or an infinity (f32, f64).
_LOWEST = {"f32": -104.0, "f64": -746.0}
_HIGHEST = {"f32": 89.0, "f64": 710.0}


def nearest(x: Expr, factor: float = 1.0) -> tuple[Expr, Expr]:
    """Return x * factor rounded to an integer, as a real and (its low bits) as a signed integer."""
    fmt = format_of(x.dtype)
    shifted = (x * factor if factor != 1.0 else x) + fmt.magic
    return shifted - fmt.magic, shifted.bitcast(fmt.signed) - _magic_bits(fmt)


def _magic_bits(fmt: Format) -> int:
    return ((fmt.bias + fmt.mantissa) << fmt.mantissa) | (1 << (fmt.mantissa - 1))


def scale(x: Expr, exponent: Expr) -> Expr:
    """Return x * 2**exponent by two factors, so that overflow and gradual underflow happen in the last product."""
    half = exponent >> 1
    return x * power_of_two(half) * power_of_two(exponent - half)


def power_of_two(exponent: Expr) -> Expr:
    """Return 2**exponent for a signed integer in the range of normal numbers."""
    fmt = format_of(dt.f32 if exponent.dtype is dt.i32 else dt.f64)
    return ((exponent + fmt.bias) << fmt.mantissa).bitcast(fmt.real)


def exp_kernel(r: Expr) -> Expr:
    """exp(r) - 1 for |r| <= ln(2)/2."""
    return r + (r * r) * polynomial(r, table.EXP[r.dtype.name])


def exp(x: Expr) -> Expr:
    """e to the power x."""
    name = x.dtype.name
    x = where(x > _HIGHEST[name], x.lift(_HIGHEST[name]), where(x < _LOWEST[name], x.lift(_LOWEST[name]), x))
    return _exp_in_range(x)


def _exp_in_range(x: Expr) -> Expr:
    n, exponent = nearest(x, table.LOG2E)
    high, low = table.LN2[x.dtype.name]
    r = (x - n * high) - n * low
    return scale(1.0 + exp_kernel(r), exponent)


def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent: a polynomial up to 0.625, 1 - 2/(exp(2|x|) + 1) beyond."""
    a = abs(x)
    z = a * a
    inner = a + a * (z * polynomial(z, table.TANH[x.dtype.name]))
    limit = 10.0 if x.dtype is dt.f32 else 20.0
    growth = _exp_in_range(where(a > limit, a.lift(limit), a) * 2.0)
    return where(a < 0.625, inner, 1.0 - 2.0 / (growth + 1.0)).flip_sign(x.sign_bit())


def split(x: Expr) -> tuple[Expr, Expr]:
    """Return (m, e), both real, with x = m * 2**e and m in [sqrt(1/2), sqrt(2)], for finite x > 0 (subnormal too)."""
    fmt = format_of(x.dtype)
    tiny = x < 2.0 ** (1 - fmt.bias)
    bits = where(tiny, x * 2.0 ** (fmt.mantissa + 2), x).bitcast(fmt.signed)
    root = _sqrt_half_bits(fmt)
    above = bits - root
    exponent = (above >> fmt.mantissa).cast(dt.i32) - where(tiny, (above.cast(dt.i32)).lift(fmt.mantissa + 2), 0)
    return ((above & ((1 << fmt.mantissa) - 1)) + root).bitcast(fmt.real), exponent.cast(fmt.real)


def _sqrt_half_bits(fmt: Format) -> int:
    value = fmt.real.numpy.type(math.sqrt(0.5))
    return int(value.view(fmt.signed.numpy))


def log(x: Expr) -> Expr:
    """Natural logarithm: -inf at 0, NaN below.

    With f = m - 1 and s = f/(2 + f), log(1 + f) = f - (f*f/2 - s*(f*f/2 + R(s*s))), R the tail of 2 atanh(s)/s.
    """
    m, e = split(x)
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    tail = z * polynomial(z, table.LOG[x.dtype.name])
    high, low = table.LN2[x.dtype.name]
    half_square = f * f * 0.5
    value = e * high - ((half_square - (s * (half_square + tail) + e * low)) - f)
    special = where(x.equals(0.0), x.lift(-math.inf), where(x > 0.0, x, math.nan))
    return where((x > 0.0) & (x < math.inf), value, special)
