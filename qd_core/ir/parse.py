"""Reads the text form of functions and programs that :mod:`qd_core.ir.print` writes.

The reader builds exactly what the text says: nothing is folded, simplified or checked beyond what it takes to read (run
:func:`qd_core.ir.verify.verify` on the result).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

from qd_core import dtypes as dt
from qd_core.errors import InvalidIRError, Span
from qd_core.ir.nodes import Arg, ArrayType, Function, Node, Param, Region, Result, Role, ScratchType, Value
from qd_core.ir.ops import OPS
from qd_core.ir.program import DeviceWord, Extent, Fixed, HostExpr, Program, Site, Task

__all__ = ["parse_function", "parse_program"]

T = TypeVar("T")

_TEXT = r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\""""
_LOCATION = rf"loc\((?:{_TEXT}):\d+:\d+(?:-\d+:\d+)?(?:\ in\ (?:{_TEXT}))?\)"
_TOKEN = re.compile(
    rf"""[ \t\n]*(?:
        (?P<value>%(?:[\w.]+|{_TEXT}))
      | (?P<location>{_LOCATION})
      | (?P<text>{_TEXT})
      | (?P<number>-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf\b|nan\b))
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark>[{{}}()\[\]<>=:,?])
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_PLACE = re.compile(rf"loc\((?P<file>{_TEXT}):(\d+):(\d+)(?:-(\d+):(\d+))?(?: in (?P<function>{_TEXT}))?\)")
_DTYPES = {d.name: d for d in dt.ALL}
_WORDS = {"True": True, "False": False, "None": None, "nan": float("nan"), "inf": float("inf"), **_DTYPES}


def parse_function(text: str) -> Function:
    """Read one function.

    Raises
    ------
    InvalidIRError
        The text cannot be read; the message names line and column.
    """
    return _Parser(text).whole(_Parser.function)


def parse_program(text: str) -> Program:
    """Read one program; errors as for `parse_function`."""
    return _Parser(text).whole(_Parser.program)


class _Token:
    __slots__ = ("kind", "start", "text")

    def __init__(self, kind: str, text: str, start: int) -> None:
        self.kind, self.text, self.start = kind, text, start


def _tokens(source: str) -> list[_Token]:
    tokens: list[_Token] = []
    position, match_at = 0, _TOKEN.match
    while not tokens or tokens[-1].kind != "end":
        match = match_at(source, position)
        if match is None:
            position += len(source[position:]) - len(source[position:].lstrip(" \t\n"))
            _fail(source, position, f"unexpected character {source[position]!r}")
        kind = str(match.lastgroup)
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        position = match.end()
    return tokens


def _fail(source: str, position: int, message: str) -> NoReturn:
    line = source.count("\n", 0, position) + 1
    column = position - (source.rfind("\n", 0, position) + 1) + 1
    raise InvalidIRError(f"IR text, line {line}, column {column}: {message}")


class _Parser:
    def __init__(self, source: str) -> None:
        self.source, self.tokens, self.at = source, _tokens(source), 0
        self.values: dict[str, Value] = {}

    # -- tokens -------------------------------------------------------------------------------------------------
    def whole(self, what: Callable[[_Parser], T]) -> T:
        result = what(self)
        if self.tokens[self.at].kind != "end":
            self.fail("expected the end of the text")
        return result

    def fail(self, message: str, token: _Token | None = None) -> NoReturn:
        token = token or self.tokens[self.at]
        _fail(
            self.source, token.start, f"{message}, found {token.text!r}" if token.text else f"{message}, found the end"
        )

    def peek(self, text: str) -> bool:
        token = self.tokens[self.at]
        return token.text == text and token.kind in ("mark", "word")

    def accept(self, text: str) -> bool:
        found = self.peek(text)
        self.at += found
        return found

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected {text!r}")

    def take(self, kind: str, what: str) -> str:
        token = self.tokens[self.at]
        if token.kind != kind:
            self.fail(f"expected {what}")
        self.at += 1
        return token.text

    def integer(self) -> int:
        token = self.tokens[self.at]
        if not token.text.lstrip("-").isdigit():
            self.fail("expected an integer")
        self.at += 1
        return int(token.text)

    def string(self) -> str:
        return _unquoted(self.take("text", "quoted text"))

    def listed(self, item: Callable[[], T], close: str) -> list[T]:
        """Items with commas between (one after the last is allowed) up to ``close``, which is taken."""
        items: list[T] = []
        while not self.accept(close):
            items.append(item())
            if not self.accept(","):
                self.expect(close)
                break
        return items

    # -- attributes, types, spans -------------------------------------------------------------------------------
    def literal(self) -> Any:
        token = self.tokens[self.at]
        if token.kind == "text":
            return self.string()
        if self.accept("("):
            return tuple(self.listed(self.literal, ")"))
        if token.kind == "number":
            self.at += 1
            return int(token.text) if token.text.lstrip("-").isdigit() else float(token.text)
        if token.kind == "word" and token.text in _WORDS:
            self.at += 1
            return _WORDS[token.text]
        self.fail("expected a number, text, truth value, type or tuple")

    def attrs(self) -> dict[str, Any]:
        """Attributes in braces; the brace of a region has no name and '=' behind it."""
        named = self.tokens[self.at + 2].text == "=" if self.at + 2 < len(self.tokens) else False
        if not (self.peek("{") and named and self.tokens[self.at + 1].kind == "word"):
            return {}
        self.at += 1
        return dict(self.listed(self.attr, "}"))

    def attr(self) -> tuple[str, Any]:
        name = self.take("word", "an attribute")
        self.expect("=")
        return name, self.literal()

    def dtype(self) -> dt.DType:
        token = self.tokens[self.at]
        if token.text not in _DTYPES:
            self.fail("expected a type")
        self.at += 1
        return _DTYPES[token.text]

    def type(self) -> Any:
        if self.accept("scratch"):
            self.expect("<")
            scratch = ScratchType(self.dtype())
            self.expect(">")
            return scratch
        dtype = self.dtype()
        if not self.accept("["):
            return dtype
        axes = self.listed(lambda: None if self.accept("?") else self.integer(), "]")
        fixed = tuple(n for n in axes if n is not None)
        if fixed and len(fixed) != len(axes):
            self.fail("expected axes that are all fixed or all free")
        element = tuple(self.listed(self.integer, ")")) if self.accept("(") else ()
        return ArrayType(dtype, len(axes), element, fixed or None)

    def span(self) -> Span | None:
        token = self.tokens[self.at]
        if token.kind != "location":
            return None
        self.at += 1
        return _span(token.text)

    # -- values -------------------------------------------------------------------------------------------------
    def name(self) -> str:
        return self.take("value", "a value")

    def use(self) -> Value:
        token = self.tokens[self.at]
        value = self.values.get(self.name())
        if value is None:
            self.fail("expected a value that is defined above", token)
        return value

    def define(self, name: str, value: Value) -> None:
        if name in self.values:
            self.fail(f"{name} is defined twice, before this")
        self.values[name] = value

    def param(self) -> Param:
        name = self.name()
        self.expect(":")
        type = self.type()
        role = self.take("word", "a role")
        if role not in {r.value for r in Role}:
            self.fail("expected a role, before this")
        param = Param(type, _plain(name), Role(role))
        if self.accept("path"):
            self.expect("=")
            param.path = self.string()
        self.define(name, param)
        return param

    def arg(self) -> Arg:
        name = self.name()
        self.expect(":")
        arg = Arg(self.type(), _plain(name))
        self.define(name, arg)
        return arg

    # -- nodes --------------------------------------------------------------------------------------------------
    def region(self) -> Region:
        before = dict(self.values)
        region = Region(tuple(self.listed(self.arg, ")")) if self.accept("(") else ())
        self.expect("{")
        while not self.accept("}"):
            region.nodes.append(self.node())
        self.values = before
        return region

    def node(self) -> Node:
        names: list[str] = []
        while self.tokens[self.at].kind == "value":
            names.append(self.name())
            if not self.accept(","):
                self.expect("=")
                break
        token = self.tokens[self.at]
        op = OPS.get(self.take("word", "an operation"))
        if op is None:
            self.fail("unknown operation", token)
        head: dict[str, Any] = {"value": self.literal()} if op.name == "const" else {}
        operands = () if head else self.operands()
        head.update(self.attrs())
        types = self.types() if self.accept(":") else []
        if len(types) != len(names):
            self.fail(f"{len(names)} results with {len(types)} types", token)
        span = self.span()
        regions = tuple(self.region() for _ in range(op.regions))
        node = Node(op, types[0] if types and not op.regions else None, operands, head, span, regions)
        self.results(node, names, types)
        return node

    def results(self, node: Node, names: list[str], types: list[Any]) -> None:
        if node.regions:
            node.results = tuple(Result(t, node, i) for i, t in enumerate(types))
        for name, value in zip(names, node.results or (node,), strict=False):
            self.define(name, value)

    def operands(self) -> tuple[Value, ...]:
        """Operands of this line; an operation without any is followed by the next line's results, which have a '='."""
        operands: list[Value] = []
        line = self.source.find("\n", self.tokens[self.at - 1].start)
        while self.tokens[self.at].kind == "value" and (line < 0 or self.tokens[self.at].start < line):
            operands.append(self.use())
            if not self.accept(","):
                break
        return tuple(operands)

    def types(self) -> list[Any]:
        types = [self.type()]
        while self.accept(","):
            types.append(self.type())
        return types

    # -- functions and programs ---------------------------------------------------------------------------------
    def function(self) -> Function:
        self.expect("func")
        name = self.string()
        self.expect("(")
        params = self.listed(self.param, ")")
        attrs, span = self.attrs(), self.span()
        return Function(name, params, self.region(), span, attrs)

    def program(self) -> Program:
        self.expect("program")
        name = self.string()
        self.expect("{")
        params = self.many("param", self.param)
        reads, writes = self.numbers("reads"), self.numbers("writes")
        sites = self.many("site", self.site)
        tasks = self.many("task", self.task)
        self.expect("}")
        return Program(name, tuple(params), tuple(tasks), tuple(sites), reads, writes)

    def many(self, word: str, item: Callable[[], T]) -> list[T]:
        items: list[T] = []
        while self.accept(word):
            items.append(item())
        return items

    def numbers(self, word: str) -> frozenset[int]:
        self.expect(word)
        self.expect("(")
        return frozenset(self.listed(self.integer, ")"))

    def site(self) -> Site:
        return Site(*(self.literal() for _ in range(6)))

    def task(self) -> Task:
        name = self.string()
        extents = tuple(self.many("extent", self.extent))
        attrs = self.attrs()
        return Task(name, extents, self.region(), attrs)

    def extent(self) -> Extent:
        if self.peek("{"):
            return HostExpr(self.region())
        if self.tokens[self.at].kind != "value":
            return Fixed(self.integer())
        token = self.tokens[self.at]
        param = self.use()
        if not isinstance(param, Param):
            self.fail("expected a parameter", token)
        self.expect("[")
        index = self.integer()
        self.expect("]")
        return DeviceWord(param, index)


def _plain(name: str) -> str:
    """Name without the sign in front and quotes around."""
    return _unquoted(name[1:]) if name[1] in "'\"" else name[1:]


@lru_cache(maxsize=4096)
def _unquoted(text: str) -> str:
    return ast.literal_eval(text)


@lru_cache(maxsize=4096)
def _span(text: str) -> Span:
    """Read a whole ``loc(...)``."""
    match = _PLACE.match(text)
    assert match is not None
    line, column, end_line, end_column = (int(g) if g else None for g in match.group(2, 3, 4, 5))
    assert line is not None
    assert column is not None
    end = None if end_column is None else end_column - 1
    function = _unquoted(match["function"]) if match["function"] else ""
    return Span(_unquoted(match["file"]), line, column - 1, end_line, end, function)
