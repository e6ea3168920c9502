"""Elementwise operations, with the exact meaning that the op table states.

Instructions whose result is undefined for some operands are given safe ones and their result is replaced there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qd_core import dtypes as dt
from qd_core.codegen.spirv.emitter import HANDLERS, Emitter
from qd_core.dtypes import DType
from qd_core.ir.nodes import Node

__all__ = ["Typed"]

_ROUNDED = frozenset({"FAdd", "FSub", "FMul", "FDiv", "FNegate"})


class Typed:
    """Writes instructions on values of one type.

    Parameters
    ----------
    emitter : Emitter
        Where they go.
    dtype : DType
        Type of the operands.
    strict : bool
        Real arithmetic is neither fused nor reassociated.
    """

    __slots__ = ("dtype", "em", "strict", "type")

    def __init__(self, emitter: Emitter, dtype: DType, strict: bool = False) -> None:
        self.em, self.dtype, self.strict = emitter, dtype, strict
        self.type = emitter.type(dtype)

    def like(self, dtype: DType) -> Typed:
        """Return a writer for another type."""
        return Typed(self.em, dtype, self.strict)

    def lit(self, value: Any) -> int:
        """Return a constant."""
        return self.em.const(self.dtype, value)

    def op(self, name: str, *operands: int) -> int:
        """Write an instruction whose result has the operands' type."""
        result = self.em.op(name, self.type, *operands)
        if self.strict and name in _ROUNDED and not (name == "FMul" and self.em.target.plain_products):
            self.em.module.decorate(result, "NoContraction")
        return result

    def ext(self, name: str, *operands: int) -> int:
        """Write an instruction of the extended set."""
        return self.em.ext(name, self.type, *operands)

    def test(self, name: str, a: int, b: int) -> int:
        """Write a comparison."""
        return self.em.op(name, self.em.bool, a, b)

    def logic(self, name: str, *operands: int) -> int:
        """Combine conditions."""
        return self.em.op(name, self.em.bool, *operands)

    def select(self, condition: int, a: int, b: int) -> int:
        """Write a choice."""
        return self.em.op("Select", self.type, condition, a, b)

    def bits(self, x: int) -> tuple[Typed, int]:
        """Return the bits of a real as an unsigned integer, with its writer."""
        integer = self.like({16: dt.u16, 32: dt.u32, 64: dt.u64}[self.dtype.bits])
        return integer, integer.op("Bitcast", x)


def is_strict(em: Emitter, node: Node) -> bool:
    """Whether rounding must be as written: what cannot be merely contracted is not touched at all."""
    return not em.options.fast_math or node.attrs.get("exact") is not None


def _register(name: str, rule: Callable[..., int]) -> None:
    def handler(em: Emitter, node: Node) -> None:
        t = Typed(em, node.operands[0].type, is_strict(em, node))
        em.env[node] = rule(t, *em.values(node.operands))

    HANDLERS[name] = handler


# -- instructions that SPIR-V has -----------------------------------------------------------------------------------
_DIRECT: dict[str, tuple[str, str, str]] = {
    "add": ("FAdd", "IAdd", ""), "sub": ("FSub", "ISub", ""), "mul": ("FMul", "IMul", ""), "div": ("FDiv", "", ""),
    "and": ("", "BitwiseAnd", "LogicalAnd"), "or": ("", "BitwiseOr", "LogicalOr"), "xor": ("", "BitwiseXor",
    "LogicalNotEqual"),
    "neg": ("FNegate", "SNegate", ""), "not": ("", "Not", "LogicalNot"),
}  # fmt: skip
"""Instruction for reals, integers and truth values."""


def _direct(names: tuple[str, str, str]) -> Callable[..., int]:
    real, integer, truth = names

    def rule(t: Typed, *operands: int) -> int:
        return t.op(real if t.dtype.is_real else truth if t.dtype is dt.u1 else integer, *operands)

    return rule


for _name, _names in _DIRECT.items():
    _register(_name, _direct(_names))


# -- comparisons and choice -----------------------------------------------------------------------------------------
_COMPARE = {"lt": "LessThan", "le": "LessThanEqual", "gt": "GreaterThan", "ge": "GreaterThanEqual"}


def less(t: Typed, name: str, a: int, b: int) -> int:
    """Write an ordered comparison ``lt``, ``le``, ``gt`` or ``ge``."""
    prefix = "FOrd" if t.dtype.is_real else "S" if t.dtype.is_signed else "U"
    return t.test(prefix + _COMPARE[name], a, b)


def _equal(t: Typed, a: int, b: int) -> int:
    return t.test("FOrdEqual" if t.dtype.is_real else "LogicalEqual" if t.dtype is dt.u1 else "IEqual", a, b)


def _not_equal(t: Typed, a: int, b: int) -> int:
    return t.test("FUnordNotEqual" if t.dtype.is_real else "LogicalNotEqual" if t.dtype is dt.u1 else "INotEqual", a, b)


def _comparison(name: str) -> Callable[[Typed, int, int], int]:
    return lambda t, a, b: less(t, name, a, b)


for _name in _COMPARE:
    _register(_name, _comparison(_name))
_register("eq", _equal)
_register("ne", _not_equal)


def _select(em: Emitter, node: Node) -> None:
    em.env[node] = em.op("Select", em.type(node.type), *em.values(node.operands))


HANDLERS["select"] = _select


def extremum(t: Typed, name: str, a: int, b: int) -> int:
    """Write ``min`` or ``max``: the other operand where one is NaN."""
    if t.dtype.is_real:
        return t.ext("NMin" if name == "min" else "NMax", a, b)
    return t.select(less(t, "lt" if name == "min" else "gt", a, b), a, b)


def _extremum(name: str) -> Callable[[Typed, int, int], int]:
    return lambda t, a, b: extremum(t, name, a, b)


for _name in ("min", "max"):
    _register(_name, _extremum(_name))


# -- one operand ----------------------------------------------------------------------------------------------------
def _abs(t: Typed, x: int) -> int:
    if t.dtype.is_real:
        return t.ext("FAbs", x)
    return t.select(less(t, "lt", x, t.lit(0)), t.op("SNegate", x), x) if t.dtype.is_signed else x


def _sgn(t: Typed, x: int) -> int:
    zero = t.lit(0)
    positive = t.select(less(t, "gt", x, zero), t.lit(1), zero)
    return t.select(less(t, "lt", x, zero), t.lit(-1), positive) if t.dtype.is_signed else positive


def truncate(t: Typed, x: int) -> int:
    """Round toward zero; drivers have been seen whose own instruction does not truncate f64."""
    if t.dtype.bits < 64:
        return t.ext("Trunc", x)
    return t.select(less(t, "lt", x, t.lit(0)), t.ext("Ceil", x), t.ext("Floor", x))


def square_root(t: Typed, x: int) -> int:
    """Square root; subnormal numbers are scaled up for it, because devices that keep them still flush them there."""
    if t.dtype is not dt.f32:
        return t.ext("Sqrt", x)
    tiny = less(t, "lt", x, t.lit(2.0**-100))
    root = t.ext("Sqrt", t.select(tiny, t.op("FMul", x, t.lit(2.0**64)), x))
    return t.select(tiny, t.op("FMul", root, t.lit(2.0**-32)), root)


def _round(t: Typed, x: int) -> int:
    whole = truncate(t, x)
    away = less(t, "ge", t.ext("FAbs", t.op("FSub", x, whole)), t.lit(0.5))
    one = t.select(less(t, "lt", x, t.lit(0)), t.lit(-1), t.lit(1))
    return t.select(away, t.op("FAdd", whole, one), whole)


def _is_nan(t: Typed, x: int) -> int:
    u, magnitude, infinity = _magnitude(t, x)
    return u.test("UGreaterThan", magnitude, infinity)


def _is_inf(t: Typed, x: int) -> int:
    u, magnitude, infinity = _magnitude(t, x)
    return u.test("IEqual", magnitude, infinity)


def _magnitude(t: Typed, x: int) -> tuple[Typed, int, int]:
    """Bits without the sign, and those of infinity: integer tests survive fast math."""
    u, bits = t.bits(x)
    exponent = {16: 0x7C00, 32: 0x7F800000, 64: 0x7FF0000000000000}[t.dtype.bits]
    return u, u.op("BitwiseAnd", bits, u.lit((1 << (t.dtype.bits - 1)) - 1)), u.lit(exponent)


def _halves(t: Typed, x: int) -> tuple[Typed, int, int]:
    u = t.like(dt.u32)
    low = t.em.op("UConvert", u.type, x)
    return u, low, t.em.op("UConvert", u.type, t.op("ShiftRightLogical", x, t.lit(32)))


def _widened(t: Typed, x: int) -> tuple[Typed, int]:
    """Return an integer of at most 32 bits as u32 with zeros before it."""
    u = t.like(dt.u32)
    return u, x if t.dtype.bits == 32 else t.em.op("UConvert", u.type, x)


def _popcnt(t: Typed, x: int) -> int:
    if t.dtype.bits == 64:
        u, low, high = _halves(t, x)
        return u.op("IAdd", u.op("BitCount", low), u.op("BitCount", high))
    u, wide = _widened(t, x)
    return u.op("BitCount", wide)


def _clz(t: Typed, x: int) -> int:
    if t.dtype.bits == 64:
        u, low, high = _halves(t, x)
        below = u.op("ISub", u.lit(63), u.ext("FindUMsb", low))
        above = u.op("ISub", u.lit(31), u.ext("FindUMsb", high))
        return u.select(u.test("IEqual", high, u.lit(0)), below, above)
    u, wide = _widened(t, x)
    return u.op("ISub", u.lit(t.dtype.bits - 1), u.ext("FindUMsb", wide))


_UNARY: dict[str, Callable[[Typed, int], int]] = {
    "abs": _abs, "sgn": _sgn, "round": _round, "isnan": _is_nan, "isinf": _is_inf, "popcnt": _popcnt, "clz": _clz,
    "floor": lambda t, x: t.ext("Floor", x), "ceil": lambda t, x: t.ext("Ceil", x), "trunc": truncate,
    "sqrt": square_root, "rsqrt": lambda t, x: t.op("FDiv", t.lit(1), square_root(t, x)),
}  # fmt: skip
for _name, _rule in _UNARY.items():
    _register(_name, _rule)


# -- division -------------------------------------------------------------------------------------------------------
def _safe_divisor(t: Typed, a: int, b: int) -> int:
    """Divisor with 1 where the quotient is undefined: 0, and -1 under the minimum (whose quotient wraps to itself,
    as by 1).
    """
    bad = t.test("IEqual", b, t.lit(0))
    if t.dtype.is_signed:
        lowest = t.test("IEqual", a, t.lit(t.dtype.min))
        bad = t.logic("LogicalOr", bad, t.logic("LogicalAnd", lowest, t.test("IEqual", b, t.lit(-1))))
    return t.select(bad, t.lit(1), b)


def _integer_division(t: Typed, a: int, b: int, *, floor: bool, remainder: bool) -> int:
    safe = _safe_divisor(t, a, b)
    q = t.op("SDiv" if t.dtype.is_signed else "UDiv", a, safe)
    r = t.op("ISub", a, t.op("IMul", q, safe))
    if floor and t.dtype.is_signed:
        inexact = t.test("INotEqual", r, t.lit(0))
        below = t.logic("LogicalAnd", inexact, t.test("SLessThan", t.op("BitwiseXor", r, safe), t.lit(0)))
        q, r = t.select(below, t.op("ISub", q, t.lit(1)), q), t.select(below, t.op("IAdd", r, safe), r)
    return t.select(t.test("IEqual", b, t.lit(0)), t.lit(0), r if remainder else q)


def _floordiv(t: Typed, a: int, b: int) -> int:
    if t.dtype.is_real:
        return t.ext("Floor", t.op("FDiv", a, b))
    return _integer_division(t, a, b, floor=True, remainder=False)


def _mod(t: Typed, a: int, b: int) -> int:
    if t.dtype.is_real:
        return t.op("FSub", a, t.op("FMul", b, t.ext("Floor", t.op("FDiv", a, b))))
    return _integer_division(t, a, b, floor=True, remainder=True)


def _raw_div(t: Typed, a: int, b: int) -> int:
    if t.dtype.is_real:
        return truncate(t, t.op("FDiv", a, b))
    return _integer_division(t, a, b, floor=False, remainder=False)


def _raw_mod(t: Typed, a: int, b: int) -> int:
    assert t.dtype.is_integral, "the legaliser expands the real one"
    return _integer_division(t, a, b, floor=False, remainder=True)


# -- shifts ---------------------------------------------------------------------------------------------------------
def _shift(t: Typed, instruction: str, a: int, b: int, outside: int) -> int:
    inside = t.test("ULessThan", b, t.lit(t.dtype.bits))
    amount = t.op("BitwiseAnd", b, t.lit(t.dtype.bits - 1))
    return t.select(inside, t.op(instruction, a, amount), outside)


def _sar(t: Typed, a: int, b: int) -> int:
    if not t.dtype.is_signed:
        return _shift(t, "ShiftRightLogical", a, b, t.lit(0))
    sign = t.op("ShiftRightArithmetic", a, t.lit(t.dtype.bits - 1))
    return _shift(t, "ShiftRightArithmetic", a, b, sign)


_BINARY: dict[str, Callable[[Typed, int, int], int]] = {
    "floordiv": _floordiv, "mod": _mod, "raw_div": _raw_div, "raw_mod": _raw_mod, "sar": _sar,
    "shl": lambda t, a, b: _shift(t, "ShiftLeftLogical", a, b, t.lit(0)),
    "shr": lambda t, a, b: _shift(t, "ShiftRightLogical", a, b, t.lit(0)),
}  # fmt: skip
for _name, _rule in _BINARY.items():
    _register(_name, _rule)


def combine(em: Emitter, kind: str, dtype: DType, a: int, b: int) -> int:
    """Write the operation that an atomic of ``kind`` applies."""
    t = Typed(em, dtype)
    if kind in ("min", "max"):
        return extremum(t, kind, a, b)
    return b if kind == "exchange" else _direct(_DIRECT[kind])(t, a, b)
