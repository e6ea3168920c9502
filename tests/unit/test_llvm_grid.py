"""Code for grids of threads, run on the host: every block and thread in turn, and compared with the reference.

Threads run one after the other, so what meets at barriers is tested with blocks of one thread.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.codegen.jit import process_jit
from qd_core.codegen.llvm import LlvmTarget, emit_module
from qd_core.codegen.llvm.grid import LAUNCH, GridFacts, GridForm, task_symbol
from qd_core.codegen.llvm.grid_split import splittable
from qd_core.codegen.llvm.grid_walk import LANES, LANES_OF_MANY_LOADS, lanes_of, share_of
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.program import DeviceWord, Program
from tests.unit.llvm_programs import EXACT, array, branch, loop, pack, program, run_reference, task

FACTS = GridFacts(
    convention="",
    thread="load i32, ptr @thread",
    block="load i32, ptr @block",
    block_size="load i32, ptr @block_size",
    grid_size="load i32, ptr @grid_size",
    barrier="call void @llvm.donothing()",
    shuffle="xor i32 {value}, {mask}",  # wrong on purpose: one thread has nobody to ask
    halves="call {{ i32, i32 }} @halves(i64 {0})",
    join="call i64 @join(i32 {0}, i32 {1})",
    subgroup=1,
    shared_space=0,
)
_HELPERS = """
@thread = external global i32
@block = external global i32
@block_size = external global i32
@grid_size = external global i32
define internal { i32, i32 } @halves(i64 %x) {
  %low = trunc i64 %x to i32
  %up = lshr i64 %x, 32
  %high = trunc i64 %up to i32
  %a = insertvalue { i32, i32 } poison, i32 %low, 0
  %b = insertvalue { i32, i32 } %a, i32 %high, 1
  ret { i32, i32 } %b
}
define internal i64 @join(i32 %low, i32 %high) {
  %a = zext i32 %low to i64
  %b = zext i32 %high to i64
  %c = shl i64 %b, 32
  %d = or i64 %a, %c
  ret i64 %d
}
"""


class Grid:
    """Compiled tasks of a program and the registers that their threads read."""

    def __init__(self, p: Program, options: CompileOptions) -> None:
        target = LlvmTarget("", "", GridForm(FACTS, inline=False))
        text = emit_module(p, target, options).replace(f"byval([{len(LAUNCH)} x i64]) align 8 ", "")
        self.registers = {name: ctypes.c_int32() for name in ("thread", "block", "block_size", "grid_size")}
        jit = process_jit()
        code = jit.compile(_HELPERS + text, vectorize=False, opt_level=2)
        names = [task_symbol(n) for n in range(len(p.tasks))]
        self.loaded = jit.load(code, names, {n: ctypes.addressof(r) for n, r in self.registers.items()})
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
        self.tasks = [kind(self.loaded[n]) for n in names]
        self.serial = [not t.extents or bool(t.attrs.get("serialize")) for t in p.tasks]

    def run(self, words: Any, extents: Sequence[int], grid: tuple[int, int], slots: int) -> int:
        """Run all tasks; return the fault word. Nothing outside the pool may be written."""
        pool = np.full(slots + 64, 0x5A5A5A5A, np.uint32)
        fault, ext, packed = np.zeros(1, np.uint64), np.array([*extents, 0], np.int64), np.array(words)
        launch = np.array([pool[32:].ctypes.data, slots, fault.ctypes.data], np.uint64)
        arguments = [a.ctypes.data for a in (packed, ext, launch)]
        for run, serial in zip(self.tasks, self.serial, strict=True):
            blocks, threads = (1, 1) if serial else grid
            self.registers["grid_size"].value, self.registers["block_size"].value = blocks, threads
            for block, thread in itertools.product(range(blocks), range(threads)):
                self.registers["block"].value, self.registers["thread"].value = block, thread
                run(*arguments)
        assert (pool[:32] == 0x5A5A5A5A).all()
        assert (pool[32 + slots :] == 0x5A5A5A5A).all()
        return int(fault[0])


def both(
    p: Program, values: Sequence[Any], extents: Sequence[int] = (), grid: tuple[int, int] = (3, 4), slots: int = 4096,
    options: CompileOptions = EXACT, exact: bool = True,
) -> int:  # fmt: skip
    """Run on the grid and the reference; assert equal outputs; return the fault word."""
    ours, theirs = ([v.copy() if isinstance(v, np.ndarray) else v for v in values] for _ in range(2))
    fault = Grid(p, options).run(pack(p.params, ours, lambda _, v: v.ctypes.data), extents, grid, slots)
    run_reference(p, theirs, extents)
    for param, a, b in zip(p.params, ours, theirs, strict=True):
        if isinstance(a, np.ndarray):
            compare = np.testing.assert_array_equal if exact else np.testing.assert_allclose
            compare(a, b, err_msg=param.path, **({} if exact else {"rtol": 1e-5}))
    return fault


def ramp(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Values that are all different and small."""
    return (np.arange(np.prod(shape)) % 251 / 8).astype(dtype).reshape(shape)


GRIDS = [(1, 1), (3, 4), (7, 64), (2, 256)]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("n", [0, 1, 5, 1023, 1024, 1025, 5000])
def test_one_axis(n: int, grid: tuple[int, int]) -> None:
    x, y = array("x", dt.f32), array("y", dt.f32)

    def body(b: Builder, i: Any) -> None:
        b.store(y, [i], b.emit("add", b.load(y, [i]), b.load(x, [i])))

    p = program([x, y], task([None], body))
    assert lanes_of(p.tasks[0]) == share_of(p.tasks[0]) == LANES
    both(p, [ramp(n), ramp(n)[::-1].copy()], [n], grid)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (0, 9), (9, 0), (2, 1500), (11, 513), (37, 31)])
@pytest.mark.parametrize("index", [dt.i32, dt.i64])
def test_two_axes(shape: tuple[int, int], grid: tuple[int, int], index: DType) -> None:
    x, y = array("x", dt.f32, 2), array("y", dt.f32, 2)

    def body(b: Builder, i: Any, j: Any) -> None:
        one = b.const(index, 1)
        a, c = b.emit("add", i, one), b.emit("add", j, one)
        near = [b.load(x, place) for place in ([a, c], [i, c], [a, j], [i, j])]
        total = b.emit("add", b.emit("add", near[0], near[1]), b.emit("sub", near[2], near[3]))
        b.store(y, [i, j], total)

    p = program([x, y], task([None, None], body, index))
    assert lanes_of(p.tasks[0]) == LANES_OF_MANY_LOADS
    both(p, [ramp(shape[0] + 1, shape[1] + 1), ramp(*shape)], shape, grid)


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 600, 2), (2, 3, 700), (4, 1, 1)])
def test_three_axes(shape: tuple[int, int, int]) -> None:
    y = array("y", dt.i32, 3)

    def body(b: Builder, i: Any, j: Any, k: Any) -> None:
        ten = b.const(dt.i32, 1000)
        b.store(y, [i, j, k], b.emit("add", b.emit("mul", b.emit("add", b.emit("mul", i, ten), j), ten), k))

    for grid in GRIDS:
        both(program([y], task([None, None, None], body)), [np.zeros(shape, np.int32)], shape, grid)


REDUCTIONS = [
    (d, kind)
    for d in dt.ALL
    for kind in (["add", "min", "max"] if d is not dt.u1 else []) + (["and", "or", "xor"] if not d.is_real else [])
]


@pytest.mark.parametrize(("dtype", "kind"), REDUCTIONS)
def test_totals(dtype: DType, kind: str) -> None:
    """Top-level, and in a branch that few iterations take."""
    x, s = array("x", dtype), array("s", dtype)

    def body(b: Builder, i: Any) -> None:
        value = b.load(x, [i])
        b.atomic(kind, s, [b.const(dt.i32, 0)], value)
        few = b.emit("lt", i, b.const(dt.i32, 3))

        def add() -> tuple[Any, ...]:
            b.atomic(kind, s, [b.const(dt.i32, 2)], value)
            return ()

        branch(b, few, add)

    data = (np.arange(50) % 7).astype(dtype.numpy)
    for n, blocks in itertools.product((0, 1, 50), (1, 8)):
        both(program([x, s], task([None], body)), [data, np.ones(4, dtype.numpy)], [n], (blocks, 1))


@pytest.mark.parametrize("dtype", [dt.i32, dt.u32, dt.f32, dt.i64])
@pytest.mark.parametrize("bins", [1, 40, 5000])
def test_bins(dtype: DType, bins: int) -> None:
    """Long launches count in shared memory, short ones and long arrays do not."""
    k, s = array("k", dt.i32), array("s", dtype)

    def body(b: Builder, i: Any) -> None:
        b.atomic("add", s, [b.load(k, [i])], b.const(dtype, 2))

    for n in (3, 3000):
        keys = (np.arange(n) * 7 % bins).astype(np.int32)
        both(program([k, s], task([None], body)), [keys, np.zeros(bins, dtype.numpy)], [n], (3, 1))


def test_old_values_are_returned() -> None:
    s, old = array("s", dt.i32), array("old", dt.i32)

    def body(b: Builder, i: Any) -> None:
        b.store(old, [i], b.atomic("add", s, [b.const(dt.i32, 0)], i))

    both(program([s, old], task([None], body)), [np.zeros(1, np.int32), np.zeros(9, np.int32)], [9], (1, 1))


def history(dtype: DType, length: Any) -> Any:
    """Body that fills private memory and reads it backwards; ``length(builder, i)``."""
    x = array("x", dtype)

    def body(b: Builder, i: Any) -> None:
        n = length(b, i)
        zero, one = b.const(dt.i32, 0), b.const(dt.i32, 1)
        memory = b.scratch(dtype, n)

        def fill(t: Any, value: Any) -> tuple[Any]:
            b.scratch_store(memory, t, value)
            return (b.emit("add", value, b.const(dtype, 1)),)

        loop(b, zero, n, [b.load(x, [i])], fill)

        def read(t: Any, total: Any) -> tuple[Any]:
            at = b.emit("sub", b.emit("sub", n, one), t)
            return (b.emit("sub", b.scratch_load(memory, at), total),)

        (total,) = loop(b, zero, n, [b.const(dtype, 0)], read)
        b.store(x, [i], total)

    return x, body


@pytest.mark.parametrize("dtype", [dt.i8, dt.u16, dt.f16, dt.i32, dt.f32, dt.i64, dt.f64])
@pytest.mark.parametrize("slots", [200, 4096])
def test_private_memory_of_known_length(dtype: DType, slots: int) -> None:
    """A small pool serves fewer threads, with the same result."""
    n = array("n", dt.i32)
    x, body = history(dtype, lambda b, _: b.extent(n, 0))
    for length in (0, 1, 70):
        values = [(np.arange(30) % 5).astype(dtype.numpy), np.zeros(length, np.int32)]
        assert both(program([x, n], task([None], body)), values, [30], (2, 8), slots) == 0


def test_private_memory_that_does_not_fit_is_reported() -> None:
    n = array("n", dt.i32)
    x, body = history(dt.f32, lambda b, _: b.extent(n, 0))
    values = [np.ones(4, np.float32), np.zeros(70, np.int32)]
    p = program([x, n], task([None], body))
    grid = Grid(p, EXACT)
    assert grid.run(pack(p.params, values, lambda _, v: v.ctypes.data), [4], (1, 4), 69) == 70
    assert (values[0] == 1).all()


def test_private_memory_of_unknown_length_stays_inside() -> None:
    x, body = history(dt.f64, lambda b, i: b.emit("mul", i, b.const(dt.i32, 5)))
    p = program([x], task([None], body))
    values = [np.ones(20)]
    assert both(p, values, [20], (1, 4), 4 * 2 * 95) == 0
    fault = Grid(p, EXACT).run(pack(p.params, values, lambda _, v: v.ctypes.data), [20], (1, 4), 4 * 2 * 60)
    assert fault > 2 * 60


def test_small_private_memory_is_local() -> None:
    x, body = history(dt.f32, lambda b, _: b.const(dt.i32, 8))
    assert both(program([x], task([None], body)), [ramp(40)], [40], (2, 8), 0) == 0


def row_sums() -> Program:
    x, y, n = array("x", dt.f32, 2), array("y", dt.f32), array("n", dt.i32)

    def body(b: Builder, i: Any) -> None:
        def add(j: Any, total: Any, count: Any) -> tuple[Any, Any]:
            return b.emit("add", total, b.load(x, [i, j])), b.emit("add", count, j)

        begin = b.load(y, [i])
        total, count = loop(b, b.const(dt.i32, 1), b.load(n, [i]), [begin, b.const(dt.i32, 0)], add)
        b.store(y, [i], total)
        b.store(n, [i], count)

    return program([x, y, n], task([None], body))


def test_what_threads_may_share() -> None:
    (body,) = (t.body for t in row_sums().tasks)
    assert splittable(body, fast=True) is not None
    assert splittable(body, fast=False) is None


def test_shared_sums_alone() -> None:
    """Too few threads to share: each iteration's loop is its thread's, in runs of four and a rest."""
    values = [ramp(40, 30), ramp(40), (np.arange(40) % 31).astype(np.int32)]
    fast = CompileOptions(fast_math=True)
    both(row_sums(), values, [40], (1, 4), options=fast, exact=False)
    shifted = np.zeros(40 * 30 + 1, np.float32)[1:].reshape(40, 30)  # not at a multiple of 16 bytes
    shifted[...] = values[0]
    both(row_sums(), [shifted, *values[1:]], [40], (1, 4), options=fast, exact=False)


def test_serial_tasks_and_device_extents() -> None:
    count, y = array("count", dt.i64), array("y", dt.i32)

    def first(b: Builder) -> None:
        b.store(count, [b.const(dt.i32, 0)], b.const(dt.i64, 13))

    def second(b: Builder, i: Any) -> None:
        b.store(y, [i], b.emit("add", i, b.const(dt.i32, 1)))

    p = program([count, y], task([], first), task([DeviceWord(count, 0)], second))
    both(p, [np.zeros(1, np.int64), np.zeros(20, np.int32)], [-1], (2, 4))


@pytest.mark.parametrize("dtype", [dt.i64, dt.u64])
@pytest.mark.parametrize("name", ["shl", "shr", "sar"])
def test_shifts_by_amounts_outside_the_width(name: str, dtype: DType) -> None:
    x, k, y = array("x", dtype), array("k", dtype), array("y", dtype)

    def body(b: Builder, i: Any) -> None:
        b.store(y, [i], b.emit(name, b.load(x, [i]), b.load(k, [i])))

    amounts = np.array([0, 1, 63, 64, 65, 2**32, 2**32 + 1, 2**63, 2**64 - 1], np.uint64).astype(dtype.numpy)
    values = [np.full(9, -5, np.int64).astype(dtype.numpy), amounts, np.zeros(9, dtype.numpy)]
    both(program([x, k, y], task([None], body)), values, [9])
