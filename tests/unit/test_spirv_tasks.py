"""Forms of tasks, the layout of words, and what reaches the module's text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from spirv_programs import ALL, HAS_TOOLS, emitted, tool

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.codegen.spirv.expand import expand_real_remainders, remainder
from qd_core.codegen.spirv.layout import POOL_WORDS, ArgumentLayout
from qd_core.codegen.spirv.sizing import sizing_task
from qd_core.codegen.spirv.text import disassemble
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Param, Value
from qd_core.ir.ops import OPS
from qd_core.ir.program import Variant
from qd_core.ir.rewrite import walk
from qd_core.passes.offload import offload
from qd_core.reference.interpret import interpret
from qd_core.testing.kernels import array, elementwise, parallel, serial
from qd_core.testing.samples import samples

ALONE = CompileOptions(fast_math=False, variant=Variant(frozenset({"no_overlap"})))
"""Arrays are known not to overlap."""


def _scratch(length: int | None, dtype: DType = dt.f32) -> Function:
    n, y = Param(dt.i32, "n"), array(dtype, "y")

    def write(b: Builder, i: Value) -> None:
        memory = b.scratch(dtype, n if length is None else b.const(dt.i32, length))
        b.scratch_store(memory, b.const(dt.i32, 0), b.load(y, [i]))
        b.store(y, [i], b.scratch_load(memory, b.const(dt.i32, 0)))

    return parallel([n, y], lambda b: b.extent(y, 0), write)


def test_words_are_the_arguments_then_extents_then_the_pool() -> None:
    program = offload(_scratch(None))
    layout = ArgumentLayout.of(program, ALL)
    assert [layout.offsets[p] for p in program.params] == [0, 1]
    assert layout.extents == 4
    assert (layout.pool, layout.size) == (5, 5 + POOL_WORDS)
    assert layout.inline


def test_words_that_do_not_fit_are_found_by_address() -> None:
    arrays = [array(dt.f32, f"x{n}") for n in range(8)]

    def write(b: Builder, i: Value) -> None:
        for x in arrays[1:]:
            b.store(arrays[0], [i], b.load(x, [i]))

    program = offload(parallel(arrays, 4, write))
    layout = ArgumentLayout.of(program, ALL)
    assert layout.size == 25
    assert not layout.inline


@pytest.mark.parametrize(
    ("function", "form", "pooled"),
    [
        (lambda: elementwise(OPS["add"], dt.f32), "grid", False),
        (lambda: _scratch(8), "grid", False),
        (lambda: _scratch(100_000), "resident", True),
        (lambda: _scratch(None), "resident", True),
        (lambda: serial([array(dt.f32, "y")], lambda b: None), None, False),
    ],
    ids=["loop", "small private memory", "large private memory", "private memory of run-time length", "nothing to do"],
)
def test_forms(function: object, form: str | None, pooled: bool) -> None:
    codes = emitted(function())  # type: ignore[operator]
    assert [(c.form, c.pooled) for c in codes] == ([(form, pooled)] if form else [])


def test_groups_follow_the_user_within_the_targets_limit() -> None:
    y = array(dt.f32, "y")
    for asked, group in ((None, 128), (32, 32), (4096, 128)):
        function = parallel([y], 64, lambda b, i: b.store(y, [i], b.const(dt.f32, 1)))
        if asked:
            function.body.nodes[-2].attrs["block_dim"] = asked
        (code,) = emitted(function)
        assert code.group == group
        assert f"LocalSize {group} 1 1" in disassemble(code.binary)


def test_strict_arithmetic_is_not_contracted() -> None:
    def words(fast: bool, exact: str | None = None) -> int:
        x, y = array(dt.f32, "x"), array(dt.f32, "y")

        def write(b: Builder, i: Value) -> None:
            b.exact = exact
            b.store(y, [i], b.emit("add", b.emit("mul", b.load(x, [i]), b.load(x, [i])), b.load(y, [i])))

        (code,) = emitted(parallel([x, y], 4, write), options=CompileOptions(fast_math=fast))
        return disassemble(code.binary).count("NoContraction")

    assert words(fast=True) == 0
    assert words(fast=False) == words(fast=True, exact="strict") == 2


def test_loads_pass_through_a_variable_and_stores_do_not() -> None:
    (code,) = emitted(elementwise(OPS["neg"], dt.f32))
    text = disassemble(code.binary)
    assert text.count("AliasedPointer") == 1
    assert text.count("OpConvertUToPtr") == 2


def _nested(length: str) -> Function:
    """Private memory in a loop in a branch, of a length that is read, counted by a loop, or returned by an atomic."""
    x, y = array(dt.i32, "x"), array(dt.i32, "y")

    def write(b: Builder, i: Value) -> None:
        zero, one = b.const(dt.i32, 0), b.const(dt.i32, 1)
        n = b.load(y if length == "written" else x, [i])
        if length == "atomic":
            n = b.atomic("add", x, [i], one)
        if length == "counted":
            with b.inside([(dt.i32, "c"), (dt.i32, "idle")], loop=True) as going:
                b.yield_(b.emit("lt", going.args[0], n))
            with b.inside([(dt.i32, "c"), (dt.i32, "idle")], loop=True) as step:
                b.yield_(b.emit("add", step.args[0], one), b.load(x, [step.args[0]]))
            n = b.while_([zero, zero], going, step)[0]
        with b.inside() as then:
            with b.inside([(dt.i32, "k"), (dt.i32, "sum")], loop=True) as body:
                memory = b.scratch(dt.i64, b.emit("add", n, body.args[0]))
                b.scratch_store(memory, zero, b.const(dt.i64, 7))
                b.yield_(b.emit("add", body.args[1], b.cast(b.scratch_load(memory, zero), dt.i32)))
            b.yield_(b.for_(zero, b.const(dt.i32, 4), [zero], body)[0])
        with b.inside() as otherwise:
            b.yield_(zero)
        (total,) = b.if_(b.emit("gt", n, one), then, otherwise)
        b.store(y, [i], total)

    return parallel([x, y], lambda b: b.extent(x, 0), write)


@pytest.mark.parametrize("length", ["read", "counted"])
def test_a_sizing_task_finds_the_largest_need(length: str) -> None:
    from dataclasses import replace

    program = offload(_nested(length))
    need = array(dt.i32, "need")
    sizing = sizing_task(program.tasks[0], need, 1)
    assert sizing is not None
    names = {n.op.name for n in walk(sizing.body)}
    assert not names & {"store", "scratch", "scratch_load", "scratch_store"}
    params = (*program.params, need)
    program = replace(program, params=params, tasks=(sizing,), writes=frozenset({2}), reads=frozenset({0, 1, 2}))
    found = np.zeros(2, np.int32)
    x = np.array([1, 0, 5, 2, -4], np.int32)
    interpret(program, {"x": x, "y": np.zeros(5, np.int32), "need": found})
    # The memory of a trip is given back at its end: the last of four trips needs 5 + 3 scalars of two slots.
    assert found.tolist() == [0, 16]


@pytest.mark.parametrize("length", ["atomic", "written"])
def test_there_is_no_sizing_task_where_the_task_decides_the_length(length: str) -> None:
    program = offload(_nested(length))
    assert sizing_task(program.tasks[0], array(dt.i32, "need"), 0) is None
    assert [c.sizing for c in emitted(_nested(length))] == [False]


def test_a_sizing_task_comes_first() -> None:
    assert [(c.entry, c.sizing, c.form) for c in emitted(_nested("read"))] == [
        (0, True, "grid"),
        (0, False, "resident"),
    ]


@pytest.mark.skipif(not HAS_TOOLS, reason="spirv-val is not installed (spirv-tools)")
@pytest.mark.parametrize("length", [8, 100_000, None])
@pytest.mark.parametrize("dtype", [dt.u1, dt.i8, dt.f16, dt.f32, dt.i64, dt.f64], ids=str)
def test_private_memory_is_valid(length: int | None, dtype: DType) -> None:
    for code in emitted(_scratch(length, dtype)):
        tool(["spirv-val", "--target-env", "vulkan1.2", "-"], code.binary)


# -- the remainder of reals
# ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [dt.f16, dt.f32, dt.f64], ids=str)
def test_remainder_is_exact(dtype: DType) -> None:
    """Long division on bits against the C library's: edge points, all orders of magnitude, subnormal numbers."""
    a, b = samples(OPS["raw_mod"], dtype, 400)
    y = np.zeros(len(a), dtype.numpy)
    x0, x1, out = array(dtype, "x0"), array(dtype, "x1"), array(dtype, "y")

    def write(builder: Builder, i: Value) -> None:
        builder.store(out, [i], remainder(builder, builder.load(x0, [i]), builder.load(x1, [i])))

    interpret(parallel([x0, x1, out], len(a), write), {"x0": a, "x1": b, "y": y})
    with np.errstate(all="ignore"):
        want = np.fmod(a, b)
    np.testing.assert_array_equal(y, want)
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(y[known]), np.signbit(want[known]))


def test_only_remainders_of_reals_are_expanded() -> None:
    whole = offload(elementwise(OPS["raw_mod"], dt.i32))
    assert expand_real_remainders(whole) is whole
    real = expand_real_remainders(offload(elementwise(OPS["raw_mod"], dt.f64)))
    assert not [n for n in real.tasks[0].body.nodes if n.op.name == "raw_mod"]


# -- totals and owned elements ----------------------------------------------------------------------------------------
def _total(kind: str, dtype: DType, place: str) -> Function:
    x, k, s = array(dtype, "x"), array(dt.i32, "k"), array(dtype, "s")

    def write(b: Builder, i: Value) -> None:
        at = {"fixed": b.const(dt.i32, 0), "own": i, "chosen": b.load(k, [i])}[place]
        b.atomic(kind, s, [at], b.load(x, [i]))

    return parallel([x, k, s], lambda b: b.extent(x, 0), write)


@pytest.mark.parametrize("kind", ["add", "min", "max"])
@pytest.mark.parametrize("dtype", [dt.i32, dt.u64, dt.f32, dt.f64], ids=str)
@pytest.mark.parametrize("shared", [0, 16384])
def test_a_total_is_one_atomic_a_group(kind: str, dtype: DType, shared: int) -> None:
    (code,) = emitted(_total(kind, dtype, "fixed"), replace(ALL, shared_nbytes=shared), ALONE)
    text = disassemble(code.binary)
    loop = text[text.index("OpLoopMerge") :]
    body = loop[: loop.index("OpReturn")]
    assert "OpFunctionCall" not in body[: body.index("OpIAdd %", body.index("OpULessThan"))]
    assert ("OpControlBarrier" in text) == bool(shared)
    if HAS_TOOLS:
        tool(["spirv-val", "--target-env", "vulkan1.2", "-"], code.binary)


@pytest.mark.parametrize(("place", "atomic"), [("own", False), ("chosen", True)])
def test_an_iterations_own_element_is_updated_plainly(place: str, atomic: bool) -> None:
    (code,) = emitted(_total("add", dt.i32, place), ALL, ALONE)
    assert ("OpAtomicIAdd" in disassemble(code.binary)) == atomic
