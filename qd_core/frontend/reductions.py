"""Variables of the kernel's root into which a parallel loop accumulates.

``s += x[i]`` in a parallel loop, with ``s`` defined before it, is a reduction: the variable lives in a temporary array
while the loop
runs, its updates are atomic, and it is read back after the loop. This holds for names that the loop only accumulates
into; any
other assignment in the loop is private to an iteration. A vector or matrix of which every iteration uses only the
component that its own indices name lives in a temporary array, too, where it is read after the loop.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

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
        uses = _uses(ctx, node)
        wanted = [
            n
            for n in uses.accumulated
            if isinstance(names.get(n), (Value, MatrixValue))
            and n not in ctx.scope.readonly
            and uses.total[n] == uses.accumulated[n]
        ]
        stored = ctx.frames[-1].info.facts.stores[node]
        wanted += [
            n
            for n in stored
            if n not in wanted and isinstance(names.get(n), MatrixValue) and n not in ctx.scope.readonly
            if _read_later(ctx, node, n) and _partitioned(node, n, uses.total[n])
        ]
        return Reductions(sorted(wanted))

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


def _read_later(ctx: Lowering, node: ast.For, name: str) -> bool:
    """Whether a variable occurs behind a loop."""
    tree = ctx.frames[-1].info.source.tree
    end = node.end_lineno or node.lineno
    return any(isinstance(n, ast.Name) and n.id == name and n.lineno > end for n in ast.walk(tree))


def _partitioned(node: ast.For, name: str, total: int) -> bool:
    """Whether each iteration uses only the components of ``name`` with its own indices, at the same axes everywhere."""
    targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
    own = [t.id for t in targets if isinstance(t, ast.Name)]
    found: list[tuple[int, ...] | None] = []
    for inner in (n for s in node.body for n in ast.walk(s)):
        if isinstance(inner, ast.Subscript) and isinstance(inner.value, ast.Name) and inner.value.id == name:
            index = inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice]
            axes = [i.id if isinstance(i, ast.Name) else "" for i in index]
            found.append(tuple(axes.index(v) for v in own) if set(own) <= set(axes) else None)
    return len(own) == len(targets) and len(found) == total and None not in found and len(set(found)) == 1


def _atomic_call(node: ast.AST) -> str | None:
    """Variable that an atomic function is applied to."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Name):
        return None
    called = (
        node.func.attr
        if isinstance(node.func, ast.Attribute)
        else node.func.id
        if isinstance(node.func, ast.Name)
        else ""
    )
    return node.args[0].id if called.startswith("atomic_") else None


class Uses:
    """How often names occur in a loop's body, and how often as what is accumulated into.

    The former takes a walk over every expression and is only found out when somebody asks.
    """

    def __init__(self, node: ast.For, accumulated: Counter[str]) -> None:
        self.accumulated = accumulated
        self._node = node

    @cached_property
    def total(self) -> Counter[str]:
        """Occurrences of names."""
        return Counter(inner.id for s in self._node.body for inner in ast.walk(s) if isinstance(inner, ast.Name))


def _uses(ctx: Lowering, node: ast.For) -> Uses:
    """Count names in the body of a loop; once for each loop of a source."""
    info = ctx.frames[-1].info
    uses = info.facts.uses.get(node)
    if uses is None:
        accumulated = Counter(_accumulated(node.body))
        if "atomic_" in info.source.text:
            accumulated.update(_atomics(node.body))
        uses = info.facts.uses[node] = Uses(node, accumulated)
    return uses


def _accumulated(body: list[ast.stmt]) -> Iterator[str]:
    """Names that augmented assignments accumulate into."""
    for statement in body:
        if isinstance(statement, ast.AugAssign):
            if isinstance(statement.op, _OPERATORS) and isinstance(statement.target, ast.Name):
                yield statement.target.id
        for inner in ("body", "orelse"):
            yield from _accumulated(getattr(statement, inner, []))


def _atomics(body: list[ast.stmt]) -> Iterator[str]:
    """Names that atomic functions are applied to, anywhere in an expression."""
    for statement in body:
        for inner in ast.walk(statement):
            called = _atomic_call(inner)
            if called is not None:
                yield called
