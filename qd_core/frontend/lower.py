"""From a kernel's Python function to IR."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.errors import QuadrantsSyntaxError, Span, format_span
from qd_core.frontend import atomics, containers, expressions, intrinsics, loops, messages, statements
from qd_core.frontend.annotations import MatrixType, StructType
from qd_core.frontend.arithmetic import converted
from qd_core.frontend.constructors import convert_to
from qd_core.frontend.context import Lowering, LowerOptions
from qd_core.frontend.intrinsics import kernel_meaning
from qd_core.frontend.members import Binder, Members
from qd_core.frontend.signature import ArgType, KernelInfo, annotated_type, return_types
from qd_core.frontend.statements import block
from qd_core.frontend.values import describe, flatten
from qd_core.ir.nodes import ArrayType, Function, Param, Role, Value

__all__ = ["LANGUAGE", "LowerOptions", "Lowered", "kernel_meaning", "lower", "lower_kernel", "nesting_limited"]

LANGUAGE = (atomics, containers, expressions, intrinsics, loops, messages, statements)
"""The modules that fill the tables of `qd_core.frontend.context`: importing this one makes the language complete."""


@dataclass(slots=True, eq=False)
class Lowered:
    """A kernel in IR form.

    Attributes
    ----------
    function : Function
        ``params`` are the leaves that the kernel uses: arguments in order of declaration, then captured arrays,
        temporaries, results.
        ``attrs["arguments"]`` names all declared arguments. ``attrs["returns"]`` has one ``(path, kind, dtype, shape)``
        a returned
        value: its result array, ``"scalar"`` or ``"matrix"`` or ``"struct"``, type name, shape (of a struct: nested
        descriptions);
        ``attrs["return_tuple"]`` tells whether the kernel returns a tuple.
    captured : dict of str to object
        Fields and arrays outside the kernel by the path of their parameter.
    members : Members
        What was read of objects and outside the kernel.
    returns : tuple
        Types of the returned values (`DType`, `MatrixType`, `StructType`).
    """

    function: Function
    captured: dict[str, Any]
    returns: tuple[Any, ...] = ()
    members: Members | None = None


def lower(info: KernelInfo, arg_types: Sequence[ArgType], options: LowerOptions) -> Function:
    """Lower a kernel; see `lower_kernel`."""
    return lower_kernel(info, arg_types, options).function


def lower_kernel(
    info: KernelInfo, arg_types: Sequence[ArgType], options: LowerOptions, bind: Binder | None = None
) -> Lowered:
    """Lower a kernel for the given types of its arguments.

    Parameters
    ----------
    info : KernelInfo
        The kernel.
    arg_types : sequence
        One type for each of ``info.parameters``.
    options : LowerOptions
        Options that decide the IR.
    bind : callable, optional
        Gives the types of members that the kernel reads of objects, and of arrays outside it.

    Raises
    ------
    QuadrantsCompilationError
        The kernel is outside the language; the error shows the user's line.
    """
    ctx = Lowering(info, options, bind)
    for parameter, kind in zip(info.parameters, arg_types, strict=True):
        value = ctx.argument(parameter.name, kind)
        ctx.scope.declare(
            parameter.name, value, readonly=f'Kernel argument "{parameter.name}" is immutable in the kernel'
        )
    ctx.scope.push()  # so that locals may hide nothing but end with the kernel
    with nesting_limited(info, lambda: ctx.builder.span):
        block(ctx, info.source.tree.body)
    returns = _results(ctx, info)
    ctx.builder.yield_()
    attrs: dict[str, Any] = {"arguments": tuple(p.name for p in info.parameters), **returns.attrs}
    function = Function(info.name, _ordered(ctx), ctx.body, info.span, attrs)
    if ctx.warnings:
        ctx.evidence.refuse("lowering it gives warnings")
    for text, span in ctx.warnings:
        warnings.warn(f"{text}\n{format_span(span)}", stacklevel=2)
    return Lowered(function, ctx.captured, returns.types, ctx.members)


@contextmanager
def nesting_limited(info: KernelInfo, span: Callable[[], Span | None] = lambda: None) -> Generator[None, None, None]:
    """Report that Python's stack is too small for a kernel as its author's error; ``span`` tells where."""
    try:
        yield
    except RecursionError as error:
        raise QuadrantsSyntaxError(
            f"{info.name!r} is nested too deeply",
            span=span() or info.span,
            why="an expression, or functions that call each other, nest deeper than Python's recursion limit",
            hint="name parts of the expression, or raise the limit with sys.setrecursionlimit",
        ) from error


# -- parameters -------------------------------------------------------------------------------------------------------
def _ordered(ctx: Lowering) -> list[Param]:
    """Parameters that the kernel uses, gradients after their arrays, what core supplies last."""
    used = _used(ctx)
    position = {path: n for n, path in enumerate(ctx.params)}

    def key(p: Param) -> tuple[int, int, int]:
        late = (
            (Role.DATA, Role.ADJOINT, Role.DUAL, Role.RESIDUAL, Role.TEMP, Role.LOG, Role.RESULT).index(p.role)
            if p.role not in (Role.DATA, Role.ADJOINT)
            else 0
        )
        owner = p.path.removesuffix(".grad") if p.role is Role.ADJOINT else p.path
        return late, position.get(owner, position[p.path]), p.role is Role.ADJOINT

    return sorted((p for p in ctx.params.values() if p in used or p.role is Role.RESULT), key=key)


def _used(ctx: Lowering) -> set[Value]:
    used: set[Value] = set()
    stack = [ctx.body]
    while stack:
        for node in stack.pop().nodes:
            for v in node.operands:
                if v.__class__ is Param:
                    used.add(v)
            if node.regions:
                stack.extend(node.regions)
    return used


# -- results ----------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Returns:
    attrs: dict[str, Any]
    types: tuple[Any, ...] = ()


def _results(ctx: Lowering, info: KernelInfo) -> _Returns:
    """Store what the kernel returns in result arrays."""
    frame = ctx.frames[-1]
    wanted = return_types(info.returns)
    node = frame.return_node or info.source.tree
    if not wanted:
        if frame.returned is not None:
            ctx.syntax_error(
                "the kernel returns a value and has no return annotation",
                node,
                hint="annotate it, as in `def k(...) -> qd.f32:`",
            )
        return _Returns({})
    if not frame.returning:
        ctx.error(QuadrantsSyntaxError, "Kernel has a return type but does not have a return statement", node)
    several = isinstance(info.returns, (tuple, list)) or len(wanted) > 1
    values = _returned(ctx, frame.returned, len(wanted), several, node)
    kinds = [annotated_type(w, ctx.options.default_ip, ctx.options.default_fp) for w in wanted]
    specs: list[tuple[Any, ...]] = []
    ctx.at(node)
    for n, (kind, value) in enumerate(zip(kinds, values, strict=True)):
        if kind is None:
            ctx.syntax_error(
                f"a kernel cannot return {wanted[n]!r}",
                node,
                hint="return scalars, vectors, matrices or structs of them",
            )
        specs.append(_store_result(ctx, kind, value, f"return.{n}" if several else "return", node))
    attrs = {"returns": tuple(specs), "return_tuple": several, "return_types": tuple(kinds)}
    return _Returns(attrs, tuple(kinds))


def _returned(ctx: Lowering, value: Any, count: int, several: bool, node: Any) -> list[Any]:
    if not several:
        if value is None:
            ctx.syntax_error("the kernel has a return annotation and returns nothing", node)
        return [value]
    if not isinstance(value, (tuple, list)) or len(value) != count:
        ctx.type_error(f"the annotation has {count} values, the kernel returns {describe(value)}", node)
    return list(value)


def _store_result(ctx: Lowering, kind: Any, value: Any, path: str, node: Any) -> tuple[Any, ...]:
    if isinstance(kind, StructType):
        value = convert_to(ctx, kind, value, node)
        members = tuple(
            (name, _store_result(ctx, t, value.members[name], f"{path}.{name}", node))
            for name, t in kind.members.items()
        )
        return (path, "struct", "", members)
    if isinstance(kind, MatrixType):
        value = convert_to(ctx, kind, value, node)
        spec = (path, "matrix", value.dtype.name, value.shape)
    else:
        value = converted(ctx, value, kind, node)
        spec = (path, "scalar", kind.name, ())
    scalars: list[Value] = []
    flatten(value, scalars)
    _store_scalars(ctx, path, scalars[0].type, scalars)
    return spec


def _store_scalars(ctx: Lowering, path: str, dtype: DType, scalars: list[Value]) -> None:
    param = ctx.param(path, ArrayType(dtype, 1, (), (len(scalars),)), Role.RESULT)
    for k, value in enumerate(scalars):
        ctx.builder.store(param, (ctx.builder.const(dt.i32, k),), value)
