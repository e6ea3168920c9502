"""Array accesses, atomics, private memory and messages in lanes, against the reference or NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llvm_programs import EXACT, array, both, branch, loop, program, run_cpu, run_reference, task

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.dtypes import DType
from qd_core.ir.nodes import Param, Role
from qd_core.ir.program import DeviceWord, Site, Variant
from qd_core.runtime.log import decode

SIZES = (0, 7, 8, 100)
LANES = [pytest.param(CompileOptions(fast_math=False, lanes=n), id=f"lanes{n}") for n in (0, 1, 4, 16)]
NO_OVERLAP = CompileOptions(fast_math=False, variant=Variant(frozenset({"no_overlap"})))


# -- places ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [*LANES, pytest.param(NO_OVERLAP, id="no_overlap")])
@pytest.mark.parametrize("dtype", [dt.u1, dt.i8, dt.u16, dt.i32, dt.f32, dt.i64, dt.f64], ids=str)
def test_elements_and_strides(dtype: DType, options: CompileOptions) -> None:
    """Neighbours, components of elements, rows apart, gathered and scattered, one for all."""
    x, p3, t, out = array("x", dtype, 2), array("p3", dtype, 1, 3), array("t", dtype, 2), array("out", dtype, 1, 2)
    index, one, u = array("index", dt.i32), array("one", dtype, 0), array("u", dtype, 2)

    def body(b: Any, i: Any) -> None:
        c = [b.const(dt.i32, k) for k in range(3)]
        j = b.load(index, [i])

        def mix(*values: Any) -> Any:
            total = b.cast(values[0], dt.i32)
            for v in values[1:]:
                total = b.emit("xor", b.emit("mul", total, b.const(dt.i32, 3)), b.cast(v, dt.i32))
            return b.cast(total, dtype)

        rows = (
            [b.load(x, [k, i]) for k in c],
            [b.load(x, [c[2], b.emit("sub", b.extent(x, 1), b.emit("add", i, c[1]))])],
        )
        components = [b.load(p3, [i, k]) for k in c] + [
            b.load(p3, [j, c[1]]),
            b.load(p3, [i, b.emit("mod", i, b.const(dt.i32, 3))]),
        ]
        columns = [b.load(t, [i, k]) for k in c[:2]] + [b.load(t, [j, b.emit("mod", j, c[2])])]
        b.store(out, [i, c[0]], mix(*rows[0], *rows[1], *components))
        b.store(out, [j, c[1]], mix(*columns, b.load(one, [])))
        b.store(u, [i, c[1]], mix(b.load(x, [c[0], i])))

    prog = program([x, p3, t, u, out, index, one], task([None], body))
    for n in SIZES:
        rng = np.random.default_rng(n)

        def some(*shape: int, rng: Any = rng) -> Any:
            return rng.integers(0, 2 if dtype is dt.u1 else 100, shape).astype(dtype.numpy)

        values = [
            some(3, n),
            some(n, 3),
            some(n, 2),
            some(n, 2),
            some(n, 2),
            rng.permutation(n).astype(np.int32),
            some(),
        ]
        both(prog, values, [n], options)


def test_rows_with_a_stride() -> None:
    """A view whose rows are further apart than their length."""
    x, y = array("x", dt.f64, 2), array("y", dt.f64, 2)

    def body(b: Any, i: Any, j: Any) -> None:
        b.store(y, [i, j], b.emit("add", b.load(x, [i, j]), b.load(y, [i, j])))

    base = np.random.default_rng(0).random((6, 40))
    x_view, got = base[1:6, 3:23], np.zeros((5, 50))
    run_cpu(program([x, y], task([None, None], body)), [x_view, got[:, :20]], [5, 20])
    np.testing.assert_array_equal(got[:, :20], x_view)
    assert not got[:, 20:].any()


def test_the_vectorised_axis_may_be_any_axis_of_the_array() -> None:
    x, y = array("x", dt.f32, 2), array("y", dt.f32, 2)

    def body(b: Any, i: Any, j: Any) -> None:
        b.store(y, [j, i], b.load(x, [i, j]))

    x_values = np.random.default_rng(0).random((13, 21), np.float32)
    got = both(program([x, y], task([None, None], body)), [x_values, np.zeros((21, 13), np.float32)], [13, 21])
    np.testing.assert_array_equal(got[1], x_values.T)


def test_last_iteration_of_a_vector_wins_a_store_to_one_element() -> None:
    """One thread, so the last iteration is the last writer."""
    x, y, z = array("x", dt.i32), array("y", dt.i32, 0), array("z", dt.i32, 0)

    def body(b: Any, i: Any) -> None:
        v = b.load(x, [i])
        b.store(y, [], v)
        branch(b, b.emit("gt", v, b.const(dt.i32, 50)), lambda: b.store(z, [], v) or ())

    values = np.random.default_rng(1).integers(0, 100, 27).astype(np.int32)
    got = both(program([x, y, z], task([None], body)), [values, np.array(0, np.int32), np.array(0, np.int32)], [27])
    assert got[1] == values[-1]
    assert got[2] == values[values > 50][-1]


def test_index_types_and_wrapped_sums() -> None:
    """Unsigned and narrow indices; an index whose lane 0 is not active and would be negative."""
    x, y = array("x", dt.i32), array("y", dt.i32)

    def body(b: Any, i: Any) -> None:
        v = b.emit("add", b.load(x, [b.cast(i, dt.u32)]), b.load(x, [b.cast(i, dt.i64)]))
        before = b.emit("sub", i, b.const(dt.i32, 3))
        (w,) = branch(
            b, b.emit("ge", before, b.const(dt.i32, 0)), lambda: (b.load(x, [before]),), lambda: (b.const(dt.i32, -1),)
        )
        small = b.cast(b.emit("mod", i, b.const(dt.i32, 100)), dt.u8)
        b.store(y, [i], b.emit("add", b.emit("add", v, w), b.load(x, [small])))

    for n in (1, 7, 8, 9, 1000):
        both(program([x, y], task([None], body)), [np.arange(n, dtype=np.int32) * 7, np.zeros(n, np.int32)], [n])


def test_products_of_indices_wrap_as_the_language_says() -> None:
    x = array("x", dt.i64)

    def body(b: Any, i: Any) -> None:
        h = b.emit("mul", i, b.const(dt.i32, 747796405))
        b.store(x, [i], b.cast(b.emit("add", h, b.const(dt.i32, 12345)), dt.i64))

    both(program([x], task([None], body)), [np.zeros(100, np.int64)], [100])


@pytest.mark.parametrize("index", [dt.i32, dt.i64], ids=str)
def test_types_of_the_index(index: DType) -> None:
    y = array("y", dt.i64)
    got = both(
        program([y], task([None], lambda b, i: b.store(y, [i], b.cast(i, dt.i64)), index)),
        [np.zeros(1000, np.int64)],
        [1000],
    )
    np.testing.assert_array_equal(got[0], np.arange(1000))


# -- atomics -----------------------------------------------------------------------------------------------------------
_KINDS = ("add", "min", "max", "and", "or", "xor", "exchange")


def _atomic_kinds(d: DType) -> tuple[str, ...]:
    return ("add", "min", "max", "exchange") if d.is_real else _KINDS if d is not dt.u1 else _KINDS[3:]


@pytest.mark.parametrize("options", LANES)
@pytest.mark.parametrize("dtype", [dt.i32, dt.u32, dt.i64, dt.u64, dt.f32, dt.f64, dt.i8, dt.u1], ids=str)
def test_atomics_without_old_values(dtype: DType, options: CompileOptions) -> None:
    """Every kind into one element (lanes are combined) and into bins (lane by lane), also under a mask. Sums of small
    integers are exact in reals.
    """
    kinds = _atomic_kinds(dtype)
    x, bins = array("x", dtype), array("bins", dt.i32)
    outs = [array(f"{kind}{k}", dtype) for kind in kinds for k in range(3)]

    def body(b: Any, i: Any) -> None:
        v, zero, where = b.load(x, [i]), b.const(dt.i32, 0), b.load(bins, [i])
        for n, kind in enumerate(kinds):
            one, masked, many = outs[3 * n : 3 * n + 3]
            b.atomic(kind, one, [zero], v)
            branch(
                b,
                b.emit("lt", where, b.const(dt.i32, 3)),
                lambda kind=kind, masked=masked: b.atomic(kind, masked, [zero], v) and (),
            )
            b.atomic(kind, many, [where], v)

    p = program([x, bins, *outs], task([None], body))
    for n in SIZES:
        rng = np.random.default_rng(n)
        values = rng.integers(0, 2 if dtype is dt.u1 else 50, n).astype(dtype.numpy)
        places = [np.full(5, 1 if dtype is dt.u1 else 3, dtype.numpy) for _ in outs]
        both(p, [values, rng.integers(0, 5, n).astype(np.int32), *places], [n], options)


@pytest.mark.parametrize("options", LANES)
@pytest.mark.parametrize("dtype", [dt.i32, dt.u64, dt.f32, dt.f64], ids=str)
def test_old_values_of_atomics(dtype: DType, options: CompileOptions) -> None:
    x, total, old, bins, old_bins = (array(n, dtype) for n in ("x", "total", "old", "bins", "old_bins"))

    def body(b: Any, i: Any) -> None:
        v = b.load(x, [i])
        b.store(old, [i], b.atomic("add", total, [b.const(dt.i32, 0)], v))

        def some() -> Any:
            b.store(old_bins, [i], b.atomic("max", bins, [b.emit("mod", i, b.const(dt.i32, 3))], v))
            return ()

        branch(b, b.emit("gt", v, b.const(dtype, 10)), some)

    p = program([x, total, old, bins, old_bins], task([None], body))
    for n in SIZES:
        values = np.random.default_rng(n).integers(0, 50, n).astype(dtype.numpy)
        both(
            p, [values, np.zeros(1, dtype.numpy), values.copy(), np.zeros(3, dtype.numpy), values.copy()], [n], options
        )


def test_atomic_extrema_ignore_nan() -> None:
    x, low, high = array("x", dt.f32), array("low", dt.f32, 0), array("high", dt.f32, 0)

    def body(b: Any, i: Any) -> None:
        b.atomic("min", low, [], b.load(x, [i]))
        b.atomic("max", high, [], b.load(x, [i]))

    for values in ([np.nan, 3, -2, np.nan, 5, 1, 2, 3, 9, np.nan], [np.nan] * 9):
        got = [np.array(values, np.float32), np.array(1, np.float32), np.array(1, np.float32)]
        run_cpu(program([x, low, high], task([None], body)), got, [len(values)])
        assert got[1] == np.fmin(1, np.fmin.reduce(got[0]))
        assert got[2] == np.fmax(1, np.fmax.reduce(got[0]))


def test_atomics_of_several_threads() -> None:
    x, total, count = array("x", dt.f64), array("total", dt.f64, 0), array("count", dt.i32)

    def body(b: Any, i: Any) -> None:
        b.atomic("add", total, [], b.load(x, [i]))
        b.atomic("add", count, [b.emit("and", i, b.const(dt.i32, 15))], b.const(dt.i32, 1))

    n = 300_007
    values = [np.random.default_rng(0).integers(0, 100, n).astype(float), np.zeros(()), np.zeros(16, np.int32)]
    run_cpu(program([x, total, count], task([None], body)), values, [n], threads=3)
    assert values[1] == values[0].sum()
    np.testing.assert_array_equal(values[2], np.bincount(np.arange(n) & 15))


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [dt.i32, dt.u64, dt.f32, dt.f64, dt.u8], ids=str)
def test_atomics_of_several_threads_lose_nothing(dtype: DType, lanes: int) -> None:
    kinds = [k for k in _atomic_kinds(dtype) if k != "exchange"]
    x, bins = array("x", dtype), array("bins", dt.i32)
    outs = [array(kind, dtype) for kind in kinds]

    def body(b: Any, i: Any) -> None:
        for kind, out in zip(kinds, outs, strict=True):
            b.atomic(kind, out, [b.load(bins, [i])], b.load(x, [i]))

    n, rng = 30_000, np.random.default_rng(0)
    values = [rng.integers(0, 9, n).astype(dtype.numpy), rng.integers(0, 5, n).astype(np.int32)]
    values += [np.full(5, 3, dtype.numpy) for _ in kinds]
    p, ours, theirs = program([x, bins, *outs], task([None], body)), *([v.copy() for v in values] for _ in range(2))
    for _ in range(3):
        run_cpu(p, ours, [n], CompileOptions(fast_math=False, lanes=lanes), threads=3)
        run_reference(p, theirs, [n])
    for param, a, b in zip(p.params, ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=param.path)


@pytest.mark.parametrize("lanes", [1, 8])
def test_old_values_of_several_threads_are_all_different(lanes: int) -> None:
    count, old = array("count", dt.i32, 0), array("old", dt.i32)
    p = program(
        [count, old], task([None], lambda b, i: b.store(old, [i], b.atomic("add", count, [], b.const(dt.i32, 1))))
    )
    got = np.full(50_000, -1, np.int32)
    run_cpu(p, [np.array(0, np.int32), got], [len(got)], CompileOptions(lanes=lanes), threads=3)
    np.testing.assert_array_equal(np.sort(got), np.arange(len(got)))


# -- private memory ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", LANES)
def test_scratch_with_uniform_and_varying_lengths_and_indices(options: CompileOptions) -> None:
    """Forward fill, backward read, as reverse mode does; lengths differ in every lane."""
    x, y, flags = array("x", dt.i32), array("y", dt.f64), array("flags", dt.i32)

    def body(b: Any, i: Any) -> None:
        n, zero = b.load(x, [i]), b.const(dt.i32, 0)
        values, bits, same = b.scratch(dt.f64, n), b.scratch(dt.u1, n), b.scratch(dt.i32, b.const(dt.i32, 4))
        b.scratch_store(same, b.const(dt.i32, 2), b.const(dt.i32, 5))

        def fill(k: Any, v: Any) -> Any:
            b.scratch_store(values, k, v)
            odd = b.emit("eq", b.emit("and", b.emit("add", k, i), b.const(dt.i32, 1)), zero)
            b.scratch_store(bits, k, odd)
            branch(b, odd, lambda: b.scratch_store(values, k, b.emit("neg", v)) or ())
            return (b.emit("add", b.emit("mul", v, b.const(dt.f64, 0.5)), b.cast(k, dt.f64)),)

        (last,) = loop(b, zero, n, [b.cast(i, dt.f64)], fill, reverse=False, breaks=False)

        def read(k: Any, total: Any, count: Any) -> Any:
            mirrored = b.emit("sub", b.emit("sub", n, b.const(dt.i32, 1)), k)
            both_ends = b.emit("add", b.scratch_load(values, k), b.scratch_load(values, mirrored))
            hit = b.cast(b.scratch_load(bits, mirrored), dt.i32)
            return b.emit("add", b.emit("mul", total, b.const(dt.f64, 0.9)), both_ends), b.emit("add", count, hit)

        total, count = loop(
            b, zero, n, [last, b.scratch_load(same, b.const(dt.i32, 2))], read, reverse=True, breaks=False
        )
        b.store(y, [i], total)
        b.store(flags, [i], count)

    p = program([x, y, flags], task([None], body))
    for n in SIZES:
        lengths = np.random.default_rng(n).integers(-2, 12, n).astype(np.int32)
        both(p, [lengths, np.zeros(n), np.zeros(n, np.int32)], [n], options)


def test_scratch_of_a_stack_whose_height_differs() -> None:
    """Lanes push at their own heights: the index varies."""
    x, y = array("x", dt.i32), array("y", dt.i32)

    def body(b: Any, i: Any) -> None:
        zero, one = b.const(dt.i32, 0), b.const(dt.i32, 1)
        stack = b.scratch(dt.i32, b.const(dt.i32, 16))

        def push(k: Any, height: Any) -> Any:
            v = b.emit("mul", b.load(x, [i]), k)

            def do() -> Any:
                b.scratch_store(stack, height, v)
                return (b.emit("add", height, one),)

            return branch(b, b.emit("gt", b.emit("mod", v, b.const(dt.i32, 5)), one), do, lambda: (height,))

        (height,) = loop(b, zero, b.const(dt.i32, 16), [zero], push, reverse=False, breaks=False)
        (total,) = loop(
            b,
            zero,
            height,
            [zero],
            lambda k, t: (b.emit("add", b.emit("mul", t, b.const(dt.i32, 3)), b.scratch_load(stack, k)),),
            reverse=True,
            breaks=False,
        )
        b.store(y, [i], total)

    for n in SIZES:
        both(
            program([x, y], task([None], body)),
            [np.random.default_rng(n).integers(0, 99, n).astype(np.int32), np.zeros(n, np.int32)],
            [n],
        )


def test_scratch_is_given_back_at_the_end_of_an_iteration() -> None:
    """4096 iterations of 1 MiB each would not fit otherwise."""
    y = array("y", dt.f64)

    def body(b: Any, i: Any) -> None:
        s = b.scratch(dt.f64, b.const(dt.i32, 1 << 17))
        b.scratch_store(s, b.const(dt.i32, 100_000), b.cast(i, dt.f64))
        b.store(y, [i], b.scratch_load(s, b.const(dt.i32, 100_000)))

    got = np.zeros(4096)
    run_cpu(program([y], task([None], body)), [got], [4096])
    np.testing.assert_array_equal(got, np.arange(4096))


# -- tasks -------------------------------------------------------------------------------------------------------------
def test_tasks_run_in_order_and_a_serial_task_sets_a_later_extent() -> None:
    x, n, y = array("x", dt.i32), array("n", dt.i64), array("y", dt.i32)

    def count(b: Any) -> None:
        (k,) = loop(
            b,
            b.const(dt.i32, 0),
            b.extent(x, 0),
            [b.const(dt.i64, 0)],
            lambda k, c: (b.emit("add", c, b.cast(b.emit("gt", b.load(x, [k]), b.const(dt.i32, 0)), dt.i64)),),
            reverse=False,
            breaks=False,
        )
        b.store(n, [b.const(dt.i32, 1)], k)
        s = b.scratch(dt.i64, b.const(dt.i32, 3))
        b.scratch_store(s, b.const(dt.i32, 1), k)
        b.store(n, [b.const(dt.i32, 0)], b.scratch_load(s, b.const(dt.i32, 1)))

    p = program(
        [x, n, y],
        task([None], lambda b, i: b.store(x, [i], b.emit("sub", b.load(x, [i]), b.const(dt.i32, 50)))),
        task([], count),
        task([DeviceWord(n, 1)], lambda b, i: b.store(y, [i], b.emit("add", i, b.const(dt.i32, 1)))),
    )
    values = [
        np.random.default_rng(0).integers(0, 100, 500).astype(np.int32),
        np.zeros(2, np.int64),
        np.zeros(500, np.int32),
    ]
    got = both(p, values, [500, -1])
    assert got[1][1] == (values[0] > 50).sum() == (got[2] > 0).sum()


# -- messages ----------------------------------------------------------------------------------------------------------
def _log(capacity: int) -> Any:
    words = np.zeros(4 + capacity, np.int64)
    words[1] = capacity
    return words


def _messages() -> Any:
    x, log = array("x", dt.f32), array("log", dt.i64, role=Role.LOG)
    sites = (
        Site("assert", "positive", ("f32", "i32", "u1", "u32"), "here"),
        Site("print", ((0, ""), "\n"), ("i32", "f32"), "there"),
        Site("assert", "first", (), "before"),
    )

    def body(b: Any, i: Any) -> None:
        v = b.load(x, [i])
        b.check(
            "assert",
            b.emit("ge", v, b.const(dt.f32, 0)),
            [v, i, b.emit("lt", v, b.const(dt.f32, -5)), b.const(dt.u32, 2**32 - 1)],
            site=0,
        )

        def show() -> Any:
            b.generic("print", None, (i, v), {"parts": ((0, ""), "\n"), "site": 1})
            return ()

        branch(b, b.emit("gt", v, b.const(dt.f32, 7)), show)

    return program([x, log], task([None], body), sites=sites)


@pytest.mark.parametrize("options", LANES)
@pytest.mark.parametrize("n", [1, 9, 100])
def test_prints_and_the_first_failed_check_are_recorded(n: int, options: CompileOptions) -> None:
    values = np.random.default_rng(3).integers(0, 10, n).astype(np.float32)
    if n > 60:
        values[60:63] = -6
    p, log = _messages(), _log(1000)
    run_cpu(p, [values, log], [n], options)
    records = [(s.kind, i, v) for s, i, v in decode(log[: 4 + log[0]], p.sites)]
    printed = sorted(v for kind, _, v in records if kind == "print")
    assert printed == [[k, float(values[k])] for k in np.flatnonzero(values > 7)]
    assert all(i == v[0] for kind, i, v in records if kind == "print")
    failed = [(i, v) for kind, i, v in records if kind == "assert"]
    assert failed == ([(60, [-6.0, 60, 1, 2**32 - 1])] if n > 60 else [])
    assert log[3] == (1 if n > 60 else 0)
    assert log[2] == 0


def test_messages_that_do_not_fit_are_counted_and_tear_nothing() -> None:
    p, log = _messages(), _log(10)
    log[4:] = 1  # what an earlier launch left looks like the number of a site
    values = np.full(50, 9, np.float32)
    run_cpu(p, [values, log], [50])
    records = decode(log[: 4 + min(log[0], log[1])], p.sites)
    assert [v for _, _, v in records] == [[0, 9.0], [1, 9.0]]
    assert log[2] == 48


def test_a_check_that_does_not_fit_is_known_as_the_first_error() -> None:
    p, log = _messages(), _log(2)
    run_cpu(p, [np.full(9, -1, np.float32), log], [9])
    assert log[3] == 1
    assert log[2] >= 1


def test_checks_under_uniform_conditions_and_in_serial_tasks() -> None:
    x, log, ok = array("x", dt.i32, 2), array("log", dt.i64, role=Role.LOG), Param(dt.u1, "ok")
    sites = (Site("assert", "", ("i32", "i32"), ""), Site("assert", "", ("i64",), ""))
    p = program(
        [x, log, ok],
        task([None, None], lambda b, i, j: b.check("assert", ok, [i, j], site=0)),
        task([], lambda b: b.check("assert", ok, [b.const(dt.i64, -5)], site=1)),
        sites=sites,
    )
    for flag in (True, False):
        mine, theirs = _log(50), _log(50)
        run_cpu(p, [np.zeros((2, 2), np.int32), mine, flag], [5, 3], EXACT)
        run_reference(p, [np.zeros((2, 2), np.int32), theirs, flag], [5, 3])
        np.testing.assert_array_equal(mine, theirs)


def test_iteration_numbers_are_linear() -> None:
    x, log = array("x", dt.i32, 3), array("log", dt.i64, role=Role.LOG)
    sites = (Site("assert", "", (), ""),)

    def body(b: Any, i: Any, j: Any, k: Any) -> None:
        b.check("assert", b.emit("ne", b.load(x, [i, j, k]), b.const(dt.i32, 1)), [], site=0)

    values = np.zeros((3, 4, 21), np.int32)
    values[2, 1, 17] = 1
    log_words = _log(10)
    run_cpu(program([x, log], task([None] * 3, body), sites=sites), [values, log_words], values.shape)
    assert log_words[5] == np.ravel_multi_index((2, 1, 17), values.shape)


@pytest.mark.parametrize("lanes", [2, 32, 64])
def test_any_number_of_lanes(lanes: int) -> None:
    """Masks as integers of every width: messages, atomics with old values, gathers and the last active lane."""
    x, y, z, log = array("x", dt.i32), array("y", dt.i32), array("z", dt.i32, 0), array("log", dt.i64, role=Role.LOG)
    sites = (Site("assert", "", ("i32",), ""), Site("print", (), ("i32",), ""))

    def body(b: Any, i: Any) -> None:
        v = b.load(x, [i])

        def large() -> Any:
            old = b.atomic(
                "add", y, [b.emit("mod", v, b.const(dt.i32, 3))], b.load(x, [b.emit("raw_div", v, b.const(dt.i32, 2))])
            )
            b.store(z, [], b.emit("add", old, v))
            b.generic("print", None, (v,), {"parts": (), "site": 1})
            b.check("assert", b.emit("ne", i, b.const(dt.i32, 77)), [v], site=0)
            return ()

        branch(b, b.emit("gt", v, b.const(dt.i32, 4)), large)

    p = program([x, y, z, log], task([None], body), sites=sites)
    values = [
        np.random.default_rng(1).integers(0, 9, 150).astype(np.int32),
        np.zeros(3, np.int32),
        np.array(0, np.int32),
    ]
    values[0][77] = 8
    mine, theirs = ([v.copy() for v in [*values, _log(1000)]] for _ in range(2))
    run_cpu(p, mine, [150], CompileOptions(fast_math=False, lanes=lanes))
    run_reference(p, theirs, [150])
    for a, b in zip(mine[:3], theirs[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    ours, want = (decode(w[3][: 4 + w[3][0]], p.sites) for w in (mine, theirs))
    key = lambda record: (record[0].kind, record[1])  # noqa: E731
    assert sorted(ours, key=key) == sorted(want, key=key)
    assert mine[3][3] == 1
