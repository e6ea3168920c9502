"""Text with run-time values by `"...".format(...)` and `"..." % (...)`, for `print` and messages of `assert`."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Sequence
from typing import Any

from qd_core.frontend.context import Lowering
from qd_core.frontend.messages import Piece, Text, pieces_of
from qd_core.frontend.values import describe
from qd_core.ir.nodes import Value

__all__ = ["format_text", "percent"]

_DIRECTIVE = re.compile(r"%(?P<flags>[-+ 0]*)(?P<width>\d*)(?:\.(?P<digits>\d+))?(?P<kind>[a-zA-Z%])")
_KINDS = {**dict.fromkeys("diu", "d"), **{k: k for k in "eEfFgGxXoc"}, "s": "", "r": ""}


def _joined(pieces: list[Piece]) -> Text | str:
    plain = [p for p in pieces if isinstance(p, str)]
    return "".join(plain) if len(plain) == len(pieces) else Text(pieces)


def format_text(ctx: Lowering, node: ast.AST, text: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Text | str:
    """Lower ``text.format(*args, **kwargs)``; fields are numbers, names or empty."""
    pieces: list[Piece] = []
    count = 0
    parsed = ctx.compile_time(lambda: list(string.Formatter().parse(text)), node, "the format")
    for literal, field, spec, conversion in parsed:
        pieces += [literal] if literal else []
        if field is None:
            continue
        if conversion or "{" in spec or not (field.isidentifier() or field.isdigit() or not field):
            ctx.syntax_error(f"the field {field!r} of a format is not supported", node, hint="use an f-string")
        if not field:
            field, count = str(count), count + 1
        value = kwargs.get(field) if not field.isdigit() else args[int(field)] if int(field) < len(args) else None
        if value is None:
            ctx.type_error(f"the format {text!r} has no argument for the field {field!r}", node)
        pieces += pieces_of(ctx, value, node, spec)
    return _joined(pieces)


def percent(ctx: Lowering, node: ast.AST, text: str, right: Any) -> Text | str:
    """Lower ``text % right``."""
    values = list(right) if isinstance(right, tuple) else [right]
    pieces: list[Piece] = []
    at = used = 0
    for found in _DIRECTIVE.finditer(text):
        pieces.append(text[at : found.start()])
        at = found.end()
        if found["kind"] == "%":
            pieces.append("%")
            continue
        if found["kind"] not in _KINDS or used >= len(values):
            ctx.type_error(f"{found.group()!r} in {text!r} has no value, or a kind that kernels do not know", node)
        pieces += _directive(ctx, node, found, values[used])
        used += 1
    if used != len(values):
        ctx.type_error(f"{text!r} formats {used} values, got {len(values)}", node)
    return _joined([*pieces, text[at:]])


def _directive(ctx: Lowering, node: ast.AST, found: re.Match[str], value: Any) -> list[Piece]:
    kind, flags = _KINDS[found["kind"]], found["flags"]
    align = "<" if "-" in flags and found["width"] else ""
    sign = next((f for f in "+ " if f in flags), "")
    zero = "0" if "0" in flags and not align and found["width"] else ""
    digits = f".{found['digits']}" if found["digits"] and kind != "d" else ""
    if kind == "d" and isinstance(value, Value) and value.type.is_real:
        value = ctx.builder.cast(value, ctx.options.default_ip)
    if kind == "d" and isinstance(value, float):
        value = int(value)
    if not (isinstance(value, (Value, int, float, str)) or not kind):
        ctx.type_error(f"{found.group()!r} formats a number, got {describe(value)}", node)
    return pieces_of(ctx, value, node, f"{align}{sign}{zero}{found['width']}{digits}{kind}")
