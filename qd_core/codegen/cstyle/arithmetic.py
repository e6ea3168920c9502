"""Elementwise operations and conversions as C expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qd_core import dtypes as dt
from qd_core.dtypes import DType

__all__ = ["Rule", "cast", "constant", "elementwise"]

Operands = Sequence[str]
Rule = Callable[[DType, Operands, str], str]
"""``rule(dtype of the first operand, operands, C name of the result's type)`` gives an expression."""


def constant(dtype: DType, value: float | int | bool, ctype: str) -> str:
    """Return a literal."""
    if dtype is dt.u1:
        return "true" if value else "false"
    if not dtype.is_real:
        low = dtype is dt.i64 and value == dtype.min
        suffix = "ULL" if dtype is dt.u64 else "LL"
        return f"({ctype})" + (
            "INT64_MIN" if low else f"{int(value)}{suffix}" if value >= 0 else f"({int(value)}{suffix})"
        )
    if value != value:
        return f"({ctype})NAN"
    if value in (float("inf"), float("-inf")):
        return f"({ctype}){'-' if value < 0 else ''}INFINITY"
    text = float(value).hex()
    return f"({text}{'f' if dtype is dt.f32 else ''})"


def _suffix(dtype: DType) -> str:
    return "f" if dtype is dt.f32 else ""


def _call(name: str) -> Rule:
    """A function of the mathematics library."""
    return lambda d, x, t: f"{name}{_suffix(d)}({', '.join(x)})"


def _wrapping(sign: str) -> Rule:
    """Sum, difference or product: integers in an unsigned type at least 32 bits wide."""

    def rule(d: DType, x: Operands, t: str) -> str:
        if d.is_real:
            return f"{x[0]} {sign} {x[1]}"
        wide = "uint64_t" if d.bits == 64 else "uint32_t"
        return f"({t})(({wide}){x[0]} {sign} ({wide}){x[1]})"

    return rule


def _infix(sign: str) -> Rule:
    return lambda d, x, t: f"({t})({x[0]} {sign} {x[1]})"


def _divide(real: str, signed: str, unsigned: str) -> Rule:
    def rule(d: DType, x: Operands, t: str) -> str:
        if d.is_real:
            return real.format(a=x[0], b=x[1], f=_suffix(d))
        return f"({t}){unsigned if d.kind == 'u' else signed}({x[0]}, {x[1]})"

    return rule


def _extreme(name: str, sign: str) -> Rule:
    return lambda d, x, t: _call(name)(d, x, t) if d.is_real else f"{x[0]} {sign} {x[1]} ? {x[0]} : {x[1]}"


def _neg(d: DType, x: Operands, t: str) -> str:
    return f"-{x[0]}" if d.is_real else _wrapping("-")(d, ("0", x[0]), t)


def _abs(d: DType, x: Operands, t: str) -> str:
    if d.is_real:
        return _call("fabs")(d, x, t)
    return x[0] if d.kind == "u" else f"{x[0]} < 0 ? {_neg(d, x, t)} : {x[0]}"


def _not(d: DType, x: Operands, t: str) -> str:
    return f"!{x[0]}" if d is dt.u1 else f"({t})~{x[0]}"


def _unsigned(d: DType) -> str:
    return f"uint{d.bits}_t"


def _shift(name: str) -> Rule:
    """Shifts: the amount is a number, never more bits than the value has where it counts."""

    def rule(d: DType, x: Operands, t: str) -> str:
        amount = f"({x[1]} > 64 ? 64 : (int64_t){x[1]})" if d is dt.u64 else f"(int64_t){x[1]}"
        logical = name != "sar" or d.kind == "u"
        function = "qd_shr" if logical and name == "sar" else f"qd_{name}"
        value = f"({_unsigned(d)}){x[0]}" if logical else x[0]
        return f"({t}){function}({value}, {amount}, {d.bits})"

    return rule


_RULES: dict[str, Rule] = {
    "neg": _neg,
    "abs": _abs,
    "sgn": lambda d, x, t: f"({t})(({x[0]} > 0) - ({x[0]} < 0))",
    "not": _not,
    "floor": _call("floor"),
    "ceil": _call("ceil"),
    "trunc": _call("trunc"),
    "round": _call("round"),
    "sqrt": _call("sqrt"),
    "rsqrt": lambda d, x, t: f"({t})(1.0 / sqrt((double){x[0]}))",
    "isnan": lambda d, x, t: f"{x[0]} != {x[0]}",
    "isinf": lambda d, x, t: f"isinf({x[0]}) != 0",
    "popcnt": lambda d, x, t: f"qd_popcnt(({_unsigned(d)}){x[0]})",
    "clz": lambda d, x, t: f"qd_clz(({_unsigned(d)}){x[0]}, {d.bits})",
    "add": _wrapping("+"),
    "sub": _wrapping("-"),
    "mul": _wrapping("*"),
    "div": lambda d, x, t: f"{x[0]} / {x[1]}",
    "floordiv": _divide("floor{f}({a} / {b})", "qd_floordiv", "qd_udiv"),
    "mod": _divide("{a} - {b} * floor{f}({a} / {b})", "qd_mod", "qd_urem"),
    "raw_div": _divide("trunc{f}({a} / {b})", "qd_div", "qd_udiv"),
    "raw_mod": _divide("fmod{f}({a}, {b})", "qd_rem", "qd_urem"),
    "min": _extreme("fmin", "<"),
    "max": _extreme("fmax", ">"),
    "and": _infix("&"),
    "or": _infix("|"),
    "xor": _infix("^"),
    "shl": _shift("shl"),
    "sar": _shift("sar"),
    "shr": _shift("shr"),
    "lt": _infix("<"),
    "le": _infix("<="),
    "gt": _infix(">"),
    "ge": _infix(">="),
    "eq": _infix("=="),
    "ne": _infix("!="),
    "select": lambda d, x, t: f"{x[0]} ? {x[1]} : {x[2]}",
}


def elementwise(name: str) -> Rule | None:
    """Return how an operation is written; None where it must be expanded before."""
    return _RULES.get(name)


def cast(source: DType, to: DType, value: str, ctype: str) -> str:
    """Convert as the op table says."""
    if to is dt.u1:
        return f"{value} != 0"
    if source.is_real and not to.is_real:
        through = "u64" if to is dt.u64 else "i64" if to in (dt.i64, dt.u32) else "i32"
        return f"({ctype})qd_to_{through}({value})"
    return f"({ctype}){value}"
