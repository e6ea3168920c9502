"""Calls: intrinsics, types, methods, inlined functions, and Python functions on compile-time values."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from qd_core.dtypes import DType
from qd_core.frontend.annotations import MatrixType, StructType
from qd_core.frontend.context import CALLS, Lowering, expression
from qd_core.frontend.functions import BoundFunc, Func
from qd_core.frontend.values import (
    ArrayRef,
    MatrixValue,
    ObjectRef,
    StructRef,
    StructValue,
    describe,
    is_constant_matrix,
    is_runtime,
)
from qd_core.ir.nodes import Value

__all__ = ["is_static_call", "lookup_call", "static"]


def static(*args: Any) -> Any:
    """Mark an expression as known at compile time; in Python scope, the argument itself (several: a tuple)."""
    return args[0] if len(args) == 1 else args


def is_static_call(ctx: Lowering, node: ast.expr) -> bool:
    """Whether an expression is ``qd.static(...)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
        return False
    if isinstance(node.func, ast.Attribute):
        return node.func.attr == "static" and ctx.expr(node.func) is static
    frame, name = ctx.frames[-1], node.func.id
    return frame.closure.get(name, ctx.info.globals.get(name)) is static


def lookup_call(function: Any) -> Callable[..., Any] | None:
    """Return how a call of ``function`` is lowered, if it has a meaning of its own in kernels."""
    try:
        return CALLS.get(function)
    except TypeError:  # unhashable
        return None


@expression(ast.Call)
def _call(ctx: Lowering, node: ast.Call) -> Any:
    if isinstance(node.func, ast.Attribute):
        return _attribute_call(ctx, node, node.func)
    return call(ctx, node, ctx.expr(node.func))


def _attribute_call(ctx: Lowering, node: ast.Call, func: ast.Attribute) -> Any:
    """``base.name(...)``: a method of a run-time value, otherwise a call of the attribute."""
    from qd_core.frontend.methods import call_method
    from qd_core.frontend.places import place_of

    place = place_of(ctx, func.value)
    base = place.get(ctx, func.value)
    if isinstance(base, (Value, MatrixValue, StructValue, ArrayRef)) or is_constant_matrix(base):
        return call_method(ctx, node, place, base, func.attr)
    if isinstance(base, (list, tuple)):
        ctx.syntax_error(
            f"method {func.attr!r} of a {type(base).__name__} is not supported in kernels",
            node,
            hint="lists are fixed once they are made",
        )
    if isinstance(base, str) and func.attr == "format":
        from qd_core.frontend.text import format_text

        return format_text(ctx, node, base, *arguments(ctx, node))
    if isinstance(base, (ObjectRef, StructRef)):
        from qd_core.frontend.attributes import attribute_of

        return call(ctx, node, attribute_of(ctx, base, func.attr, func))
    found = ctx.compile_time(lambda: getattr(base, func.attr), func, f"the attribute {func.attr!r} of {describe(base)}")
    return call(ctx, node, ctx.method(base, func.attr, found))


def arguments(ctx: Lowering, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
    """Evaluate the arguments of a call."""
    args: list[Any] = []
    for a in node.args:
        if isinstance(a, ast.Starred):
            from qd_core.frontend.expressions import iterate

            args.extend(iterate(ctx, ctx.expr(a.value), a))
        else:
            args.append(ctx.expr(a))
    kwargs: dict[str, Any] = {}
    for k in node.keywords:
        value = ctx.expr(k.value)
        if k.arg is not None:
            kwargs[k.arg] = value
        elif isinstance(value, dict):
            kwargs.update(value)
        else:
            ctx.type_error("`**` needs a dict that is known at compile time", node)
    return args, kwargs


def call(ctx: Lowering, node: ast.Call, function: Any) -> Any:
    """Call ``function`` with the arguments of ``node``."""
    if function is static:
        return _static(ctx, node)
    args, kwargs = arguments(ctx, node)
    ctx.at(node)
    rule = lookup_call(function)
    if rule is not None:
        return rule(ctx, node, args, kwargs)
    if isinstance(function, (Func, BoundFunc)):
        from qd_core.frontend.inline import inline

        return inline(ctx, node, function, args, kwargs)
    if isinstance(function, (DType, MatrixType, StructType)):
        from qd_core.frontend.constructors import construct

        return construct(ctx, node, function, args, kwargs)
    return _python_call(ctx, node, function, args, kwargs)


def _static(ctx: Lowering, node: ast.Call) -> Any:
    ctx.static_depth += 1
    try:
        args, kwargs = arguments(ctx, node)
    finally:
        ctx.static_depth -= 1
    if kwargs or not args:
        ctx.syntax_error("qd.static takes positional arguments", node)
    return args[0] if len(args) == 1 else tuple(args)


_HOST = ("qd_core.api.init", "qd_core.api.create", "qd_core.api.field")
"""Modules whose functions start and stop the runtime and make arrays."""


def _python_call(ctx: Lowering, node: ast.Call, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a Python function while compiling; run-time values cannot go in."""
    name = getattr(function, "__name__", None) or describe(function)
    if not callable(function):
        ctx.type_error(f"{describe(function)} cannot be called", node)
    if hasattr(function, "__qd_kernel__"):
        ctx.syntax_error(f"a kernel cannot call the kernel {name!r}", node, hint="make it a @qd.func")
    if getattr(function, "__module__", None) in _HOST:
        ctx.syntax_error(
            f"{name!r} cannot be called in a kernel", node, why="it changes the runtime that the kernel is compiled for"
        )
    if any(map(is_runtime, (*args, *kwargs.values()))):
        ctx.type_error(
            f"the Python function {name!r} is called with a run-time value",
            node,
            why="only functions of the kernel language can compute with run-time values",
            hint="decorate it with @qd.func, or use the function of that name in qd",
        )
    ctx.evidence.called(function)
    for part in (function, getattr(function, "__self__", None), *args, *kwargs.values()):
        ctx.members.whole(part)
    return ctx.python_object(ctx.compile_time(lambda: function(*args, **kwargs), node, f"{name}(...)"), str(name))


def _getattr(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``getattr(x, name)`` with a name known at compile time."""
    from qd_core.frontend.attributes import attribute_of

    if kwargs or len(args) not in (2, 3) or not isinstance(args[1], str):
        ctx.syntax_error("getattr takes an object and a name known at compile time", node)
    target = args[0].value if isinstance(args[0], ObjectRef) else args[0]
    if len(args) == 3 and not hasattr(target, args[1]):
        ctx.members.whole(target)
        return args[2]
    return attribute_of(ctx, args[0], args[1], node)


CALLS[getattr] = _getattr
