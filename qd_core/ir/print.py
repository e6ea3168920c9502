"""The text form of functions and programs.

Text is deterministic and complete: :mod:`qd_core.ir.parse` reads it back, and printing that gives the same text. A
node stands on one line::

    %3, %4 = for %0, %n, %1, %2 {reverse=False, breaks=False} : f32, i32 loc("k.py":3:5) (%i: i32, %s: f32, %t: i32) {
      ...
      yield %7, %8
    }

Results are numbered in order; parameters and region arguments keep their names, made unique. Columns count from 1, as
editors do. Array types are written ``f32[?, ?](3)``: dtype, run-time axes (``?`` or their fixed extents), element axes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qd_core.dtypes import DType
from qd_core.errors import InvalidIRError, Span
from qd_core.ir.nodes import ArrayType, Function, Node, Param, Region, ScratchType, Value
from qd_core.ir.program import DeviceWord, Extent, Fixed, HostExpr, Program, Site, Task

__all__ = ["format_literal", "format_span_text", "format_type", "print_function", "print_program"]

_NAME = re.compile(r"[A-Za-z_][\w.]*\Z")
_INDENT = "  "


def print_function(function: Function, *, locations: bool = False) -> str:
    """Return the text of a function.

    Parameters
    ----------
    function : Function
        Valid or not: the printer only needs every operand to have been defined somewhere before, and marks those that
        were not with ``%?``.
    locations : bool
        Append ``loc(...)`` to nodes that have a source span.

    Returns
    -------
    str
        Lines, the last one with a line break.

    Raises
    ------
    InvalidIRError
        An attribute has a value without text form.
    """
    printer = _Printer(locations)
    params = ", ".join(printer.param(p) for p in function.params)
    head = f"func {format_literal(function.name)}({params}){_attrs(function.attrs)}{printer.location(function.span)}"
    return "\n".join(printer.region(head, function.body, "")) + "\n"


def print_program(program: Program, *, locations: bool = False) -> str:
    """Return the text of a program; its ``function`` is not part of the text. Arguments and errors as for
    `print_function`.
    """
    printer = _Printer(locations)
    lines = [f"program {format_literal(program.name)} {{"]
    lines += [f"{_INDENT}param {printer.param(p)}" for p in program.params]
    lines += [f"{_INDENT}reads {_numbers(program.reads)}", f"{_INDENT}writes {_numbers(program.writes)}"]
    lines += [_INDENT + _site(site) for site in program.sites]
    for task in program.tasks:
        lines += printer.task(task)
    return "\n".join([*lines, "}"]) + "\n"


def format_type(type: Any) -> str:
    """Return the text of a dtype, array or scratch type."""
    if isinstance(type, ArrayType):
        extents = ("?",) * type.ndim if type.fixed_shape is None else type.fixed_shape
        element = f"({', '.join(map(str, type.element_shape))})" if type.element_shape else ""
        return f"{type.dtype.name}[{', '.join(map(str, extents))}]{element}"
    if isinstance(type, ScratchType):
        return f"scratch<{type.dtype.name}>"
    return type.name if isinstance(type, DType) else f"<{type!r}>"


def format_literal(value: Any) -> str:
    """Return the text of an attribute: a number, text, truth value, None, dtype, or a tuple of such; `InvalidIRError`
    otherwise.
    """
    if isinstance(value, DType):
        return value.name
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        inner = ", ".join(map(format_literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    raise InvalidIRError(f"an attribute has a value without text form: {value!r}")


def format_span_text(span: Span) -> str:
    """Return ``loc("file":line:column)`` with what else the span knows."""
    end = ""
    if span.end_line is not None and span.end_column is not None:
        end = f"-{span.end_line}:{span.end_column + 1}"
    function = f" in {span.function!r}" if span.function else ""
    return f"loc({span.file!r}:{span.line}:{span.column + 1}{end}{function})"


def _attrs(attrs: Mapping[str, Any]) -> str:
    return f" {{{', '.join(f'{k}={format_literal(v)}' for k, v in attrs.items())}}}" if attrs else ""


def _numbers(numbers: Iterable[int]) -> str:
    return f"({', '.join(map(str, sorted(numbers)))})"


def _site(site: Site) -> str:
    fields = (site.kind, site.message, tuple(site.dtypes), site.location, site.excerpt, tuple(site.details))
    return "site " + " ".join(map(format_literal, fields))


class _Printer:
    """Names of the values of one function or program."""

    def __init__(self, locations: bool) -> None:
        self.locations = locations
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.numbered = 0

    # -- names --------------------------------------------------------------------------------------------------
    def fresh(self, value: Value, wanted: str) -> str:
        """Give a named value a name of its own."""
        name, n = wanted or "arg", 0
        while name in self.taken:
            n += 1
            name = f"{wanted or 'arg'}_{n}"
        self.taken.add(name)
        self.names[value] = text = "%" + (name if _NAME.match(name) else repr(name))
        return text

    def number(self, value: Value) -> str:
        """Give a result the next number."""
        self.names[value] = text = f"%{self.numbered}"
        self.numbered += 1
        return text

    def value(self, value: Value) -> str:
        return self.names.get(value, "%?")

    # -- pieces -------------------------------------------------------------------------------------------------
    def param(self, param: Param) -> str:
        name = self.fresh(param, param.path)
        plain = name in ("%" + param.path, "%" + repr(param.path))
        path = "" if plain else f" path={param.path!r}"
        return f"{name}: {format_type(param.type)} {param.role.value}{path}"

    def location(self, span: Span | None) -> str:
        return " " + format_span_text(span) if self.locations and span is not None else ""

    def region(self, head: str, region: Region, indent: str) -> list[str]:
        """Lines of a region; the first continues ``head``."""
        args = ", ".join(f"{self.fresh(a, a.name)}: {format_type(a.type)}" for a in region.args)
        lines = [f"{head} ({args}) {{" if args else f"{head} {{"]
        for node in region.nodes:
            lines += self.node(node, indent + _INDENT)
        return [*lines, indent + "}"]

    def node(self, node: Node, indent: str) -> list[str]:
        operands = ", ".join(map(self.value, node.operands))
        attrs = node.attrs
        if node.op.name == "const":
            operands, attrs = format_literal(attrs.get("value")), {k: v for k, v in attrs.items() if k != "value"}
        types = _result_types(node)
        results = ", ".join(self.number(v) for v in (node.results or ((node,) if types else ())))
        head = f"{indent}{results + ' = ' if results else ''}{node.op.name}{' ' + operands if operands else ''}"
        head += _attrs(attrs) + (f" : {', '.join(map(format_type, types))}" if types else "") + self.location(node.span)
        lines = [head]
        for region in node.regions:
            *before, last = lines
            lines = [*before, *self.region(last, region, indent)]
        return lines

    # -- programs -----------------------------------------------------------------------------------------------
    def task(self, task: Task) -> list[str]:
        lines = [f"{_INDENT}task {format_literal(task.name)}"]
        for extent in task.extents:
            *before, last = lines
            lines = [*before, *self.extent(last, extent)]
        *before, last = lines
        return [*before, *self.in_scope(f"{last}{_attrs(task.attrs)}", task.body)]

    def extent(self, head: str, extent: Extent) -> list[str]:
        if isinstance(extent, Fixed):
            return [f"{head} extent {extent.count}"]
        if isinstance(extent, DeviceWord):
            return [f"{head} extent {self.value(extent.param)}[{extent.index}]"]
        assert isinstance(extent, HostExpr)
        return self.in_scope(f"{head} extent", extent.body)

    def in_scope(self, head: str, region: Region) -> list[str]:
        """Lines of a region whose names and numbers are its own."""
        taken, self.numbered = set(self.taken), 0
        lines = self.region(head, region, _INDENT)
        self.taken = taken
        return lines


def _result_types(node: Node) -> Sequence[Any]:
    return [r.type for r in node.results] if node.results else [] if node.type is None else [node.type]
