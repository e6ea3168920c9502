"""Random programs: what Python itself computes is what the kernel must."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
from frontend_run import qd, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

VARIABLES = ("a", "b", "c", "d")
HEADER = """def body(p: int, q: int) -> int:
    a, b, c, d = p, q, 1, 2
    v = [p, q, 3]
    result = 0
    qd.loop_config(serialize=True)
    for outer in range(2):
"""
FOOTER = """
    result += a * 1000003 + b * 1009 + c * 31 + d + v[0] * 7 + v[1] * 5 + v[2]
    return result
"""


@st.composite
def expressions(draw: st.DrawFn, depth: int = 2) -> str:
    """Integer expressions whose value stays small."""
    kind = draw(st.integers(0, 9 if depth else 1))
    if kind == 0:
        return str(draw(st.integers(-5, 9)))
    if kind == 1:
        return draw(st.sampled_from((*VARIABLES, "p", "q", "outer", "v[1]")))
    x, y = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    if kind in (2, 3):
        return f"({x} {draw(st.sampled_from('+-*'))} {y}) % 97"
    if kind == 4:
        return f"({x}) {draw(st.sampled_from(('//', '%')))} {draw(st.sampled_from((2, 3, 7, -3)))}"
    if kind == 5:
        return f"({x} if {draw(conditions(depth - 1))} else {y})"
    if kind == 6:
        return f"({x} {draw(st.sampled_from(('and', 'or')))} {y})"
    if kind == 7:
        return f"{draw(st.sampled_from(('min', 'max')))}({x}, {y})"
    if kind == 8:
        return f"abs({x})"
    return f"twice({x})"


@st.composite
def conditions(draw: st.DrawFn, depth: int = 1) -> str:
    kind = draw(st.integers(0, 4 if depth else 1))
    x, y = draw(expressions(0)), draw(expressions(min(depth, 1)))
    operator = draw(st.sampled_from(("<", "<=", "==", "!=", ">", ">=")))
    if kind <= 1:
        return f"{x} {operator} {y}"
    if kind == 2:
        return f"{x} {operator} {y} < 5"
    if kind == 3:
        return f"not ({draw(conditions(0))})"
    return f"({draw(conditions(0))} {draw(st.sampled_from(('and', 'or')))} {draw(conditions(0))})"


@st.composite
def blocks(draw: st.DrawFn, indent: int, depth: int, loops: int) -> list[str]:
    """Statements; ``loops`` is how many loops are around them."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        lines += draw(statements(indent, depth, loops))
    return lines


@st.composite
def statements(draw: st.DrawFn, indent: int, depth: int, loops: int) -> list[str]:
    pad = " " * indent
    kind = draw(st.integers(0, 9 if depth else 3))
    name = draw(st.sampled_from((*VARIABLES, "v[0]", "v[2]")))
    if kind <= 1:
        return [f"{pad}{name} = {draw(expressions())}"]
    if kind == 2:
        return [f"{pad}{name} = ({name} {draw(st.sampled_from('+-*'))} {draw(expressions(1))}) % 101"]
    if kind == 3:
        if draw(st.booleans()):
            return [f"{pad}a, {draw(st.sampled_from('bcd'))} = {draw(expressions(1))}, {draw(expressions(1))}"]
        leave = draw(st.sampled_from(("break", "continue", f"return {draw(expressions(1))}")))
        return [f"{pad}if {draw(conditions())}:", f"{pad}    {leave}"]
    if kind in (4, 5, 6):
        lines = [f"{pad}if {draw(conditions())}:", *draw(blocks(indent + 4, depth - 1, loops))]
        if draw(st.booleans()):
            lines += [f"{pad}else:", *draw(blocks(indent + 4, depth - 1, loops))]
        return lines
    body = draw(blocks(indent + 4, depth - 1, loops + 1))
    if kind == 7:
        return [f"{pad}for i{loops} in range({draw(expressions(0))} % 4):", *body]
    if kind == 8:
        return [f"{pad}for i{loops} in qd.static(range({draw(st.integers(0, 3))})):", *body]
    counter = f"w{loops}"
    return [
        f"{pad}{counter} = 0",
        f"{pad}while {draw(conditions())}:",
        f"{pad}    {counter} += 1",
        f"{pad}    if {counter} > 3:",
        f"{pad}        break",
        *body,
    ]


@qd.pyfunc
def twice(x):
    y = 0
    for i in range(2):
        y += x - i
    return (y + 1) % 89


def define(lines: list[str]) -> tuple[Callable[..., Any], str]:
    """Make a function of generated source that `linecache` can show."""
    text = HEADER + "\n".join(lines) + FOOTER
    file = f"<random {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"qd": qd, "twice": twice}
    exec(compile(text, file, "exec"), scope)
    return scope["body"], text


@pytest.mark.parametrize("arguments", [(3, 8), (-4, 5)])
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(lines=blocks(8, 3, 1))
def test_kernels_compute_what_python_computes(arguments: tuple[int, int], lines: list[str]) -> None:
    body, text = define(lines)
    function = qd.real_func(body)

    def kernel(p: qd.i64, q: qd.i64) -> qd.i64:
        return function(p, q)

    assert run(kernel, *arguments, default_ip=qd.i64).result == body(*arguments), text
    if "return" not in "".join(lines):
        assert run(body, *arguments, default_ip=qd.i64).result == body(*arguments), text
