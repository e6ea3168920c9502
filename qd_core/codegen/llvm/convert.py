"""Constants and conversions."""

from __future__ import annotations

from qd_core import dtypes as dt
from qd_core.codegen.llvm.elementwise import Typed
from qd_core.codegen.llvm.emitter import HANDLERS, Emitter, Lane
from qd_core.codegen.llvm.types import LLVM, literal
from qd_core.dtypes import DType
from qd_core.ir.nodes import Node

__all__: list[str] = []


def _const(em: Emitter, node: Node) -> None:
    em.env[node] = Lane(literal(node.type, node.attrs["value"]))


def _bitcast(em: Emitter, node: Node) -> None:
    x = em.env[node.operands[0]]
    source, to = node.operands[0].type, node.type
    if LLVM[source] == LLVM[to]:
        em.env[node] = x
        return
    ref = em.widen(x, source) if x.wide else x.ref
    em.env[node] = Lane(em.new(f"bitcast {em.typed(source, x.wide)} {ref} to {em.typed(to, x.wide)}"), x.wide)


def _cast(em: Emitter, node: Node) -> None:
    x, source, to = em.env[node.operands[0]], node.operands[0].type, node.type
    if x.step is not None:
        affine = _affine_cast(em, x, source, to)
        if affine is not None:
            em.env[node] = affine
            return
    ref = em.widen(x, source) if x.wide else x.ref
    em.env[node] = Lane(convert(Typed(em, source, x.wide), ref, to), x.wide)


def _affine_cast(em: Emitter, x: Lane, source: DType, to: DType) -> Lane | None:
    """An affine integer stays affine when it is narrowed (arithmetic modulo 2^bits), and when it is widened without
    having wrapped.
    """
    if to.is_real or to is dt.u1 or (to.bits > source.bits and not x.exact):
        return None
    if LLVM[source] == LLVM[to]:
        return Lane(x.ref, True, x.step, x.exact and source.is_signed == to.is_signed)
    ref = em.new(f"{_integer_cast(source, to)} {LLVM[source]} {x.ref} to {LLVM[to]}")
    return Lane(ref, True, x.step, to.bits > source.bits)


def _integer_cast(source: DType, to: DType) -> str:
    return "trunc" if to.bits < source.bits else "sext" if source.is_signed else "zext"


def convert(t: Typed, x: str, to: DType) -> str:
    """Write the conversion of ``x`` to ``to``, as the op table states it."""
    source = t.dtype
    if source is to:
        return x
    if to is dt.u1:
        return t.compare("fcmp une" if source.is_real else "icmp ne", x, t.lit(0))
    if source.is_real:
        return _from_real(t, x, to)
    if to.is_real:
        return _to_real(t, x, to)
    return x if LLVM[source] == LLVM[to] else t.convert(_integer_cast(source, to), x, to)


def _to_real(t: Typed, x: str, to: DType) -> str:
    return t.convert("sitofp" if t.dtype.is_signed else "uitofp", x, to)


def _from_real(t: Typed, x: str, to: DType) -> str:
    if to.is_real:
        if t.dtype is dt.f64 and to is dt.f16:
            return t.like(dt.f32).convert("fptrunc", _to_odd_f32(t, x), to)
        return t.convert("fptrunc" if to.bits < t.dtype.bits else "fpext", x, to)
    if t.dtype is dt.f16:
        return _from_real(t.like(dt.f32), t.convert("fpext", x, dt.f32), to)
    if to is dt.u64:
        return _to_u64(t, x)
    through = dt.i64 if to.bits == 64 or to is dt.u32 else dt.i32
    whole = _to_signed(t, x, through)
    return whole if LLVM[through] == LLVM[to] else t.like(through).convert("trunc", whole, to)


def _to_odd_f32(t: Typed, x: str) -> str:
    """Round f64 to f32 with the last bit set where the result is inexact, so that rounding again gives what rounding
    once does.
    """
    single, bits = t.like(dt.f32), t.like(dt.i32)
    near = t.convert("fptrunc", x, dt.f32)
    back = single.convert("fpext", near, dt.f64)
    above = t.compare("fcmp ogt", t.call("fabs", back), t.call("fabs", x))
    inexact = t.compare("fcmp one", back, x)
    toward_zero = bits.op("sub", single.convert("bitcast", near, dt.i32), t.like(dt.u1).convert("zext", above, dt.i32))
    odd = bits.op("or", toward_zero, t.like(dt.u1).convert("zext", inexact, dt.i32))
    return bits.convert("bitcast", odd, dt.f32)


def _to_signed(t: Typed, x: str, to: DType) -> str:
    """Truncate; the minimum of ``to`` outside its range and for NaN."""
    low, high = -(2.0 ** (to.bits - 1)), 2.0 ** (to.bits - 1)
    # One below the range still truncates into it, where the real type can tell the two apart.
    exact = t.dtype is dt.f64 and to.bits == 32
    above = t.compare("fcmp ogt" if exact else "fcmp oge", x, t.lit(low - 1 if exact else low))
    inside = t.logic("and", above, t.compare("fcmp olt", x, t.lit(high)))
    whole = t.convert("fptosi", t.select(inside, x, t.lit(0)), to)
    integer = t.like(to)
    return integer.select(inside, whole, integer.lit(to.min))


def _to_u64(t: Typed, x: str) -> str:
    """Values from 2^63 on are shifted down by it first; everything else goes through i64."""
    half = t.lit(2.0**63)
    upper = t.logic("and", t.compare("fcmp oge", x, half), t.compare("fcmp olt", x, t.lit(2.0**64)))
    whole = _to_signed(t, t.select(upper, t.op("fsub", x, half), x), dt.i64)
    integer = t.like(dt.i64)
    return integer.select(upper, integer.op("xor", whole, integer.lit(dt.i64.min)), whole)


HANDLERS.update({"const": _const, "bitcast": _bitcast, "cast": _cast})
