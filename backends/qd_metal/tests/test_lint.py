"""Each rule of the linter: a text that breaks it is found with its section; a text that keeps it is not."""

from __future__ import annotations

import pytest
from qd_metal.language import PRELUDE
from qd_metal.lint import check, violations

_KERNEL = "kernel void f(constant long *words [[buffer(0)]]) {{\n{}\n}}\n"


@pytest.mark.parametrize(
    ("text", "section"),
    [
        (_KERNEL.format("    const double x = 1.0;"), "2.1"),
        (_KERNEL.format("    const long long x = 1;"), "2.1"),
        (_KERNEL.format("    goto end;"), "1.4.4"),
        (_KERNEL.format("    thread int *p = new int;"), "1.4.4"),
        (_KERNEL.format("    int (*g)(int) = h;"), "1.4.4"),
        (_KERNEL.format("    auto g = [](int x) { return x; };".replace("{", "{{").replace("}", "}}")), "1.4.4"),
        ("#include <cmath>\n", "1.4.3"),
        ("inline int f(int n) { return n < 2 ? 1 : n * f(n - 1); }\n", "1.4.4"),
        ("inline int f(int n) { return g(n); }\ninline int g(int n) { return f(n); }\n", "1.4.4"),
        ("inline int f(int *p) { return *p; }\n", "4"),
        ("inline void f(float &x) { x = 1.0f; }\n", "4"),
        (_KERNEL.format("    float *p = nullptr;"), "4"),
        ("kernel int f(constant long *words [[buffer(0)]]) { return 0; }\n", "5.1.3"),
        ("kernel void f(constant long *words) { }\n", "5.2"),
        ("kernel void f(uint3 p [[thread_position]]) { }\n", "5.2"),
        ("kernel void f(constant long *words [[buffer(31)]]) { }\n", "5.2.1"),
        ("kernel void f(constant long *a [[buffer(0)]], constant long *b [[buffer(0)]]) { }\n", "5.2.1"),
        (_KERNEL.format("    atomic_fetch_add_explicit(p, 1, memory_order_seq_cst);"), "6.15.1"),
        (_KERNEL.format("    device atomic<short> *p = q;"), "2.6"),
        (_KERNEL.format("    const __typeof__(x) y = x;"), "1.4"),
    ],
)
def test_a_violation_is_found_with_its_section(text: str, section: str) -> None:
    found = violations(text)
    assert section in {v.section for v in found}
    with pytest.raises(AssertionError, match=f"section {section}"):
        check(text)


@pytest.mark.parametrize(
    "text",
    [
        PRELUDE,
        _KERNEL.format("    // a double, long long ago: int *p"),
        _KERNEL.format("    const int x = a *b & c;"),
        "inline int f(thread int *p, device float &x, constant long *w) { return *p; }\n",
    ],
)
def test_a_valid_text_passes(text: str) -> None:
    assert violations(text) == []


def test_the_line_is_told() -> None:
    (found,) = violations("// one\n\nconstant double x = 1;\n")
    assert found.line == 3
