"""Constant folding and exact simplification, applied by the builder at construction."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.ir.nodes import Node, Value
from qd_core.ir.ops import OPS, OpDef

if TYPE_CHECKING:
    from qd_core.ir.build import Builder

__all__ = ["apply", "evaluate", "fold_constant", "simplify"]

_CONST = OPS["const"]


def evaluate(op: OpDef, args: tuple[Any, ...], result: DType) -> Any:
    """Apply the table's NumPy meaning to NumPy arrays or scalars and return NumPy data of ``result``."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return apply(op, args, result)


def apply(op: OpDef, args: tuple[Any, ...], result: DType) -> np.ndarray[Any, Any]:
    """As `evaluate`, for a caller that has silenced NumPy's floating-point messages (``np.errstate``) around many."""
    assert op.numpy is not None
    return np.asarray(op.numpy(*args)).astype(result.numpy, copy=False)


def result_type(op: OpDef, operands: tuple[Value, ...]) -> DType:
    """Return the result type of an elementwise operation."""
    if op.name == "select":
        return operands[1].type
    return dt.u1 if op.result == "u1" else dt.i32 if op.result == "i32" else operands[0].type


def fold_constant(op: OpDef, operands: tuple[Value, ...]) -> tuple[DType, Any] | None:
    """Return (type, value) when every operand is a constant, else None."""
    for v in operands:
        if not (isinstance(v, Node) and v.op is _CONST):
            return None
    args = tuple(v.type.numpy.type(v.attrs["value"]) for v in operands)  # type: ignore[union-attr]
    result = result_type(op, operands)
    return result, evaluate(op, args, result).item()


def _value(v: Value) -> Any:
    return v.attrs["value"] if isinstance(v, Node) and v.op is _CONST else None


def _is(v: Value, number: int) -> bool:
    value = _value(v)
    return value is not None and value == number and not isinstance(value, bool)


def _add(b: Builder, x: Value, y: Value) -> Value | None:
    if x.type.is_integral:
        if _is(y, 0):
            return x
        if _is(x, 0):
            return y
        inner = _chained(b, "add", x, y)
        if inner is not None:
            return inner
    return None


def _chained(b: Builder, name: str, x: Value, y: Value) -> Value | None:
    """(x + c1) + c2 is x + (c1 + c2) for integers."""
    if _value(y) is not None and isinstance(x, Node) and x.op.name == name and _value(x.operands[1]) is not None:
        return b.emit(name, x.operands[0], b.emit(name, x.operands[1], y))
    return None


def _sub(b: Builder, x: Value, y: Value) -> Value | None:
    if _is(y, 0) and not (x.type.is_real and str(_value(y)).startswith("-")):
        return x
    if x is y and x.type.is_integral:
        return b.const(x.type, 0)
    if x.type.is_integral and _value(y) is not None:
        return b.emit("add", x, b.const(x.type, -_value(y)))
    return None


def _mul(b: Builder, x: Value, y: Value) -> Value | None:
    if _is(y, 1):
        return x
    if _is(x, 1):
        return y
    if x.type.is_integral and (_is(x, 0) or _is(y, 0)):
        return b.const(x.type, 0)
    return None


def _div(b: Builder, x: Value, y: Value) -> Value | None:
    return x if _is(y, 1) else None


def _and(b: Builder, x: Value, y: Value) -> Value | None:
    if x is y:
        return x
    for one, other in ((x, y), (y, x)):
        if _value(one) is True:
            return other
        if _value(one) is False or _is(one, 0):
            return one
    return None


def _or(b: Builder, x: Value, y: Value) -> Value | None:
    if x is y:
        return x
    for one, other in ((x, y), (y, x)):
        if _value(one) is True:
            return one
        if _value(one) is False or _is(one, 0):
            return other
    return None


def _select(b: Builder, c: Value, x: Value, y: Value) -> Value | None:
    if x is y:
        return x
    known = _value(c)
    if known is not None:
        return x if known else y
    if x.type is dt.u1 and _value(x) is True and _value(y) is False:
        return c
    return None


def _inverse(name: str) -> Any:
    def rule(b: Builder, x: Value) -> Value | None:
        return x.operands[0] if isinstance(x, Node) and x.op.name == name else None

    return rule


def _self_compare(result: bool) -> Any:
    def rule(b: Builder, x: Value, y: Value) -> Value | None:
        return b.const(dt.u1, result) if x is y and x.type.is_integral else None

    return rule


def _powi(b: Builder, x: Value, n: Value) -> Value | None:
    """Small constant exponents become products."""
    e = _value(n)
    if e is None or not -8 <= e <= 16 or (e < 0 and x.type.is_integral):
        return None
    result: Value | None = None
    power, left = x, abs(e)
    while left:
        if left & 1:
            result = power if result is None else b.emit("mul", result, power)
        left >>= 1
        power = b.emit("mul", power, power) if left else power
    if result is None:
        return b.const(x.type, 1)
    return b.emit("div", b.const(x.type, 1), result) if e < 0 else result


_RULES: dict[str, Any] = {
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "and": _and, "or": _or, "select": _select, "powi": _powi,
    "neg": _inverse("neg"), "not": _inverse("not"), "eq": _self_compare(True), "ne": _self_compare(False),
    "le": _self_compare(True), "ge": _self_compare(True), "lt": _self_compare(False), "gt": _self_compare(False),
}  # fmt: skip


def simplify(b: Builder, name: str, operands: tuple[Value, ...]) -> Value | None:
    """Return an existing or cheaper value equal to the operation, or None."""
    rule = _RULES.get(name)
    return rule(b, *operands) if rule is not None else None
