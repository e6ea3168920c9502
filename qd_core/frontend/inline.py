"""Inlining of `@qd.func` functions."""

from __future__ import annotations

import ast
from typing import Any

from qd_core.dtypes import DType
from qd_core.frontend.analysis import root_name
from qd_core.frontend.annotations import NdarrayType, Template
from qd_core.frontend.arithmetic import converted
from qd_core.frontend.constructors import convert_to
from qd_core.frontend.context import Frame, Lowering
from qd_core.frontend.functions import BoundFunc, Func
from qd_core.frontend.places import Place, materialize, place_of
from qd_core.frontend.returns import RESULT, declare_early
from qd_core.frontend.scope import Scope
from qd_core.frontend.signature import EMPTY, KernelInfo, Parameter, annotated_type, return_types
from qd_core.frontend.statements import block
from qd_core.frontend.values import ArrayRef, MatrixValue, StructValue, describe
from qd_core.ir.nodes import Value

__all__ = ["bind_arguments", "inline", "inline_method"]

_DEPTH_LIMIT = 64


def inline(ctx: Lowering, node: ast.Call, function: Func | BoundFunc, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Lower the body of ``function`` here and return what it returns (None without a `return`)."""
    references = _references(ctx, node, function, len(args))
    if isinstance(function, BoundFunc):
        function, args = function.func, [function.instance, *args]
    return _inline(ctx, node, function, args, kwargs, references)


def inline_method(
    ctx: Lowering, node: ast.Call, function: Func, place: Place, base: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Inline a method of a struct value; ``self`` is passed by reference."""
    references = _references(ctx, node, BoundFunc(function, base), len(args))
    references[function.info.parameters[0].name] = place
    return _inline(ctx, node, function, [base, *args], kwargs, references)


def _references(ctx: Lowering, node: ast.Call, function: Func | BoundFunc, count: int) -> dict[str, Place]:
    """Places of the arguments of template parameters, which are passed by reference."""
    bound = isinstance(function, BoundFunc)
    parameters = (function.func if isinstance(function, BoundFunc) else function).info.parameters
    if not any(is_template(p.annotation) for p in parameters) or count != len(node.args):
        return {}
    given: dict[str, ast.expr] = {k.arg: k.value for k in node.keywords if k.arg is not None}
    given |= {p.name: a for p, a in zip(parameters[bound:], node.args, strict=False)}
    wanted = {p.name for p in parameters if is_template(p.annotation)}
    return {n: place_of(ctx, a) for n, a in given.items() if n in wanted and root_name(a) is not None}


def _inline(
    ctx: Lowering, node: ast.Call, function: Func, args: list[Any], kwargs: dict[str, Any], references: dict[str, Place]
) -> Any:
    info = function.info
    bound = bind_arguments(ctx, node, info, args, kwargs)
    key = _key(function, bound)
    frame = Frame(info, Scope(), info.closure(), ctx.info.span_of(node), key=key, early=function.early)
    frame.runtime_depth = ctx.runtime_depth + frame.early
    _check_recursion(ctx, node, function, frame)
    for parameter in info.parameters:
        frame.scope.declare(parameter.name, _by_value(ctx, node, parameter, bound[parameter.name]))
    before = {name: frame.scope.names[name] for name in references}
    _run(ctx, frame)
    ctx.at(node)
    for name, place in references.items():
        if frame.scope.names[name] is not before[name]:
            place.set(ctx, frame.scope.names[name], node)
    return _result(ctx, node, frame)


def _run(ctx: Lowering, frame: Frame) -> None:
    outer = ctx.scope, ctx.info
    ctx.frames.append(frame)
    ctx.scope, ctx.info = frame.scope, frame.info
    try:
        if frame.early:
            declare_early(ctx, frame, frame.info.source.tree)
            with ctx.runtime_block():  # a true function is serial
                block(ctx, frame.info.source.tree.body)
        else:
            block(ctx, frame.info.source.tree.body)
    finally:
        ctx.frames.pop()
        ctx.scope, ctx.info = outer


def _result(ctx: Lowering, node: ast.AST, frame: Frame) -> Any:
    types = return_types(frame.info.returns)
    value = frame.returned
    if not types:
        return value
    if frame.early and not frame.returning and frame.info.facts.returns:
        return frame.scope.names[RESULT]
    if not frame.returning:
        ctx.syntax_error(f"{frame.info.name!r} has a return annotation and no return statement", node)
    kinds = [annotated_type(t, ctx.options.default_ip, ctx.options.default_fp) for t in types]
    if len(kinds) == 1:
        return _converted(ctx, node, kinds[0], value)
    if not isinstance(value, tuple) or len(value) != len(kinds):
        ctx.type_error(
            f"{frame.info.name!r} is annotated to return {len(kinds)} values and returns {describe(value)}", node
        )
    return tuple(_converted(ctx, node, k, v) for k, v in zip(kinds, value, strict=True))


def _converted(ctx: Lowering, node: ast.AST, kind: Any, value: Any) -> Any:
    if kind is None:
        return value
    return converted(ctx, value, kind, node) if isinstance(kind, DType) else convert_to(ctx, kind, value, node)


# -- arguments --------------------------------------------------------------------------------------------------------
def bind_arguments(
    ctx: Lowering, node: ast.AST, info: KernelInfo, args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Match arguments with parameters as Python does."""
    positional = [p for p in info.parameters if not p.keyword_only]
    if len(args) > len(positional):
        ctx.syntax_error(f"Too many arguments for {info.name!r}: takes {len(positional)}, got {len(args)}", node)
    bound = {p.name: a for p, a in zip(positional, args, strict=False)}
    names = {p.name for p in info.parameters}
    for name, value in kwargs.items():
        if name not in names:
            ctx.syntax_error(f"Unexpected argument {name!r} for {info.name!r}", node)
        if name in bound:
            ctx.syntax_error(f"Argument {name!r} of {info.name!r} is given twice", node)
        bound[name] = value
    for p in info.parameters:
        if p.name not in bound:
            if p.default is EMPTY:
                ctx.syntax_error(f"Missing argument {p.name!r} of {info.name!r}", node)
            bound[p.name] = p.default
    return bound


def is_template(annotation: Any) -> bool:
    """Whether an annotation asks for a value that is compiled in, or passed as it is."""
    return isinstance(annotation, Template) or annotation is Template


def _by_value(ctx: Lowering, node: ast.AST, parameter: Parameter, value: Any) -> Any:
    """Convert an argument to its annotation; without one, numbers become run-time values."""
    annotation = parameter.annotation
    if is_template(annotation):
        return value
    kind = annotated_type(annotation, ctx.options.default_ip, ctx.options.default_fp)
    if kind is not None:
        return _converted(ctx, node, kind, value)
    if isinstance(annotation, NdarrayType) and not isinstance(value, ArrayRef):
        ctx.type_error(f"parameter {parameter.name!r} needs an array, got {describe(value)}", node)
    return materialize(ctx, value, node)


# -- recursion --------------------------------------------------------------------------------------------------------
def _key(function: Func, bound: dict[str, Any]) -> Any:
    """What makes two nested calls the same: the function, types of run-time and values of compile-time arguments."""
    return function, tuple(_part(v) for v in bound.values())


def _part(value: Any) -> Any:
    if isinstance(value, Value):
        return value.type
    if isinstance(value, MatrixValue):
        return value.dtype, value.shape
    if isinstance(value, StructValue):
        return tuple((k, _part(v)) for k, v in value.members.items())
    if isinstance(value, (list, tuple)):
        return tuple(_part(v) for v in value)
    if isinstance(value, ArrayRef):
        return id(value.param)
    return (type(value), value) if isinstance(value, (int, float, str)) else id(value)


def _check_recursion(ctx: Lowering, node: ast.AST, function: Func, frame: Frame) -> None:
    inlined = [f for f in ctx.frames if f.key is not None]
    if len(inlined) < _DEPTH_LIMIT and all(f.key != frame.key for f in inlined):
        return
    names = [f.key[0].name for f in inlined] + [function.name]
    first = names.index(function.name)
    shown = names[first:] if len(names) - first < 8 else [*names[first : first + 3], "...", names[-1]]
    ctx.syntax_error(
        f"Recursion of @qd.func is not supported: {' -> '.join(shown)}",
        node,
        why="functions are inlined where they are called",
        hint="write a loop; recursion over qd.template() arguments may end within 64 levels",
    )
