"""Typed arithmetic: literals, promotion, casts, unary and binary operations on scalars and, element by element, on
matrices.

Two compile-time numbers are combined by Python; the result is typed when it meets a run-time value or a variable.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from qd_core import dtypes as dt
from qd_core.dtypes import PROMOTION, DType
from qd_core.frontend.context import Lowering
from qd_core.frontend.overflow import report_overflow
from qd_core.frontend.values import ArrayRef, MatrixValue, describe, is_constant_matrix, is_number
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Value

__all__ = [
    "as_condition",
    "as_matrix",
    "as_scalar",
    "binary",
    "cast",
    "compare",
    "converted",
    "elementwise",
    "promote_all",
    "to_runtime",
    "unary",
]

OnScalars = Callable[[Value], Value] | Callable[[Value, Value], Value] | Callable[[Value, Value, Value], Value]
Binary = Callable[[Lowering, Any, Value, Value], Value]

_PYTHON: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
    ast.Not: operator.not_,
}  # fmt: skip


# -- conversions ------------------------------------------------------------------------------------------------------
def as_scalar(ctx: Lowering, x: Any, node: ast.AST | None = None) -> Value:
    """Return ``x`` as an SSA scalar: compile-time numbers become constants of the default types."""
    if isinstance(x, Value):
        return x
    if x is True or x is False:
        return ctx.builder.const(dt.u1, x)
    if isinstance(x, int):
        return _integer(ctx, x, node)
    if isinstance(x, float):
        return ctx.builder.const(ctx.options.default_fp, x)
    if isinstance(x, MatrixValue):
        if len(x.items) == 1:
            return x.items[0]
        ctx.type_error(f"expected a scalar, got {describe(x)}", node)
    if is_number(x):
        dtype = dt.from_numpy(x.dtype)
        if dtype is not None:
            return as_scalar(ctx, x.item(), node)
    ctx.type_error(
        f"{describe(x)} is no value of the kernel language",
        node,
        hint="only numbers, vectors, matrices and structs exist at run time",
    )


def _integer(ctx: Lowering, x: int, node: ast.AST | None) -> Value:
    dtype = ctx.options.default_ip
    if not dtype.min <= x <= dtype.max:
        ctx.type_error(
            f"Integer literal {x} exceeded the range of default_ip: {dtype.name}",
            node,
            hint=f"set default_ip=qd.i64 in qd.init, or compute it from parts, as in qd.i64({x >> 16}) << 16",
        )
    return ctx.builder.const(dtype, x)


def to_runtime(ctx: Lowering, x: Any, node: ast.AST | None = None) -> Value | MatrixValue:
    """Return ``x`` as an SSA scalar or a matrix; lists become matrices."""
    if isinstance(x, (Value, MatrixValue)):
        return x
    if isinstance(x, (list, tuple)):
        return as_matrix(ctx, x, node)
    return as_matrix(ctx, x, node) if is_constant_matrix(x) else as_scalar(ctx, x, node)


def as_matrix(ctx: Lowering, x: Any, node: ast.AST | None = None, dtype: DType | None = None) -> MatrixValue:
    """Return a vector or matrix from a list of scalars, of lists, or of vectors (its rows)."""
    if isinstance(x, MatrixValue):
        return x if dtype is None else x.map(lambda v: ctx.builder.cast(v, dtype))
    if is_constant_matrix(x):
        x, own = x.__qd_matrix__()
        dtype = dtype or own
    if not isinstance(x, (list, tuple)) or not x:
        ctx.type_error(f"{describe(x)} is no vector or matrix", node)
    rows: list[Any] = list(x)
    if any(isinstance(r, (list, tuple, MatrixValue)) or is_constant_matrix(r) for r in rows):
        return _from_rows(ctx, [as_matrix(ctx, r, node, dtype) for r in rows], node, dtype)
    if dtype is not None:
        return MatrixValue((len(rows),), [cast(ctx, r, dtype, node) for r in rows], dtype)
    items = [as_scalar(ctx, r, node) for r in rows]
    dtype = promote_all(items)
    return MatrixValue((len(items),), [ctx.builder.cast(v, dtype) for v in items], dtype)


def _from_rows(ctx: Lowering, rows: list[MatrixValue], node: ast.AST | None, dtype: DType | None) -> MatrixValue:
    if any(len(r.shape) != 1 for r in rows) or len({r.shape for r in rows}) != 1:
        ctx.type_error(f"rows of a matrix must be vectors of one length, got {', '.join(map(describe, rows))}", node)
    items = [v for r in rows for v in r.items]
    dtype = dtype or promote_all(items)
    return MatrixValue((len(rows), len(rows[0].items)), [ctx.builder.cast(v, dtype) for v in items], dtype)


def promote_all(values: list[Value]) -> DType:
    """Return the type that all of ``values`` are promoted to."""
    result: DType = values[0].type
    for v in values[1:]:
        result = PROMOTION[result, v.type]
    return result


def cast(ctx: Lowering, x: Any, dtype: DType, node: ast.AST | None = None) -> Any:
    """Convert a scalar, or each component of a matrix, to ``dtype``. Literals are converted from their full value."""
    if is_number(x) and not isinstance(x, (int, float)):
        x = x.item()
    if isinstance(x, (bool, int)) and dtype.is_integral and dtype is not dt.u1:
        wide = dt.i64.min <= x <= dt.u64.max
        return ctx.builder.const(dtype, x) if wide else _integer(ctx, x, node)
    if isinstance(x, (int, float)):
        return (
            ctx.builder.cast(ctx.builder.const(dt.f64, x), dtype)
            if isinstance(x, float)
            else _from_literal(ctx, x, dtype)
        )
    value = to_runtime(ctx, x, node)
    if isinstance(value, MatrixValue):
        if value.dtype is dtype:
            return value
        return MatrixValue(value.shape, [ctx.builder.cast(v, dtype) for v in value.items], dtype)
    return ctx.builder.cast(value, dtype)


def converted(ctx: Lowering, x: Any, dtype: DType, node: ast.AST | None = None) -> Value:
    """Convert a scalar for a store: other than in an explicit cast, a literal has its default type first."""
    return ctx.builder.cast(as_scalar(ctx, x, node), dtype)


def _from_literal(ctx: Lowering, x: int, dtype: DType) -> Value:
    return ctx.builder.const(dtype, bool(x) if dtype is dt.u1 else x)


def as_condition(ctx: Lowering, x: Any, node: ast.AST) -> Value:
    """Return ``x`` as u1: integers are compared with zero, reals are refused."""
    value = as_scalar(ctx, x, node)
    if value.type is dt.u1:
        return value
    if value.type.is_real:
        ctx.type_error(
            f"a condition must be an integer or a comparison, got {value.type.name}",
            node,
            hint="compare with a number, as in `x != 0`",
        )
    return ctx.builder.emit("ne", value, ctx.builder.const(value.type, 0))


# -- element by element -----------------------------------------------------------------------------------------------
def elementwise(ctx: Lowering, f: OnScalars, args: tuple[Any, ...], node: ast.AST | None) -> Any:
    """Apply ``f`` to scalars, or to each component of matrices of one shape; scalars are broadcast."""
    call: Callable[..., Value] = f
    values = [to_runtime(ctx, a, node) for a in args]
    shapes = {v.shape for v in values if isinstance(v, MatrixValue)}
    if not shapes:
        return call(*values)
    if len(shapes) > 1:
        ctx.type_error(
            f"shapes do not match: {' and '.join(describe(v) for v in values)}",
            node,
            hint="element-wise operations need equal shapes; use `@` for a matrix product",
        )
    (shape,) = shapes
    count = math.prod(shape)
    columns = [v.items if isinstance(v, MatrixValue) else (v,) * count for v in values]
    return MatrixValue(shape, [call(*row) for row in zip(*columns, strict=True)])


# -- binary -----------------------------------------------------------------------------------------------------------
def binary(ctx: Lowering, op: type[ast.operator], a: Any, b: Any, node: ast.AST) -> Any:
    """Evaluate ``a op b``."""
    if not isinstance(a, (Value, MatrixValue)) and not isinstance(b, (Value, MatrixValue)):
        done, value = _both_known(ctx, op, a, b, node)
        if done:
            return value
    rule = _BINARY.get(op)
    if rule is None:
        ctx.unsupported(node)
    if isinstance(a, Value) and isinstance(b, Value):
        return rule(ctx, node, a, b)
    return elementwise(ctx, lambda x, y: rule(ctx, node, x, y), (a, b), node)


def _both_known(ctx: Lowering, op: type[ast.operator], a: Any, b: Any, node: ast.AST) -> tuple[bool, Any]:
    """Combine two compile-time objects in Python; numbers whose result Python refuses are left to the kernel's
    arithmetic.
    """
    for x in (a, b):
        if isinstance(x, ArrayRef):
            ctx.type_error(f"{describe(x)} is no value", node, hint=f"index it, as in `{x.name}[i]`")
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        return _both_lists(ctx, op, a, b)
    if is_constant_matrix(a) or is_constant_matrix(b):
        return False, None
    if op is ast.Pow and _is_int(a) and _is_int(b) and b < 0:
        _negative_exponent(ctx, node)
    try:
        value = _PYTHON[op](a, b)
    except ZeroDivisionError:
        return False, None
    except Exception as cause:
        ctx.type_error(f"{describe(a)} and {describe(b)} cannot be combined ({op.__name__}): {cause}", node)
    if isinstance(value, complex):
        return False, None
    return True, value


def _both_lists(ctx: Lowering, op: type[ast.operator], a: Any, b: Any) -> tuple[bool, Any]:
    """Concatenation of lists and repetition, as in Python; in other operations lists are vectors."""
    both = isinstance(a, (list, tuple)) and isinstance(b, (list, tuple))
    if (op is ast.Add and both) or (op is ast.Mult and (_is_int(a) or _is_int(b))):
        return True, _PYTHON[op](a, b)
    return False, None


def _is_int(x: Any) -> bool:
    return isinstance(x, int)


def _negative_exponent(ctx: Lowering, node: ast.AST) -> None:
    ctx.type_error(
        "Negative exponent in pow(int, int) is not allowed.",
        node,
        why="the result would be an integer",
        hint="make the base a real number",
    )


def _arithmetic_type(ctx: Lowering, a: Value, b: Value) -> DType:
    """Promoted type; two truth values count as integers."""
    dtype = PROMOTION[a.type, b.type]
    return ctx.options.default_ip if dtype is dt.u1 else dtype


def _plain(name: str) -> Binary:
    def rule(ctx: Lowering, node: Any, a: Value, b: Value) -> Value:
        builder = ctx.builder
        if a.type is not b.type or a.type is dt.u1:
            dtype = _arithmetic_type(ctx, a, b)
            a, b = builder.cast(a, dtype), builder.cast(b, dtype)
        ctx.at(node)
        result = builder.emit(name, a, b)
        if ctx.options.debug:
            report_overflow(ctx, name, a, b, result)
        return result

    return rule


def _to_real(ctx: Lowering, v: Value) -> Value:
    return v if v.type.is_real else ctx.builder.cast(v, ctx.options.default_fp)


_plain_div = _plain("div")


def _div(ctx: Lowering, node: Any, a: Value, b: Value) -> Value:
    return _plain_div(ctx, node, _to_real(ctx, a), _to_real(ctx, b))


def division(name: str) -> Binary:
    """Return the rule of an integer or real division; an integer divisor that may be zero is checked."""

    def rule(ctx: Lowering, node: Any, a: Value, b: Value) -> Value:
        builder = ctx.builder
        dtype = _arithmetic_type(ctx, a, b)
        a, b = builder.cast(a, dtype), builder.cast(b, dtype)
        ctx.at(node)
        if not dtype.is_real and not constant_of(b):
            ok = builder.emit("ne", b, builder.const(dtype, 0))
            builder.check(
                "division", ok, (a,), message=("integer division by zero: ", (0,), " by 0"), names=("dividend",)
            )
        return builder.emit(name, a, b)

    return rule


_powi_max = 3


def _pow(ctx: Lowering, node: Any, a: Value, b: Value) -> Value:
    builder = ctx.builder
    ctx.at(node)
    if a.type is dt.u1:
        a = builder.cast(a, ctx.options.default_ip)
    exponent = constant_of(b)
    if b.type.is_integral:
        return _integer_pow(ctx, node, a, b, exponent)
    dtype = PROMOTION[a.type, b.type]
    a = builder.cast(a, dtype)
    if exponent is not None and exponent in (
        1,
        2,
        3,
    ):  # products of at most two roundings are within the bound of `pow`
        return builder.emit("powi", a, builder.const(dt.i32, int(exponent)))
    return builder.emit("pow", a, builder.cast(b, dtype))


def _integer_pow(ctx: Lowering, node: Any, a: Value, b: Value, exponent: Any) -> Value:
    builder = ctx.builder
    if a.type.is_integral and exponent is not None and exponent < 0:
        _negative_exponent(ctx, node)
    if a.type.is_integral and exponent is None and ctx.options.debug and b.type.kind == "i":
        ok = builder.emit("ge", b, builder.const(b.type, 0))
        builder.check(
            "assert", ok, (b,), message="Negative exponent in pow(int, int) is not allowed.", names=("exponent",)
        )
    return builder.emit("powi", a, builder.cast(b, dt.i32))


def _bits(name: str) -> Binary:
    def rule(ctx: Lowering, node: Any, a: Value, b: Value) -> Value:
        _need_integers(ctx, node, a, b)
        dtype = PROMOTION[a.type, b.type]
        a, b = ctx.builder.cast(a, dtype), ctx.builder.cast(b, dtype)
        ctx.at(node)
        return ctx.builder.emit(name, a, b)

    return rule


_SIGNS: dict[type[ast.AST], str] = {
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.Invert: "~",
}  # fmt: skip


def _sign_of(node: Any) -> str:
    """How the operator of a node is written; the source of a call."""
    operator: Any = type(getattr(node, "op", None))
    sign = _SIGNS.get(operator)
    return sign if sign is not None else ast.unparse(node)


def _need_integers(ctx: Lowering, node: Any, *values: Value) -> None:
    if any(v.type.is_real for v in values):
        types = " and ".join(v.type.name for v in values)
        ctx.type_error(
            f"unsupported operand type(s) for {_sign_of(node)!r}: bit operations need integers, got {types}",
            node,
            hint="convert with qd.cast, or take the bits with qd.bit_cast",
        )


def shift(name: str) -> Binary:
    """Return the rule of a shift: the type of the left operand; amounts outside the width are kept outside."""

    def rule(ctx: Lowering, node: Any, a: Value, b: Value) -> Value:
        _need_integers(ctx, node, a, b)
        builder = ctx.builder
        if a.type is dt.u1:
            a = builder.cast(a, ctx.options.default_ip)
        ctx.at(node)
        amount = _shift_amount(ctx, b, a.type)
        result = builder.emit(name, a, amount)
        if ctx.options.debug and name == "shl":
            report_overflow(ctx, name, a, amount, result)
        return result

    return rule


def _shift_amount(ctx: Lowering, b: Value, dtype: DType) -> Value:
    builder = ctx.builder
    if b.type is dtype or b.type.bits < dtype.bits:
        return builder.cast(b, dtype)
    inside = builder.emit("lt", b, builder.const(b.type, dtype.bits))
    if b.type.kind == "i":
        inside = builder.emit("and", inside, builder.emit("ge", b, builder.const(b.type, 0)))
    return builder.cast(builder.select(inside, b, builder.const(b.type, dtype.bits)), dtype)


_BINARY: dict[type[ast.AST], Binary] = {
    ast.Add: _plain("add"), ast.Sub: _plain("sub"), ast.Mult: _plain("mul"), ast.Div: _div,
    ast.FloorDiv: division("floordiv"), ast.Mod: division("mod"), ast.Pow: _pow, ast.LShift: shift("shl"),
    ast.RShift: shift("sar"), ast.BitAnd: _bits("and"), ast.BitOr: _bits("or"), ast.BitXor: _bits("xor"),
}  # fmt: skip


# -- comparison -------------------------------------------------------------------------------------------------------
_COMPARE: dict[type[ast.AST], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}


def compare(ctx: Lowering, op: type[ast.cmpop], a: Any, b: Any, node: ast.AST) -> Any:
    """Evaluate one comparison; `u1` (by component for matrices), or a Python truth value for compile-time operands."""
    name = _COMPARE.get(op)
    if name is None:
        return _identity(ctx, op, a, b, node)
    if not isinstance(a, (Value, MatrixValue)) and not isinstance(b, (Value, MatrixValue)):
        _refuse_arrays(ctx, a, b, node)
        return ctx.compile_time(lambda: _PYTHON[op](a, b), node, "the comparison")
    return elementwise(ctx, lambda x, y: _compare(ctx, name, x, y, node), (a, b), node)


def _refuse_arrays(ctx: Lowering, a: Any, b: Any, node: ast.AST) -> None:
    """Outside `qd.static`, a comparison of an array means its elements, and there is no such operation."""
    array = next((v for v in (a, b) if isinstance(v, ArrayRef)), None)
    if array is not None and a is not None and b is not None and not ctx.static_depth:
        ctx.type_error(f"the array {array.name!r} is compared as a whole", node, hint="compare elements of it")


def _compare(ctx: Lowering, name: str, a: Value, b: Value, node: ast.AST) -> Value:
    builder = ctx.builder
    if a.type is not b.type or a.type is dt.u1:
        dtype = PROMOTION[a.type, b.type]
        if dtype is dt.u1 and name not in ("eq", "ne"):
            dtype = ctx.options.default_ip
        a, b = builder.cast(a, dtype), builder.cast(b, dtype)
    ctx.at(node)
    return builder.emit(name, a, b)


def _identity(ctx: Lowering, op: type[ast.cmpop], a: Any, b: Any, node: ast.AST) -> bool:
    """``is``, ``is not``, ``in``, ``not in``: on compile-time objects only; with None, on anything."""
    if op in (ast.Is, ast.IsNot) and (a is None or b is None):
        return (a is b) is (op is ast.Is)
    known = not any(isinstance(v, (Value, MatrixValue)) for v in (a, b))
    if not known or not ctx.static_depth:
        ctx.syntax_error(
            f"Operator {_WORDS[op]!r} is only supported in qd.static", node, hint="wrap the comparison: qd.static(...)"
        )
    if op in (ast.Is, ast.IsNot):
        return (a is b) is (op is ast.Is)
    container: Any = b
    found: bool = ctx.compile_time(lambda: operator.contains(container, a), node, "the comparison")
    return found is (op is ast.In)


_WORDS: dict[type[ast.cmpop], str] = {ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}


# -- unary ------------------------------------------------------------------------------------------------------------
def unary(ctx: Lowering, op: type[ast.unaryop], a: Any, node: ast.AST) -> Any:
    """Evaluate ``op a``."""
    if not isinstance(a, (Value, MatrixValue)) and not isinstance(a, (list, tuple)) and not is_constant_matrix(a):
        return ctx.compile_time(lambda: _PYTHON[op](a), node, "the operation")
    return elementwise(ctx, lambda x: _UNARY[op](ctx, node, x), (a,), node)


def _neg(ctx: Lowering, node: ast.AST, a: Value) -> Value:
    ctx.at(node)
    a = ctx.builder.cast(a, ctx.options.default_ip) if a.type is dt.u1 else a
    result = ctx.builder.emit("neg", a)
    if ctx.options.debug and a.type.kind == "i":
        report_overflow(ctx, "sub", ctx.builder.const(a.type, 0), a, result)
    return result


def _not(ctx: Lowering, node: ast.AST, a: Value) -> Value:
    if a.type.is_real:
        ctx.type_error(
            f"`not` needs an integer or a comparison, got {a.type.name}",
            node,
            hint="compare with a number, as in `x == 0`",
        )
    ctx.at(node)
    return ctx.builder.emit("not", a) if a.type is dt.u1 else ctx.builder.emit("eq", a, ctx.builder.const(a.type, 0))


def _invert(ctx: Lowering, node: ast.AST, a: Value) -> Value:
    _need_integers(ctx, node, a)
    ctx.at(node)
    return ctx.builder.emit("not", a)


_UNARY: dict[type[ast.unaryop], Callable[[Lowering, ast.AST, Value], Value]] = {
    ast.USub: _neg, ast.UAdd: lambda ctx, node, a: a, ast.Not: _not, ast.Invert: _invert,
}  # fmt: skip
