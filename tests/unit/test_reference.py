"""The interpreter's memory, masks, loops, atomics and messages against Python alone."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Param, Region, Value
from qd_core.ir.ops import ATOMIC_KINDS, BITS, NUM
from qd_core.reference.interpret import interpret
from qd_core.reference.memory import InterpreterError
from qd_core.testing.kernels import array, parallel, serial


def wrap(kind: DType, value: int) -> int:
    value &= (1 << kind.bits) - 1
    return value - (1 << kind.bits) if kind.kind == "i" and value >> (kind.bits - 1) else value


# -- iterations and memory ---------------------------------------------------------------------------------------------
def test_more_iterations_than_a_chunk() -> None:
    y = array(dt.i64, "y")
    out = np.zeros(150_000, np.int64)
    interpret(
        parallel([y], out.size, lambda b, i: b.store(y, [i], b.emit("mul", b.cast(i, dt.i64), b.cast(i, dt.i64)))),
        {"y": out},
    )
    assert (out == np.arange(150_000) ** 2).all()


@pytest.mark.parametrize("n", [0, -5])
def test_an_empty_loop_does_nothing(n: int) -> None:
    count, y = Param(dt.i32, "n"), array(dt.f32, "y")
    out = np.zeros(0, np.float32)
    interpret(
        parallel([count, y], lambda b: count, lambda b, i: b.store(y, [i], b.const(dt.f32, 1))), {"n": n, "y": out}
    )


def test_box_of_iterations_with_starts() -> None:
    y = array(dt.i32, "y", 2)
    function = Function("k", [y], Region())
    b = Builder(function.body)
    one, three, five = (b.const(dt.i32, v) for v in (1, 3, 5))
    with b.inside([(dt.i32, "i"), (dt.i32, "j")], loop=True) as body:
        i, j = body.args
        b.store(y, [i, j], b.emit("add", b.emit("mul", i, b.const(dt.i32, 10)), j))
        b.yield_()
    b.parallel_for([(one, three), (three, five)], body)
    b.yield_()
    out = np.zeros((4, 6), np.int32)
    interpret(function, {"y": out})
    want = np.zeros((4, 6), np.int32)
    want[1:3, 3:5] = [[13, 14], [23, 24]]
    assert (out == want).all()


def test_strided_arrays_and_element_axes() -> None:
    x, y = array(dt.f64, "x", 2, (3,)), array(dt.f64, "y", 2)
    base = np.arange(4 * 10 * 3, dtype=np.float64).reshape(4, 10, 3)
    view, out = base[::2, 1::3], np.zeros((9, 4))[::3, ::2]

    def write(b: Builder, k: Value) -> None:
        i, j = b.emit("floordiv", k, b.const(dt.i32, 3)), b.emit("mod", k, b.const(dt.i32, 3))
        b.store(y, [i, b.emit("min", j, b.const(dt.i32, 1))], b.load(x, [i, j, b.const(dt.i32, 2)]))

    interpret(parallel([x, y], 6, write), {"x": view, "y": out})
    assert out.tolist() == [[view[0, 0, 2], view[0, 2, 2]], [view[1, 0, 2], view[1, 2, 2]], [0, 0]]


def test_truth_values_in_memory() -> None:
    x, y = array(dt.u1, "x"), array(dt.u1, "y")
    data, out = np.array([True, False, True]), np.array([True, True, True])
    interpret(parallel([x, y], 3, lambda b, i: b.store(y, [i], b.emit("not", b.load(x, [i])))), {"x": data, "y": out})
    assert out.tolist() == [False, True, False]


@pytest.mark.parametrize(("bad", "where"), [(3, "(3, 1)"), (-1, "(-1, 1)")])
@pytest.mark.parametrize("what", ["load", "store", "atomic"])
def test_an_index_outside_is_an_error_that_names_array_index_shape_and_line(what: str, bad: int, where: str) -> None:
    x = array(dt.f32, "state.x", 1, (2,))

    def write(b: Builder, i: Value) -> None:
        place = [b.emit("sub", b.emit("add", i, b.const(dt.i32, bad)), i), b.const(dt.i32, 1)]
        value = b.load(x, [b.const(dt.i32, 0), b.const(dt.i32, 0)])
        if what == "load":
            value = b.load(x, place)
        if what == "atomic":
            b.atomic("add", x, place, value)
        b.store(x, place if what == "store" else [b.const(dt.i32, 0)] * 2, value)

    with pytest.raises(InterpreterError) as caught:
        interpret(parallel([x], 2, write), {"state.x": np.zeros((3, 2), np.float32)})
    text = str(caught.value)
    assert "'state.x'" in text
    assert where in text
    assert "(3, 2)" in text
    assert "kernel.py:7" in text
    assert isinstance(caught.value, IndexError)


def test_masked_lanes_do_not_touch_memory() -> None:
    x, y = array(dt.f32, "x"), array(dt.f32, "y")

    def write(b: Builder, i: Value) -> None:
        with b.inside() as then:
            b.store(y, [i], b.load(x, [i]))
            b.atomic("add", x, [i], b.const(dt.f32, 1))
            b.yield_()
        with b.inside() as other:
            b.yield_()
        b.if_(b.emit("lt", i, b.const(dt.i32, 2)), then, other)

    data, out = np.array([5, 6], np.float32), np.zeros(2, np.float32)
    interpret(parallel([x, y], 8, write), {"x": data, "y": out})
    assert out.tolist() == [5, 6]
    assert data.tolist() == [6, 7]


def test_lanes_that_store_to_one_place_leave_the_last() -> None:
    y, z = array(dt.i32, "y"), array(dt.i32, "z", 0)

    def write(b: Builder, i: Value) -> None:
        b.store(y, [b.emit("mod", i, b.const(dt.i32, 3))], i)
        b.store(z, [], i)

    out, scalar = np.zeros(3, np.int32), np.zeros((), np.int32)
    interpret(parallel([y, z], 100, write), {"y": out, "z": scalar})
    assert out.tolist() == [99, 97, 98]
    assert scalar == 99


# -- atomics -------------------------------------------------------------------------------------------------------
COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "exchange": lambda a, b: b,
    "cas": lambda a, b: b,
}


def atomic_types() -> list[tuple[str, DType]]:
    takes = {"and": BITS, "or": BITS, "xor": BITS, "exchange": frozenset(dt.ALL)}
    return [(k, d) for k in ATOMIC_KINDS for d in dt.ALL if d in takes.get(k, NUM)]


@pytest.mark.parametrize("use_old", [True, False])
@pytest.mark.parametrize(("kind", "dtype"), atomic_types())
def test_atomics_apply_lane_after_lane(kind: str, dtype: DType, use_old: bool) -> None:
    n, places = 300, 7
    rng = np.random.default_rng(3)
    where = rng.integers(0, places, n).astype(np.int32)
    raw = rng.integers(0, 2 if dtype is dt.u1 else 100, n)
    values = (raw / 7 if dtype.is_real else raw).astype(dtype.numpy)
    expected = np.roll(values, 1)
    expected[::2] = 0  # what a place has in the beginning
    w, v, e = array(dt.i32, "w"), array(dtype, "v"), array(dtype, "e")
    y, old = array(dtype, "y"), array(dtype, "old")

    def write(b: Builder, i: Value) -> None:
        given = [b.load(e, [i])] if kind == "cas" else []
        before = b.atomic(kind, y, [b.load(w, [i])], *given, b.load(v, [i]))
        if use_old:
            b.store(old, [i], before)

    out, olds = np.zeros(places, dtype.numpy), np.zeros(n, dtype.numpy)
    arguments = {"w": where, "v": values, "e": expected, "y": out, "old": olds}
    interpret(parallel([w, v, e, y, old], n, write), arguments)
    state, seen = [dtype.numpy.type(0)] * places, []
    for at, value, wanted in zip(where, values, expected, strict=True):
        seen.append(state[at])
        if kind == "cas" and state[at] != wanted:
            continue
        with np.errstate(over="ignore"):
            state[at] = dtype.numpy.type(COMBINE[kind](state[at], value))
    assert out.tolist() == state
    assert not use_old or olds.tolist() == seen


def test_a_uniform_atomic_counts_every_active_lane() -> None:
    y = array(dt.i32, "y", 0)

    def write(b: Builder, i: Value) -> None:
        with b.inside() as then:
            b.atomic("add", y, [], b.const(dt.i32, 2))
            b.yield_()
        with b.inside() as other:
            b.yield_()
        b.if_(b.emit("eq", b.emit("mod", i, b.const(dt.i32, 3)), b.const(dt.i32, 0)), then, other)

    out = np.zeros((), np.int32)
    interpret(parallel([y], 100, write), {"y": out})
    assert out == 68


# -- control flow ----------------------------------------------------------------------------------------------------
def test_if_yields_by_lane_and_nests() -> None:
    y = array(dt.i32, "y")

    def write(b: Builder, i: Value) -> None:
        two, three = b.const(dt.i32, 2), b.const(dt.i32, 3)
        with b.inside() as then:
            with b.inside() as inner:
                b.yield_(b.const(dt.i32, 6))
            with b.inside() as outer:
                b.yield_(two)
            (value,) = b.if_(b.emit("eq", b.emit("mod", i, three), b.const(dt.i32, 0)), inner, outer)
            b.yield_(value, i)
        with b.inside() as other:
            b.yield_(b.const(dt.i32, 1), b.const(dt.i32, 0))
        a, c = b.if_(b.emit("eq", b.emit("mod", i, two), b.const(dt.i32, 0)), then, other)
        b.store(y, [i], b.emit("add", b.emit("mul", a, b.const(dt.i32, 100)), c))

    out = np.zeros(12, np.int32)
    interpret(parallel([y], 12, write), {"y": out})
    assert out.tolist() == [(6 if i % 3 == 0 else 2) * 100 + i if i % 2 == 0 else 100 for i in range(12)]


def loop_kernel(
    reverse: bool, stop: Callable[[Builder, Value], Value], breaks: Callable[..., Value] | None
) -> Function:
    """y[i] = fold of s = s * 3 + j over j in [i - 2, stop) with a break."""
    y = array(dt.i64, "y")

    def write(b: Builder, i: Value) -> None:
        start = b.emit("sub", i, b.const(dt.i32, 2))
        with b.inside([(dt.i32, "j"), (dt.i64, "s")], loop=True) as body:
            j, s = body.args
            step = b.emit("add", b.emit("mul", s, b.const(dt.i64, 3)), b.cast(j, dt.i64))
            b.yield_(step, *([breaks(b, i, j, step)] if breaks else []))
        (s,) = b.for_(start, stop(b, i), [b.const(dt.i64, 1)], body, reverse=reverse, breaks=breaks is not None)
        b.store(y, [i], s)

    return parallel([y], 9, write)


def loop_result(i: int, stop: int, reverse: bool, breaks: Callable[..., bool] | None) -> int:
    s = 1
    numbers = range(i - 2, stop)
    for j in reversed(numbers) if reverse else numbers:
        s = wrap(dt.i64, s * 3 + j)
        if breaks and not breaks(i, j, s):
            break
    return s


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("stop", ["uniform", "varying", "empty"])
@pytest.mark.parametrize("breaks", [None, "index", "value"])
def test_for(reverse: bool, stop: str, breaks: str | None) -> None:
    stops: dict[str, tuple[Callable[[Builder, Value], Value], Callable[[int], int]]] = {
        "uniform": (lambda b, i: b.const(dt.i32, 5), lambda i: 5),
        "varying": (lambda b, i: b.emit("mul", i, b.const(dt.i32, 2)), lambda i: 2 * i),
        "empty": (lambda b, i: b.emit("sub", i, b.const(dt.i32, 4)), lambda i: i - 4),
    }
    goes_on: dict[str | None, tuple[Any, Any]] = {
        None: (None, None),
        "index": (lambda b, i, j, s: b.emit("ne", j, b.const(dt.i32, 3)), lambda i, j, s: j != 3),
        "value": (lambda b, i, j, s: b.emit("lt", s, b.const(dt.i64, 50)), lambda i, j, s: s < 50),
    }
    out = np.zeros(9, np.int64)
    interpret(loop_kernel(reverse, stops[stop][0], goes_on[breaks][0]), {"y": out})
    assert out.tolist() == [loop_result(i, stops[stop][1](i), reverse, goes_on[breaks][1]) for i in range(9)]


@pytest.mark.parametrize("kind", [dt.i32, dt.u32, dt.i64, dt.u64, dt.i8], ids=repr)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("end", ["low", "high"])
def test_for_reaches_the_ends_of_its_type(kind: DType, reverse: bool, end: str) -> None:
    y = array(kind, "y")
    low = int(kind.min) if end == "low" else int(kind.max) - 3

    def write(b: Builder) -> None:
        with b.inside([(kind, "j"), (dt.i32, "n")], loop=True) as body:
            j, n = body.args
            b.store(y, [n], j)
            b.yield_(b.emit("add", n, b.const(dt.i32, 1)))
        b.for_(b.const(kind, low), b.const(kind, low + 3), [b.const(dt.i32, 0)], body, reverse=reverse)

    out = np.zeros(4, kind.numpy)
    interpret(serial([y], write), {"y": out})
    numbers = [low, low + 1, low + 2]
    assert out.tolist() == [*(numbers[::-1] if reverse else numbers), 0]


def test_while_runs_each_lane_to_its_own_end() -> None:
    y = array(dt.i32, "y")

    def write(b: Builder, i: Value) -> None:
        one = b.const(dt.i32, 1)
        inits = [b.emit("add", i, one), b.const(dt.i32, 0)]
        with b.inside([(dt.i32, "n"), (dt.i32, "steps")], loop=True) as condition:
            b.yield_(b.emit("ne", condition.args[0], one))
        with b.inside([(dt.i32, "n"), (dt.i32, "steps")], loop=True) as body:
            n, steps = body.args
            even = b.emit("eq", b.emit("and", n, one), b.const(dt.i32, 0))
            odd = b.emit("add", b.emit("mul", n, b.const(dt.i32, 3)), one)
            b.yield_(b.select(even, b.emit("sar", n, one), odd), b.emit("add", steps, one))
        _, steps = b.while_(inits, condition, body)
        b.store(y, [i], steps)

    def collatz(n: int) -> int:
        steps = 0
        while n != 1:
            n, steps = n // 2 if n % 2 == 0 else 3 * n + 1, steps + 1
        return steps

    out = np.zeros(60, np.int32)
    interpret(parallel([y], 60, write), {"y": out})
    assert out.tolist() == [collatz(i + 1) for i in range(60)]


def test_a_loop_under_a_mask_leaves_other_lanes_alone() -> None:
    y = array(dt.i32, "y")

    def write(b: Builder, i: Value) -> None:
        zero = b.const(dt.i32, 0)
        with b.inside() as then:
            with b.inside([(dt.i32, "j"), (dt.i32, "s")], loop=True) as body:
                j, s = body.args
                b.atomic("add", y, [j], b.const(dt.i32, 1))
                b.yield_(b.emit("add", s, j))
            (s,) = b.for_(zero, i, [zero], body)
            b.yield_(s)
        with b.inside() as other:
            b.yield_(b.const(dt.i32, -1))
        (value,) = b.if_(b.emit("eq", b.emit("and", i, b.const(dt.i32, 1)), zero), then, other)
        b.atomic("add", y, [b.emit("add", i, b.const(dt.i32, 8))], value)

    out = np.zeros(16, np.int32)
    interpret(parallel([y], 8, write), {"y": out})
    counts = [sum(1 for i in range(0, 8, 2) if j < i) for j in range(8)]
    assert out.tolist() == counts + [sum(range(i)) if i % 2 == 0 else -1 for i in range(8)]


def test_serial_code_and_tasks_that_pass_values() -> None:
    """A value of serial code reaches a later loop's extent and body through a temporary."""
    x, y = array(dt.i32, "x"), array(dt.i32, "y")
    function = Function("k", [x, y], Region())
    b = Builder(function.body)
    zero, one = b.const(dt.i32, 0), b.const(dt.i32, 1)
    count = b.load(x, [zero])
    b.store(x, [zero], b.const(dt.i32, 100))
    with b.inside([(dt.i32, "i")], loop=True) as body:
        b.store(y, [body.args[0]], b.emit("add", count, body.args[0]))
        b.yield_()
    b.parallel_for([(one, count)], body)
    b.store(x, [one], b.load(y, [one]))
    b.yield_()
    data, out = np.array([4, 0], np.int32), np.zeros(6, np.int32)
    interpret(function, {"x": data, "y": out})
    assert out.tolist() == [0, 5, 6, 7, 0, 0]
    assert data.tolist() == [100, 5]


# -- private memory -----------------------------------------------------------------------------------------------
def scratch_kernel(length: int, index: int) -> Function:
    y = array(dt.f64, "y")

    def write(b: Builder, i: Value) -> None:
        memory = b.scratch(dt.f64, b.emit("add", i, b.const(dt.i32, length)))
        with b.inside([(dt.i32, "j")], loop=True) as body:
            j = body.args[0]
            b.scratch_store(memory, j, b.cast(b.emit("mul", i, j), dt.f64))
            b.yield_()
        b.for_(b.const(dt.i32, 0), i, [], body)
        b.store(y, [i], b.scratch_load(memory, b.emit("add", i, b.const(dt.i32, index))))

    return parallel([y], 6, write)


def test_private_memory_that_was_never_written_shows() -> None:
    out = np.zeros(6)
    interpret(scratch_kernel(1, 0), {"y": out})
    assert np.isnan(out).all(), "the last element was never written"


def test_private_memory_holds_what_was_stored() -> None:
    y = array(dt.f64, "y")

    def write(b: Builder, i: Value) -> None:
        one = b.const(dt.i32, 1)
        memory = b.scratch(dt.f64, b.emit("add", i, one))
        with b.inside([(dt.i32, "j")], loop=True) as body:
            b.scratch_store(memory, body.args[0], b.cast(b.emit("mul", i, body.args[0]), dt.f64))
            b.yield_()
        b.for_(b.const(dt.i32, 0), b.emit("add", i, one), [], body)
        b.store(y, [i], b.scratch_load(memory, i))

    out = np.zeros(6)
    interpret(parallel([y], 6, write), {"y": out})
    assert out.tolist() == [i * i for i in range(6)]


def test_private_memory_refuses_what_is_outside() -> None:
    with pytest.raises(InterpreterError, match="index 1 is outside private memory of 1 scalars"):
        interpret(scratch_kernel(1, 1), {"y": np.zeros(6)})


# -- messages ------------------------------------------------------------------------------------------------------
def message_kernel() -> Function:
    x = array(dt.f32, "x")

    def write(b: Builder, i: Value) -> None:
        v = b.load(x, [i])
        b.check("assert", b.emit("lt", v, b.const(dt.f32, 3)), [v, i])
        b.check("bounds", b.emit("lt", i, b.const(dt.i32, 1)), [b.cast(i, dt.u8)])
        b.print(("v", (0, ""), (1, "")), [v, b.emit("gt", v, b.const(dt.f32, 2)), b.emit("neg", i)])

    return parallel([x], 5, write)


def test_messages_are_recorded_as_the_log_says() -> None:
    run = interpret(message_kernel(), {"x": np.array([1, 2.5, 3.5, 4.5, 0], np.float32)})
    assert run.records == [
        (0, 2, (3.5, 2)),
        (2, 0, (1.0, 0, 0)),
        (2, 1, (2.5, 1, -1)),
        (2, 2, (3.5, 1, -2)),
        (2, 3, (4.5, 1, -3)),
        (2, 4, (0.0, 0, -4)),
    ]
    assert (run.first_error, run.dropped) == (1, 0)
    words = run.arrays["log"]
    assert words[:8].tolist() == [4 + 5 * 5, 4096, 0, 1, 0, 2, struct.unpack("<q", struct.pack("<d", 3.5))[0], 2]


def test_messages_that_do_not_fit_are_counted() -> None:
    run = interpret(message_kernel(), {"x": np.zeros(5, np.float32)}, log_words=8)
    assert run.records == [(1, 1, (1,)), (2, 0, (0.0, 0, 0))]
    assert (run.first_error, run.dropped) == (2, 4)


def test_a_later_launch_does_not_replace_the_first_error() -> None:
    log = np.array([0, 16, 0, 9] + [-1] * 16, np.int64)
    run = interpret(message_kernel(), {"x": np.full(5, 9, np.float32), "log": log})
    assert run.first_error == 9
    assert [r[0] for r in run.records] == [2, 2, 2]


def test_serial_messages_have_iteration_zero() -> None:
    run = interpret(serial([], lambda b: b.print(("x", (0, "")), [b.const(dt.u64, 2**64 - 1)])), {})
    assert run.records == [(0, 0, (2**64 - 1,))]
