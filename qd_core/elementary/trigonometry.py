"""Sine, cosine, tangent and their inverses.

Polynomials in the square of a reduced argument; all signs are moved as bits, so signed zeros come out right.
"""

from __future__ import annotations

from qd_core.elementary import coefficients as table
from qd_core.elementary.expression import Expr, Reduced, fast_two_sum, format_of, polynomial, where
from qd_core.elementary.reduction import reduce_half_pi

__all__ = ["acos", "asin", "atan2", "cos", "sin", "tan"]


def sin(x: Expr) -> Expr:
    """Sine of x in radians."""
    reduced = reduce_half_pi(x)
    sine, cosine = _kernels(reduced)
    value = where(_odd(reduced), cosine, sine)
    return value.flip_sign(x.sign_bit() ^ _second_bit(reduced.quadrant))


def cos(x: Expr) -> Expr:
    """Cosine of x in radians."""
    reduced = reduce_half_pi(x)
    sine, cosine = _kernels(reduced)
    value = where(_odd(reduced), sine, cosine)
    return value.flip_sign(_second_bit(reduced.quadrant + 1))


def tan(x: Expr) -> Expr:
    """Tangent of x in radians."""
    reduced = reduce_half_pi(x)
    r, z = reduced.high, reduced.high * reduced.high
    bend = (r * z) * polynomial(z, table.TAN[x.dtype.name])
    rough = r + bend
    tangent = r + (bend + reduced.low * (rough * rough + 1.0))
    return where(_odd(reduced), -1.0 / tangent, tangent).flip_sign(x.sign_bit())


def _odd(reduced: Reduced) -> Expr:
    return ~(reduced.quadrant & 1).equals(0)


def _second_bit(quadrant: Expr) -> Expr:
    """Bit 1 of the quadrant, moved to the place of the sign."""
    return (quadrant & 2) << (quadrant.dtype.bits - 2)


def _kernels(reduced: Reduced) -> tuple[Expr, Expr]:
    """Sine and cosine of high + low in [-pi/4, pi/4]."""
    r, low = reduced.high, reduced.low
    z = r * r
    name = r.dtype.name
    sine = r + ((r * z) * polynomial(z, table.SIN[name]) + low)
    cosine = 1.0 + (((z * z) * polynomial(z, table.COS[name]) - r * low) - z * 0.5)
    return sine, cosine


def _arcsine_kernel(x: Expr) -> tuple[Expr, Expr, Expr]:
    """Return (|x| > 1/2, s, asin(s) - s) with s = |x|, or sqrt((1 - |x|)/2) beyond 1/2; NaN beyond 1."""
    a = abs(x)
    outer = a > 0.5
    z = where(outer, (1.0 - a) * 0.5, a * a)
    s = where(outer, z.apply("sqrt"), a)
    return outer, s, s * (z * polynomial(z, table.ASIN[x.dtype.name]))


def asin(x: Expr) -> Expr:
    """Arc sine in [-pi/2, pi/2]; NaN outside [-1, 1]. asin(x) = pi/2 - 2 asin(sqrt((1 - x)/2))."""
    outer, s, bend = _arcsine_kernel(x)
    high, low = table.HALF_PI_PAIR[x.dtype.name]
    rough, lost = fast_two_sum(s.lift(high), s * -2.0)
    return where(outer, rough - (bend * 2.0 - (lost + low)), s + bend).flip_sign(x.sign_bit())


def acos(x: Expr) -> Expr:
    """Arc cosine in [0, pi]; NaN outside [-1, 1]."""
    outer, s, bend = _arcsine_kernel(x)
    high, low = table.HALF_PI_PAIR[x.dtype.name]
    inner = s + bend
    twice = inner * 2.0
    far = where(x < 0.0, 2 * high - (twice - 2 * low), twice)
    return where(outer, far, high - (inner.flip_sign(x.sign_bit()) - low))


def atan2(y: Expr, x: Expr) -> Expr:
    """Angle of the point (x, y) in [-pi, pi], with C99's values at zeros and infinities."""
    fmt = format_of(x.dtype)
    ax, ay = abs(x), abs(y)
    steep = ay > ax
    small, large = where(steep, ax, ay), where(steep, ay, ax)
    same = where(large > 0.0, large.lift(1.0), 0.0)  # both zero, both infinite, or on a diagonal
    t = where(small.equals(large), same, small / large)
    z = t * t
    left = x.sign_bit()
    turn = left ^ where(steep, left.lift(fmt.sign_mask), 0)
    bend = (t * (z * polynomial(z, table.ATAN[x.dtype.name]))).flip_sign(turn)
    high, low = table.HALF_PI_PAIR[x.dtype.name]
    leftward = ~left.equals(0)
    base = where(steep, t.lift(high), where(leftward, t.lift(2 * high), 0.0))
    rest = where(steep, t.lift(low), where(leftward, t.lift(2 * low), 0.0))
    rough, lost = fast_two_sum(base, t.flip_sign(turn))
    return (rough + (bend + (lost + rest))).flip_sign(y.sign_bit())
