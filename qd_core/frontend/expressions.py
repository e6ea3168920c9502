"""Lowering of expressions, except calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qd_core import dtypes as dt
from qd_core.dtypes import PROMOTION
from qd_core.frontend.arithmetic import as_condition, as_scalar, binary, compare, elementwise, to_runtime, unary
from qd_core.frontend.context import Lowering, expression
from qd_core.frontend.places import assign, place_of
from qd_core.frontend.private import read_whole
from qd_core.frontend.values import (
    MatrixValue,
    NdRange,
    PrivateMatrix,
    RangeValue,
    StructValue,
    describe,
    flatten,
    is_constant_matrix,
    is_number,
    is_runtime,
    rebuild,
)
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Node, Region, Value

__all__ = ["iterate", "merge_scalars", "speculate"]


@expression(ast.Constant)
def _constant(ctx: Lowering, node: ast.Constant) -> Any:
    if isinstance(node.value, (int, float, str)) or node.value is None or node.value is Ellipsis:
        return node.value
    ctx.unsupported(node)


@expression(ast.Name)
def _name(ctx: Lowering, node: ast.Name) -> Any:
    value = ctx.lookup(node)
    return read_whole(ctx, value) if isinstance(value, PrivateMatrix) else value


@expression(ast.Attribute, ast.Subscript)
def _place(ctx: Lowering, node: ast.expr) -> Any:
    return place_of(ctx, node).get(ctx, node)


@expression(ast.Tuple)
def _tuple(ctx: Lowering, node: ast.Tuple) -> tuple[Any, ...]:
    return tuple(_elements(ctx, node.elts))


@expression(ast.List)
def _list(ctx: Lowering, node: ast.List) -> list[Any]:
    return _elements(ctx, node.elts)


def _elements(ctx: Lowering, nodes: Iterable[ast.expr]) -> list[Any]:
    values: list[Any] = []
    for n in nodes:
        if isinstance(n, ast.Starred):
            values.extend(iterate(ctx, ctx.expr(n.value), n))
        else:
            values.append(ctx.expr(n))
    return values


@expression(ast.Dict)
def _dict(ctx: Lowering, node: ast.Dict) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for key, item in zip(node.keys, node.values, strict=True):
        value = ctx.expr(item)
        if key is not None:
            made[_dict_key(ctx, key)] = value
        elif isinstance(value, dict):
            made.update(value)
        else:
            ctx.type_error(f"`**` needs a dict, got {describe(value)}", item)
    return made


def _dict_key(ctx: Lowering, node: ast.expr) -> Any:
    key = ctx.expr(node)
    if is_runtime(key):
        ctx.type_error("the key of a dict must be known at compile time", node, hint="dicts exist at compile time only")
    return key


@expression(ast.Slice)
def _slice(ctx: Lowering, node: ast.Slice) -> slice:
    parts = [None if p is None else ctx.expr(p) for p in (node.lower, node.upper, node.step)]
    return slice(*parts)


@expression(ast.BinOp)
def _binop(ctx: Lowering, node: ast.BinOp) -> Any:
    """A chain of operators is walked, not recursed into: sums of thousands of terms occur in generated kernels."""
    chain = [node]
    while isinstance(chain[-1].left, ast.BinOp):
        chain.append(chain[-1].left)
    left = ctx.expr(chain[-1].left)
    for link in reversed(chain):
        left = _operation(ctx, link, left, ctx.expr(link.right))
    return left


def _operation(ctx: Lowering, node: ast.BinOp, left: Any, right: Any) -> Any:
    if isinstance(left, str) and node.op.__class__ is ast.Mod:
        from qd_core.frontend.text import percent

        return percent(ctx, node, left, right)
    if node.op.__class__ is ast.MatMult:
        from qd_core.frontend.matrices import matmul

        return matmul(ctx, left, right, node)
    return binary(ctx, node.op.__class__, left, right, node)


@expression(ast.UnaryOp)
def _unaryop(ctx: Lowering, node: ast.UnaryOp) -> Any:
    return unary(ctx, node.op.__class__, ctx.expr(node.operand), node)


@expression(ast.Compare)
def _compare(ctx: Lowering, node: ast.Compare) -> Any:
    values = [ctx.expr(n) for n in (node.left, *node.comparators)]
    _remember_compared(ctx, node, values)
    result: Any = None
    for op, a, b in zip(node.ops, values, values[1:], strict=False):
        one = compare(ctx, op.__class__, a, b, node)
        if result is None:
            result = one
        elif isinstance(result, bool) and isinstance(one, bool):
            result = result and one
        else:
            result = elementwise(ctx, lambda x, y: ctx.builder.emit("and", x, y), (result, one), node)
    return result


def _remember_compared(ctx: Lowering, node: ast.Compare, values: Sequence[Any]) -> None:
    """Objects that came with an argument and are compared while compiling: what decides the result is remembered."""
    if any(isinstance(v, Value) for v in values):
        return
    known = any(v is None for v in values)  # the class is remembered in any case
    by_identity = all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
    for value in () if known and by_identity else values:
        (ctx.members.identity if by_identity else ctx.members.whole)(value)


# -- choices ----------------------------------------------------------------------------------------------------------
_CHEAP = frozenset(
    (
        "const",
        "cast",
        "neg",
        "add",
        "sub",
        "and",
        "or",
        "xor",
        "not",
        "lt",
        "le",
        "gt",
        "ge",
        "eq",
        "ne",
        "min",
        "max",
        "select",
    )
)


def speculate(ctx: Lowering, *regions: Region) -> bool:
    """Whether regions (without terminators) may be evaluated on both sides of a choice; if so their nodes are moved
    here.

    Only few cheap operations with bounded derivatives: elsewhere an untaken side could give a gradient of 0 * inf.
    """
    nodes: list[Node] = [n for r in regions for n in r.nodes]
    if len(nodes) > 8 or any(n.op.name not in _CHEAP for n in nodes):
        return False
    for region in regions:
        ctx.builder.region.nodes.extend(region.nodes)
        region.nodes = []
    return True


def merge_scalars(
    ctx: Lowering, condition: Value, then: Region, otherwise: Region, pairs: list[tuple[Value, Value]]
) -> list[Value]:
    """End two regions and return the value of each (then, otherwise) pair after them; pairs have one type."""
    builder = ctx.builder
    if constant_of(condition) is None and speculate(ctx, then, otherwise):
        return [_choose(ctx, condition, a, b) for a, b in pairs]
    results: list[Value | None] = [None] * len(pairs)
    carried: list[int] = []
    for k, (a, b) in enumerate(pairs):
        x, y = constant_of(a), constant_of(b)
        if a is b or (a is condition and y is False):
            results[k] = a
        elif b is condition and x is True:
            results[k] = b
        elif a.type is dt.u1 and x is not None and y is not None and x != y:
            results[k] = condition if x else builder.emit("not", condition)
        else:
            carried.append(k)
    ctx.finish_region(then, [pairs[k][0] for k in carried])
    ctx.finish_region(otherwise, [pairs[k][1] for k in carried])
    if carried or len(then.nodes) > 1 or len(otherwise.nodes) > 1:
        for k, value in zip(carried, builder.if_(condition, then, otherwise), strict=True):
            results[k] = value
    return results  # type: ignore[return-value]


def _choose(ctx: Lowering, c: Value, a: Value, b: Value) -> Value:
    """``a`` where ``c`` holds, else ``b``; truth values with a constant side become logic."""
    emit = ctx.builder.emit
    if a.type is dt.u1 and a is not b:
        x, y = constant_of(a), constant_of(b)
        if x is not None:
            return emit("or", c, b) if x else emit("and", emit("not", c), b)
        if y is not None:
            return emit("or", emit("not", c), a) if y else emit("and", c, a)
    return ctx.builder.select(c, a, b)


@expression(ast.IfExp)
def _ifexp(ctx: Lowering, node: ast.IfExp) -> Any:
    test = ctx.expr(node.test)
    if _known_truth(test):
        return ctx.expr(node.body if test else node.orelse)
    if isinstance(test, MatrixValue):
        from qd_core.frontend.intrinsics import select

        return select(ctx, node, [test, ctx.expr(node.body), ctx.expr(node.orelse)], {})
    condition = as_condition(ctx, test, node.test)
    sides: list[tuple[Region, Any]] = []
    with ctx.runtime_block():
        for part in (node.body, node.orelse):
            with ctx.builder.inside() as region:
                sides.append((region, _chosen(ctx, ctx.expr(part), part)))
    ctx.at(node)
    return _merge(ctx, node, condition, sides)


def _known_truth(test: Any) -> bool:
    """Whether a condition is known at compile time."""
    return not is_runtime(test) and not is_constant_matrix(test)


def _chosen(ctx: Lowering, value: Any, node: ast.expr) -> Any:
    """An alternative as run-time value; containers with run-time parts stay containers."""
    if isinstance(value, StructValue):
        return value
    return to_runtime(ctx, value, node)


def _merge(ctx: Lowering, node: ast.AST, condition: Value, sides: list[tuple[Region, Any]]) -> Any:
    (then, a), (otherwise, b) = sides
    a, b = _alike(ctx, node, a, b, then, otherwise)
    left: list[Value] = []
    right: list[Value] = []
    flatten(a, left)
    flatten(b, right)
    results = merge_scalars(ctx, condition, then, otherwise, list(zip(left, right, strict=True)))
    return rebuild(a, iter(results))


def _alike(ctx: Lowering, node: ast.AST, a: Any, b: Any, then: Region, otherwise: Region) -> tuple[Any, Any]:
    """Convert both alternatives to their common type, each inside its region."""
    if isinstance(a, StructValue) or isinstance(b, StructValue):
        if not (isinstance(a, StructValue) and isinstance(b, StructValue) and a.members.keys() == b.members.keys()):
            ctx.type_error(f"the alternatives differ: {describe(a)} and {describe(b)}", node)
        return a, b
    shape = next((v.shape for v in (a, b) if isinstance(v, MatrixValue)), None)
    if any(isinstance(v, MatrixValue) and v.shape != shape for v in (a, b)):
        ctx.type_error(f"the alternatives differ: {describe(a)} and {describe(b)}", node)
    dtype = PROMOTION[_dtype(a), _dtype(b)]
    out: list[Any] = []
    for value, region in ((a, then), (b, otherwise)):
        outer, ctx.builder.region = ctx.builder.region, region
        items = value.items if isinstance(value, MatrixValue) else (value,) * (1 if shape is None else _size(shape))
        cast = [ctx.builder.cast(v, dtype) for v in items]
        ctx.builder.region = outer
        out.append(cast[0] if shape is None else MatrixValue(shape, cast, dtype))
    return out[0], out[1]


def _dtype(v: Value | MatrixValue) -> Any:
    return v.dtype if isinstance(v, MatrixValue) else v.type


def _size(shape: tuple[int, ...]) -> int:
    n = 1
    for extent in shape:
        n *= extent
    return n


@expression(ast.BoolOp)
def _boolop(ctx: Lowering, node: ast.BoolOp) -> Any:
    return _logical(ctx, node, isinstance(node.op, ast.And), node.values)


def _logical(ctx: Lowering, node: ast.BoolOp, conjunction: bool, parts: list[ast.expr]) -> Any:
    """``and``/``or`` from the left: an operand decides whether the rest is evaluated; the value is an operand's."""
    first = ctx.expr(parts[0])
    if len(parts) == 1:
        return first
    if _known_truth(first):
        return _logical(ctx, node, conjunction, parts[1:]) if bool(first) is conjunction else first
    if isinstance(first, MatrixValue):
        return _elementwise_logical(ctx, node, conjunction, first, _logical(ctx, node, conjunction, parts[1:]))
    a = _operand(ctx, first, parts[0])
    condition = as_condition(ctx, a, parts[0])
    with ctx.runtime_block(), ctx.builder.inside() as evaluated:
        b = _logical_rest(ctx, node, conjunction, parts[1:])
    if isinstance(b, MatrixValue):
        ctx.builder.region.nodes.extend(evaluated.nodes)
        return _elementwise_logical(ctx, node, conjunction, a, b)
    with ctx.builder.inside() as skipped:
        pass
    if not ctx.options.short_circuit:
        ctx.builder.region.nodes.extend(evaluated.nodes)
        evaluated.nodes = []
    ctx.at(node)
    if a.type is dt.u1 and b.type is dt.u1 and speculate(ctx, evaluated):
        return ctx.builder.emit("and" if conjunction else "or", a, b)
    sides: list[tuple[Region, Any]] = [(evaluated, b), (skipped, a)]
    return _merge(ctx, node, condition, sides if conjunction else sides[::-1])


def _logical_rest(ctx: Lowering, node: ast.BoolOp, conjunction: bool, parts: list[ast.expr]) -> Any:
    rest = _logical(ctx, node, conjunction, parts)
    return rest if isinstance(rest, MatrixValue) else _operand(ctx, rest, parts[0])


def _operand(ctx: Lowering, x: Any, node: ast.AST) -> Value:
    value = as_scalar(ctx, x, node)
    if value.type.is_real:
        ctx.type_error(
            f"`and`, `or` need integers or comparisons, got {value.type.name}",
            node,
            hint="compare with a number, as in `x != 0`",
        )
    return value


def _elementwise_logical(ctx: Lowering, node: ast.AST, conjunction: bool, a: Any, b: Any) -> Any:
    builder = ctx.builder

    def choose(x: Value, y: Value) -> Value:
        x, y = _operand(ctx, x, node), _operand(ctx, y, node)
        condition = as_condition(ctx, x, node)
        dtype = PROMOTION[x.type, y.type]
        x, y = builder.cast(x, dtype), builder.cast(y, dtype)
        return builder.select(condition, y, x) if conjunction else builder.select(condition, x, y)

    return elementwise(ctx, choose, (a, b), node)


# -- comprehensions ---------------------------------------------------------------------------------------------------
def iterate(ctx: Lowering, value: Any, node: ast.AST) -> list[Any]:
    """Return the items of a compile-time iterable; vectors give their components, matrices their rows."""
    if isinstance(value, MatrixValue):
        return list(value.items) if len(value.shape) == 1 else [value.row(i) for i in range(value.shape[0])]
    if isinstance(value, Value) or isinstance(value, StructValue) or is_number(value):
        ctx.type_error(f"cannot iterate over {describe(value)} at compile time", node)
    if isinstance(value, (RangeValue, NdRange)):
        try:
            return list(value)
        except TypeError as cause:
            ctx.type_error(
                f"cannot unroll: {cause}", node, hint="unrolled loops need bounds that are known at compile time"
            )
    if ctx.members.origin(value) is not None and isinstance(value, (list, tuple)):
        return ctx.items(value)
    ctx.members.whole(value)
    found = ctx.compile_time(lambda: list(value), node, f"iterating over {describe(value)}")
    return [ctx.python_object(v, f"item.{k}") for k, v in enumerate(found)]


@expression(ast.ListComp)
def _listcomp(ctx: Lowering, node: ast.ListComp) -> list[Any]:
    out: list[Any] = []
    _generate(ctx, node.generators, lambda: out.append(ctx.expr(node.elt)))
    return out


@expression(ast.DictComp)
def _dictcomp(ctx: Lowering, node: ast.DictComp) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    _generate(ctx, node.generators, lambda: out.update({_dict_key(ctx, node.key): ctx.expr(node.value)}))
    return out


def _generate(ctx: Lowering, generators: Sequence[ast.comprehension], add: Callable[[], None]) -> None:
    if not generators:
        add()
        return
    generator = generators[0]
    for item in iterate(ctx, ctx.expr(generator.iter), generator.iter):
        ctx.scope.push()
        _declare(ctx, generator.target, item)
        if all(_static_truth(ctx, test) for test in generator.ifs):
            _generate(ctx, generators[1:], add)
        ctx.scope.pop()


def _declare(ctx: Lowering, target: ast.expr, item: Any) -> None:
    """Bind comprehension variables, which hide outer ones."""
    if isinstance(target, ast.Name):
        ctx.scope.declare(target.id, item)
    else:
        assign(ctx, target, item, target, static=True)


def _static_truth(ctx: Lowering, test: ast.expr) -> bool:
    value = ctx.expr(test)
    if isinstance(value, Value) and constant_of(value) is not None:
        return bool(constant_of(value))
    if is_runtime(value):
        ctx.type_error("the condition of a comprehension must be known at compile time", test)
    return bool(value)


@expression(ast.NamedExpr)
def _named(ctx: Lowering, node: ast.NamedExpr) -> Any:
    """``(name := value)``, where it is surely evaluated."""
    if ctx.builder.region is not ctx.statement_region:
        ctx.syntax_error(
            "an assignment expression stands where it may be evaluated never, or more than once",
            node,
            why="it is part of a condition of `while`, of `and` and `or`, or of a choice",
            hint="assign on a line of its own",
        )
    assign(ctx, node.target, ctx.expr(node.value), node)
    return ctx.lookup(node.target)


@expression(ast.JoinedStr)
def _joined(ctx: Lowering, node: ast.JoinedStr) -> Any:
    from qd_core.frontend.messages import Text

    return Text.from_fstring(ctx, node)
