"""Constants and conversions."""

from __future__ import annotations

from qd_core import dtypes as dt
from qd_core.codegen.spirv.arithmetic import Typed, less
from qd_core.codegen.spirv.emitter import HANDLERS, Emitter
from qd_core.dtypes import DType
from qd_core.ir.nodes import Node

__all__ = ["cast"]


def _const(em: Emitter, node: Node) -> None:
    em.env[node] = em.const(node.type, node.attrs["value"])


def _bitcast(em: Emitter, node: Node) -> None:
    x, to = em.value(node.operands[0]), em.type(node.type)
    em.env[node] = x if em.type(node.operands[0].type) == to else em.op("Bitcast", to, x)


def _cast(em: Emitter, node: Node) -> None:
    source = node.operands[0]
    em.env[node] = cast(em, em.value(source), source.type, node.type)


def cast(em: Emitter, x: int, source: DType, to: DType) -> int:
    """Write the conversion of ``x``, a value of ``source``, to ``to``."""
    t = Typed(em, source)
    if source is to:
        return x
    if to is dt.u1:
        return t.test("FUnordNotEqual" if source.is_real else "INotEqual", x, t.lit(0))
    if source is dt.u1:
        return em.op("Select", em.type(to), x, em.const(to, 1), em.const(to, 0))
    if source.is_real:
        return _resize_real(em, x, source, to) if to.is_real else _from_real(t, x, to)
    if to.is_real:
        return em.op("ConvertSToF" if source.is_signed else "ConvertUToF", em.type(to), x)
    return _resize(em, x, source, to)


def _resize_real(em: Emitter, x: int, source: DType, to: DType) -> int:
    if source is dt.f64 and to is dt.f16:
        x = _to_odd_f32(Typed(em, source), x)
    return em.op("FConvert", em.type(to), x)


def _to_odd_f32(t: Typed, x: int) -> int:
    """Round f64 to f32 with the last bit set where that is inexact: rounding again then gives what rounding once would.

    Devices may convert f64 to f16 in two steps.
    """
    single = t.like(dt.f32)
    near = t.em.op("FConvert", single.type, x)
    back = t.em.op("FConvert", t.type, near)
    above = less(t, "gt", t.ext("FAbs", back), t.ext("FAbs", x))
    inexact = t.logic("LogicalOr", less(t, "lt", back, x), less(t, "gt", back, x))
    integer, bits = single.bits(near)
    toward_zero = integer.op("ISub", bits, integer.select(above, integer.lit(1), integer.lit(0)))
    odd = integer.op("BitwiseOr", toward_zero, integer.lit(1))
    return single.op("Bitcast", integer.select(inexact, odd, bits))


def _resize(em: Emitter, x: int, source: DType, to: DType) -> int:
    if source.bits == to.bits:
        return x
    if source is dt.i32 and to.bits == 64:
        return _sign_extend(em, x)
    return em.op("SConvert" if source.is_signed else "UConvert", em.type(to), x)


def _sign_extend(em: Emitter, x: int) -> int:
    """Widen i32 to 64 bits from its halves.

    Mesa 22 narrows a comparison of a constant with `OpSConvert` of an i32 and gets it wrong; this form it leaves alone.
    """
    u32, u64 = em.type(dt.u32), em.type(dt.u64)
    sign = em.op("UConvert", u64, em.op("ShiftRightArithmetic", u32, x, em.u32(31)))
    return em.op("BitwiseOr", u64, em.op("UConvert", u64, x), em.op("ShiftLeftLogical", u64, sign, em.u32(32)))


def _from_real(t: Typed, x: int, to: DType) -> int:
    if t.dtype is dt.f16:
        return _from_real(t.like(dt.f32), t.em.op("FConvert", t.em.type(dt.f32), x), to)
    if to is dt.u64:
        return _to_u64(t, x)
    through = dt.i64 if to.bits == 64 or to is dt.u32 else dt.i32
    return _resize(t.em, _to_signed(t, x, through), through, to)


def _to_signed(t: Typed, x: int, to: DType) -> int:
    """Truncate; the minimum of ``to`` outside its range and for NaN."""
    low, high = -(2.0 ** (to.bits - 1)), 2.0 ** (to.bits - 1)
    # One below the range still truncates into it, where the real type can tell the two apart.
    exact = t.dtype is dt.f64 and to.bits == 32
    above = less(t, "gt" if exact else "ge", x, t.lit(low - 1 if exact else low))
    inside = t.logic("LogicalAnd", above, less(t, "lt", x, t.lit(high)))
    integer = t.like(to)
    whole = t.em.op("ConvertFToS", integer.type, t.select(inside, x, t.lit(0)))
    return integer.select(inside, whole, integer.lit(to.min))


def _to_u64(t: Typed, x: int) -> int:
    """Values from 2^63 on are shifted down by it first; everything else goes through i64."""
    half = t.lit(2.0**63)
    upper = t.logic("LogicalAnd", less(t, "ge", x, half), less(t, "lt", x, t.lit(2.0**64)))
    whole = _to_signed(t, t.select(upper, t.op("FSub", x, half), x), dt.i64)
    integer = t.like(dt.i64)
    return integer.select(upper, integer.op("BitwiseXor", whole, integer.lit(dt.i64.min)), whole)


HANDLERS.update({"const": _const, "bitcast": _bitcast, "cast": _cast})
