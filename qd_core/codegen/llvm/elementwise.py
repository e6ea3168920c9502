"""Elementwise operations, with the exact meaning that the op table states.

Each writer works on scalars and vectors alike: :class:`Typed` prints instructions of one type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qd_core import dtypes as dt
from qd_core.codegen.llvm.emitter import HANDLERS, Emitter, Lane
from qd_core.codegen.llvm.types import LLVM, SUFFIX, literal
from qd_core.dtypes import DType
from qd_core.ir.nodes import Node

__all__ = ["Typed"]


class Typed:
    """Prints instructions on values of one type.

    Parameters
    ----------
    emitter : Emitter
        Where they go.
    dtype : DType
        Type of the operands.
    wide : bool
        Vectors or scalars.
    """

    __slots__ = ("bool", "bool_suffix", "dtype", "em", "suffix", "type", "wide")

    def __init__(self, emitter: Emitter, dtype: DType, wide: bool) -> None:
        self.em, self.dtype, self.wide = emitter, dtype, wide
        self.type = emitter.vector[dtype] if wide else LLVM[dtype]
        self.bool = emitter.vector[dt.u1] if wide else "i1"
        self.suffix = emitter.suffix[dtype] if wide else SUFFIX[dtype]

    def like(self, dtype: DType) -> Typed:
        """Return a printer of another type, as wide."""
        return Typed(self.em, dtype, self.wide)

    def lit(self, value: Any) -> str:
        """Return a constant."""
        text = literal(self.dtype, value)
        return f"splat ({LLVM[self.dtype]} {text})" if self.wide else text

    def op(self, name: str, a: str, b: str) -> str:
        """Write a binary instruction."""
        return self.em.new(f"{name} {self.type} {a}, {b}")

    def compare(self, predicate: str, a: str, b: str) -> str:
        """Write a comparison: ``"icmp slt"``, ``"fcmp olt"``."""
        return self.em.new(f"{predicate} {self.type} {a}, {b}")

    def select(self, condition: str, a: str, b: str) -> str:
        """Write a choice by a condition as wide as the operands."""
        return self.em.new(f"select {self.bool} {condition}, {self.type} {a}, {self.type} {b}")

    def call(self, name: str, *args: str, extra: str = "", to: str | None = None) -> str:
        """Write a call of the intrinsic ``name`` of this type."""
        operands = ", ".join(f"{self.type} {a}" for a in args)
        return self.em.new(f"call {to or self.type} @llvm.{name}.{self.suffix}({operands}{extra})")

    def convert(self, instruction: str, a: str, to: DType) -> str:
        """Write a conversion instruction."""
        return self.em.new(f"{instruction} {self.type} {a} to {self.em.typed(to, self.wide)}")

    def logic(self, name: str, a: str, b: str) -> str:
        """Combine two conditions."""
        return self.em.new(f"{name} {self.bool} {a}, {b}")


Unary = Callable[[Typed, str], str]
Binary = Callable[[Typed, str, str], str]


def _operands(em: Emitter, node: Node) -> tuple[Typed, list[str]]:
    lanes = [em.env[v] for v in node.operands]
    dtype = node.operands[0].type
    for lane in lanes:
        if lane.wide:
            return Typed(em, dtype, True), [em.widen(x, dtype) for x in lanes]
    return Typed(em, dtype, False), [x.ref for x in lanes]


def _register(name: str, rule: Unary | Binary) -> None:
    def handler(em: Emitter, node: Node) -> None:
        typed, args = _operands(em, node)
        em.env[node] = Lane(rule(typed, *args), typed.wide)

    HANDLERS[name] = handler


# -- instructions that LLVM has ---------------------------------------------------------------------------------------
_DIRECT = {
    ("add", True): "fadd", ("sub", True): "fsub", ("mul", True): "fmul", ("div", True): "fdiv",
    ("add", False): "add", ("sub", False): "sub", ("mul", False): "mul",
    ("and", False): "and", ("or", False): "or", ("xor", False): "xor",
}  # fmt: skip


def _fast_math(em: Emitter, node: Node) -> str:
    """Flags of real arithmetic: the user's, within what the node's attribute ``exact`` allows (see `ir.ops`)."""
    exact = node.attrs.get("exact")
    return em.flags if exact is None or not em.flags else "contract" if exact == "contract" else ""


def _direct(name: str) -> None:
    real, whole = _DIRECT.get((name, True)), _DIRECT.get((name, False))

    def handler(em: Emitter, node: Node) -> None:
        x, y = node.operands
        a, b, d = em.env[x], em.env[y], x.type
        if d.is_real:
            instruction = f"{real} {_fast_math(em, node)}"
        else:
            instruction = whole
            if a.wide or b.wide:
                affine = _affine(em, name, a, b, d)
                if affine is not None:
                    em.env[node] = affine
                    return
        if a.wide or b.wide:
            em.env[node] = Lane(em.new(f"{instruction} {em.vector[d]} {em.widen(a, d)}, {em.widen(b, d)}"), True)
        else:
            em.env[node] = Lane(em.new(f"{instruction} {LLVM[d]} {a.ref}, {b.ref}"))

    HANDLERS[name] = handler


def _affine(em: Emitter, name: str, a: Lane, b: Lane, d: DType) -> Lane | None:
    """Keep sums, differences and constant multiples of affine integers affine; None where the result is not."""
    if (a.wide and a.step is None) or (b.wide and b.step is None) or name not in ("add", "sub", "mul"):
        return None
    step_a, step_b = a.step or 0, b.step or 0
    if name == "mul":
        factor, step = (b, step_a) if a.wide else (a, step_b)
        if (a.wide and b.wide) or factor.ref[0] == "%":
            return None
        step *= int(factor.ref)
    else:
        step = step_a + step_b if name == "add" else step_a - step_b
    ref = em.new(f"{name} {LLVM[d]} {a.ref}, {b.ref}")
    if step == 0:
        return Lane(ref)
    # A loop index plus or minus something uniform is taken not to wrap around between two lanes: the index of an
    # iteration and the array indices made from it lie in ranges far from the ends of their type (extents are below
    # 2^31). Products may wrap (hashes do), so the step of a product is not carried to a wider type, only used where the
    # type stays.
    exact = name != "mul" and (a.exact or not a.wide) and (b.exact or not b.wide)
    return Lane(ref, True, step, exact)


for _name in ("add", "sub", "mul", "div", "and", "or", "xor"):
    _direct(_name)


def _neg(t: Typed, x: str) -> str:
    if t.dtype.is_real:
        return t.em.new(f"fneg {t.type} {x}")
    return t.op("sub", t.lit(0), x)


def _abs(t: Typed, x: str) -> str:
    if t.dtype.is_real:
        return t.call("fabs", x)
    return t.call("abs", x, extra=", i1 false") if t.dtype.is_signed else x


def _sgn(t: Typed, x: str) -> str:
    zero, one = t.lit(0), t.lit(1)
    if not t.dtype.is_signed:
        return t.select(t.compare("icmp ne", x, zero), one, zero)
    kind = "fcmp o" if t.dtype.is_real else "icmp s"
    low = t.select(t.compare(kind + "lt", x, zero), t.lit(-1), zero)
    return t.select(t.compare(kind + "gt", x, zero), one, low)


def _not(t: Typed, x: str) -> str:
    return t.op("xor", x, t.lit(True if t.dtype is dt.u1 else -1))


def _intrinsic(name: str) -> Unary:
    def rule(t: Typed, x: str) -> str:
        return t.call(name, x)

    return rule


def _count(name: str, extra: str = "") -> Unary:
    def rule(t: Typed, x: str) -> str:
        n = t.call(name, x, extra=extra)
        if t.dtype.bits == 32:
            return n
        return t.convert("trunc" if t.dtype.bits > 32 else "zext", n, dt.i32)

    return rule


def _rsqrt(t: Typed, x: str) -> str:
    return t.op("fdiv", t.lit(1), t.call("sqrt", x))


def _isnan(t: Typed, x: str) -> str:
    return t.compare("fcmp uno", x, x)


def _isinf(t: Typed, x: str) -> str:
    return t.compare("fcmp oeq", t.call("fabs", x), t.lit(float("inf")))


_UNARY: dict[str, Unary] = {
    "neg": _neg, "abs": _abs, "sgn": _sgn, "not": _not,
    "floor": _intrinsic("floor"), "ceil": _intrinsic("ceil"), "trunc": _intrinsic("trunc"),
    "round": _intrinsic("round"), "sqrt": _intrinsic("sqrt"),
    "rsqrt": _rsqrt, "isnan": _isnan, "isinf": _isinf,
    "popcnt": _count("ctpop"), "clz": _count("ctlz", ", i1 false"),
}  # fmt: skip
for _name, _rule in _UNARY.items():
    _register(_name, _rule)


# -- comparisons, extrema, choice --------------------------------------------------------------------------------------
def _comparison(name: str) -> Binary:
    def rule(t: Typed, a: str, b: str) -> str:
        if t.dtype.is_real:
            return t.compare(f"fcmp {'une' if name == 'ne' else 'o' + name}", a, b)
        sign = "" if name in ("eq", "ne") else "s" if t.dtype.is_signed else "u"
        return t.compare(f"icmp {sign}{name}", a, b)

    return rule


def _extremum(name: str) -> Binary:
    def rule(t: Typed, a: str, b: str) -> str:
        return t.call(f"{name}num" if t.dtype.is_real else f"{'s' if t.dtype.is_signed else 'u'}{name}", a, b)

    return rule


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _register(_name, _comparison(_name))
for _name in ("min", "max"):
    _register(_name, _extremum(_name))


def _select(em: Emitter, node: Node) -> None:
    condition, x, y = (em.env[v] for v in node.operands)
    d = node.type
    wide = condition.wide or x.wide or y.wide
    t = em.typed(d, wide)
    a, b = (em.widen(x, d), em.widen(y, d)) if wide else (x.ref, y.ref)
    c = em.mask_type if condition.wide else "i1"
    em.env[node] = Lane(em.new(f"select {c} {condition.ref}, {t} {a}, {t} {b}"), wide)


HANDLERS["select"] = _select


# -- division ----------------------------------------------------------------------------------------------------------
def _is_literal(ref: str) -> bool:
    return ref[0] != "%"


def _safe_divisor(t: Typed, a: str, b: str) -> str:
    """Divisor with 1 where dividing would trap: 0, and -1 under the minimum, which wraps to itself as by 1."""
    if _is_literal(b) and b not in (t.lit(0), t.lit(-1)):
        return b
    bad = t.compare("icmp eq", b, t.lit(0))
    if t.dtype.is_signed:
        lowest = t.compare("icmp eq", a, t.lit(t.dtype.min))
        bad = t.logic("or", bad, t.logic("and", lowest, t.compare("icmp eq", b, t.lit(-1))))
    return t.select(bad, t.lit(1), b)


def _quotient(t: Typed, a: str, b: str) -> str:
    """Quotient toward zero by a divisor that does not trap."""
    d = t.dtype
    signed = "s" if d.is_signed else "u"
    if t.wide and d.bits <= 32 and not _is_literal(b):
        # No vector unit divides integers, but every quotient of 32-bit integers is exact in f64: a fraction is at least
        # 1/|b| away from the next integer, which is more than the rounding error of a quotient of at most 2^32/|b|.
        r = t.like(dt.f64)
        q = r.op("fdiv", t.convert(f"{signed}itofp", a, dt.f64), t.convert(f"{signed}itofp", b, dt.f64))
        return r.convert(f"fpto{signed}i", q, d)
    return t.op(f"{signed}div", a, b)


def _zero_by_zero(t: Typed, b: str, result: str) -> str:
    if _is_literal(b) and b != t.lit(0):
        return result
    return t.select(t.compare("icmp eq", b, t.lit(0)), t.lit(0), result)


def _int_division(t: Typed, a: str, b: str, *, floor: bool, remainder: bool) -> str:
    safe = _safe_divisor(t, a, b)
    q = _quotient(t, a, safe)
    r = t.op("sub", a, t.op("mul", q, safe))
    if floor and t.dtype.is_signed:
        inexact = t.compare("icmp ne", r, t.lit(0))
        below = t.logic("and", inexact, t.compare("icmp slt", t.op("xor", r, safe), t.lit(0)))
        q, r = (
            (q, t.select(below, t.op("add", r, safe), r))
            if remainder
            else (t.select(below, t.op("sub", q, t.lit(1)), q), r)
        )
    return _zero_by_zero(t, b, r if remainder else q)


def _floordiv(t: Typed, a: str, b: str) -> str:
    if t.dtype.is_real:
        return t.call("floor", t.op("fdiv", a, b))
    return _int_division(t, a, b, floor=True, remainder=False)


def _mod(t: Typed, a: str, b: str) -> str:
    if t.dtype.is_real:
        return t.op("fsub", a, t.op("fmul", b, t.call("floor", t.op("fdiv", a, b))))
    return _int_division(t, a, b, floor=True, remainder=True)


def _raw_div(t: Typed, a: str, b: str) -> str:
    if t.dtype.is_real:
        return t.call("trunc", t.op("fdiv", a, b))
    return _int_division(t, a, b, floor=False, remainder=False)


def _raw_mod(t: Typed, a: str, b: str) -> str:
    if t.dtype.is_real:
        return t.op("frem", a, b)
    return _int_division(t, a, b, floor=False, remainder=True)


# -- shifts ------------------------------------------------------------------------------------------------------------
def _in_width(t: Typed, b: str) -> str:
    return t.compare("icmp ult", b, t.lit(t.dtype.bits))


def _shift(instruction: str) -> Binary:
    def rule(t: Typed, a: str, b: str) -> str:
        # The shifted value is poison where the amount is out of range, and not chosen there.
        return t.select(_in_width(t, b), t.op(instruction, a, b), t.lit(0))

    return rule


def _sar(t: Typed, a: str, b: str) -> str:
    if not t.dtype.is_signed:
        return _shift("lshr")(t, a, b)
    return t.op("ashr", a, t.call("umin", b, t.lit(t.dtype.bits - 1)))


_BINARY: dict[str, Binary] = {
    "floordiv": _floordiv, "mod": _mod, "raw_div": _raw_div, "raw_mod": _raw_mod,
    "shl": _shift("shl"), "shr": _shift("lshr"), "sar": _sar,
}  # fmt: skip
for _name, _rule in _BINARY.items():
    _register(_name, _rule)
