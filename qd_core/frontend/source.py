"""Source text and syntax tree of a Python function, without importing or tokenising more than needed.

`inspect.getsource` tokenises in Python, which for a long kernel costs more than compiling it. The block of a function
is found by its
indentation instead; a wrong guess is a syntax error of the excerpt, and then the block is grown or `inspect` asked.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from qd_core.errors import QuadrantsSyntaxError, Span

__all__ = ["FunctionSource", "function_source", "source_lines"]


@dataclass(frozen=True, slots=True, eq=False)
class FunctionSource:
    """Where a function stands and what it says.

    Attributes
    ----------
    file : str
        Path or name that `linecache` knows.
    first_line : int
        Line of the first decorator, counted from 1.
    text : str
        Lines of the function with their indentation.
    tree : ast.FunctionDef
        Its definition; line numbers of nodes are those of the file.
    """

    file: str
    first_line: int
    text: str
    tree: ast.FunctionDef


_CACHE: dict[int, FunctionSource] = {}
"""By identity: code objects of functions that differ in the annotations of their locals alone are equal."""


def function_source(function: Callable[..., Any]) -> FunctionSource:
    """Return source and tree of ``function``; parsed once for each code object.

    Raises
    ------
    QuadrantsSyntaxError
        The source cannot be read (typed at a prompt, made by `exec`), or the function is no plain ``def``.
    """
    if not isinstance(function, FunctionType):
        raise QuadrantsSyntaxError(f"{function!r} is no Python function", hint="decorate a plain `def`")
    code = function.__code__
    known = _CACHE.get(id(code))
    if known is None:
        known = _CACHE[id(code)] = _read(function, code)
        weakref.finalize(code, _CACHE.pop, id(code), None).atexit = False
    return known


def _read(function: FunctionType, code: CodeType) -> FunctionSource:
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    first = code.co_firstlineno
    if not 1 <= first <= len(lines):
        raise _unreadable(function)
    for block in _blocks(lines, first - 1):
        tree = _parse(block, first)
        if tree is not None and tree.name == function.__name__:
            return FunctionSource(code.co_filename, first, "".join(block), tree)
    return _read_slowly(function, code)


def source_lines(function: FunctionType) -> Sequence[str]:
    """Return the lines of ``function``, and what follows them up to the next line that can begin something else.

    Cheaper than `function_source`: nothing is parsed.

    Raises
    ------
    QuadrantsSyntaxError
        The source cannot be read, or has changed since it was parsed.
    """
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    first = code.co_firstlineno
    if not 1 <= first <= len(lines):
        raise _unreadable(function)
    base, end = _indent(lines[first - 1]), _last_line(code)
    while end < len(lines):
        text = lines[end].strip()
        if text and not text.startswith("#") and _indent(lines[end]) <= base:
            break
        end += 1
    block = lines[first - 1 : end]
    known = _CACHE.get(id(code))
    if known is not None and not "".join(block).startswith(known.text.rstrip()):
        raise _unreadable(function)
    return block


def _last_line(code: CodeType) -> int:
    """Last line that has byte code, that of nested functions included."""
    own = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    return max([own, *(_last_line(c) for c in code.co_consts if isinstance(c, CodeType))])


def _read_slowly(function: FunctionType, code: CodeType) -> FunctionSource:
    try:
        block, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as cause:
        raise _unreadable(function) from cause
    tree = _parse(block, first)
    if tree is None:
        span = Span(code.co_filename, first, function=function.__name__)
        raise QuadrantsSyntaxError(
            "a kernel or function must be written with `def`",
            span=span,
            hint="lambdas and `exec` have no usable source",
        )
    return FunctionSource(code.co_filename, first, "".join(block), tree)


def _unreadable(function: FunctionType) -> QuadrantsSyntaxError:
    name, file = function.__name__, function.__code__.co_filename
    return QuadrantsSyntaxError(
        f"the source of {name!r} cannot be read from {file!r}",
        why="a kernel is compiled from its source text",
        hint="put the function in a file or a notebook cell, and keep the file beside the byte code",
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _blocks(lines: Sequence[str], start: int) -> Iterator[list[str]]:
    """Guesses of the function's lines, growing: each ends before a line indented no deeper than the definition."""
    base = _indent(lines[start])
    at = start
    while at < len(lines) and not lines[at].lstrip().startswith(("def ", "async ")):
        at += 1
    for end in range(at + 1, len(lines)):
        text = lines[end].strip()
        if text and not text.startswith("#") and _indent(lines[end]) <= base:
            yield list(lines[start:end])
            if end - at > 1 and text.startswith(("def ", "@", "class ")):
                return
    yield list(lines[start:])


def _parse(block: Sequence[str], first: int) -> ast.FunctionDef | None:
    """Parse an indented function; None when the text is no single definition."""
    indented = block[0][:1] in (" ", "\t")
    head = (
        "\n" * (first - 2) + "if 1:\n" if indented else "\n" * (first - 1)
    )  # so that nodes have the lines of the file
    try:
        module = ast.parse(head + "".join(block))
    except SyntaxError:
        return None
    body = module.body[0].body if indented and isinstance(module.body[0], ast.If) else module.body
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        return None
    return body[0]
