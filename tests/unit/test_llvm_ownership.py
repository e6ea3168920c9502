"""Atomics that are not: owned elements and totals, against the reference, and where they must stay atomic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llvm_programs import array, both, branch, cpu, loop, pack, program, task

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions, Launch
from qd_core.codegen.llvm import emit_module
from qd_core.codegen.llvm.ownership import Ownership
from qd_core.codegen.llvm.survey import Survey
from qd_core.dtypes import DType
from qd_core.ir.nodes import Param
from qd_core.ir.program import Program, Variant

DISJOINT = CompileOptions(fast_math=False, variant=Variant(frozenset({"no_overlap"})))


def _atomics(p: Program, options: CompileOptions) -> int:
    return emit_module(p, cpu()[2].llvm, options).count("atomicrmw")


def _gradient(shift: Any = None) -> Program:
    x, gx, ga = array("x", dt.f32), array("gx", dt.f32), array("ga", dt.f32, 1, 2)

    def body(b: Any, i: Any) -> None:
        v = b.load(x, [i])
        where = i if shift is None else shift(b, i)
        b.atomic("add", gx, [where], v)
        for k in range(2):
            b.atomic("add", ga, [where, b.const(dt.i32, k)], b.emit("mul", v, v))
        branch(b, b.emit("gt", v, b.const(dt.f32, 5)), lambda: b.atomic("max", gx, [where], v) and ())

    return program([x, gx, ga], task([None], body))


@pytest.mark.parametrize("options", [DISJOINT, CompileOptions(fast_math=False, lanes=1, variant=DISJOINT.variant)])
def test_elements_of_the_own_iteration_are_updated_without_atomics(options: CompileOptions) -> None:
    p = _gradient()
    assert _atomics(p, options) == 0
    for n in (0, 1, 8, 9, 100):
        x = np.random.default_rng(n).integers(0, 10, n).astype(np.float32)
        both(p, [x, np.ones(n, np.float32), np.ones((n, 2), np.float32)], [n], options)


def test_arrays_that_may_overlap_stay_atomic() -> None:
    p = _gradient()
    assert _atomics(p, CompileOptions()) > 0
    # The same memory under two names, met at two places: both sums are complete.
    x, y = array("x", dt.i32), array("y", dt.i32)

    def body(b: Any, i: Any) -> None:
        b.atomic("add", x, [i], b.const(dt.i32, 1))
        b.atomic("add", y, [b.emit("add", i, b.const(dt.i32, 1))], b.const(dt.i32, 10))

    shared = np.zeros(101, np.int32)
    device, compiler = cpu()[1:]
    q = program([x, y], task([None], body))
    words = pack(q.params, [shared, shared], lambda _, v: v.ctypes.data)
    device.default_stream.run(device.load(compiler.compile(q, CompileOptions())), Launch(words, [100], ()))
    assert shared.tolist() == [1] + [11] * 99 + [10]


@pytest.mark.parametrize("factor", [0, 2])
def test_elements_that_iterations_share_stay_atomic(factor: int) -> None:
    shift = lambda b, i: b.emit("raw_div", i, b.const(dt.i32, 2)) if factor else b.emit("mul", i, b.const(dt.i32, 0))  # noqa: E731
    p = _gradient(shift)
    if factor:
        assert _atomics(p, DISJOINT) > 0
    x = np.random.default_rng(0).integers(0, 10, 100).astype(np.float32)
    both(p, [x, np.ones(100, np.float32), np.ones((100, 2), np.float32)], [100], DISJOINT)


def test_shifted_and_permuted_axes_are_owned_and_part_of_the_axes_is_not() -> None:
    x, n = array("x", dt.i64, 2), Param(dt.i32, "n")

    def transposed(b: Any, i: Any, j: Any) -> None:
        b.atomic(
            "add", x, [b.emit("sub", n, j), b.cast(b.emit("add", i, b.const(dt.i32, 1)), dt.i64)], b.cast(i, dt.i64)
        )

    def rows(b: Any, i: Any, j: Any) -> None:
        b.atomic("add", x, [i, b.const(dt.i32, 0)], b.cast(j, dt.i64))

    p, q = (program([x, n], task([None, None], body)) for body in (transposed, rows))
    assert _atomics(p, CompileOptions()) == 0
    assert _atomics(q, CompileOptions()) > 0
    both(p, [np.zeros((12, 9), np.int64), 11], [8, 12])
    both(q, [np.zeros((8, 1), np.int64), 11], [8, 12])


def test_a_value_added_twice_is_not_an_axis() -> None:
    x = array("x", dt.i32)
    p = program(
        [x], task([None], lambda b, i: b.atomic("add", x, [b.emit("and", b.emit("add", i, i), b.const(dt.i32, 2))], i))
    )
    assert not Ownership(Survey(p.tasks[0].body), p.tasks[0].body.args, True).owned


@pytest.mark.parametrize("lanes", [0, 1, 16])
@pytest.mark.parametrize("dtype", [dt.i32, dt.u64, dt.f32, dt.f64], ids=str)
@pytest.mark.parametrize("kind", ["add", "min", "max", "and", "or", "xor"])
def test_totals(kind: str, dtype: DType, lanes: int) -> None:
    if dtype.is_real and kind in ("and", "or", "xor"):
        return
    x, total, pair, s = array("x", dtype), array("total", dtype, 0), array("pair", dtype, 1, 2), Param(dt.i32, "s")

    def body(b: Any, i: Any) -> None:
        v = b.load(x, [i])
        b.atomic(kind, total, [], v)
        odd = b.emit("eq", b.emit("and", i, b.const(dt.i32, 1)), b.const(dt.i32, 1))
        branch(b, odd, lambda: b.atomic(kind, total, [], b.emit("add", v, v)) and ())
        b.atomic(kind, pair, [s, b.const(dt.i32, 0)], b.const(dtype, 3))

        def inner(k: Any) -> Any:
            b.atomic(kind, pair, [b.emit("add", s, b.const(dt.i32, 1)), b.const(dt.i32, 1)], v)
            return ()

        loop(b, b.const(dt.i32, 0), i, [], inner, reverse=False, breaks=False)

    p = program([x, total, pair, s], task([None], body))
    options = CompileOptions(fast_math=False, lanes=lanes, variant=Variant(frozenset({"no_overlap"})))
    assert _atomics(p, options) == 3
    for n in (0, 1, 8, 9, 50):
        values = np.random.default_rng(n).integers(0, 9, n).astype(dtype.numpy)
        both(p, [values, np.array(5, dtype.numpy), np.full((4, 2), 5, dtype.numpy), 2], [n], options)


def test_old_values_mixed_kinds_and_reads_keep_a_total_atomic() -> None:
    x, y = array("x", dt.i32, 0), array("y", dt.i32)

    def old(b: Any, i: Any) -> None:
        b.store(y, [i], b.atomic("add", x, [], i))

    def mixed(b: Any, i: Any) -> None:
        b.atomic("add", x, [], i)
        b.atomic("max", x, [], i)

    def read(b: Any, i: Any) -> None:
        b.atomic("add", x, [], b.load(x, []))

    for body in (old, mixed, read):
        p = program([x, y], task([None], body))
        assert not Ownership(Survey(p.tasks[0].body), p.tasks[0].body.args, True).totals
    both(program([x, y], task([None], old)), [np.array(0, np.int32), np.zeros(50, np.int32)], [50])
