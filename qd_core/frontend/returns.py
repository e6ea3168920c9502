"""Control that leaves a block before its end: the pseudo-variables behind `break`, `continue` and early `return`.

They are truth values among the variables of a scope, so that run-time branches and loops merge and carry them like any
other. Code
after a statement that may have left is put under the condition that it has not.
"""

from __future__ import annotations

import ast
from typing import Any

from qd_core import dtypes as dt
from qd_core.frontend.annotations import MatrixType, StructType
from qd_core.frontend.constructors import convert_to, filled
from qd_core.frontend.context import Frame, Lowering
from qd_core.frontend.scope import MISSING
from qd_core.frontend.signature import annotated_type, return_types
from qd_core.frontend.values import StructValue
from qd_core.ir.nodes import Value

__all__ = [
    "GO",
    "LIVE",
    "RESULT",
    "RUN",
    "declare_early",
    "leaves_loop",
    "may_leave",
    "return_early",
    "settle_loop",
    "still_here",
]

LIVE = "%live"
"""The rest of this iteration is to be executed."""
GO = "%go"
"""The loop goes on; None in a parallel loop, which cannot be left."""
RUN = "%run"
"""The function has not returned yet; only in functions that may return early."""
RESULT = "%result"
"""What such a function returns."""


def may_leave(frame: Frame, node: ast.stmt) -> bool:
    """Whether what follows ``node`` in its block may have to be skipped."""
    facts = frame.info.facts
    return node in facts.jumps or (frame.early and node in facts.returns)


def leaves_loop(frame: Frame, loop: ast.AST) -> bool:
    """Whether a loop can end before its bound."""
    facts = frame.info.facts
    return loop in facts.breaks or (frame.early and loop in facts.returns)


def _flags(ctx: Lowering) -> list[str]:
    return [n for n in (LIVE, RUN) if ctx.scope.get(n) is not MISSING]


def still_here(ctx: Lowering) -> tuple[Value, tuple[str, ...]]:
    """Return the condition that the current block has not been left, and the flags that it consists of."""
    names = _flags(ctx)
    values = [ctx.scope.names[n] for n in names]
    condition = values[0] if len(values) == 1 else ctx.builder.emit("and", values[0], values[1])
    return condition, tuple(names)


def settle_loop(ctx: Lowering) -> Value:
    """At the end of an iteration, return whether the loop goes on: no `break`, no early `return`."""
    go = ctx.scope.names[GO]
    run = ctx.scope.get(RUN)
    if run is not MISSING:
        go = ctx.builder.emit("and", go, run)
        ctx.scope.update(GO, go)
    return go


# -- early return -----------------------------------------------------------------------------------------------------
def declare_early(ctx: Lowering, frame: Frame, node: ast.AST) -> None:
    """Prepare a function that may return inside run-time blocks; its result starts as zero."""
    frame.scope.declare(RUN, ctx.builder.const(dt.u1, True))
    types = return_types(frame.info.returns)
    if not types:
        return
    kinds = [annotated_type(t, ctx.options.default_ip, ctx.options.default_fp) for t in types]
    zeros = [_zero(ctx, k, node) for k in kinds]
    frame.scope.declare(RESULT, tuple(zeros) if len(zeros) > 1 else zeros[0])


def _zero(ctx: Lowering, kind: Any, node: ast.AST) -> Any:
    if isinstance(kind, StructType):
        return StructValue({k: _zero(ctx, t, node) for k, t in kind.members.items()}, kind)
    if isinstance(kind, MatrixType):
        dtype = annotated_type(kind.dtype, ctx.options.default_ip, ctx.options.default_fp)
        return filled(ctx, kind.shape, 0, dtype or ctx.options.default_fp)
    if kind is None:
        ctx.syntax_error("a function that returns early needs a return annotation of values", node)
    return convert_to(ctx, kind, 0, node)


def return_early(ctx: Lowering, value: Any, node: ast.AST) -> None:
    """Note the result and leave every block of the function."""
    from qd_core.frontend.places import convert_like

    scope = ctx.scope
    if value is not None:
        current = scope.get(RESULT)
        if current is MISSING:
            ctx.syntax_error("the function returns a value and has no return annotation", node, hint="annotate it")
        scope.update(RESULT, convert_like(ctx, current, value, node))
    no = ctx.builder.const(dt.u1, False)
    for name in (RUN, LIVE, GO):
        if scope.get(name) not in (MISSING, None):
            scope.update(name, no)
