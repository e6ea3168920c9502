"""Control flow in lanes: masks, divergence and the rest of a row, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llvm_programs import array, both, branch, loop, program, repeat, run_cpu, task

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.ir.nodes import Param

SIZES = (0, 1, 7, 8, 9, 1000)
OPTIONS = [pytest.param(CompileOptions(fast_math=False, lanes=n), id=f"lanes{n}") for n in (0, 1, 4, 16)]


def _numbers(n: int, low: int = -20, high: int = 20) -> Any:
    return np.random.default_rng(n).integers(low, high, n).astype(np.int32)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("n", SIZES)
def test_saxpy(n: int, options: CompileOptions) -> None:
    x, y, a = array("x", dt.f32), array("y", dt.f32), Param(dt.f32, "a")

    def body(b: Any, i: Any) -> None:
        b.store(y, [i], b.emit("add", b.emit("mul", a, b.load(x, [i])), b.load(y, [i])))

    rng = np.random.default_rng(n)
    both(program([x, y, a], task([None], body)), [*rng.random((2, n), np.float32), 2.5], [n], options)


def test_if_on_a_uniform_condition_is_a_branch_and_on_a_varying_one_a_mask() -> None:
    x, y, c = array("x", dt.i32), array("y", dt.i32), Param(dt.u1, "c")

    def body(b: Any, i: Any) -> None:
        v = b.load(x, [i])

        def positive() -> Any:
            b.store(x, [i], b.const(dt.i32, 0))
            return (b.emit("mul", v, v),)

        def negative() -> Any:
            (r,) = branch(b, c, lambda: (b.emit("add", v, i),), lambda: (b.emit("sub", v, i),))
            b.store(x, [i], r)
            return (b.emit("neg", r),)

        (r,) = branch(b, b.emit("gt", v, b.const(dt.i32, 3)), positive, negative)
        b.store(y, [i], r)

    p = program([x, y, c], task([None], body))
    for n in SIZES:
        for flag in (False, True):
            for values in (_numbers(n), np.full(n, 7, np.int32), np.full(n, -7, np.int32)):
                both(p, [values, np.zeros(n, np.int32), flag], [n])


def test_lanes_that_take_no_side_do_not_touch_memory() -> None:
    """The index of inactive lanes lies far outside the array: touching it would be a fault."""
    x, y = array("x", dt.f64), array("y", dt.f64)

    def body(b: Any, i: Any) -> None:
        far = b.emit("mul", b.cast(i, dt.i64), b.const(dt.i64, 1 << 28))
        ok = b.emit("lt", far, b.const(dt.i64, 1 << 30))
        near = b.emit("shr", far, b.const(dt.i64, 28))
        index = b.select(ok, near, far)

        def inside() -> Any:
            b.store(y, [index], b.emit("add", b.load(x, [index]), b.load(y, [index])))
            return ()

        branch(b, ok, inside)

    both(program([x, y], task([None], body)), [np.arange(4.0), np.ones(4)], [1003])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("reverse", [False, True])
def test_for_with_uniform_and_varying_bounds(reverse: bool, options: CompileOptions) -> None:
    x, y, z, stop = array("x", dt.i32), array("y", dt.i32), array("z", dt.i32), Param(dt.i32, "stop")

    def body(b: Any, i: Any) -> None:
        v = b.load(x, [i])
        zero = b.const(dt.i32, 0)

        def step(k: Any, s: Any, count: Any) -> Any:
            return b.emit("add", b.emit("mul", s, b.const(dt.i32, 3)), b.emit("add", k, v)), b.emit(
                "add", count, b.const(dt.i32, 1)
            )

        uniform = loop(b, b.const(dt.i32, -2), stop, [zero, zero], step, reverse=reverse)
        to_value = loop(b, zero, v, [zero, zero], step, reverse=reverse)
        from_value = loop(b, v, stop, [zero, zero], step, reverse=reverse)
        total = zero
        for results in (uniform, to_value, from_value):
            for r in results:
                total = b.emit("xor", b.emit("mul", total, b.const(dt.i32, 31)), r)
        b.store(y, [i], total)
        b.store(z, [i], b.emit("add", to_value[1], from_value[1]))

    p = program([x, y, z, stop], task([None], body))
    for n in SIZES:
        for bound in (-5, 0, 3):
            both(p, [_numbers(n), np.zeros(n, np.int32), np.zeros(n, np.int32), bound], [n], options)


@pytest.mark.parametrize("options", OPTIONS)
def test_for_with_break(options: CompileOptions) -> None:
    x, y = array("x", dt.i32), array("y", dt.i32)

    def body(b: Any, i: Any) -> None:
        v = b.load(x, [i])

        def search(k: Any, s: Any) -> Any:
            s = b.emit("add", s, b.load(x, [k]))
            return s, b.emit("lt", s, v)

        def count(k: Any, s: Any) -> Any:
            return b.emit("add", s, k), b.emit("lt", k, b.const(dt.i32, 5))

        (found,) = loop(b, b.const(dt.i32, 0), b.extent(x, 0), [b.const(dt.i32, 0)], search, reverse=False, breaks=True)
        (six,) = loop(b, b.const(dt.i32, 0), b.const(dt.i32, 9), [v], count, reverse=False, breaks=True)
        b.store(y, [i], b.emit("sub", found, six))

    p = program([x, y], task([None], body))
    for n in (1, 7, 8, 9, 100):
        both(p, [_numbers(n, 0), np.zeros(n, np.int32)], [n], options)


@pytest.mark.parametrize("options", OPTIONS)
def test_while(options: CompileOptions) -> None:
    """Collatz: trip counts differ in every lane; a second counter is uniform inside the loop and differs after it."""
    x, y, z = array("x", dt.i32), array("y", dt.i32), array("z", dt.i64)

    def body(b: Any, i: Any) -> None:
        one, two, three = (b.const(dt.i32, k) for k in (1, 2, 3))

        def step(v: Any, k: Any) -> Any:
            odd = b.emit("eq", b.emit("and", v, one), one)
            (v,) = branch(
                b, odd, lambda: (b.emit("add", b.emit("mul", v, three), one),), lambda: (b.emit("raw_div", v, two),)
            )
            return v, b.emit("add", k, b.const(dt.i64, 1))

        v, k = repeat(b, [b.load(x, [i]), b.const(dt.i64, 0)], lambda v, k: b.emit("gt", v, one), step)
        b.store(y, [i], v)
        b.store(z, [i], k)

    p = program([x, y, z], task([None], body))
    for n in SIZES:
        both(p, [_numbers(n, 1, 100), np.zeros(n, np.int32), np.zeros(n, np.int64)], [n], options)


def test_uniform_while_under_a_varying_if() -> None:
    x, y, m = array("x", dt.i32), array("y", dt.i32), Param(dt.i32, "m")

    def body(b: Any, i: Any) -> None:
        def inside() -> Any:
            zero = b.const(dt.i32, 0)

            def step(k: Any, s: Any) -> Any:
                b.store(y, [i], b.emit("add", b.load(y, [i]), k))
                return b.emit("add", k, b.const(dt.i32, 1)), b.emit("add", s, b.load(x, [k]))

            k, s = repeat(b, [zero, zero], lambda k, s: b.emit("lt", k, m), step)
            return (b.emit("add", s, k),)

        (r,) = branch(b, b.emit("gt", b.load(x, [i]), b.const(dt.i32, 0)), inside, lambda: (b.const(dt.i32, -1),))
        b.store(y, [i], b.emit("add", b.load(y, [i]), r))

    p = program([x, y, m], task([None], body))
    for n in SIZES:
        both(p, [_numbers(n), np.zeros(n, np.int32), min(n, 5)], [n])


def test_nested_divergent_loops() -> None:
    x, y = array("x", dt.i32), array("y", dt.i64)

    def body(b: Any, i: Any) -> None:
        v = b.emit("abs", b.load(x, [i]))
        zero = b.const(dt.i32, 0)

        def outer(k: Any, s: Any) -> Any:
            (s,) = loop(
                b,
                zero,
                k,
                [s],
                lambda j, s: (
                    b.emit("add", b.emit("mul", s, b.const(dt.i64, 3)), b.cast(b.emit("mul", j, k), dt.i64)),
                ),
                reverse=False,
                breaks=False,
            )
            (s,) = branch(
                b,
                b.emit("gt", b.emit("mod", k, b.const(dt.i32, 3)), zero),
                lambda: (b.emit("add", s, b.cast(v, dt.i64)),),
                lambda: (s,),
            )
            return (s,)

        (s,) = loop(b, zero, v, [b.const(dt.i64, 1)], outer, reverse=False, breaks=False)
        b.store(y, [i], s)

    p = program([x, y], task([None], body))
    for n in SIZES:
        both(p, [_numbers(n), np.zeros(n, np.int64)], [n])


def test_division_in_lanes_that_are_not_active_does_not_trap() -> None:
    x, y = array("x", dt.i64), array("y", dt.i64)

    def body(b: Any, i: Any) -> None:
        v, zero = b.load(x, [i]), b.const(dt.i64, 0)

        def heavy() -> Any:
            (r,) = loop(
                b,
                zero,
                b.const(dt.i64, 3),
                [v],
                lambda k, r: (b.emit("floordiv", b.const(dt.i64, 1000), b.emit("add", v, k)),),
                reverse=False,
                breaks=False,
            )
            return (r,)

        (r,) = branch(b, b.emit("gt", v, zero), heavy, lambda: (zero,))
        b.store(y, [i], b.emit("mod", b.const(dt.i64, 77), r))

    both(program([x, y], task([None], body)), [_numbers(100).astype(np.int64), np.zeros(100, np.int64)], [100])


@pytest.mark.parametrize("shape", [(3, 5), (1, 8), (7, 1), (0, 4), (4, 0), (5, 37), (2, 3, 11), (4, 1, 16)])
def test_axes(shape: tuple[int, ...]) -> None:
    x, y = array("x", dt.f32, len(shape)), array("y", dt.f32, len(shape))

    def body(b: Any, *index: Any) -> None:
        total = b.const(dt.i32, 0)
        for i in index:
            total = b.emit("add", b.emit("mul", total, b.const(dt.i32, 100)), i)
        b.store(y, index, b.emit("add", b.load(x, index), b.cast(total, dt.f32)))

    values = [np.random.default_rng(0).random(shape, np.float32), np.zeros(shape, np.float32)]
    both(program([x, y], task([None] * len(shape), body)), values, shape)
    both(program([x, y], task(shape, body)), values, shape)


def test_axes_in_chunks_of_several_threads() -> None:
    """Chunks begin and end inside rows."""
    shape = (331, 97)
    y = array("y", dt.i64, 2)

    def body(b: Any, i: Any, j: Any) -> None:
        def step(k: Any, s: Any) -> Any:
            return (b.emit("add", b.emit("mul", s, b.const(dt.i64, 5)), b.cast(b.emit("add", i, k), dt.i64)),)

        (s,) = loop(b, b.const(dt.i32, 0), b.const(dt.i32, 50), [b.cast(j, dt.i64)], step, reverse=False, breaks=False)
        b.store(y, [i, j], s)

    got = np.zeros(shape, np.int64)
    run_cpu(program([y], task([None, None], body)), [got], shape, threads=3)
    i, s = np.indices(shape)
    with np.errstate(over="ignore"):
        for k in range(50):
            s = s * 5 + i + k
    np.testing.assert_array_equal(got, s)


def test_negative_extents_are_empty() -> None:
    y = array("y", dt.f32)
    got = np.zeros(4, np.float32)
    run_cpu(program([y], task([None], lambda b, i: b.store(y, [i], b.const(dt.f32, 1)))), [got], [-3])
    assert not got.any()


def test_large_body_runs_under_a_mask() -> None:
    """Above a size the body is written once, always masked."""
    x, y = array("x", dt.f32), array("y", dt.f32)

    def body(b: Any, i: Any) -> None:
        v = b.load(x, [i])
        for k in range(120):
            v = b.emit("add", b.emit("mul", v, v), b.const(dt.f32, k / 1000 - 0.3))
        (v,) = branch(
            b,
            b.emit("gt", v, b.const(dt.f32, 0)),
            lambda: (b.emit("sqrt", v),),
            lambda: (b.load(x, [b.emit("raw_div", i, b.const(dt.i32, 2))]),),
        )
        b.store(y, [i], v)

    p = program([x, y], task([None], body))
    for n in SIZES:
        both(p, [np.random.default_rng(n).random(n, np.float32), np.zeros(n, np.float32)], [n])
