"""Forms of Python beside the plain ones: assignment expressions, dicts, formatted text; and refusals."""

# ruff: noqa: UP030, UP031, UP032  (old ways of formatting are what is tested)

from __future__ import annotations

import pytest

import qd_core as qd


def test_assignment_expressions(device):
    @qd.kernel
    def named(a: int) -> int:
        b = 2 + (z := a + 1)
        if (n := b * 2) > 10:
            b += n
        return b + z + n

    assert named(5) == 8 + 16 + 6 + 16
    assert named(0) == 3 + 1 + 6


def test_dicts_exist_while_compiling(device):
    extra = {"y": 3}

    @qd.func
    def weighted(a, x, y):
        return a * x + y

    @qd.kernel
    def dicts(a: int) -> int:
        base = {1: 2, 3: a}
        both = {5: 6, **base}
        squares = {i: i * i * a for i in range(10) if i % 3 if i % 2}
        return both[1] * 1000 + both[3] * 100 + both[5] * 10 + squares[7] - squares[5] + weighted(1, x=2, **extra)

    assert dicts(4) == 2000 + 400 + 60 + 4 * 24 + 5


@pytest.mark.qd_options(debug=True)
def test_formatted_text(device, capfd):
    @qd.kernel
    def show(a: int, b: float):
        print("a={} b={:.2f} c={x}".format(a, b, x=a + 1))
        print("{1} {0}".format(a, "text"), "%d|%5d|%-5d|%05d" % (a, a, a, a))
        print("%.2f|%8.3f|%e|%s|%x|100%%" % (b, b, b, a, 255), "%d" % b)

    show(3, 2.5)
    assert capfd.readouterr().out == (
        "a=3 b=2.50 c=4\ntext 3 3|    3|3    |00003\n2.50|   2.500|2.500000e+00|3|ff|100% 2\n"
    )

    @qd.kernel
    def check(a: int):
        assert 10 <= a < 20, "x[%d] expect=%d got=%d" % (a, 0, a + 1)

    check(12)
    with pytest.raises(RuntimeError, match=r"x\[5\] expect=0 got=6"):
        check(5)


@qd.kernel
def shadowed(a: int) -> int:
    i = 0
    for i in range(a):
        pass
    return i


@qd.kernel
def nested(a: int) -> int:
    s = 0
    for i in range(a):
        for i in qd.static(range(2)):
            s += i
    return s


@qd.kernel
def lazily(a: int) -> int:
    r = 0
    if a > 0 and (n := a * 2) > 3:
        r = n
    return r


@qd.kernel
def in_a_test(a: int) -> int:
    n = a
    while (n := n - 1) > 0:
        pass
    return n


@qd.kernel
def starred(a: int) -> int:
    x, *_rest = [1, 2, 3]
    return x


@qd.kernel
def run_time_key(a: int) -> int:
    return {a: 1}[1]


@qd.kernel
def missing(a: int) -> int:
    return {i: i for i in range(3)}[7]


@qd.kernel
def too_few(a: int):
    print("%d %d" % a)


declared = "is already declared in the outer scope and cannot be used as loop variable"
REFUSALS = [
    (shadowed, qd.QuadrantsSyntaxError, f'Variable "i" {declared}'),
    (nested, qd.QuadrantsSyntaxError, f'Variable "i" {declared}'),
    (lazily, qd.QuadrantsSyntaxError, "assignment expression stands where it may be evaluated never"),
    (in_a_test, qd.QuadrantsSyntaxError, "assignment expression stands where it may be evaluated never"),
    (starred, qd.QuadrantsSyntaxError, 'Unsupported node "Starred"'),
    (run_time_key, qd.QuadrantsTypeError, "key of a dict must be known"),
    (missing, qd.QuadrantsCompilationError, "KeyError: 7"),
    (too_few, qd.QuadrantsTypeError, "'%d' in '%d %d' has no value"),
]


@pytest.mark.parametrize(("kernel", "error", "text"), REFUSALS, ids=lambda v: getattr(v, "__name__", None))
def test_refusals(device, kernel, error, text):
    with pytest.raises(error) as caught:
        kernel(3)
    assert text in str(caught.value)
    assert "^" in str(caught.value)
