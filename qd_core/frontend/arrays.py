"""Array elements: indices, bounds checks, loads, stores and atomics."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

from qd_core import dtypes as dt
from qd_core.errors import QuadrantsIndexError
from qd_core.frontend.arithmetic import cast, converted, to_runtime
from qd_core.frontend.context import Lowering
from qd_core.frontend.values import ArrayRef, MatrixValue, describe
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Param, Value

__all__ = [
    "array_shape",
    "atomic_element",
    "element_like",
    "element_value",
    "load_element",
    "resolve_indices",
    "store_element",
]

Component = tuple[Value, ...]


def array_shape(ctx: Lowering, array: ArrayRef) -> tuple[Value, ...]:
    """Extents of the index axes."""
    if array.shape is not None:
        return tuple(ctx.builder.const(dt.i32, n) for n in array.shape)
    order = array.order or range(array.ndim)
    extents: dict[int, Value] = {axis: ctx.builder.extent(array.param, k) for k, axis in enumerate(order)}
    return tuple(extents[k] for k in range(array.ndim))


def resolve_indices(ctx: Lowering, array: ArrayRef, raw: Any, node: ast.AST) -> tuple[Value, ...]:
    """Return one integer an axis from what stands in the brackets: scalars, index vectors, tuples of both, or None."""
    flat: list[Value] = []
    for part in raw if isinstance(raw, (tuple, list)) else (raw,):
        _append_index(ctx, part, flat, node)
    if len(flat) != array.ndim:
        ctx.error(
            QuadrantsIndexError,
            f"{array.name!r} has {array.ndim} axes and is indexed with {len(flat)}",
            node,
            hint="element components are indexed in brackets of their own, as in `x[i][0]`"
            if len(flat) > array.ndim
            else "",
        )
    return tuple(flat)


def _append_index(ctx: Lowering, part: Any, flat: list[Value], node: ast.AST) -> None:
    if part is None or (isinstance(part, (tuple, list)) and not part):
        return
    if isinstance(part, slice):
        ctx.syntax_error("slices are not supported in kernels", node, hint="write a loop")
    value = to_runtime(ctx, part, node)
    for v in value.items if isinstance(value, MatrixValue) else (value,):
        if v.type.is_real:
            ctx.type_error(
                f"indices must be integers, got {v.type.name}",
                node,
                hint="convert with int(...) or qd.cast(..., qd.i32)",
            )
        flat.append(ctx.builder.cast(v, dt.i32) if v.type is dt.u1 else v)


def _storage(ctx: Lowering, array: ArrayRef, indices: Sequence[Value]) -> tuple[Value, ...]:
    """Indices in storage order: offset subtracted, axes permuted, blocks split."""
    at = list(indices)
    if array.offset is not None:
        at = [ctx.builder.emit("sub", i, ctx.builder.const(i.type, o)) for i, o in zip(at, array.offset, strict=True)]
    if array.layout is None or array.order is None:
        return tuple(at)
    if array.layout.blocks is None:
        return tuple(at[axis] for axis in array.order)
    extents = array.layout.shape
    assert extents is not None
    return tuple(
        _block_index(ctx, at[axis], step, count, extents[axis])
        for axis, (step, count) in zip(array.order, array.layout.blocks, strict=True)
    )


def _block_index(ctx: Lowering, index: Value, step: int, count: int, extent: int) -> Value:
    """``index // step % count`` of an index in range."""
    builder = ctx.builder
    if step * count < extent:
        index = builder.emit("raw_mod", index, builder.const(index.type, step * count))
    return builder.emit("raw_div", index, builder.const(index.type, step)) if step > 1 else index


def _place(ctx: Lowering, array: ArrayRef, at: Component, part: Component) -> Component:
    """All storage indices of component ``part`` of the element whose own storage indices are ``at``."""
    layout = array.layout
    if layout is not None and layout.split:
        return (*part, *at)
    if layout is None or layout.first is None:
        return (*at, *part)
    builder = ctx.builder  # several fields share elements: components are numbered through
    flat = builder.const(dt.i32, 0)
    for index, extent in zip(part, layout.part, strict=True):
        scaled = builder.emit("mul", flat, builder.const(dt.i32, extent))
        flat = builder.emit("add", scaled, builder.cast(index, dt.i32))
    return (*at, builder.emit("add", flat, builder.const(dt.i32, layout.first)))


def _inside(ctx: Lowering, array: ArrayRef, indices: Sequence[Value]) -> Value | None:
    """Emit a bounds check when asked for; return the condition under which the access happens (None: always)."""
    if not indices or not (ctx.options.bounds or _never_inside(array, indices)):
        return None
    builder = ctx.builder
    extents = array_shape(ctx, array)
    ok: Value | None = None
    for axis, (index, extent) in enumerate(zip(indices, extents, strict=True)):
        low = array.offset[axis] if array.offset is not None else 0
        wide, bound = builder.cast(index, dt.i64), builder.cast(extent, dt.i64)
        fits = builder.emit("ge", wide, builder.const(dt.i64, low))
        below = builder.emit("lt", wide, builder.emit("add", bound, builder.const(dt.i64, low)))
        both = builder.emit("and", fits, below)
        ok = both if ok is None else builder.emit("and", ok, both)
    assert ok is not None
    _check_bounds(ctx, array, ok, indices, extents)
    return None if constant_of(ok) is True else ok


def _never_inside(array: ArrayRef, indices: Sequence[Value]) -> bool:
    """Whether an index is a constant that cannot be in range: `a[-1]` is reported in release builds too."""
    for axis, index in enumerate(indices):
        known = constant_of(index)
        if known is None:
            continue
        low = array.offset[axis] if array.offset is not None else 0
        extent = array.shape[axis] if array.shape is not None else None
        if known < low or (extent is not None and known >= low + extent):
            return True
    return False


def _check_bounds(
    ctx: Lowering, array: ArrayRef, ok: Value, indices: Sequence[Value], extents: Sequence[Value]
) -> None:
    n = len(indices)
    message: list[Any] = [f"Out of bound access: {array.name}["]
    for k in range(n):
        message += [", "] * (k > 0) + [(k,)]
    message.append("] of shape (")
    for k in range(n):
        message += [", "] * (k > 0) + [(n + k,)]
    message.append(",)" if n == 1 else ")")
    ctx.builder.check("bounds", ok, (*indices, *extents), message=tuple(message), array=array.name)


def components(ctx: Lowering, shape: tuple[int, ...]) -> list[Component]:
    """Constant indices of every component of an element, in row-major order; one empty index for a scalar."""
    const = ctx.builder.const
    return [tuple(const(dt.i32, k) for k in point) for point in product(*map(range, shape))]


def element_value(array: ArrayRef, items: Sequence[Value], shape: tuple[int, ...]) -> Any:
    """Scalars of an element as a scalar or matrix."""
    return MatrixValue(shape, items, array.dtype) if shape else items[0]


def _masked(ctx: Lowering, ok: Value | None, access: Callable[[], list[Value]]) -> list[Value]:
    """Do ``access`` where ``ok`` holds; its results are zero elsewhere."""
    if ok is None:
        return access()
    builder = ctx.builder
    with builder.inside() as then:
        results = access()
        builder.yield_(*results)
    with builder.inside() as otherwise:
        builder.yield_(*(builder.const(v.type, 0) for v in results))
    return list(builder.if_(ok, then, otherwise))


def load_element(
    ctx: Lowering,
    array: ArrayRef,
    indices: Sequence[Value],
    node: ast.AST,
    part: Component = (),
    shape: tuple[int, ...] | None = None,
) -> Any:
    """Load an element, or the component (row) ``part`` of it, whose remaining shape is ``shape``."""
    shape = array.element_shape if shape is None else shape
    ctx.at(node)
    ok = _inside(ctx, array, indices)
    at = _storage(ctx, array, indices)

    def access() -> list[Value]:
        return [ctx.builder.load(array.param, _place(ctx, array, at, (*part, *c))) for c in components(ctx, shape)]

    items = _masked(ctx, ok, access)
    if stopped(array.param) in ctx.scope.names:
        items = [ctx.builder.stop_grad(v) for v in items]
    return element_value(array, items, shape)


def stopped(param: Param) -> str:
    """The name that is declared where `qd.stop_grad` made an array a constant to derivatives."""
    return f"stop_grad {param.path}"


def element_like(ctx: Lowering, array: ArrayRef, shape: tuple[int, ...], value: Any, node: ast.AST) -> list[Value]:
    """Return the scalars of ``value`` converted to an element (component) of shape ``shape``; scalars are broadcast."""
    if not shape:
        return [converted(ctx, value, array.dtype, node)]
    size = 1
    for n in shape:
        size *= n
    value = to_runtime(ctx, value, node)
    if not isinstance(value, MatrixValue):
        return [cast(ctx, value, array.dtype, node)] * size
    value = cast(ctx, value, array.dtype, node)
    if value.shape != shape and not (
        len(value.items) == size and (value.shape, shape) in (((size,), (size, 1)), ((size, 1), (size,)))
    ):
        ctx.type_error(f"cannot store {describe(value)} in an element of shape {shape} of {array.name!r}", node)
    return list(value.items)


def store_element(
    ctx: Lowering,
    array: ArrayRef,
    indices: Sequence[Value],
    value: Any,
    node: ast.AST,
    part: Component = (),
    shape: tuple[int, ...] | None = None,
) -> None:
    """Store to an element, or to the component ``part`` of it."""
    shape = array.element_shape if shape is None else shape
    items = element_like(ctx, array, shape, value, node)
    ctx.at(node)
    ok = _inside(ctx, array, indices)
    at = _storage(ctx, array, indices)

    def access() -> list[Value]:
        for c, item in zip(components(ctx, shape), items, strict=True):
            ctx.builder.store(array.param, _place(ctx, array, at, (*part, *c)), item)
        return []

    _masked(ctx, ok, access)


def atomic_element(
    ctx: Lowering,
    kind: str,
    array: ArrayRef,
    indices: Sequence[Value],
    value: Any,
    node: ast.AST,
    part: Component = (),
    shape: tuple[int, ...] | None = None,
) -> Any:
    """Combine ``value`` into an element (component) by ``kind``, each scalar atomically; return the old value."""
    shape = array.element_shape if shape is None else shape
    items = element_like(ctx, array, shape, value, node)
    ctx.at(node)
    ok = _inside(ctx, array, indices)
    at = _storage(ctx, array, indices)

    def access() -> list[Value]:
        update = partial(_multiply, ctx) if kind == "mul" else partial(ctx.builder.atomic, kind)
        pairs = zip(components(ctx, shape), items, strict=True)
        return [update(array.param, _place(ctx, array, at, (*part, *c)), item) for c, item in pairs]

    return element_value(array, _masked(ctx, ok, access), shape)


def _multiply(ctx: Lowering, array: Value, place: Sequence[Value], factor: Value) -> Value:
    """Multiply an element atomically, which no device can do at once: again, until nobody came between."""
    builder, dtype = ctx.builder, factor.type
    first = builder.load(array, place)
    with builder.inside([(dtype, "old"), (dt.u1, "again")], loop=True) as test:
        builder.yield_(test.args[1])
    with builder.inside([(dtype, "old"), (dt.u1, "again")], loop=True) as body:
        old = body.args[0]
        found = builder.atomic("cas", array, place, old, builder.emit("mul", old, factor))
        bits = dt.by_name(f"u{dtype.bits}")
        builder.yield_(found, builder.emit("ne", *(builder.bitcast(v, bits) for v in (found, old))))
    return builder.while_([first, builder.const(dt.u1, True)], test, body)[0]


def compare_and_swap(
    ctx: Lowering, array: ArrayRef, indices: Sequence[Value], expected: Value, value: Value, node: ast.AST
) -> Value:
    """Store ``value`` in a scalar element where it holds ``expected``; return the old value."""
    ctx.at(node)
    ok = _inside(ctx, array, indices)
    at = _storage(ctx, array, indices)
    place = _place(ctx, array, at, ())
    return _masked(ctx, ok, lambda: [ctx.builder.atomic("cas", array.param, place, expected, value)])[0]
