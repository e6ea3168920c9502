"""Variables of the kernel's root into which a parallel loop accumulates.

``s += x[i]`` in a parallel loop, with ``s`` defined before it, is a reduction: the variable lives in a temporary array while the loop
runs, its updates are atomic, and it is read back after the loop. This holds for names that the loop only accumulates into; any
other assignment in the loop is private to an iteration.
"""

from __future__ import annotations

import ast
from typing import Any

from qd_core import dtypes as dt
from qd_core.frontend.context import Lowering
from qd_core.frontend.values import ArrayRef, MatrixValue
from qd_core.ir.nodes import ArrayType, Role, Value

__all__ = ["Accumulator", "Reductions"]

_OPERATORS = (ast.Add, ast.Sub, ast.BitAnd, ast.BitOr, ast.BitXor)


class Accumulator:
    """Stands for a variable while a parallel loop accumulates into it; it lives in ``array[0]``."""

    __slots__ = ("array",)

    def __init__(self, array: ArrayRef) -> None:
        self.array = array


class Reductions:
    """The accumulated variables of one parallel loop."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.arrays: dict[str, ArrayRef] = {}

    @staticmethod
    def find(ctx: Lowering, node: ast.For) -> Reductions:
        """Return the reductions of a loop: run-time variables that it accumulates into and uses in no other way."""
        names = ctx.scope.names
        stores = ctx.frames[-1].info.facts.stores[node]
        wanted = sorted(n for n in stores if isinstance(names.get(n), (Value, MatrixValue)) and n not in ctx.scope.readonly)
        wanted += [n for n in _atomic_names(node) if n not in wanted and isinstance(names.get(n), (Value, MatrixValue))]
        if not wanted:
            return Reductions([])
        uses = _uses(node, set(wanted))
        return Reductions([n for n in wanted if not uses[n]])

    def enter(self, ctx: Lowering) -> None:
        """Store the current values in temporaries."""
        for name in self.names:
            value = ctx.scope.names[name]
            shape = value.shape if isinstance(value, MatrixValue) else ()
            items = value.items if isinstance(value, MatrixValue) else (value,)
            ctx.counter += 1
            kind = ArrayType(items[0].type, 1, shape, (1,))
            array = ArrayRef(ctx.param(f"{name}.sum.{ctx.counter}", kind, Role.TEMP), name)
            self.arrays[name] = array
            for at, item in zip(_places(ctx, shape), items, strict=True):
                ctx.builder.store(array.param, at, item)

    def bind(self, ctx: Lowering) -> None:
        """Inside the loop, let the names stand for the temporaries."""
        for name, array in self.arrays.items():
            ctx.scope.declare(name, Accumulator(array))

    def leave(self, ctx: Lowering) -> None:
        """Read the results back."""
        for name, array in self.arrays.items():
            shape = array.element_shape
            items = [ctx.builder.load(array.param, at) for at in _places(ctx, shape)]
            ctx.scope.update(name, MatrixValue(shape, items, array.dtype) if shape else items[0])


def _places(ctx: Lowering, shape: tuple[int, ...]) -> list[tuple[Value, ...]]:
    from qd_core.frontend.arrays import components

    zero = ctx.builder.const(dt.i32, 0)
    return [(zero, *c) for c in components(ctx, shape)]


def _atomic_call(node: ast.AST) -> str | None:
    """Variable that an atomic function is applied to."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Name):
        return None
    called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
    return node.args[0].id if called.startswith("atomic_") else None


def _atomic_names(node: ast.For) -> list[str]:
    return sorted({n for inner in _all(node) if (n := _atomic_call(inner)) is not None})


def _uses(node: ast.For, wanted: set[str]) -> dict[str, Any]:
    """Count how often each name occurs beyond its accumulations."""
    counts = dict.fromkeys(wanted, 0)
    for inner in _all(node):
        if isinstance(inner, ast.Name) and inner.id in wanted:
            counts[inner.id] += 1
        target = inner.target if isinstance(inner, ast.AugAssign) and isinstance(inner.op, _OPERATORS) else None
        if isinstance(target, ast.Name) and target.id in wanted:
            counts[target.id] -= 1
        called = _atomic_call(inner)
        if called in wanted:
            counts[called] -= 1  # type: ignore[index]
    return counts


def _all(node: ast.For) -> Any:
    for statement in node.body:
        yield from ast.walk(statement)
