"""Argument reduction of the trigonometric functions: |x| = q * pi/2 + r with |r| <= pi/4 (and a little).

Up to :data:`LIMIT` by subtracting n times pi/2 in parts (Cody and Waite 1980); beyond it, in a branch that a whole
vector skips, by `math.payne_hanek`. No wider real type is used.
"""

from __future__ import annotations

from qd_core.elementary import coefficients as table
from qd_core.elementary.expression import Expr, Reduced, fast_two_sum, format_of
from qd_core.elementary.payne_hanek import reduce_huge

__all__ = ["LIMIT", "reduce_half_pi"]

# n stays below 2**12 and 2**18, for which the parts of pi/2 give exact products.
LIMIT = {"f32": 6400.0, "f64": 400000.0}


def reduce_half_pi(x: Expr) -> Reduced:
    """Reduce |x|; sine, cosine and tangent of one argument share the result."""
    return x.b.memo(("reduce_half_pi", id(x.value)), lambda: _reduce(abs(x)))


def _reduce(a: Expr) -> Reduced:
    fast = _cody_waite(a)
    condition = a > LIMIT[a.dtype.name]
    with a.b.inside() as then:
        slow = reduce_huge(a)
        a.b.yield_(slow.high.value, slow.low.value, slow.quadrant.value)
    with a.b.inside() as otherwise:
        a.b.yield_(fast.high.value, fast.low.value, fast.quadrant.value)
    return Reduced(*(Expr(a.b, v) for v in a.b.if_(condition.value, then, otherwise)))


def _cody_waite(a: Expr) -> Reduced:
    fmt = format_of(a.dtype)
    *exact, last, tail = table.HALF_PI[a.dtype.name]
    shifted = a * table.TWO_OVER_PI + fmt.magic
    n = shifted - fmt.magic
    for part in exact:
        a = a - n * part
    product = n * last
    rough = a - product
    rest = (a - rough) - product - n * tail
    high, low = fast_two_sum(rough, rest)
    return Reduced(high, low, shifted.bits())
