"""Components of vectors and matrices and items of lists: indices, reading, and copies with a part replaced."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from qd_core import dtypes as dt
from qd_core.errors import QuadrantsIndexError
from qd_core.frontend.arithmetic import as_matrix, as_scalar, converted, to_runtime
from qd_core.frontend.context import Lowering
from qd_core.frontend.values import MatrixValue, describe, is_constant_matrix, is_number, is_runtime, static_int
from qd_core.ir.nodes import Value

__all__ = [
    "Index",
    "Selection",
    "component_get",
    "component_set",
    "item_of",
    "list_index",
    "matrix_index",
    "selection_get",
    "selection_of",
    "selection_set",
    "spread",
]

Index = int | Value


@dataclass(frozen=True, slots=True)
class Selection:
    """Some components: an index tuple each, and the shape that they make together."""

    indices: tuple[tuple[Index, ...], ...]
    shape: tuple[int, ...]

    @staticmethod
    def swizzle(positions: Sequence[int]) -> Selection:
        """Components of a vector by position."""
        return Selection(tuple((k,) for k in positions), (len(positions),))


def selection_of(ctx: Lowering, shape: tuple[int, ...], raw: Any, node: ast.AST) -> Selection | None:
    """Return what an index with slices selects of a vector or matrix; None for an index without slices."""
    parts: tuple[Any, ...] = tuple(raw) if isinstance(raw, (tuple, list)) else (raw,)
    if not any(isinstance(p, slice) for p in parts):
        return None
    if len(parts) > len(shape):
        ctx.error(QuadrantsIndexError, f"a value of shape {shape} is indexed with {len(parts)} indices", node)
    axes: list[Sequence[Index]] = []
    wanted: list[int] = []
    for extent, part in zip(shape, (*parts, *[slice(None)] * (len(shape) - len(parts))), strict=True):
        if isinstance(part, slice):
            axes.append(_places(ctx, extent, part, node))
            wanted.append(len(axes[-1]))
        else:
            axes.append((_matrix_axis(ctx, extent, part, node),))
    return Selection(tuple(product(*axes)), tuple(wanted))


def _places(ctx: Lowering, extent: int, part: slice, node: ast.AST) -> range:
    bounds = [None if b is None else static_int(b) for b in (part.start, part.stop, part.step)]
    if any(
        b is None and given is not None for b, given in zip(bounds, (part.start, part.stop, part.step), strict=True)
    ):
        ctx.type_error(
            "the bounds of a slice are only known at run time",
            node,
            why="the shape of a vector or matrix is fixed at compile time",
            hint="use constants or qd.static loop variables, or write a loop over the components",
        )
    if bounds[2] == 0:
        ctx.error(QuadrantsIndexError, "the step of a slice is 0", node)
    places = range(extent)[slice(*bounds)]
    if not places:
        ctx.error(QuadrantsIndexError, f"a slice selects nothing of an axis of {extent}", node)
    return places


def selection_get(ctx: Lowering, value: MatrixValue, selection: Selection) -> MatrixValue:
    """Selected components."""
    return MatrixValue(selection.shape, [component_get(ctx, value, i) for i in selection.indices], value.dtype)


def selection_set(ctx: Lowering, value: MatrixValue, selection: Selection, new: Any, node: ast.AST) -> MatrixValue:
    """Copy of a matrix with selected components replaced."""
    for index, item in zip(selection.indices, spread(ctx, new, len(selection.indices), node), strict=True):
        value = component_set(ctx, value, index, item, node)
    return value


def spread(ctx: Lowering, value: Any, count: int, node: ast.AST) -> Sequence[Any]:
    """Return ``count`` scalars: the components of a vector, or one scalar repeated."""
    value = to_runtime(ctx, value, node)
    if not isinstance(value, MatrixValue):
        return (value,) * count
    if len(value.items) != count:
        ctx.type_error(f"{describe(value)} does not fit {count} components", node)
    return value.items


def matrix_index(ctx: Lowering, shape: tuple[int, ...], raw: Any, node: ast.AST) -> tuple[Index, ...]:
    """Return checked indices into a vector or matrix (int where known): one an axis, or one for a row of a matrix."""
    parts: tuple[Any, ...] = tuple(raw) if isinstance(raw, (tuple, list)) else (raw,)
    if len(parts) == 1 and isinstance(parts[0], MatrixValue):
        parts = parts[0].items
    if len(parts) == 2 and len(shape) == 1 and static_int(parts[1]) == 0:
        parts = parts[:1]  # a vector is a matrix of one column
    if not 1 <= len(parts) <= len(shape):
        ctx.error(QuadrantsIndexError, f"a value of shape {shape} is indexed with {len(parts)} indices", node)
    return tuple(_matrix_axis(ctx, n, p, node) for n, p in zip(shape, parts, strict=False))


def _matrix_axis(ctx: Lowering, extent: int, raw: Any, node: ast.AST) -> Index:
    known = static_int(raw)
    index = raw if known is not None else as_scalar(ctx, raw, node)
    if known is None and index.type.is_real:
        ctx.type_error(f"indices must be integers, got {index.type.name}", node)
    if known is not None and known < 0:
        ctx.syntax_error(
            f"negative index {known} into a vector or matrix", node, hint=f"indices count from 0 to {extent - 1}"
        )
    if known is not None and known >= extent:
        ctx.error(
            QuadrantsIndexError,
            f"index {known} is out of range for an axis of {extent}",
            node,
            hint=f"indices count from 0 to {extent - 1}",
        )
    if known is None and ctx.options.bounds:
        _check_component(ctx, index, extent)
    return known if known is not None else index


def _check_component(ctx: Lowering, index: Value, extent: int) -> None:
    builder = ctx.builder
    wide = builder.cast(index, dt.i64)
    ok = builder.emit(
        "and",
        builder.emit("ge", wide, builder.const(dt.i64, 0)),
        builder.emit("lt", wide, builder.const(dt.i64, extent)),
    )
    builder.check(
        "bounds", ok, (index,), message=("Out of bound access: ", (0,), f" on an axis of {extent} components")
    )


def list_index(ctx: Lowering, value: Sequence[Any], raw: Any, node: ast.AST) -> int:
    """Return a checked static index into a list or tuple."""
    index = static_int(raw[0] if isinstance(raw, tuple) and len(raw) == 1 else raw)
    if index is None:
        ctx.type_error(
            f"a {type(value).__name__} is indexed by {describe(raw)}",
            node,
            why="lists and tuples exist at compile time only",
            hint="index with a constant or a qd.static loop variable, or make it a vector: qd.Vector([...])",
        )
    if not -len(value) <= index < len(value):
        ctx.error(
            QuadrantsIndexError, f"index {index} is out of range for a {type(value).__name__} of {len(value)}", node
        )
    return index % len(value)


def item_of(ctx: Lowering, value: Any, index: Any, node: ast.AST) -> Any:
    """Return ``value[index]`` for anything but an array in memory."""
    if isinstance(value, MatrixValue):
        selection = selection_of(ctx, value.shape, index, node)
        if selection is not None:
            return selection_get(ctx, value, selection)
        return component_get(ctx, value, matrix_index(ctx, value.shape, index, node))
    if isinstance(value, (list, tuple)):
        if isinstance(index, slice):
            return ctx.items(value)[index]
        at = list_index(ctx, value, index, node)
        return ctx.member(value, "item", at, value[at], f"item.{at}")
    if is_constant_matrix(value):
        return item_of(ctx, as_matrix(ctx, value, node), index, node)
    if isinstance(value, Value) or is_number(value):
        ctx.type_error(f"a scalar ({describe(value)}) cannot be indexed", node)
    return _python_item(ctx, value, index, node)


def _python_item(ctx: Lowering, value: Any, index: Any, node: ast.AST) -> Any:
    known = static_int(index)
    key = index if known is None else known
    if is_runtime(key):
        ctx.type_error(
            f"{describe(value)} is indexed by a run-time value",
            node,
            why="it is a Python object, known at compile time only",
            hint="pass it as an array argument",
        )
    result = ctx.compile_time(lambda: value[key], node, f"indexing {describe(value)}")
    return ctx.member(value, "item", key, result, f"item.{key}")


def component_get(ctx: Lowering, value: MatrixValue, index: tuple[Index, ...]) -> Any:
    """Component (or row) of a matrix; a run-time index becomes a chain of selects."""
    at = index[0]
    if len(value.shape) == 1:
        return value.items[at] if isinstance(at, int) else _select_chain(ctx, at, value.items)
    if isinstance(at, int):
        row = value.row(at)
    else:
        row = MatrixValue(
            (value.shape[1],),
            [_select_chain(ctx, at, value.column(j).items) for j in range(value.shape[1])],
            value.dtype,
        )
    return component_get(ctx, row, index[1:]) if len(index) > 1 else row


def _select_chain(ctx: Lowering, index: Value, items: Sequence[Value]) -> Value:
    builder = ctx.builder
    result = items[0]
    for k, item in enumerate(items[1:], 1):
        result = builder.select(builder.emit("eq", index, builder.const(index.type, k)), item, result)
    return result


def component_set(ctx: Lowering, value: MatrixValue, index: tuple[Index, ...], new: Any, node: ast.AST) -> MatrixValue:
    """Copy of a matrix with one component (or row) replaced."""
    items = list(value.items)
    width = 1 if len(index) == len(value.shape) else value.shape[1]
    fresh = [converted(ctx, v, value.dtype, node) for v in spread(ctx, new, width, node)]
    for k, old in enumerate(items):
        row, column = divmod(k, value.shape[1]) if len(value.shape) == 2 else (k, 0)
        position = (row, column)[: len(index)]
        items[k] = _replaced(ctx, index, position, fresh[column if width > 1 else 0], old)
    return MatrixValue(value.shape, items, value.dtype)


def _replaced(ctx: Lowering, index: tuple[Index, ...], position: tuple[int, ...], new: Value, old: Value) -> Value:
    """``new`` where the index is ``position``, else ``old``."""
    builder = ctx.builder
    hit: Value | None = None
    for i, p in zip(index, position, strict=True):
        if isinstance(i, int):
            if i != p:
                return old
            continue
        equal = builder.emit("eq", i, builder.const(i.type, p))
        hit = equal if hit is None else builder.emit("and", hit, equal)
    return new if hit is None else builder.select(hit, new, old)
