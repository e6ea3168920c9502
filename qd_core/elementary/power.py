"""Powers: real and integer exponents."""

from __future__ import annotations

import math

from qd_core import dtypes as dt
from qd_core.elementary import coefficients as table
from qd_core.elementary.exponential import exp_kernel, nearest, scale, split
from qd_core.elementary.expression import Expr, polynomial, where
from qd_core.ir.build import Builder, constant_of
from qd_core.ir.nodes import Value

__all__ = ["pow", "powi"]

# Exponents beyond these give 0, 1 or an infinity; binary logarithms beyond these give 0 or an infinity.
_EXPONENT_LIMIT = {"f32": 2.0**33, "f64": 2.0**65}
_LOG_RANGE = {"f32": (-152.0, 129.0), "f64": (-1077.0, 1025.0)}
_LN2 = math.log(2)


def pow(x: Expr, y: Expr) -> Expr:
    """x to the power y with the special values of C99, 7.12.7.4 and F.9.4.4."""
    constant = constant_of(y.value)
    if constant == 1.0:
        return x
    if constant == 2.0:
        return x * x
    return 1.0 / x if constant == -1.0 else _general(x, y)


def _general(x: Expr, y: Expr) -> Expr:
    a = abs(x)
    whole = y.equals(y.apply("floor"))
    half = y * 0.5
    odd = whole & ~half.equals(half.apply("floor"))
    high, low = _times_log2(a, y)
    low_end, high_end = _LOG_RANGE[x.dtype.name]
    total = high + low
    empty, full = a.equals(0.0), a.equals(math.inf)
    vanishes = empty ^ (y < 0.0)
    total = where(empty | full, where(vanishes, total.lift(2 * low_end), 2 * high_end), total)
    value = where(total < low_end, total.lift(0.0), _exp2(high, low, total))
    value = where(total > high_end, value.lift(math.inf), value)
    value = value.flip_sign(where(odd, x.sign_bit(), 0))
    invalid = (x < 0.0) & ~full & ~whole
    value = where(invalid, value.lift(math.nan), value)
    value = where(x.equals(x) & y.equals(y), value, x + y)
    return where(y.equals(0.0) | x.equals(1.0), value.lift(1.0), value)


def _times_log2(a: Expr, y: Expr) -> tuple[Expr, Expr]:
    """y * log2(a) as an unevaluated sum, its first part of few bits, for finite a > 0."""
    limit = _EXPONENT_LIMIT[a.dtype.name]
    y = where(y > limit, y.lift(limit), where(y < -limit, y.lift(-limit), y))
    high, low = _log2(a)
    upper = y.upper_half()
    return upper * high, (y - upper) * high + y * low


def _log2(a: Expr) -> tuple[Expr, Expr]:
    """log2(a) as high + low, high of half the bits, relative error about 2**-(3/2 of the precision).

    With s = (m - 1)/(m + 1): log2(m) = 2/(3 ln 2) * s * (3 + s*s + 3 s**4 A(s*s)), each product with a leading part
    exact.
    """
    m, e = split(a)
    s, upper, lower = _ratio(m)
    z = s * s
    tail = z * z * polynomial(z, table.POW[a.dtype.name]) + lower * (upper + s)
    square = upper * upper
    factor = (square + 3.0 + tail).upper_half()
    factor_low = tail - ((factor - 3.0) - square)
    product = upper * factor
    product_low = lower * factor + factor_low * s
    lead = (product + product_low).upper_half()
    rest = product_low - (lead - product)
    c_high, c_low = table.TWO_THIRDS_LOG2E[a.dtype.name]
    scaled = lead * c_high
    scaled_low = lead * c_low + rest * (c_high + c_low)
    high = (scaled + scaled_low + e).upper_half()
    return high, scaled_low - ((high - e) - scaled)


def _ratio(m: Expr) -> tuple[Expr, Expr, Expr]:
    """s = (m - 1)/(m + 1), its leading half, and the rest of the exact quotient."""
    f, inverse = m - 1.0, 1.0 / (m + 1.0)
    s = f * inverse
    upper = s.upper_half()
    divisor = (m + 1.0).upper_half()
    divisor_low = m - (divisor - 1.0)
    return s, upper, inverse * ((f - upper * divisor) - upper * divisor_low)


def _exp2(high: Expr, low: Expr, total: Expr) -> Expr:
    """2**(high + low), for a sum (``total``) in the range of exponents."""
    n, exponent = nearest(total)
    return scale(1.0 + exp_kernel(((high - n) + low) * _LN2), exponent)


def powi(b: Builder, x: Value, n: Value) -> Value:
    """x to the integer power n by squaring, in the arithmetic of x (real or integer)."""
    base, exponent = Expr(b, x), Expr(b, n)
    known = constant_of(n)
    magnitude = _unrolled(base, abs(known)) if known is not None else _loop(base, abs(exponent).bitcast(dt.u32))
    negative = exponent < 0
    if base.dtype.is_real:
        return where(negative, 1.0 / magnitude, magnitude).value
    unit = base.equals(1) | base.equals(-1) if base.dtype.is_signed else base.equals(1)
    return where(~negative | unit, magnitude, 0).value


def _unrolled(base: Expr, exponent: int) -> Expr:
    result = base.lift(1)
    while exponent:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        base = base * base if exponent else base
    return result


def _loop(base: Expr, exponent: Expr) -> Expr:
    b = base.b
    carried = [(base.dtype, "result"), (base.dtype, "power"), (dt.u32, "left")]
    with b.inside(carried, loop=True) as condition:
        left = Expr(b, condition.args[2])
        b.yield_((~left.equals(0)).value)
    with b.inside(carried, loop=True) as body:
        result, power, left = (Expr(b, a) for a in body.args)
        result = where((left & 1).equals(1), result * power, result)
        b.yield_(result.value, (power * power).value, (left >> 1).value)
    return Expr(b, b.while_([base.lift(1).value, base.value, exponent.value], condition, body)[0])
