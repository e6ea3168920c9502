"""The user-facing interface, one kernel for a group of its lines; see `docs/status.toml`."""

from __future__ import annotations

import copy
import linecache
import pickle
import textwrap
from typing import Optional

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import ArgumentValueError

REALS = qd.types.ndarray(dtype=qd.f32, ndim=1)
WHOLES = qd.types.ndarray(dtype=qd.i32, ndim=1)


def kernel_of(body: str, parameters: str = "a: int", returns: str = " -> int"):
    """A kernel with this body, whose source errors can show."""
    text = f"@qd.kernel\ndef k({parameters}){returns}:\n{textwrap.indent(body, '    ')}\n"
    file = f"<surface {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = {"qd": qd}
    exec(compile(text, file, "exec"), scope)
    return scope["k"]


def test_primitive_types_are_singletons():
    aliases = {
        "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u1": "uint1", "u8": "uint8", "u16": "uint16",
        "u32": "uint32", "u64": "uint64", "f16": "float16", "f32": "float32", "f64": "float64",
    }  # fmt: skip
    for short, long in aliases.items():
        dtype = getattr(qd, short)
        assert dtype is getattr(qd, long) is getattr(qd.types, short) is getattr(qd.types, long)
        assert pickle.loads(pickle.dumps(dtype)) is copy.deepcopy(dtype) is dtype
        kinds = (qd.types.is_real(dtype), qd.types.is_integral(dtype), qd.types.is_signed(dtype))
        assert kinds == (short[0] == "f", short[0] != "f", short[0] in "if")
        assert dtype(1) == 1
        assert dtype(1).dtype == dtype.numpy


@qd.kernel
def convert(x: float) -> (int, float, qd.u8, qd.i8, bool, qd.u1, int, int, float, float, int, qd.u32):
    narrow = qd.cast(300 + int(x * 0), qd.u8)
    return (
        int(x), float(int(x)), qd.u8(int(x)), narrow, bool(x), qd.u1(4 + int(x * 0)), qd.round(x, qd.i32),
        qd.floor(x, dtype=int), qd.ceil(x), round(x), abs(int(x)) ** 2 + max(1, 2, int(x)) + min(3, int(x)),
        qd.bit_cast(x, qd.u32),
    )  # fmt: skip


def test_casts_and_rounding(device):
    def bits(x: float) -> int:
        return int(np.float32(x).view(np.uint32))

    assert convert(2.5) == (2, 2.0, 2, 44, 1, 1, 3, 2, 3.0, 3.0, 4 + 2 + 2, bits(2.5))
    assert convert(-2.5) == (-2, -2.0, 254, 44, 1, 1, -3, -3, -2.0, -3.0, 4 + 2 - 2, bits(-2.5))
    assert convert(0.0)[4] == 0
    assert convert(1e20)[0] == -(2**31)


@qd.kernel
def updates(x: WHOLES, y: REALS):
    for i in range(100):
        x[0] += 1
        x[1] |= 1 << (i % 31)
        x[2] ^= i
        x[3] -= 2
        x[4] &= ~(1 << (i % 8))
    for i in range(1):
        x[5] *= 7
        x[6] //= 2
        x[7] %= 5
        x[8] **= 3
        x[9] <<= 2
        x[10] >>= 1
        y[0] /= 4
        y[1] *= 3


def test_augmented_assignments(device):
    x, y = np.full(11, 9, np.int32), np.full(2, 6.0, np.float32)
    x[2], x[4] = 0, -1
    updates(x, y)
    xor = int(np.bitwise_xor.reduce(np.arange(100)))
    assert x.tolist() == [109, 2**31 - 1, xor, 9 - 200, -256, 63, 4, 4, 729, 36, 4]
    assert y.tolist() == [1.5, 18.0]


@qd.kernel
def loops(x: WHOLES, n: int, real: float) -> int:  # noqa: C901  (every kind of loop)
    total = 0
    qd.loop_config(serialize=True, name="first")
    for i in range(n):
        if i == 5:
            break
        total += i
    qd.loop_config(block_dim=32)
    for i in range(real):
        if i % 2:
            continue
        x[i] += 1
    for i, j in qd.ndrange((1, 3), (2, 4)):
        x[3] += i * j
    for place in qd.grouped(qd.ndrange(2, 3)):
        x[4] += place.sum() + place[1]
    for i in range(3, 1):
        x[0] += 1000 * i
    if n > 2:
        for i in range(-3, 3):
            total += i
    while True:
        total += 1
        if total > 20:
            break
    return total


def test_loops_and_hints(device):
    x = np.zeros(6, np.int32)
    assert loops(x, 9, 5.7) == 21
    assert x.tolist() == [1, 0, 1, 15, 1 + 9 + 6, 0]


@qd.kernel
def unrolled(n: qd.template(), table: qd.template(), field: qd.template()) -> int:  # noqa: C901  (every loop)
    r = 0
    array, three = qd.static(field, 3)
    for i, j in qd.static(zip(range(three), [4, 5, 6], strict=True)):
        r += i * j
    for i, x in qd.static(enumerate([7, 8])):
        r += i * x
    for i, j in qd.static(qd.ndrange(2, 3)):
        r += i * j
    for place in qd.static(qd.grouped(qd.ndrange(2, 2))):
        r += place[0] + place[1]
    for key, value in qd.static(table.items()):
        r += value * len(key)
    for i in qd.static(range(5)):
        if qd.static(i == 3):
            continue
        array[i] = i
    for i in qd.static(reversed(range(3))):
        if i == 0:
            break
        r += 100
    if qd.static("a" in table and n is not None and isinstance(n, int)):
        r += 1000
    qd.static_assert(n > 2, "n must be more")
    v = qd.Vector([float(i) for i in range(4) if i != 1])
    return r + len(v) + int(qd.zero(v).sum() + qd.one(v).sum()) + sum([1, 2]) + int(v[2])


def test_static_over_everything(device):
    field = qd.field(qd.i32, shape=5)
    assert unrolled(4, {"a": 1, "bb": 2}, field) == (5 + 12) + 8 + 3 + 4 + 5 + 200 + 1000 + 3 + 3 + 3 + 3
    assert field.to_numpy().tolist() == [0, 1, 2, 0, 4]
    with pytest.raises(qd.QuadrantsCompilationError, match="n must be more"):
        unrolled(1, {"a": 1}, field)


@pytest.mark.qd_options(debug=True)
def test_assumed_ranges(device):
    @qd.kernel
    def within(i: int) -> int:
        return qd.assume_in_range(i, 10, -2, 3)

    assert within(12) == 12
    with pytest.raises(qd.QuadrantsAssertionError, match=r"13 is not in \[8, 13\)"):
        within(13)


@pytest.mark.qd_options(debug=True)
def test_bounds_of_fields_and_vectors(device):
    x = qd.field(qd.f32, shape=(3, 4))

    @qd.kernel
    def write(i: int):
        for j in range(4):
            x[i, j] = 1

    @qd.kernel
    def component(i: int) -> float:
        return qd.Vector([1.0, 2.0, 3.0])[i]

    write(2)
    for bad in (3, -1):
        with pytest.raises(qd.QuadrantsAssertionError, match=rf"x\[{bad}, \d\] of shape \(3, 4\)") as caught:
            write(bad)
        assert "in write (iteration " in str(caught.value)
        assert "^" in str(caught.value)
    with pytest.raises(qd.QuadrantsAssertionError, match="5 on an axis of 3 components"):
        component(5)
    assert component(1) == 2
    assert x.to_numpy().sum() == 4


UNSUPPORTED = {
    "try": "try:\n    x = 1\nexcept Exception:\n    x = 2\nreturn x",
    "raise": "raise ValueError('x')",
    "with": "with open('x') as f:\n    pass\nreturn 1",
    "lambda": "f = lambda x: x\nreturn f(1)",
    "import": "import math\nreturn 1",
    "from": "from math import sin\nreturn 1",
    "del": "x = 1\ndel x\nreturn 1",
    "global": "global g\ng = 1\nreturn 1",
    "for-else": "for i in range(3):\n    pass\nelse:\n    pass\nreturn 1",
    "while-else": "while a > 9:\n    pass\nelse:\n    pass\nreturn 1",
    "is": "return 1 if a is 3 else 2",
    "is not": "return 1 if a is not 3 else 2",
    "in": "return 1 if a in [1, 2] else 2",
    "not in": "return 1 if a not in [1, 2] else 2",
    "set": "x = {1, 2}\nreturn 1",
    "set comprehension": "x = {i for i in range(3)}\nreturn 1",
    "generator": "return sum(i for i in range(3))",
    "def": "def f(x):\n    return x\nreturn f(1)",
    "class": "class A:\n    pass\nreturn 1",
    "yield": "yield 1",
    "match": "match a:\n    case 1:\n        pass\nreturn 1",
    "star": "x, *y = 1, 2, 3\nreturn x",
    "complex": "return 1j",
    "bytes": "return b'a'",
    "negative index": "return qd.Vector([1, 2, 3])[-1]",
    "append": "x = []\nx.append(a)\nreturn x[0]",
    "range step": "s = 0\nfor i in range(0, 9, 2):\n    s += i\nreturn s",
    "early return": "if a > 1:\n    return 1\nreturn 2",
}


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_every_unsupported_node_is_refused_with_a_remedy(device, name):
    kernel = kernel_of(UNSUPPORTED[name])
    with pytest.raises(qd.QuadrantsSyntaxError) as caught:
        kernel(3)
    text = str(caught.value)
    assert "--> <surface " in text
    assert ", in k\n" in text
    assert "^" in text
    assert caught.value.hint


@qd.kernel
def called(a: int, b: float = 2.5, *, c: Optional[int] = None) -> float:  # noqa: UP045
    r = a + b
    if qd.static(c is not None):
        r += c
    return r


def test_calls_of_kernels(device):
    assert (called(1), called(1, b=1), called(a=1, c=3), called(1, 2, c=None)) == (3.5, 2, 6.5, 3)
    refusals = [
        ((), {}, qd.QuadrantsSyntaxError, "Missing argument 'a'"),
        ((1, 2, 3), {}, qd.QuadrantsSyntaxError, "Too many arguments"),
        ((1,), {"d": 3}, qd.QuadrantsSyntaxError, "Unexpected argument 'd'"),
        ((1,), {"a": 3}, qd.QuadrantsSyntaxError, "given twice"),
        ((1.5,), {}, qd.QuadrantsRuntimeTypeError, "cannot be converted into required type i32"),
        (("x",), {}, qd.QuadrantsRuntimeTypeError, "cannot be converted into required type i32"),
        ((2**40,), {}, qd.QuadrantsRuntimeTypeError, "outside the range of i32"),
    ]
    for args, named, error, text in refusals:
        with pytest.raises(error, match=text):
            called(*args, **named)

    @qd.kernel(pure=True, fastcache=True)
    def optioned(a: qd.u32) -> qd.u32:
        return a

    assert optioned(2**32 - 1) == 2**32 - 1
    with pytest.raises(TypeError, match="outside the range of u32"):
        optioned(-1)


def test_arrays_in_fortran_order(device):
    @qd.kernel
    def number(x: qd.types.ndarray(dtype=qd.f32, ndim=2)):
        for i, j in x:
            x[i, j] += i * 10 + j

    x = np.zeros((3, 4), np.float32, order="F")
    number(x)
    np.testing.assert_array_equal(x, np.arange(3)[:, None] * 10 + np.arange(4))
    number(np.zeros((0, 4), np.float32))


def test_more_than_512_arguments(device):
    count = 600
    names = [f"a{n}" for n in range(count)]
    total = " + ".join(names)
    kernel = kernel_of(f"return {total}", ", ".join(f"{n}: qd.i32" for n in names))
    assert kernel(*range(count)) == sum(range(count))


def test_what_fields_refuse_in_python_scope(device):
    x, whole = qd.field(qd.f32, shape=(2, 3)), qd.field(qd.i32, shape=(1, 2, 3))
    refusals = [
        (
            lambda: qd.field(int, shape=1, needs_grad=True),
            RuntimeError,
            "i32 is not supported for field with `needs_grad",
        ),
        (lambda: qd.field(qd.math.ivec3, shape=1, needs_dual=True), TypeError, "integers have no derivative"),
        (lambda: x.copy_from(np.zeros((2, 3))), TypeError, "use from_numpy"),
        (lambda: x.copy_from(qd.field(qd.f16, shape=(2, 2))), ValueError, "shapes must agree"),
        (lambda: qd.field(qd.f32, shape=0), RuntimeError, "should be positive"),
        (lambda: whole[0, 0], AssertionError, "Slicing is not supported on qd.field"),
        (lambda: x[0, :], AssertionError, "Slicing is not supported on qd.field"),
        (lambda: list(x), NotImplementedError, "only available in Quadrants scope"),
    ]
    for refused, error, text in refusals:
        with pytest.raises(error, match=text):
            refused()


def test_bounds_of_ndrange(device):
    start, stop = np.int64(1), np.int32(4)
    side = qd.field(qd.i32, ())
    side[None] = 3

    @qd.kernel
    def count(n: int) -> int:
        r = 0
        for _ in qd.ndrange((start, stop)):
            r += 1
        for _ in qd.static(qd.ndrange((start, stop))):
            r += 10
        for place in qd.grouped(qd.ndrange(*[[1, 3]] * 3)):
            r += place.sum()
        for _i, _j in qd.ndrange(side[None], (n, 0)):
            r += 1000
        return r

    assert count(-2) == 3 + 30 + 36 + 6000
    assert count(2) == 3 + 30 + 36
    for bounds, error, text in (
        ("(1, 2, 3)", qd.QuadrantsSyntaxError, "should be a scalar or a tuple/list like"),
        ("(1.1, 10.5)", qd.QuadrantsTypeError, "should be an integer scalar"),
        ("a * 0.5", qd.QuadrantsTypeError, "should be an integer scalar"),
    ):
        with pytest.raises(error, match=text):
            kernel_of(f"s = 0\nfor i in qd.ndrange({bounds}):\n    s += i\nreturn s")(4)


@pytest.mark.parametrize("make", [qd.field, qd.ndarray, qd.tensor])
@pytest.mark.parametrize("shape", [3.5, (2, 2.5), (-1,), "ab"])
def test_shapes_are_of_integers(device, make, shape):
    with pytest.raises(ArgumentValueError, match="non-negative integers"):
        make(qd.f32, shape)


def test_vectors_have_components(device):
    with pytest.raises(ArgumentValueError, match="at least 1"):
        qd.Vector.field(0, qd.f32, shape=3)
    with pytest.raises(ArgumentValueError, match="at least 1"):
        qd.types.matrix(2, 0, qd.f32)


def test_fields_are_neither_pickled_nor_copied(device):
    field = qd.field(qd.f32, shape=2)
    assert copy.copy(field) is field
    for of in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="to_numpy"):
            of(field)
