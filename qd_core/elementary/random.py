"""Counter-based random numbers as IR.

Philox4x32 with 10 rounds: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section
3.3. A draw is a function of key and counter alone, so it is the same on every backend and in a recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.elementary.expression import Expr
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Value

__all__ = ["number", "philox4x32", "uniform"]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)  # key increments: golden ratio and sqrt(3) - 1, as fractions of 2**32


def philox4x32(
    b: Builder, key: Sequence[Value], counter: Sequence[Value], rounds: int = 10
) -> tuple[Value, Value, Value, Value]:
    """Return four random u32 words.

    Parameters
    ----------
    b : Builder
        Receives the nodes.
    key : two Values, u32
        What streams are told apart by, such as the seed.
    counter : four Values, u32
        The position in the stream.
    rounds : int
        Rounds; 10 is the published default.
    """
    k0, k1 = (Expr(b, v) for v in key)
    c = [Expr(b, v) for v in counter]
    for _ in range(rounds):
        (high0, low0), (high1, low1) = (_wide_product(c[i], m) for i, m in zip((0, 2), _MULTIPLIERS, strict=True))
        c = [high1 ^ c[1] ^ k0, low1, high0 ^ c[3] ^ k1, low0]
        k0, k1 = k0 + _WEYL[0], k1 + _WEYL[1]
    return c[0].value, c[1].value, c[2].value, c[3].value


def _wide_product(a: Expr, multiplier: int) -> tuple[Expr, Expr]:
    """High and low word of a 32 by 32 bit product."""
    product = a.cast(dt.u64) * multiplier
    return (product >> 32).cast(dt.u32), product.cast(dt.u32)


def uniform(b: Builder, word: Value) -> Value:
    """Map a u32 word to an f32 in [0, 1): its upper 24 bits times 2**-24, exactly."""
    return _fraction(Expr(b, word), dt.f32, 24)


def number(b: Builder, dtype: DType, words: Sequence[Value]) -> Value:
    """Make a number of random words.

    Parameters
    ----------
    b : Builder
        Receives the nodes.
    dtype : DType
        Real: uniform in [0, 1), a multiple of the spacing of numbers below 1. Integer or u1: all bits random.
    words : one Value, u32; two for a type of 64 bits
        Random bits.
    """
    word = Expr(b, words[0])
    if dtype.bits == 64:
        word = word.cast(dt.u64) | (Expr(b, words[1]).cast(dt.u64) << 32)
    if dtype.is_real:
        return _fraction(word, dtype, {16: 11, 32: 24, 64: 53}[dtype.bits])
    return (word >> 31).cast(dtype).value if dtype is dt.u1 else word.cast(dtype).value


def _fraction(word: Expr, dtype: DType, bits: int) -> Value:
    """The upper ``bits`` bits of a word as a fraction."""
    signed, wide = (dt.i64, dt.f64) if word.dtype is dt.u64 else (dt.i32, dt.f32)
    shift = word.dtype.bits - bits
    return ((word >> shift).cast(signed).cast(wide) * 2.0**-bits).cast(dtype).value
