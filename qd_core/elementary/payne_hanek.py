"""Reduction of huge arguments modulo pi/2 in integers (Payne and Hanek 1983).

With |x| = significand * 2**e, only a window of the bits of 2/pi decides the fraction of |x| * 2/pi: those before it
give multiples of 4 quadrants, those after it less than the result's last bit (an f32 comes as close as 2**-30 to a
multiple of pi/2, an f64 as 2**-62). All integers are 32-bit limbs in u64.
"""

from __future__ import annotations

from qd_core import dtypes as dt
from qd_core.elementary import coefficients as table
from qd_core.elementary.expression import Expr, Format, Reduced, fast_two_sum, format_of, where

__all__ = ["LEAST_EXPONENT", "reduce_huge"]

LEAST_EXPONENT = {"f32": 12, "f64": 18}  # arguments are at least 2 to this
_WINDOW = {"f32": 3, "f64": 6}  # limbs
_MASK = 0xFFFFFFFF


def reduce_huge(a: Expr) -> Reduced:
    """Reduce a positive number of at least 2**LEAST_EXPONENT; infinity and NaN give NaN."""
    fmt = format_of(a.dtype)
    limbs = _product(_significand(a, fmt), _window(a, fmt))
    lead = limbs[0] + (1 << 29)  # bit 30 weighs one quadrant: round to the nearest
    fraction = (lead & 0x3FFFFFFF) - (1 << 29)
    negative = fraction >> 63
    flip = fraction.lift(0) - negative
    magnitude = [fraction ^ flip, *((limb ^ flip) & _MASK for limb in limbs[1:])]
    high, low = _times_half_pi(*_digits(magnitude, fmt), fmt)
    sign = negative.cast(fmt.unsigned) << (fmt.real.bits - 1)
    return Reduced(high.flip_sign(sign) + (a - a), low.flip_sign(sign), (lead >> 30).cast(fmt.unsigned))


def _significand(a: Expr, fmt: Format) -> list[Expr]:
    """32-bit limbs, least significant first."""
    whole = ((a.bits() & ((1 << fmt.mantissa) - 1)) | (1 << fmt.mantissa)).cast(dt.u64)
    return [whole] if fmt.real is dt.f32 else [whole & _MASK, whole >> 32]


def _window(a: Expr, fmt: Format) -> list[Expr]:
    """Limbs of 2/pi, most significant first, whose product with the significand has a top bit that weighs two
    quadrants.

    That is bit e - 1 of the expansion, where bit k weighs 2**-k.
    """
    least, count = LEAST_EXPONENT[fmt.real.name], _WINDOW[fmt.real.name]
    position = (a.bits() >> fmt.mantissa).cast(dt.u64) - (fmt.bias + least)
    highest = (fmt.bias - least) // 64
    words = _words(position >> 6, least - fmt.mantissa - 2, highest, (count + 1) // 2 + 1)
    left = position & 63
    right = 63 - left
    aligned = [(words[i] << left) | ((words[i + 1] >> 1) >> right) for i in range(len(words) - 1)]
    return [half for word in aligned for half in (word >> 32, word & _MASK)][:count]


def _words(index: Expr, start: int, highest: int, wanted: int) -> list[Expr]:
    """64-bit words ``index`` .. ``index + wanted - 1`` of 2/pi cut from bit ``start`` (negative: zeros in front), 0 <=
    index <= highest.

    A logarithmic network of selects: the IR has no constant arrays.
    """
    words = [index.lift(_expansion(start + 64 * i)) for i in range(highest + wanted)]
    for bit in reversed(range(highest.bit_length())):
        step = 1 << bit
        chosen = ~(index & step).equals(0)
        words += [index.lift(0)] * step
        words = [where(chosen, words[i + step], words[i]) for i in range(min(wanted + step - 1, len(words) - step))]
    return words


def _expansion(start: int) -> int:
    """64 bits of the binary expansion of 2/pi from bit ``start``, where bit 0 weighs 1/2."""
    whole = 0
    for word in table.TWO_OVER_PI_WORDS:
        whole = whole << 32 | word
    return (whole << 128 >> (32 * len(table.TWO_OVER_PI_WORDS) + 64 - start)) & ((1 << 64) - 1)


def _product(significand: list[Expr], window: list[Expr]) -> list[Expr]:
    """Product modulo 2**(32 * len(window)), most significant limb first.

    The significand's top limb has at most 24 bits, so its products are added whole; those of a lower limb are split.
    """
    *lower, top = significand
    shift = len(lower)
    columns: list[list[Expr]] = [[] for _ in range(len(window) + 2)]
    for j, w in enumerate(reversed(window)):
        columns[j + shift].append(top * w)
        for i, m in enumerate(lower):
            columns[i + j].append(m * w & _MASK)
            columns[i + j + 1].append(m * w >> 32)
    return _carried(columns[: len(window)])


def _carried(columns: list[list[Expr]]) -> list[Expr]:
    limbs: list[Expr] = []
    carry: list[Expr] = []
    for column in columns:
        total = column[0]
        for term in [*column[1:], *carry]:
            total = total + term
        limbs.append(total & _MASK)
        carry = [total >> 32]
    return limbs[::-1]


def _digits(limbs: list[Expr], fmt: Format) -> tuple[Expr, Expr]:
    """Sum of two reals that equals the limbs, in units of the first digit.

    Two digits that convert exactly, then one that is rounded: 16 + 16 + 31 bits of two limbs or 32 + 32 + 63 bits of
    four.
    """
    if fmt.real is dt.f32:
        first, second, third = limbs[0] >> 16, limbs[0] & 0xFFFF, limbs[1] >> 1
    else:
        first, second, third = limbs[0], limbs[1], limbs[2] << 31 | limbs[3] >> 1
    a, b, c = (digit.cast(fmt.signed).cast(fmt.real) for digit in (first, second, third))
    width = fmt.real.bits // 2
    high, error = fast_two_sum(a, b * 2.0**-width)
    return high, error + c * 2.0 ** (1 - 3 * width)


def _times_half_pi(high: Expr, low: Expr, fmt: Format) -> tuple[Expr, Expr]:
    """(high + low) * pi/2, from units of the first digit to quadrants, as a sum of two reals."""
    unit = 2.0 ** (2 - fmt.real.bits // 2)
    lead, rest = (part * unit for part in table.HALF_PI_HALVES[fmt.real.name])
    upper = high.upper_half()
    lower = (high - upper) + low
    return fast_two_sum(upper * lead, upper * rest + lower * (lead + rest))
