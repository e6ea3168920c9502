"""Rules of the Metal Shading Language that a C++ compiler does not check, over emitted text.

Each rule cites its section of the Metal Shading Language Specification, version 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Violation", "check", "violations"]

_SPACES = ("device", "constant", "thread", "threadgroup")
_ATTRIBUTES = ("buffer", "thread_position_in_grid", "threads_per_grid", "thread_position_in_threadgroup",
               "threadgroup_position_in_grid", "threads_per_threadgroup", "threadgroups_per_grid",
               "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup")  # fmt: skip
_FUNCTION = re.compile(r"^(?:template <[^>]*>\s*)?(?:inline|kernel)\s+[^;{}()]*?\b(\w+)(?:<[^>]*>)?\s*\(", re.MULTILINE)
_KERNEL = re.compile(r"^kernel\s+(\w+)\s+(\w+)\(((?:[^()]|\([^()]*\))*)\)", re.MULTILINE)
_BUFFERS = 31


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a text breaks: what, its section of the specification, and the line (from 1)."""

    rule: str
    section: str
    line: int


def violations(text: str) -> list[Violation]:
    """Return all violations in a source text."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
    return [
        Violation(rule, section, plain.count("\n", 0, at) + 1) for find, rule, section in _RULES for at in find(plain)
    ]


def check(text: str) -> None:
    """Raise `AssertionError` where a text is not valid: a fault of the generator."""
    found = violations(text)
    assert not found, "\n".join(f"line {v.line}: {v.rule} (section {v.section})" for v in found)


def _pattern(expression: str) -> Callable[[str], Iterator[int]]:
    compiled = re.compile(expression, re.MULTILINE)
    return lambda text: (m.start() for m in compiled.finditer(text))


def _pointers(text: str) -> Iterator[int]:
    """Declarations of pointers and references without an address space."""
    declared = re.compile(
        r"(?P<space>(?:\b\w+\s+)*)\b(?:bool|u?char|u?short|u?int|u?long|half|float|atomic_\w+|atomic<\w+>|T|auto"
        r"|u?int(?:8|16|32|64)_t)\s*[*&](?![&=])\s*(?=\w|>|\))"
    )
    for found in declared.finditer(text):
        if not set(found["space"].split()) & set(_SPACES):
            yield found.start()


def _recursion(text: str) -> Iterator[int]:
    """Functions that reach themselves through calls. Overloads of a name count as one unless they only call others."""
    starts = [(m.group(1), m.end()) for m in _FUNCTION.finditer(text)]
    calls: dict[str, set[str]] = {}
    place: dict[str, int] = {}
    for name, at in starts:
        body = _body(text, at)
        calls.setdefault(name, set()).update(re.findall(r"\b(\w+)(?:<[^<>]*>)?\s*\(", body))
        place.setdefault(name, at)
    for name in calls:
        seen: set[str] = set()
        stack = list(calls[name])
        while stack:
            called = stack.pop()
            if called in calls and called not in seen:
                seen.add(called)
                stack += calls[called]
        if name in seen:
            yield place[name]


def _body(text: str, at: int) -> str:
    start = text.find("{", at)
    depth, end = 0, start
    while 0 <= end < len(text):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            break
        end += 1
    return text[start:end]


def _kernel_returns(text: str) -> Iterator[int]:
    return (m.start() for m in _KERNEL.finditer(text) if m[1] != "void")


def _kernel_arguments(text: str) -> Iterator[int]:
    for found in _KERNEL.finditer(text):
        for argument in re.split(r",(?![^\[]*\]\])", found[3]):
            attribute = re.search(r"\[\[(\w+)(?:\((\d+)\))?\]\]\s*$", argument.strip())
            if argument.strip() and (attribute is None or attribute[1] not in _ATTRIBUTES):
                yield found.start()


def _slots(text: str) -> Iterator[int]:
    for found in _KERNEL.finditer(text):
        numbers = re.findall(r"\[\[buffer\((\d+)\)\]\]", found[3])
        if len(set(numbers)) != len(numbers) or any(int(n) >= _BUFFERS for n in numbers):
            yield found.start()


_RULES: tuple[tuple[Callable[[str], Iterator[int]], str, str], ...] = (
    (_pattern(r"\b(?:long\s+)?double\b"), "there is no double", "2.1"),
    (_pattern(r"\blong\s+long\b"), "there is no long long", "2.1"),
    (_pattern(r"\b(?:new|delete|dynamic_cast|typeid|throw|try|catch|goto|virtual|thread_local)\b"),
     "the keyword is one of the restricted features of C++", "1.4.4"),
    (_pattern(r"\(\s*\*\s*\w+\s*\)\s*\("), "pointers to functions need a table of visible functions", "1.4.4"),
    (_pattern(r"\[\s*(?:=|&)?\s*\]\s*\("), "lambda expressions are restricted", "1.4.4"),
    (_pattern(r"#\s*include\s*<(?!metal_)"), "the C++ standard library must not be used", "1.4.3"),
    (_recursion, "functions must not be recursive", "1.4.4"),
    (_pointers, "a pointer or reference needs an address space", "4"),
    (_kernel_returns, "a kernel returns void", "5.1.3"),
    (_kernel_arguments, "an argument of a kernel needs a known attribute", "5.2"),
    (_slots, "buffer indices are distinct and below 31", "5.2.1"),
    (_pattern(r"\bmemory_order_(?!relaxed)\w+"), "atomic operations are relaxed", "6.15.1"),
    (_pattern(r"\batomic<\s*(?!int|uint|bool|ulong|float|T)\w+"), "there is no such atomic type", "2.6"),
    (_pattern(r"\b__typeof__\b|\b_Float16\b|\b__builtin_\w+"), "the word belongs to a C++ compiler", "1.4"),
)  # fmt: skip
