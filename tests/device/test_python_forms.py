"""Forms of Python beside the plain ones: assignment expressions, dicts, formatted text; and refusals."""

# ruff: noqa: UP030, UP031, UP032  (old ways of formatting are what is tested)

from __future__ import annotations

from typing import Optional

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


def test_isinstance_tells_kinds_apart(device):
    pair = qd.types.struct(a=qd.i32)
    data = qd.field(qd.f32, shape=3)

    @qd.func
    def kind(x):
        found = 0
        if qd.static(isinstance(x, qd.Matrix)):
            found = 1
        elif qd.static(isinstance(x, qd.Struct)):
            found = 2
        elif qd.static(isinstance(x, float)):
            found = 3
        elif qd.static(isinstance(x, bool)):
            found = 4
        elif qd.static(isinstance(x, int)):
            found = 5
        elif qd.static(isinstance(x, (list, tuple))):
            found = 6
        return found

    @qd.kernel
    def kinds(v: qd.math.vec2, s: pair, f: float, i: int) -> qd.types.vector(6, qd.i32):
        return qd.Vector([kind(v), kind(s), kind(f), kind(i == 1), kind(i), kind([i, i])])

    assert list(kinds([1.0, 2.0], pair(a=1), 1.0, 1)) == [1, 2, 3, 4, 5, 6]

    @qd.kernel
    def of_array() -> bool:
        return isinstance(data, qd.Field)

    with pytest.raises(qd.QuadrantsTypeError, match="not the object that holds it"):
        of_array()


def test_super_is_refused_with_the_remedy(device):
    @qd.data_oriented
    class Base:
        @qd.func
        def by(self):
            return 1

    @qd.data_oriented
    class Derived(Base):
        @qd.func
        def by(self):
            return Base.by(self) + 1

        @qd.func
        def by_super(self):
            return super().by() + 1

        @qd.kernel
        def good(self) -> int:
            return self.by()

        @qd.kernel
        def wrong(self) -> int:
            return self.by_super()

    assert Derived().good() == 2
    with pytest.raises(qd.QuadrantsNameError, match=r"Base\.method\(self, x\)"):
        Derived().wrong()


def test_kernels_may_be_class_methods_properties_and_static(device):
    class Base:
        factor = 7

        @classmethod
        @qd.kernel
        def scaled(cls, x: int) -> int:
            return x * cls.factor

        @staticmethod
        @qd.kernel
        def plain(x: int) -> int:
            return x + 1

        @property
        @qd.kernel
        def size(self) -> int:
            return self.factor

    class Derived(Base):
        factor = 9

    assert (Base.scaled(2), Derived.scaled(2), Base().scaled(3), Base.plain(1), Derived().size) == (14, 18, 21, 2, 9)


def test_optional_annotations(device):
    @qd.kernel
    def total(x: qd.Template | None, y: Optional[qd.types.ndarray], z: qd.Tensor | None) -> float:  # noqa: UP045
        s = 0.0
        if qd.static(x is not None):
            s += x[0]
        if qd.static(y is not None):
            s += y[0]
        if qd.static(z is not None):
            s += z[0]
        return s

    field, array = qd.field(qd.f32, shape=1), qd.ndarray(qd.f32, 1)
    field[0], array[0] = 1.0, 2.0
    assert (total(None, None, None), total(field, None, None), total(field, array, qd.tensor(qd.f32, 1))) == (0, 1, 3)
    for union in (int | float, int | float | None):
        with pytest.raises(qd.QuadrantsSyntaxError, match="None"):

            @qd.kernel
            def wrong(x: union):
                pass
