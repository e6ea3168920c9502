"""Lowering of loops: parallel at a kernel's root, unrolled by `qd.static`, serial elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.frontend.arithmetic import as_condition, as_scalar
from qd_core.frontend.arrays import array_shape
from qd_core.frontend.calls import is_static_call
from qd_core.frontend.context import Lowering, Racy, statement
from qd_core.frontend.expressions import iterate
from qd_core.frontend.reductions import Reductions
from qd_core.frontend.returns import GO, LIVE, RESULT, RUN, leaves_loop, may_leave, settle_loop
from qd_core.frontend.scope import MISSING
from qd_core.frontend.signature import ArrayArg
from qd_core.frontend.statements import block, conditional
from qd_core.frontend.values import (
    ArrayRef,
    Grouped,
    MatrixValue,
    NdRange,
    RangeValue,
    StructRef,
    describe,
    flatten,
    is_runtime,
    rebuild,
)
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Region, Value
from qd_core.ir.rewrite import walk

__all__: list[str] = []

Bounds = list[tuple[Value, Value]]


@statement(ast.For)
def _for(ctx: Lowering, node: ast.For) -> None:
    if node.orelse:
        ctx.syntax_error(
            "'else' of a for loop is not supported",
            node.orelse[0],
            hint="set a flag before `break` and test it after the loop",
        )
    if is_static_call(ctx, node.iter):
        _static_for(ctx, node)
        return
    config, ctx.loop_config = ctx.loop_config, {}
    bounds, bind = _iteration(ctx, node)
    if ctx.runtime_depth == 0 and ctx.parallel_depth == 0 and not config.get("serialize"):
        _parallel_for(ctx, node, bounds, bind, config)
    else:
        _serial_nest(ctx, node, bounds, bind)


# -- what is iterated -------------------------------------------------------------------------------------------------
Bind = Callable[[Sequence[Value]], None]


def _iteration(ctx: Lowering, node: ast.For) -> tuple[Bounds, Bind]:
    """Return bounds an axis, outermost first, and how index values become loop variables."""
    iterable = ctx.expr(node.iter)
    ctx.at(node.iter)
    if isinstance(iterable, RangeValue):
        return [_axis(ctx, iterable.start, iterable.stop, node.iter)], lambda indices: _bind(
            ctx, node, list(indices), True
        )
    grouped = isinstance(iterable, Grouped)
    box = iterable.of if isinstance(iterable, Grouped) else iterable
    if isinstance(box, NdRange):
        bounds = [_axis(ctx, a, b, node.iter) for a, b in box.bounds]
        return _ordered(ctx, node, bounds, box.axes, grouped)
    if isinstance(box, StructRef):
        box = box.first
    if isinstance(box, ArrayRef):
        return _over_array(ctx, node, box, grouped)
    if hasattr(box, "__qd_domain__"):
        return _over_domain(ctx, node, box.__qd_domain__(), grouped)
    hint = "use range(...), qd.ndrange(...), qd.grouped(...) or an array; wrap compile-time lists in qd.static(...)"
    ctx.syntax_error(f"cannot loop over {describe(box)}", node.iter, hint=hint)


def _ordered(
    ctx: Lowering, node: ast.For, bounds: Bounds, axes: tuple[int, ...] | None, grouped: bool
) -> tuple[Bounds, Bind]:
    """Bounds in nesting order; ``axes[k]`` is the axis that is nested at depth k."""
    order = axes or tuple(range(len(bounds)))
    place = [order.index(k) for k in range(len(order))]
    return [bounds[k] for k in order], lambda indices: _bind(ctx, node, [indices[p] for p in place], False, grouped)


def _over_array(ctx: Lowering, node: ast.For, array: ArrayRef, grouped: bool) -> tuple[Bounds, Bind]:
    """Loop over the elements of an array in storage order."""
    if array.layout is not None and array.layout.blocks is not None:
        return _over_blocks(ctx, node, array.layout, grouped)
    return _over_box(ctx, node, array_shape(ctx, array), array.offset, array.order, grouped)


def _over_box(
    ctx: Lowering,
    node: ast.For,
    shape: Sequence[Value],
    offset: Sequence[int] | None,
    order: tuple[int, ...] | None,
    grouped: bool,
) -> tuple[Bounds, Bind]:
    bounds: Bounds = []
    for axis, extent in enumerate(shape):
        low = ctx.builder.const(dt.i32, offset[axis] if offset else 0)
        bounds.append((low, ctx.builder.emit("add", low, extent)))
    if not bounds:  # one element, without indices
        once = ctx.builder.const(dt.i32, 0), ctx.builder.const(dt.i32, 1)
        return [once], lambda indices: _bind(ctx, node, [], False, grouped)
    return _ordered(ctx, node, bounds, order, grouped)


def _over_blocks(ctx: Lowering, node: ast.For, layout: ArrayArg, grouped: bool) -> tuple[Bounds, Bind]:
    """Loop over the storage axes of blocks; an index is the sum of its parts."""
    builder = ctx.builder
    order, blocks, shape = layout.order, layout.blocks, layout.shape
    assert blocks is not None
    assert order is not None
    assert shape is not None
    zero = builder.const(dt.i32, 0)

    def bind(indices: Sequence[Value]) -> None:
        sums: list[Value] = [builder.const(dt.i32, o) for o in layout.offset or (0,) * len(shape)]
        for index, axis, (step, _) in zip(indices, order, blocks, strict=True):
            sums[axis] = builder.emit("add", sums[axis], builder.emit("mul", index, builder.const(dt.i32, step)))
        _bind(ctx, node, sums, False, grouped)

    return [(zero, builder.const(dt.i32, count)) for _, count in blocks], bind


def _over_domain(ctx: Lowering, node: ast.For, layout: ArrayArg, grouped: bool) -> tuple[Bounds, Bind]:
    """Loop over the index space of a node of a field tree."""
    if layout.blocks is not None:
        return _over_blocks(ctx, node, layout, grouped)
    assert layout.shape is not None
    shape = [ctx.builder.const(dt.i32, n) for n in layout.shape]
    return _over_box(ctx, node, shape, layout.offset, layout.order, grouped)


def _axis(ctx: Lowering, start: Any, stop: Any, node: ast.AST) -> tuple[Value, Value]:
    """Bounds of one axis as i32, or i64 when one of them needs it; real bounds are truncated."""
    values = [as_scalar(ctx, v, node) for v in (start, stop)]
    wide = any(v.type in (dt.i64, dt.u64, dt.u32) for v in values)
    dtype: DType = dt.i64 if wide else dt.i32
    return ctx.builder.cast(values[0], dtype), ctx.builder.cast(values[1], dtype)


def _bind(ctx: Lowering, node: ast.For, indices: list[Value], single: bool, grouped: bool = False) -> None:
    """Declare the loop variables."""
    target = node.target
    if grouped or (single and not isinstance(target, ast.Name)):
        if not isinstance(target, ast.Name):
            ctx.syntax_error("this loop has one loop variable", target)
        dtype = dt.i64 if any(i.type is dt.i64 for i in indices) else dt.i32
        value: Any = MatrixValue((len(indices),), [ctx.builder.cast(i, dtype) for i in indices], dtype)
        _declare(ctx, target, value)
        return
    names = list(target.elts) if isinstance(target, (ast.Tuple, ast.List)) else [target]
    if len(names) != len(indices):
        ctx.syntax_error(
            f"the loop has {len(indices)} axes and {len(names)} loop variables",
            target,
            hint="name one variable an axis, or use qd.grouped(...)",
        )
    for name, value in zip(names, indices, strict=True):
        _declare(ctx, name, value)


def _declare(ctx: Lowering, target: ast.expr, value: Any) -> None:
    if not isinstance(target, ast.Name):
        ctx.syntax_error("a loop variable must be a name", target)
    _need_new(ctx, target)
    ctx.scope.declare(target.id, value, readonly=f"Loop variable {target.id!r} cannot be assigned")


def _need_new(ctx: Lowering, target: ast.Name) -> None:
    """Refuse to hide a variable: in Python the loop would change it."""
    if target.id != "_" and ctx.scope.get(target.id) is not MISSING:
        ctx.syntax_error(
            f'Variable "{target.id}" is already declared in the outer scope and cannot be used as loop variable',
            target,
            why="after the loop it would not have the value that Python gives it",
            hint="give the loop variable another name",
        )


def _names(node: ast.For, axes: int) -> list[str]:
    """Names for the index arguments of the region."""
    target = node.target
    if isinstance(target, ast.Name):
        return [target.id] if axes == 1 else [f"{target.id}{k}" for k in range(axes)]
    elements = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    return (
        [e.id if isinstance(e, ast.Name) else f"i{k}" for k, e in enumerate(elements)]
        if len(elements) == axes
        else ["i"] * axes
    )


# -- parallel ---------------------------------------------------------------------------------------------------------
def _parallel_for(ctx: Lowering, node: ast.For, bounds: Bounds, bind: Bind, config: dict[str, Any]) -> None:
    builder, scope = ctx.builder, ctx.scope
    reductions = Reductions.find(ctx, node)
    reductions.enter(ctx)
    names = _names(node, len(bounds))
    ctx.parallel_depth += 1
    scope.push()
    try:
        with builder.inside([(b[0].type, n) for b, n in zip(bounds, names, strict=True)], loop=True) as region:
            ctx.home = region
            scope.declare(LIVE, builder.const(dt.u1, True))
            scope.declare(GO, None)
            reductions.bind(ctx)
            bind(region.args)
            block(ctx, node.body, last=True)
            builder.yield_()
    finally:
        changed = scope.pop()
        ctx.parallel_depth -= 1
        ctx.home = None
    ctx.at(node)
    builder.parallel_for(bounds, region, **config)
    for name in changed:
        scope.update(name, Racy(ctx.info.span_of(node)))
    reductions.leave(ctx)


# -- serial -----------------------------------------------------------------------------------------------------------
def _serial_nest(ctx: Lowering, node: ast.For, bounds: Bounds, bind: Bind) -> None:
    """Nested serial loops, one an axis; `break` leaves them all."""
    breaks = leaves_loop(ctx.frames[-1], node)
    names = _names(node, len(bounds))
    flag = "" if not breaks else "local" if len(bounds) == 1 else "carried"

    def nest(depth: int, indices: list[Value]) -> None:
        if depth < len(bounds):
            _serial_loop(ctx, node, bounds[depth], names[depth], flag, lambda i: nest(depth + 1, [*indices, i]))
        else:
            ctx.scope.declare(LIVE, ctx.builder.const(dt.u1, True))
            bind(indices)
            block(ctx, node.body, last=True)

    if flag != "carried":
        nest(0, [])
        return
    ctx.scope.push()
    ctx.scope.declare(GO, ctx.builder.const(dt.u1, True))
    nest(0, [])
    for name, value in ctx.scope.pop().items():
        ctx.scope.update(name, value)


def _serial_loop(
    ctx: Lowering, node: ast.For, bounds: tuple[Value, Value], name: str, flag: str, body: Callable[[Value], None]
) -> None:
    """One loop; ``flag`` says where `break` is noted: nowhere (""), in the body ("local"), or outside of the nest
    ("carried").
    """
    builder, scope = ctx.builder, ctx.scope
    carried = Carried(ctx, node, (GO,) if flag == "carried" else ())
    goes: list[Value] = []
    while True:
        scope.push()
        with builder.inside([(bounds[0].type, name), *carried.arguments()], loop=True) as region, ctx.runtime_block():
            try:
                carried.bind(ctx, region.args[1:])
                if flag == "local":
                    scope.declare(GO, builder.const(dt.u1, True))
                body(region.args[0])
                goes = [settle_loop(ctx)] if flag else []
            finally:
                changed = scope.pop()
        if not carried.extend(ctx, changed, node):
            break
    ctx.finish_region(region, carried.finish(region, changed, region.args[1:], goes))
    ctx.at(node)
    carried.update(ctx, builder.for_(*bounds, carried.inits, region, breaks=bool(flag)))


class Carried:
    """Outer variables that a loop changes: they become arguments of its region.

    Which ones is known from its assignments; a call may change more, and then the body is lowered once more.
    """

    def __init__(self, ctx: Lowering, node: ast.For | ast.While, extra: Sequence[str] = ()) -> None:
        stores = ctx.frames[-1].info.facts.stores[node]
        names = ctx.scope.names
        if node in ctx.frames[-1].info.facts.returns:
            extra = (*extra, RUN, RESULT)
        self.names: list[str] = [n for n in (*sorted(stores), *extra) if n in names and is_runtime(names[n])]
        self._collect(ctx)

    def _collect(self, ctx: Lowering) -> None:
        self.values = [ctx.scope.names[n] for n in self.names]
        self.inits: list[Value] = []
        self.owner: list[str] = []
        for name, value in zip(self.names, self.values, strict=True):
            flatten(value, self.inits)
            self.owner += [name] * (len(self.inits) - len(self.owner))

    def arguments(self) -> list[tuple[Any, str]]:
        """Types and names of the region arguments."""
        return [(v.type, n) for v, n in zip(self.inits, self.owner, strict=True)]

    def bind(self, ctx: Lowering, args: Sequence[Value]) -> None:
        """Let the variables stand for region arguments."""
        scalars = iter(args)
        for name, value in zip(self.names, self.values, strict=True):
            ctx.scope.update(name, rebuild(value, scalars))

    def extend(self, ctx: Lowering, changed: dict[str, Any], node: ast.AST) -> bool:
        """Add variables that the body changed and that are not carried; return whether there were any."""
        missing = [n for n in changed if n not in self.names]
        for name in missing:
            value = ctx.scope.names[name]
            if not is_runtime(value):
                ctx.type_error(
                    f"{name!r} holds {describe(value)}, known at compile time, and is assigned in a run-time loop",
                    node,
                    hint="unroll the loop with qd.static",
                )
        self.names += missing
        if missing:
            self._collect(ctx)
        return bool(missing)

    def finish(
        self, region: Region, changed: dict[str, Any], args: Sequence[Value], goes: Sequence[Value]
    ) -> list[Value]:
        """Return what the region yields, then ``goes``, dropping arguments that the body only passes through."""
        ends: list[Value] = []
        for name, value in zip(self.names, self.values, strict=True):
            flatten(changed.get(name, value), ends)
        unchanged = {a: i for a, i, e, n in zip(args, self.inits, ends, self.owner, strict=True) if a is e and n != GO}
        if unchanged:
            _substitute(region, unchanged)
            keep = [k for k, a in enumerate(args) if a not in unchanged]
            self._kept, ends = keep, [ends[k] for k in keep]
            self._all = list(self.inits)
            self.inits = [self.inits[k] for k in keep]
        else:
            self.keep_all()
        return [unchanged.get(v, v) for v in (*ends, *goes)]

    def keep_all(self) -> None:
        """Drop nothing: a `while` passes every value through both regions."""
        self._kept, self._all = list(range(len(self.inits))), list(self.inits)

    def update(self, ctx: Lowering, results: Sequence[Value]) -> None:
        """Let the variables stand for the results of the loop."""
        full = list(self._all)
        for k, value in zip(self._kept, results, strict=True):
            full[k] = value
        scalars = iter(full)
        for name, value in zip(self.names, self.values, strict=True):
            ctx.scope.update(name, rebuild(value, scalars))


def _substitute(region: Region, mapping: dict[Value, Value]) -> None:
    """Replace region arguments by values from outside, and drop them."""
    for node in walk(region):
        if any(v in mapping for v in node.operands):
            node.operands = tuple(mapping.get(v, v) for v in node.operands)
    region.args = tuple(a for a in region.args if a not in mapping)


@statement(ast.While)
def _while(ctx: Lowering, node: ast.While) -> None:
    if node.orelse:
        ctx.syntax_error(
            "'else' of a while loop is not supported",
            node.orelse[0],
            hint="set a flag before `break` and test it after the loop",
        )
    builder, scope = ctx.builder, ctx.scope
    breaks = leaves_loop(ctx.frames[-1], node)
    scope.push()
    if breaks:
        scope.declare(GO, builder.const(dt.u1, True))
    carried = Carried(ctx, node, (GO,) if breaks else ())
    while True:
        test, tested = _while_condition(ctx, node, carried, breaks)
        body, changed = _while_body(ctx, node, carried)
        if not carried.extend(ctx, {**tested, **changed}, node):
            break
    yields: list[Value] = []
    for name, value in zip(carried.names, carried.values, strict=True):
        flatten(changed.get(name, value), yields)
    ctx.finish_region(body, yields)
    carried.keep_all()
    ctx.at(node)
    carried.update(ctx, builder.while_(carried.inits, test, body))
    for name, value in scope.pop().items():
        scope.update(name, value)


def _while_condition(ctx: Lowering, node: ast.While, carried: Carried, breaks: bool) -> tuple[Region, dict[str, Any]]:
    builder, scope = ctx.builder, ctx.scope
    scope.push()
    with builder.inside(carried.arguments(), loop=True) as region, ctx.runtime_block():
        carried.bind(ctx, region.args)
        value = _guarded_test(ctx, node, scope.names[GO]) if breaks else _test(ctx, node)
        builder.yield_(value)
    changed = scope.pop()
    return region, {n: v for n, v in changed.items() if n not in carried.names}


def _test(ctx: Lowering, node: ast.While) -> Value:
    test = ctx.expr(node.test)
    return as_condition(ctx, test if is_runtime(test) else bool(test), node.test)


def _guarded_test(ctx: Lowering, node: ast.While, go: Value) -> Value:
    """The condition, not evaluated any more after a `break`."""
    builder = ctx.builder
    with builder.inside() as then:
        value = _test(ctx, node)
        known = constant_of(value)
        builder.yield_(value)
    if known is not None:
        return go if known else builder.const(dt.u1, False)
    with builder.inside() as otherwise:
        builder.yield_(builder.const(dt.u1, False))
    return builder.if_(go, then, otherwise)[0]


def _while_body(ctx: Lowering, node: ast.While, carried: Carried) -> tuple[Region, dict[str, Any]]:
    builder, scope = ctx.builder, ctx.scope
    scope.push()
    with builder.inside(carried.arguments(), loop=True) as region, ctx.runtime_block():
        try:
            carried.bind(ctx, region.args)
            scope.declare(LIVE, builder.const(dt.u1, True))
            block(ctx, node.body, last=True)
            if leaves_loop(ctx.frames[-1], node):
                settle_loop(ctx)
        finally:
            changed = scope.pop()
    return region, changed


# -- unrolled ---------------------------------------------------------------------------------------------------------
def _static_for(ctx: Lowering, node: ast.For) -> None:
    scope = ctx.scope
    items = iterate(ctx, ctx.expr(node.iter), node.iter)
    limit = ctx.options.unrolling_limit
    if limit and len(items) > limit:
        ctx.warnings.append(
            (
                f"a qd.static loop is unrolled {len(items)} times, more than unrolling_limit={limit}",
                ctx.info.span_of(node),
            )
        )
    jumps = any(may_leave(ctx.frames[-1], s) for s in node.body)
    if not jumps:
        for item in items:
            _unrolled(ctx, node, item)
        return
    scope.push()
    scope.declare(GO, ctx.builder.const(dt.u1, True))
    _iterations(ctx, node, items)
    for name, value in scope.pop().items():
        scope.update(name, value)


def _unrolled(ctx: Lowering, node: ast.For, item: Any) -> None:
    scope = ctx.scope
    scope.push()
    _declare_static(ctx, node.target, item, node)
    block(ctx, node.body, last=True)
    for name, value in scope.pop().items():
        scope.update(name, value)


def _iterations(ctx: Lowering, node: ast.For, items: Sequence[Any]) -> None:
    """Unrolled iterations with `break` or `continue`: each later one under the condition that the loop goes on."""
    scope = ctx.scope
    for index, item in enumerate(items):
        go = scope.names[GO]
        known = constant_of(go)
        if known is False:
            return
        if known is None:
            _guarded_iterations(ctx, node, go, items[index:])
            return
        scope.push()
        scope.declare(LIVE, ctx.builder.const(dt.u1, True))
        _declare_static(ctx, node.target, item, node)
        block(ctx, node.body, last=True)
        settle_loop(ctx)
        for name, value in scope.pop().items():
            scope.update(name, value)


def _guarded_iterations(ctx: Lowering, node: ast.For, go: Value, items: Sequence[Any]) -> None:
    """The remaining iterations inside a run-time `if`: a loop with the condition as its only statement's guard."""
    rest = _Unrolled(node, items)
    conditional(ctx, go, [rest], (), node, last=True, known=(GO,))


class _Unrolled(ast.stmt):
    """The remaining iterations of an unrolled loop, as one statement."""

    def __init__(self, node: ast.For, items: Sequence[Any]) -> None:
        super().__init__()
        self.node, self.items = node, items
        ast.copy_location(self, node)


@statement(_Unrolled)
def _remaining(ctx: Lowering, node: _Unrolled) -> None:
    _iterations(ctx, node.node, node.items)


def _declare_static(ctx: Lowering, target: ast.expr, item: Any, node: ast.For) -> None:
    if isinstance(target, ast.Name):
        _need_new(ctx, target)
        ctx.scope.declare(target.id, item, readonly=f"Loop variable {target.id!r} cannot be assigned")
        return
    if not isinstance(target, (ast.Tuple, ast.List)):
        ctx.syntax_error("a loop variable must be a name", target)
    values = iterate(ctx, item, node.iter)
    if len(values) != len(target.elts):
        ctx.type_error(f"cannot unpack {len(values)} values into {len(target.elts)} loop variables", target)
    for element, value in zip(target.elts, values, strict=True):
        _declare_static(ctx, element, value, node)
