"""Atomic functions: `qd.atomic_add(x[i], v)` and its kin. They return the old value; on variables they are plain
updates.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from qd_core.dtypes import DType
from qd_core.frontend.arithmetic import binary, cast
from qd_core.frontend.arrays import compare_and_swap
from qd_core.frontend.context import Lowering
from qd_core.frontend.intrinsics import INTRINSICS, exactly, intrinsic
from qd_core.frontend.places import ElementPlace, NamePlace, place_of
from qd_core.frontend.statements import update_atomically
from qd_core.ir.nodes import Value

__all__: list[str] = []

Rule = Callable[..., Any]
Plain = Callable[[Lowering, ast.AST, Any, Any], Any]


def _atomic(kind: str, plain: Plain) -> Rule:
    """Lowering of ``qd.atomic_...(place, value)``: the old value; on a local variable a plain update."""

    def rule(ctx: Lowering, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
        exactly(ctx, node, f"atomic_{kind}", args, kwargs, 2)
        place = _place_of(ctx, node, kind)
        if isinstance(place, ElementPlace):
            return update_atomically(ctx, kind, place, args[1], node)
        old = place.get(ctx, node)
        place.set(ctx, plain(ctx, node, old, args[1]), node)
        return old

    return rule


def _place_of(ctx: Lowering, node: ast.Call, kind: str) -> ElementPlace | NamePlace:
    place = place_of(ctx, node.args[0])
    ctx.at(node)
    if not isinstance(place, (ElementPlace, NamePlace)):
        ctx.syntax_error(
            f"atomic_{kind}: cannot use a non-writable target as the first operand of 'atomic_{kind}'",
            node.args[0],
            hint="name an array element or a variable",
        )
    return place


@intrinsic("atomic_cas")
def _compare_and_swap(ctx: Lowering, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """``qd.atomic_cas(place, expected, desired)`` on an integer: the old value."""
    exactly(ctx, node, "atomic_cas", args, kwargs, 3)
    place = _place_of(ctx, node, "cas")
    if isinstance(place, ElementPlace) and not place.shape and place.selected is None and not place.part:
        dtype = _integer(ctx, place.array.dtype, node)
        expected, desired = (cast(ctx, v, dtype, node) for v in args[1:])
        return compare_and_swap(ctx, place.array, place.indices, expected, desired, node)
    old = place.get(ctx, node) if isinstance(place, NamePlace) else None
    if not isinstance(old, Value):
        ctx.type_error(
            "atomic_cas takes a scalar, not a vector, matrix or a part of one",
            node.args[0],
            hint="keep the value in an array of integers",
        )
    expected, desired = (cast(ctx, v, _integer(ctx, old.type, node), node) for v in args[1:])
    place.set(ctx, ctx.builder.select(ctx.builder.emit("eq", old, expected), desired, old), node)
    return old


def _integer(ctx: Lowering, dtype: DType, node: ast.AST) -> DType:
    if dtype.kind not in "iu":
        ctx.type_error(
            f"atomic_cas needs an integer, got {dtype.name}", node, hint="keep the bits: qd.bit_cast(x, qd.i32)"
        )
    return dtype


def _operator(op: type[ast.operator]) -> Plain:
    return lambda ctx, node, a, b: binary(ctx, op, a, b, node)


def _call_intrinsic(name: str) -> Plain:
    return lambda ctx, node, a, b: INTRINSICS[name](ctx, node, [a, b], {})


def _exchange(ctx: Lowering, node: ast.AST, old: Any, new: Any) -> Any:
    return new


for _kind, _plain in {
    "add": _operator(ast.Add), "sub": _operator(ast.Sub), "mul": _operator(ast.Mult), "and": _operator(ast.BitAnd),
    "or": _operator(ast.BitOr), "xor": _operator(ast.BitXor), "min": _call_intrinsic("min"),
    "max": _call_intrinsic("max"), "exchange": _exchange,
}.items():  # fmt: skip
    INTRINSICS[f"atomic_{_kind}"] = _atomic(_kind, _plain)
