"""Iteration and compile-time containers: `range`, `qd.ndrange`, `qd.grouped`, `len`, `zip`...; and directives."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

from qd_core.dtypes import DType
from qd_core.frontend.arithmetic import as_condition, as_matrix, binary, compare, unary
from qd_core.frontend.context import CALLS, Lowering
from qd_core.frontend.expressions import iterate
from qd_core.frontend.intrinsics import INTRINSICS, exactly, intrinsic
from qd_core.frontend.matrices import METHODS, matmul
from qd_core.frontend.messages import lower_static_assert, lower_static_print
from qd_core.frontend.values import (
    ArrayRef,
    Grouped,
    MatrixValue,
    NdRange,
    RangeValue,
    StructValue,
    describe,
    is_number,
    static_int,
)
from qd_core.ir.nodes import Value

__all__: list[str] = []

Rule = Callable[..., Any]


def _range(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    known = [static_int(a) for a in args]
    if ctx.static_depth and all(k is not None for k in known):
        return ctx.compile_time(lambda: range(*(k for k in known if k is not None)), node, "range(...)")
    if kwargs or not 1 <= len(args) <= 2:
        ctx.syntax_error(
            f"Range should have 1 or 2 arguments, found {len(args)}",
            node,
            hint="compute the variable from a counter, or use qd.static(range(...))",
        )
    start, stop = (0, args[0]) if len(args) == 1 else args
    return RangeValue(start, stop)


CALLS[range] = _range


@intrinsic("ndrange")
def _ndrange(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> NdRange:
    axes = kwargs.pop("axes", None)
    if kwargs or not args:
        ctx.syntax_error("ndrange takes a stop or a (start, stop) pair an axis", node)
    args = [tuple(a.items) if isinstance(a, MatrixValue) else a for a in args]
    for bound in args:
        _check_bounds(ctx, bound, node)
    return ctx.compile_time(lambda: NdRange(args, axes), node, "ndrange(...)")


def _check_bounds(ctx: Lowering, bound: Any, node: ast.AST) -> None:
    pair = bound if isinstance(bound, (tuple, list)) else (0, bound)
    if len(pair) != 2:
        ctx.syntax_error(
            "Every argument of ndrange should be a scalar or a tuple/list like (begin, end)",
            node,
            hint="compute indices with another step in the loop",
        )
    for value in pair:
        integral = value.type.is_integral if isinstance(value, Value) else static_int(value) is not None
        if not integral:
            ctx.type_error(
                "Every argument of ndrange should be an integer scalar or a tuple/list of (int, int), "
                f"got {describe(value)}",
                node,
                hint="convert it: int(x)",
            )


@intrinsic("grouped")
def _grouped(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    exactly(ctx, node, "grouped", args, kwargs, 1)
    if ctx.static_depth and isinstance(args[0], NdRange):
        return [as_matrix(ctx, point, node) for point in iterate(ctx, args[0], node)]
    return Grouped(args[0])


def _len(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    exactly(ctx, node, "len", args, kwargs, 1)
    value = args[0]
    if isinstance(value, MatrixValue):
        return value.shape[0]
    if isinstance(value, (Value, StructValue, ArrayRef)):
        ctx.type_error(
            f"{describe(value)} has no length", node, hint="use x.shape[0]" if isinstance(value, ArrayRef) else ""
        )
    if not isinstance(value, (list, tuple, dict)):
        ctx.members.whole(value)
    return ctx.compile_time(lambda: len(value), node, "len(...)")


CALLS[len] = _len


_PYTHON_TYPES = (bool, int, float, complex, str, list, tuple, dict, set, type(None))
"""Types of which no array is."""


def _python_types(dtype: DType) -> tuple[type, ...]:
    if dtype.is_real:
        return (float,)
    return (bool, int) if dtype.bits == 1 else (int,)


def _isinstance(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> bool:
    exactly(ctx, node, "isinstance", args, kwargs, 2)
    value, kinds = args
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if isinstance(value, Value):
        return any(k in _python_types(value.type) for k in kinds)
    if isinstance(value, MatrixValue):
        return any(hasattr(k, "__qd_matrix__") for k in kinds)
    if isinstance(value, StructValue):
        return any(hasattr(k, "__qd_struct__") or (value.type is not None and k == value.type) for k in kinds)
    if isinstance(value, ArrayRef) and not all(k in _PYTHON_TYPES for k in kinds):
        ctx.type_error(
            f"isinstance of {describe(value)}",
            node,
            why="a kernel sees an array, not the object that holds it",
            hint="test the object in Python scope and pass the answer as a qd.template()",
        )
    return ctx.compile_time(lambda: isinstance(value, kinds), node, "isinstance(...)")


CALLS[isinstance] = _isinstance


def _container(make: Callable[..., Any]) -> Rule:
    """Python function over compile-time containers whose items may be run-time values."""

    def rule(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
        parts = [iterate(ctx, a, node) if not is_number(a) else a for a in args]
        return ctx.compile_time(lambda: make(*parts, **kwargs), node, "the call")

    return rule


def _reversed(items: list[Any]) -> list[Any]:
    return items[::-1]


def _zip(*parts: list[Any], strict: bool = False) -> list[Any]:
    return list(zip(*parts, strict=strict))


def _enumerate(items: list[Any], start: int = 0) -> list[Any]:
    return list(enumerate(items, start))


CALLS.update({zip: _container(_zip), enumerate: _container(_enumerate), reversed: _container(_reversed)})
CALLS.update({list: _container(list), tuple: _container(tuple)})


def _builtin_sum(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    exactly(ctx, node, "sum", args, kwargs, 1)
    return reduce(lambda a, b: binary(ctx, ast.Add, a, b, node), iterate(ctx, args[0], node), 0)


CALLS[sum] = _builtin_sum


def _truth(name: str, python: Callable[..., bool]) -> Rule:
    """``all`` and ``any`` of the components of a vector or matrix, or of a list."""

    def rule(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
        exactly(ctx, node, name, args, kwargs, 1)
        if isinstance(args[0], MatrixValue):
            return METHODS[name](ctx, node, args[0])
        items = iterate(ctx, args[0], node)
        if not any(isinstance(v, Value) for v in items):
            return ctx.compile_time(lambda: python(items), node, f"{name}(...)")
        word = "and" if name == "all" else "or"
        return reduce(lambda a, b: ctx.builder.emit(word, a, b), [as_condition(ctx, v, node) for v in items])

    return rule


CALLS.update({all: _truth("all", all), any: _truth("any", any)})


def _operator(op: Any) -> Rule:
    """Function of Python's `operator` module."""

    def rule(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
        exactly(ctx, node, "the operator", args, kwargs, 1 if issubclass(op, ast.unaryop) else 2)
        if issubclass(op, ast.unaryop):
            return unary(ctx, op, args[0], node)
        if op is ast.MatMult:
            return matmul(ctx, args[0], args[1], node)
        combine: Any = compare if issubclass(op, ast.cmpop) else binary
        return combine(ctx, op, args[0], args[1], node)

    return rule


_OPERATORS = """add:Add sub:Sub mul:Mult truediv:Div floordiv:FloorDiv mod:Mod pow:Pow matmul:MatMult lshift:LShift
rshift:RShift and_:BitAnd or_:BitOr xor:BitXor lt:Lt le:LtE gt:Gt ge:GtE eq:Eq ne:NotEq neg:USub pos:UAdd invert:Invert
not_:Not"""
for _name, _, _node in (pair.partition(":") for pair in _OPERATORS.split()):
    CALLS[getattr(operator, _name)] = _operator(getattr(ast, _node))


# -- directives -------------------------------------------------------------------------------------------------------
INTRINSICS["static_print"] = lower_static_print
INTRINSICS["static_assert"] = lower_static_assert
_LOOP_HINTS = frozenset(("block_dim", "serialize", "parallelize", "bit_vectorize", "block_dim_adaptive", "name"))


@intrinsic("loop_config")
def _loop_config(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> None:
    unknown = [k for k in kwargs if k not in _LOOP_HINTS]
    if args or unknown:
        ctx.syntax_error(
            f"loop_config has no argument {unknown[0] if unknown else args[0]!r}",
            node,
            hint=f"known: {', '.join(sorted(_LOOP_HINTS))}",
        )
    known = {k: static_int(v) if isinstance(v, Value) else v for k, v in kwargs.items()}
    ctx.loop_config = {**ctx.loop_config, **{k: v for k, v in known.items() if v is not None}}
