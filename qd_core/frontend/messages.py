"""`print`, `assert`, `static_print`, `static_assert`, and f-strings."""

from __future__ import annotations

import ast
from typing import Any

from qd_core.errors import QuadrantsCompilationError
from qd_core.frontend.arithmetic import as_condition
from qd_core.frontend.context import CALLS, Lowering, expression, statement
from qd_core.frontend.values import ArrayRef, MatrixValue, StructValue, describe, is_runtime
from qd_core.ir.nodes import Value

__all__ = ["Text"]

Piece = str | tuple[Value, str]


class Text:
    """Text with run-time values in it: an f-string, or the arguments of `print`."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces

    @staticmethod
    def from_fstring(ctx: Lowering, node: ast.JoinedStr) -> Text | str:
        """Evaluate an f-string; plain text when nothing in it is known at run time only."""
        pieces: list[Piece] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                pieces.append(str(part.value))
            elif isinstance(part, ast.FormattedValue):
                pieces += _formatted(ctx, part)
        if all(isinstance(p, str) for p in pieces):
            return "".join(p for p in pieces if isinstance(p, str))
        return Text(pieces)

    def split(self) -> tuple[tuple[Any, ...], list[Value]]:
        """Return (parts, values): text and (number of a value, format), with neighbouring text joined."""
        parts: list[Any] = []
        values: list[Value] = []
        for piece in self.pieces:
            if isinstance(piece, str):
                if parts and isinstance(parts[-1], str):
                    parts[-1] += piece
                else:
                    parts.append(piece)
            else:
                parts.append((len(values), piece[1]) if piece[1] else (len(values),))
                values.append(piece[0])
        return tuple(parts), values


def _formatted(ctx: Lowering, node: ast.FormattedValue) -> list[Piece]:
    spec = ""
    if isinstance(node.format_spec, ast.JoinedStr):
        text = Text.from_fstring(ctx, node.format_spec)
        if isinstance(text, Text):
            ctx.syntax_error("a format must be known at compile time", node)
        spec = text
    return pieces_of(ctx, ctx.expr(node.value), node, spec)


def pieces_of(ctx: Lowering, value: Any, node: ast.AST, spec: str = "") -> list[Piece]:
    """Return the pieces that print ``value``."""
    if isinstance(value, Value):
        _check_spec(ctx, value, spec, node)
        return [(value, spec)]
    if isinstance(value, MatrixValue):
        if len(value.shape) == 1:
            return _sequence(ctx, list(value.items), node, spec, "[]")
        return _sequence(ctx, [value.row(i) for i in range(value.shape[0])], node, spec, "[]")
    if isinstance(value, StructValue):
        named = [([f"{k}="], v) for k, v in value.members.items()]
        return [
            "{",
            *(
                p
                for n, (head, v) in enumerate(named)
                for p in ([", "] * (n > 0) + head + pieces_of(ctx, v, node, spec))
            ),
            "}",
        ]
    if isinstance(value, Text):
        return list(value.pieces)
    if isinstance(value, ArrayRef):
        ctx.type_error(f"the array {value.name!r} cannot be printed as a whole", node, hint="print elements of it")
    if is_runtime(value):
        return _sequence(ctx, list(value), node, spec, "()" if isinstance(value, tuple) else "[]")
    return [ctx.compile_time(lambda: format(value, spec), node, f"formatting {describe(value)}")]


def _check_spec(ctx: Lowering, value: Value, spec: str, node: ast.AST) -> None:
    if spec:
        ctx.compile_time(lambda: format(0.0 if value.type.is_real else 0, spec), node, f"the format {spec!r}")


def _sequence(ctx: Lowering, items: list[Any], node: ast.AST, spec: str, brackets: str) -> list[Piece]:
    out: list[Piece] = [brackets[0]]
    for n, item in enumerate(items):
        out += [", "] * (n > 0) + pieces_of(ctx, item, node, spec)
    return [*out, brackets[1]]


def lower_print(ctx: Lowering, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Lower ``print(...)`` with ``sep`` and ``end``."""
    sep, end = kwargs.pop("sep", " "), kwargs.pop("end", "\n")
    if kwargs:
        ctx.syntax_error(f"print has no argument {next(iter(kwargs))!r} in kernels", node)
    if not isinstance(sep, str) or not isinstance(end, str):
        ctx.type_error("`sep` and `end` must be text known at compile time", node)
    pieces: list[Piece] = []
    for n, (value, arg) in enumerate(zip(args, node.args, strict=True)):
        pieces += [sep] * (n > 0) + pieces_of(ctx, value, arg)
    parts, values = Text([*pieces, end]).split()
    ctx.at(node)
    ctx.builder.print(parts, values)


CALLS[print] = lower_print


@statement(ast.Assert)
def _assert(ctx: Lowering, node: ast.Assert) -> None:
    if not ctx.options.debug:
        return
    test = ctx.expr(node.test)
    message = ctx.expr(node.msg) if node.msg is not None else ast.unparse(node.test)
    text = message if isinstance(message, Text) else Text([str(message)])
    parts, values = text.split()
    condition = as_condition(ctx, test, node.test)
    ctx.at(node)
    ctx.builder.check("assert", condition, values, message=("Assertion failed: ", *parts))


def lower_static_print(ctx: Lowering, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Print while compiling: values known at compile time, types of the others."""
    ctx.evidence.refuse("it prints while it is compiled")
    print(*(describe(a) if is_runtime(a) else a for a in args), **kwargs)


def lower_static_assert(ctx: Lowering, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Check a condition while compiling."""
    condition, *rest = args
    message = rest[0] if rest else kwargs.get("msg", "")
    if is_runtime(condition):
        ctx.type_error(
            "static_assert needs a condition that is known at compile time",
            node,
            hint="use `assert` for run-time conditions",
        )
    if not condition:
        ctx.error(QuadrantsCompilationError, f"Static assertion failed{': ' + str(message) if message else ''}", node)


@expression(ast.FormattedValue)
def _bare_formatted(ctx: Lowering, node: ast.FormattedValue) -> Text:
    return Text(_formatted(ctx, node))
