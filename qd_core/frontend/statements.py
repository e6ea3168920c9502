"""Lowering of statements, except loops."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from qd_core import dtypes as dt
from qd_core.frontend.arithmetic import as_condition, binary, cast
from qd_core.frontend.calls import is_static_call
from qd_core.frontend.context import Lowering, statement
from qd_core.frontend.expressions import merge_scalars
from qd_core.frontend.places import ElementPlace, assign, place_of
from qd_core.frontend.returns import GO, LIVE, may_leave, return_early, still_here
from qd_core.frontend.scope import MISSING
from qd_core.frontend.signature import annotated_type
from qd_core.frontend.values import MatrixValue, describe, flatten, is_runtime, rebuild
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Region, Value

__all__ = ["ATOMIC_OPERATORS", "block", "conditional", "run_block", "update_atomically"]


# -- sequences --------------------------------------------------------------------------------------------------------
def block(ctx: Lowering, body: Sequence[ast.stmt], *, last: bool = False) -> None:
    """Lower statements in order; what follows a `break` or `continue` is made conditional.

    ``last``: nothing of the iteration follows the block, so that nobody asks afterwards whether it is still live.
    """
    frame = ctx.frames[-1]
    for index, node in enumerate(body):
        if frame.returning:
            return
        ctx.stmt(node)
        if may_leave(frame, node) and not _goes_on(ctx, body[index + 1 :], last):
            return


def _goes_on(ctx: Lowering, rest: Sequence[ast.stmt], last: bool) -> bool:
    """Whether lowering goes on after a statement that may have left the block; otherwise ``rest`` is lowered here."""
    here, flags = still_here(ctx)
    known = constant_of(here)
    if known is not None:
        return bool(known)
    if rest:
        conditional(ctx, here, rest, (), rest[0], last=last, known=flags)
    return False


def run_block(
    ctx: Lowering, body: Sequence[ast.stmt], last: bool = False, known: Sequence[str] = ()
) -> tuple[Region, dict[str, Any]]:
    """Lower statements in a region and a block of their own; return the region and what they changed outside."""
    ctx.scope.push()
    with ctx.builder.inside() as region, ctx.runtime_block():
        try:
            for name in known:
                ctx.scope.update(name, ctx.builder.const(dt.u1, True))
            block(ctx, body, last=last)
        finally:
            changed = ctx.scope.pop()
    if last:
        changed.pop(LIVE, None)
    return region, changed


def conditional(
    ctx: Lowering,
    condition: Value,
    body: Sequence[ast.stmt],
    orelse: Sequence[ast.stmt],
    node: ast.AST,
    *,
    last: bool = False,
    known: Sequence[str] = (),
) -> None:
    """Lower a run-time choice between two blocks; variables that either changes get their merged value.

    ``known``: truth values that the condition consists of, so that they are true inside.
    """
    then, changed = run_block(ctx, body, last, known)
    otherwise, changed_else = run_block(ctx, orelse, last)
    names = [*changed, *(n for n in changed_else if n not in changed)]
    pairs: list[tuple[Value, Value]] = []
    for name in names:
        current = ctx.scope.names[name]
        _check_mergeable(ctx, name, current, node)
        left: list[Value] = []
        right: list[Value] = []
        flatten(changed.get(name, current), left)
        flatten(changed_else.get(name, current), right)
        pairs += zip(left, right, strict=True)
    ctx.at(node)
    merged = iter(merge_scalars(ctx, condition, then, otherwise, pairs))
    for name in names:
        ctx.scope.update(name, rebuild(ctx.scope.names[name], merged))


def _check_mergeable(ctx: Lowering, name: str, current: Any, node: ast.AST) -> None:
    if not is_runtime(current):
        ctx.type_error(
            f"{name!r} holds {describe(current)}, known at compile time, and is assigned under a run-time condition",
            node,
            hint="use qd.static(...) for the condition, or make the variable a run-time value",
        )


@statement(ast.If)
def _if(ctx: Lowering, node: ast.If) -> None:
    if is_static_call(ctx, node.test):
        test = ctx.expr(node.test)
        if is_runtime(test):
            ctx.type_error("the condition in qd.static is only known at run time", node.test, hint="remove qd.static")
        block(ctx, node.body if test else node.orelse)
        return
    test = ctx.expr(node.test)
    if isinstance(test, MatrixValue):
        ctx.type_error(
            f"a condition must be a scalar, got {describe(test)}", node.test, hint="reduce it with .any() or .all()"
        )
    if not is_runtime(test):
        _known_branch(ctx, node.body if test else node.orelse)
        return
    conditional(ctx, as_condition(ctx, test, node.test), node.body, node.orelse, node)


def _known_branch(ctx: Lowering, body: Sequence[ast.stmt]) -> None:
    """The branch of a condition without run-time values: a block of its own, like any other `if`, without region."""
    ctx.scope.push()
    with ctx.runtime_block():
        block(ctx, body)
    for name, value in ctx.scope.pop().items():
        ctx.scope.update(name, value)


# -- assignment -------------------------------------------------------------------------------------------------------
@statement(ast.Assign)
def _assign(ctx: Lowering, node: ast.Assign) -> None:
    static = is_static_call(ctx, node.value)
    value = ctx.expr(node.value)
    ctx.at(node)
    for target in node.targets:
        assign(ctx, target, value, node, static=static)


@statement(ast.AnnAssign)
def _annassign(ctx: Lowering, node: ast.AnnAssign) -> None:
    if node.value is None:
        ctx.syntax_error("a declaration needs a value", node, hint="assign the first value in the same line")
    kind = annotated_type(ctx.expr(node.annotation), ctx.options.default_ip, ctx.options.default_fp)
    if kind is None:
        ctx.syntax_error("the annotation is no type of the kernel language", node.annotation)
    value = ctx.expr(node.value)
    value = cast(ctx, value, kind, node) if isinstance(kind, dt.DType) else kind_value(ctx, kind, value, node)
    assign(ctx, node.target, value, node)


def kind_value(ctx: Lowering, kind: Any, value: Any, node: ast.AST) -> Any:
    """Convert ``value`` to a matrix or struct type."""
    from qd_core.frontend.constructors import convert_to

    return convert_to(ctx, kind, value, node)


ATOMIC_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
}


@statement(ast.AugAssign)
def _augassign(ctx: Lowering, node: ast.AugAssign) -> None:
    op = node.op.__class__
    if isinstance(node.target, ast.Name) and ctx.scope.get(node.target.id) is MISSING:
        ctx.lookup(node.target)
        ctx.syntax_error(f"{node.target.id!r} is defined outside the kernel and cannot be assigned", node.target)
    place = place_of(ctx, node.target)
    value = ctx.expr(node.value)
    ctx.at(node)
    kind = ATOMIC_OPERATORS.get(op)
    if isinstance(place, ElementPlace) and kind is not None:
        update_atomically(ctx, kind, place, value, node)
        return
    current = place.get(ctx, node.target)
    if op is ast.MatMult:
        from qd_core.frontend.matrices import matmul

        place.set(ctx, matmul(ctx, current, value, node), node)
    else:
        place.set(ctx, binary(ctx, op, current, value, node), node)


def update_atomically(ctx: Lowering, kind: str, place: ElementPlace, value: Any, node: ast.AST) -> Any:
    """Combine into an array element; subtraction adds the negated value. Returns the old value."""
    dtype = place.array.dtype
    if kind in ("and", "or", "xor") and dtype.is_real:
        ctx.type_error(f"bit operations need integers, {place.array.name!r} has {dtype.name}", node)
    if dtype is dt.u1 and kind not in ("and", "or", "xor", "exchange"):
        ctx.type_error(f"elements of type u1 cannot be combined by {kind!r}", node, hint="use &=, |= or ^=")
    if kind != "sub":
        return place.atomic(ctx, kind, value, node)
    value = cast(ctx, value, dtype, node)
    negated = (
        value.map(lambda v: ctx.builder.emit("neg", v))
        if isinstance(value, MatrixValue)
        else ctx.builder.emit("neg", value)
    )
    return place.atomic(ctx, "add", negated, node)


# -- simple statements ------------------------------------------------------------------------------------------------
@statement(ast.Expr)
def _expr(ctx: Lowering, node: ast.Expr) -> None:
    ctx.expr(node.value)


@statement(ast.Pass)
def _pass(ctx: Lowering, node: ast.Pass) -> None:
    pass


@statement(ast.Break)
def _break(ctx: Lowering, node: ast.Break) -> None:
    _need_loop(ctx, node, "break")
    if ctx.scope.get(GO) in (MISSING, None):
        ctx.syntax_error(
            "Cannot break in the outermost loop",
            node,
            why="its iterations run in parallel",
            hint="call qd.loop_config(serialize=True) before the loop, or nest it",
        )
    no = ctx.builder.const(dt.u1, False)
    ctx.scope.update(GO, no)
    ctx.scope.update(LIVE, no)


@statement(ast.Continue)
def _continue(ctx: Lowering, node: ast.Continue) -> None:
    _need_loop(ctx, node, "continue")
    ctx.scope.update(LIVE, ctx.builder.const(dt.u1, False))


def _need_loop(ctx: Lowering, node: ast.AST, word: str) -> None:
    if ctx.scope.get(LIVE) is MISSING:
        ctx.syntax_error(f"`{word}` outside a loop", node)


@statement(ast.Return)
def _return(ctx: Lowering, node: ast.Return) -> None:
    frame = ctx.frames[-1]
    if ctx.runtime_depth > frame.runtime_depth and frame.early:
        return_early(ctx, None if node.value is None else ctx.expr(node.value), node)
        return
    if ctx.runtime_depth > frame.runtime_depth:
        ctx.syntax_error(
            "Return inside non-static if/for is not supported",
            node,
            hint="assign the result to a variable inside the block and return it at the end",
        )
    frame.returned = None if node.value is None else ctx.expr(node.value)
    frame.returning = True
    frame.return_node = node
