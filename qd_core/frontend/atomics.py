"""Atomic functions: `qd.atomic_add(x[i], v)` and its kin. They return the old value; on variables they are plain
updates.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from qd_core.errors import UnsupportedError
from qd_core.frontend.arithmetic import binary
from qd_core.frontend.context import Lowering
from qd_core.frontend.intrinsics import INTRINSICS, exactly
from qd_core.frontend.places import ElementPlace, NamePlace, place_of
from qd_core.frontend.statements import update_atomically
from qd_core.ir.ops import ATOMIC_KINDS

__all__: list[str] = []

Rule = Callable[..., Any]
Plain = Callable[[Lowering, ast.AST, Any, Any], Any]


def _atomic(kind: str, plain: Plain) -> Rule:
    """Lowering of ``qd.atomic_...(place, value)``: the old value; on a local variable a plain update."""

    def rule(ctx: Lowering, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
        exactly(ctx, node, f"atomic_{kind}", args, kwargs, 2)
        place = place_of(ctx, node.args[0])
        ctx.at(node)
        if isinstance(place, ElementPlace):
            _need_kind(ctx, kind, node)
            return update_atomically(ctx, kind, place, args[1], node)
        if not isinstance(place, NamePlace):
            ctx.type_error(f"the first argument of atomic_{kind} must be an array element or a variable", node.args[0])
        old = place.get(ctx, node)
        place.set(ctx, plain(ctx, node, old, args[1]), node)
        return old

    return rule


def _need_kind(ctx: Lowering, kind: str, node: ast.AST) -> None:
    if kind != "sub" and kind not in ATOMIC_KINDS:
        raise UnsupportedError(
            f"atomic_{kind} on array elements", "every installed backend", span=ctx.info.span_of(node)
        )


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
