"""Debug mode: integer arithmetic that wraps is reported, and goes on with the wrapped result.

It is printed, not raised: hashes and generators wrap on purpose.
"""

from __future__ import annotations

from qd_core import dtypes as dt
from qd_core.errors import format_span
from qd_core.frontend.context import Lowering
from qd_core.ir.build import Builder, constant_of
from qd_core.ir.nodes import Value

__all__ = ["report_overflow"]

_WORDS = {"add": ("Addition", "+"), "sub": ("Subtraction", "-"), "mul": ("Multiplication", "*"), "shl": ("Shift", "<<")}
_WIDTHS = (32, 64)
"""Narrower results are stored as they are: users of narrow types want them to wrap."""


def report_overflow(ctx: Lowering, name: str, a: Value, b: Value, result: Value) -> None:
    """Print a message at run time where ``result`` is not what `name` of ``a`` and ``b`` is in exact arithmetic."""
    builder, dtype = ctx.builder, result.type
    if not ctx.options.debug or dtype.is_real or dtype.bits not in _WIDTHS:
        return
    wrapped = _CONDITIONS[name](builder, a, b, result)
    if constant_of(wrapped) is False:
        return
    word, sign = _WORDS[name]
    place = format_span(builder.span) if builder.span is not None else ""
    with builder.inside() as then:
        text = (f"{word} overflow detected: ", (0,), f" {sign} ", (1,), " became ", (2,), f" ({dtype.name})\n{place}\n")
        builder.print(text, (a, b, result), once=True)
        builder.yield_()
    with builder.inside() as otherwise:
        builder.yield_()
    builder.if_(wrapped, then, otherwise)


def _negative(b: Builder, x: Value) -> Value:
    return b.emit("lt", x, b.const(x.type, 0))


def _add(b: Builder, x: Value, y: Value, r: Value) -> Value:
    if not r.type.is_signed:
        return b.emit("lt", r, x)
    return _negative(b, b.emit("and", b.emit("xor", x, r), b.emit("xor", y, r)))


def _sub(b: Builder, x: Value, y: Value, r: Value) -> Value:
    if not r.type.is_signed:
        return b.emit("lt", x, y)
    return _negative(b, b.emit("and", b.emit("xor", x, y), b.emit("xor", x, r)))


def _mul(b: Builder, x: Value, y: Value, r: Value) -> Value:
    dtype = r.type
    if dtype.bits == 32:
        wide = dt.i64 if dtype.is_signed else dt.u64
        return b.emit("ne", b.emit("mul", b.cast(x, wide), b.cast(y, wide)), b.cast(r, wide))
    zero, one = b.const(dtype, 0), b.const(dtype, 1)
    special = b.emit("eq", x, zero)
    wrapped = b.const(dt.u1, False)
    if dtype.is_signed:  # the quotient by -1 may wrap itself
        minus = b.emit("eq", x, b.const(dtype, -1))
        wrapped = b.emit("and", minus, b.emit("eq", y, b.const(dtype, int(dtype.min))))
        special = b.emit("or", special, minus)
    quotient = b.emit("raw_div", r, b.select(special, one, x))
    return b.emit("or", wrapped, b.emit("and", b.emit("not", special), b.emit("ne", quotient, y)))


def _shl(b: Builder, x: Value, amount: Value, r: Value) -> Value:
    return b.emit("ne", b.emit("sar", r, amount), x)


_CONDITIONS = {"add": _add, "sub": _sub, "mul": _mul, "shl": _shl}
