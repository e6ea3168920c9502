"""Places: what can be read, assigned, updated atomically.

A place is a variable or an array element, with the way to a part of it: a component, some components (a swizzle), a
member.
Resolving a place evaluates indices once and reads nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from qd_core import dtypes as dt
from qd_core.frontend.arithmetic import as_matrix, as_scalar, cast, converted, to_runtime
from qd_core.frontend.arrays import atomic_element, load_element, resolve_indices, store_element
from qd_core.frontend.attributes import attribute_of, swizzle_of
from qd_core.frontend.components import (
    Index,
    Selection,
    component_get,
    component_set,
    item_of,
    list_index,
    matrix_index,
    selection_get,
    selection_of,
    selection_set,
    spread,
)
from qd_core.frontend.constructors import struct_constant
from qd_core.frontend.context import Lowering, Racy
from qd_core.frontend.private import private_get, private_set, read_whole, to_private, write_whole
from qd_core.frontend.reductions import Accumulator
from qd_core.frontend.scope import MISSING
from qd_core.frontend.structs import StructPlace
from qd_core.frontend.values import (
    ArrayRef,
    MatrixValue,
    PrivateMatrix,
    StructRef,
    StructValue,
    describe,
    is_constant_matrix,
    is_number,
    is_runtime,
)
from qd_core.ir.nodes import Value

__all__ = [
    "ElementPlace",
    "Known",
    "NamePlace",
    "Place",
    "assign",
    "convert_like",
    "item_of",
    "materialize",
    "place_of",
]


# -- kinds of places --------------------------------------------------------------------------------------------------
class Known:
    """No place but a value: something computed, or an object outside the kernel."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self, ctx: Lowering, node: ast.AST) -> Any:
        """Return the value."""
        return self.value

    def set(self, ctx: Lowering, value: Any, node: ast.AST) -> None:
        """Refuse."""
        ctx.syntax_error(
            f"cannot assign to {describe(self.value)}",
            node,
            why="it is no variable and no array element",
            hint=_hint(self.value),
        )

    def member(self, ctx: Lowering, name: str, node: ast.AST) -> Place:
        """Attribute of the value."""
        return Known(attribute_of(ctx, self.value, name, node))

    def item(self, ctx: Lowering, index: Any, node: ast.AST) -> Place:
        """Element of an array, or item of a compile-time container."""
        if isinstance(self.value, ArrayRef):
            return ElementPlace(self.value, resolve_indices(ctx, self.value, index, node))
        if isinstance(self.value, StructRef):
            parts = {n: Known(m).item(ctx, index, node) for n, m in self.value.members.items()}
            return StructPlace(parts, self.value.type)
        return Known(item_of(ctx, self.value, index, node))


def _hint(value: Any) -> str:
    return "write elements, as in `x[i] = ...`" if isinstance(value, ArrayRef) else ""


Step = tuple[str, Any]


class NamePlace:
    """A variable, or the part of it that ``steps`` lead to."""

    __slots__ = ("name", "steps")

    def __init__(self, name: str, steps: tuple[Step, ...] = ()) -> None:
        self.name, self.steps = name, steps

    def get(self, ctx: Lowering, node: ast.AST) -> Any:
        """Return the current value."""
        value = ctx.scope.names[self.name]
        steps = self.steps
        if isinstance(value, PrivateMatrix):
            if steps and steps[0][0] == "component":
                value, steps = private_get(ctx, value, steps[0][1]), steps[1:]
            else:
                value = read_whole(ctx, value)
        for step in steps:
            value = _step_get(ctx, value, step, node)
        return value

    def set(self, ctx: Lowering, value: Any, node: ast.AST) -> None:
        """Assign, converting to the type that the variable has."""
        _check_assignable(ctx, self.name, node)
        current = ctx.scope.names[self.name]
        if isinstance(current, PrivateMatrix):
            self._set_private(ctx, current, value, node)
        else:
            ctx.scope.update(self.name, _step_set(ctx, current, self.steps, value, node))

    def _set_private(self, ctx: Lowering, memory: PrivateMatrix, value: Any, node: ast.AST) -> None:
        if self.steps and self.steps[0][0] == "component":
            (_, index), rest = self.steps[0], self.steps[1:]
            if rest:
                value = _step_set(ctx, private_get(ctx, memory, index), rest, value, node)
            private_set(ctx, memory, index, value, node)
        else:
            write_whole(ctx, memory, _step_set(ctx, read_whole(ctx, memory), self.steps, value, node))

    def member(self, ctx: Lowering, name: str, node: ast.AST) -> Place:
        """Part called ``name``: a swizzle or member; otherwise the attribute of the value."""
        value = self.get(ctx, node)
        if isinstance(value, MatrixValue):
            chosen = swizzle_of(value.shape, name)
            if chosen is not None:
                step = ("component", chosen) if len(chosen) == 1 else ("selection", Selection.swizzle(chosen))
                return NamePlace(self.name, (*self.steps, step))
        if isinstance(value, StructValue) and name in value.members:
            return NamePlace(self.name, (*self.steps, ("member", name)))
        return Known(attribute_of(ctx, value, name, node))

    def item(self, ctx: Lowering, index: Any, node: ast.AST) -> Place:
        """Component of a matrix or item of a list."""
        value = ctx.scope.names[self.name] if not self.steps else None
        if not isinstance(value, PrivateMatrix):
            value = self.get(ctx, node)
        if isinstance(value, ArrayRef):
            return Known(value).item(ctx, index, node)
        if isinstance(value, (MatrixValue, PrivateMatrix)):
            selection = selection_of(ctx, value.shape, index, node)
            if selection is not None:
                return NamePlace(self.name, (*self.steps, ("selection", selection)))
            return NamePlace(self.name, (*self.steps, ("component", matrix_index(ctx, value.shape, index, node))))
        if isinstance(value, (list, tuple)):
            return NamePlace(self.name, (*self.steps, ("list", list_index(ctx, value, index, node))))
        return Known(item_of(ctx, value, index, node))


class ElementPlace:
    """An array element, or the component (row) ``part`` of it, or the components of that which are ``selected``."""

    __slots__ = ("array", "indices", "part", "selected")

    def __init__(
        self,
        array: ArrayRef,
        indices: tuple[Value, ...],
        part: tuple[Value, ...] = (),
        selected: Selection | None = None,
    ) -> None:
        self.array, self.indices, self.part, self.selected = array, indices, part, selected

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the place, apart from a selection."""
        return self.array.element_shape[len(self.part) :]

    def _parts(self, ctx: Lowering) -> list[ElementPlace]:
        assert self.selected is not None
        return [self._component(ctx, index) for index in self.selected.indices]

    def _component(self, ctx: Lowering, index: Sequence[Index]) -> ElementPlace:
        constants = (ctx.builder.const(dt.i32, c) if isinstance(c, int) else c for c in index)
        return ElementPlace(self.array, self.indices, (*self.part, *constants))

    def get(self, ctx: Lowering, node: ast.AST) -> Any:
        """Load."""
        if self.selected is None:
            return load_element(ctx, self.array, self.indices, node, self.part, self.shape)
        return MatrixValue(self.selected.shape, [p.get(ctx, node) for p in self._parts(ctx)], self.array.dtype)

    def set(self, ctx: Lowering, value: Any, node: ast.AST) -> None:
        """Store."""
        if self.selected is None:
            store_element(ctx, self.array, self.indices, value, node, self.part, self.shape)
            return
        for place, item in zip(self._parts(ctx), spread(ctx, value, len(self.selected.indices), node), strict=True):
            place.set(ctx, item, node)

    def atomic(self, ctx: Lowering, kind: str, value: Any, node: ast.AST) -> Any:
        """Combine ``value`` into it atomically; return the old value."""
        if self.selected is None:
            return atomic_element(ctx, kind, self.array, self.indices, value, node, self.part, self.shape)
        items = spread(ctx, value, len(self.selected.indices), node)
        old = [p.atomic(ctx, kind, v, node) for p, v in zip(self._parts(ctx), items, strict=True)]
        return MatrixValue(self.selected.shape, old, self.array.dtype)

    def member(self, ctx: Lowering, name: str, node: ast.AST) -> Place:
        """Components by name; otherwise the attribute of the loaded value."""
        chosen = swizzle_of(self.shape, name) if self.shape and self.selected is None else None
        if chosen is None:
            return Known(attribute_of(ctx, self.get(ctx, node), name, node))
        if len(chosen) == 1:
            return self._component(ctx, chosen)
        return ElementPlace(self.array, self.indices, self.part, Selection.swizzle(chosen))

    def item(self, ctx: Lowering, index: Any, node: ast.AST) -> Place:
        """Component of the element."""
        if self.selected is not None or not self.shape:
            return Known(item_of(ctx, self.get(ctx, node), index, node))
        selection = selection_of(ctx, self.shape, index, node)
        if selection is not None:
            return ElementPlace(self.array, self.indices, self.part, selection)
        return self._component(ctx, matrix_index(ctx, self.shape, index, node))


Place = Known | NamePlace | ElementPlace | StructPlace


# -- resolving --------------------------------------------------------------------------------------------------------
def place_of(ctx: Lowering, node: ast.expr) -> Place:
    """Resolve the place that an expression means."""
    if isinstance(node, ast.Name):
        value = ctx.scope.names.get(node.id, MISSING)
        if isinstance(value, Accumulator):
            return ElementPlace(value.array, (ctx.builder.const(dt.i32, 0),))
        if value is MISSING or isinstance(value, Racy) or not is_runtime(value):
            return Known(ctx.lookup(node))
        return NamePlace(node.id)
    if isinstance(node, ast.Attribute):
        return place_of(ctx, node.value).member(ctx, node.attr, node)
    if isinstance(node, ast.Subscript):
        base = place_of(ctx, node.value)
        return base.item(ctx, ctx.expr(node.slice), node)
    return Known(ctx.expr(node))


# -- steps ------------------------------------------------------------------------------------------------------------
def _step_get(ctx: Lowering, value: Any, step: Step, node: ast.AST) -> Any:
    kind, which = step
    if kind == "component":
        return component_get(ctx, value, which)
    if kind == "selection":
        return selection_get(ctx, value, which)
    return value.members[which] if kind == "member" else value[which]


def _step_set(ctx: Lowering, value: Any, steps: tuple[Step, ...], new: Any, node: ast.AST) -> Any:
    """Return ``value`` with the part that ``steps`` lead to replaced by ``new``."""
    if not steps:
        return convert_like(ctx, value, new, node)
    (kind, which), rest = steps[0], steps[1:]
    if rest:
        new = _step_set(ctx, _step_get(ctx, value, steps[0], node), rest, new, node)
    if kind == "component":
        return component_set(ctx, value, which, new, node)
    if kind == "selection":
        return selection_set(ctx, value, which, new, node)
    if kind == "member":
        return value.replace(which, convert_like(ctx, value.members[which], new, node))
    items = list(value)
    items[which] = convert_like(ctx, items[which], new, node)
    return type(value)(items)


# -- assignment -------------------------------------------------------------------------------------------------------
def materialize(ctx: Lowering, value: Any, node: ast.AST) -> Any:
    """Return what a new variable holds: numbers become run-time values, containers copies, other objects themselves."""
    if isinstance(value, (Value, MatrixValue, StructValue)):
        return value
    if isinstance(value, (list, tuple)):
        items = [materialize(ctx, v, node) for v in value]
        return items if isinstance(value, list) else tuple(items)
    if is_constant_matrix(value):
        return as_matrix(ctx, value, node)
    if hasattr(value, "__qd_struct__") and not isinstance(value, type):
        return struct_constant(ctx, value, node)
    return as_scalar(ctx, value, node) if is_number(value) else value


def convert_like(ctx: Lowering, current: Any, value: Any, node: ast.AST) -> Any:
    """Return ``value`` converted to the type of ``current``."""
    if isinstance(current, Value):
        return _convert_scalar(ctx, current, value, node)
    if isinstance(current, MatrixValue):
        return _convert_matrix(ctx, current, value, node)
    if isinstance(current, StructValue):
        return _convert_struct(ctx, current, value, node)
    if isinstance(current, (list, tuple)) and isinstance(value, (list, tuple)) and len(current) == len(value):
        items = [convert_like(ctx, c, v, node) for c, v in zip(current, value, strict=True)]
        return items if isinstance(current, list) else tuple(items)
    if current is value:
        return value
    ctx.type_error(
        f"cannot assign {describe(value)} to a variable that holds {describe(current)}",
        node,
        why="the first assignment fixes the type of a variable",
    )


def _convert_scalar(ctx: Lowering, current: Value, value: Any, node: ast.AST) -> Value:
    if isinstance(value, Value):
        return ctx.builder.cast(value, current.type)
    if isinstance(value, (MatrixValue, list, tuple, StructValue)) or is_constant_matrix(value):
        ctx.type_error(
            f"cannot assign {describe(value)} to a variable of type {current.type.name}",
            node,
            why="the first assignment fixes the type of a variable",
        )
    return converted(ctx, value, current.type, node)


def _convert_matrix(ctx: Lowering, current: MatrixValue, value: Any, node: ast.AST) -> MatrixValue:
    value = to_runtime(ctx, value, node)
    if isinstance(value, Value):
        return MatrixValue(current.shape, [cast(ctx, value, current.dtype, node)] * len(current.items), current.dtype)
    if value.shape != current.shape:
        ctx.type_error(
            f"cannot assign {describe(value)} to a variable of type {describe(current)}",
            node,
            why="the first assignment fixes the type of a variable",
        )
    return cast(ctx, value, current.dtype, node)


def _convert_struct(ctx: Lowering, current: StructValue, value: Any, node: ast.AST) -> StructValue:
    if hasattr(value, "__qd_struct__"):
        value = struct_constant(ctx, value, node)
    if not isinstance(value, StructValue) or set(value.members) != set(current.members):
        ctx.type_error(f"cannot assign {describe(value)} to a variable that holds {describe(current)}", node)
    return StructValue(
        {k: convert_like(ctx, v, value.members[k], node) for k, v in current.members.items()}, current.type
    )


def _check_assignable(ctx: Lowering, name: str, node: ast.AST) -> None:
    reason = ctx.scope.readonly.get(name)
    if reason is not None:
        ctx.syntax_error(reason, node, hint=f"assign it to a variable first, as in `{name}_ = {name}`")


def assign(ctx: Lowering, target: ast.expr, value: Any, node: ast.AST, *, static: bool = False) -> None:
    """Assign ``value`` to a target: a name, a tuple of targets, an element, a component, a member."""
    if isinstance(target, ast.Name):
        _assign_name(ctx, target, value, static)
    elif isinstance(target, (ast.Tuple, ast.List)):
        _assign_tuple(ctx, target, value, node, static)
    elif isinstance(target, (ast.Subscript, ast.Attribute)):
        place_of(ctx, target).set(ctx, value, target)
    else:
        ctx.unsupported(target)


def _assign_name(ctx: Lowering, target: ast.Name, value: Any, static: bool) -> None:
    scope, name = ctx.scope, target.id
    current = scope.names.get(name, MISSING)
    if value is None and not static:
        ctx.type_error(
            "an expression without a value is assigned", target, hint="functions must return a value to be assigned"
        )
    if current is MISSING:
        scope.declare(name, value if static else to_private(ctx, name, materialize(ctx, value, target)))
        return
    _check_assignable(ctx, name, target)
    if isinstance(current, Racy):
        scope.update(name, materialize(ctx, value, target))
    elif isinstance(current, PrivateMatrix):
        write_whole(ctx, current, convert_like(ctx, read_whole(ctx, current), value, target))
    elif static and not is_runtime(current):
        scope.update(name, value)
    else:
        scope.update(name, convert_like(ctx, current, value, target))


def _assign_tuple(ctx: Lowering, target: ast.Tuple | ast.List, value: Any, node: ast.AST, static: bool) -> None:
    if is_constant_matrix(value):
        value = as_matrix(ctx, value, node)
    if isinstance(value, MatrixValue):
        value = tuple(value.items) if len(value.shape) == 1 else tuple(value.row(i) for i in range(value.shape[0]))
    if not isinstance(value, (list, tuple)):
        ctx.type_error(f"cannot unpack {describe(value)}", node)
    starred = next((e for e in target.elts if isinstance(e, ast.Starred)), None)
    if starred is not None:
        ctx.unsupported(starred)
    if len(value) != len(target.elts):
        ctx.type_error(f"cannot unpack {len(value)} values into {len(target.elts)} targets", node)
    for element, item in zip(target.elts, value, strict=True):
        assign(ctx, element, item, node, static=static)
