"""Entry points: where an iteration's indices come from.

=========  ==========================================================================================
form       invocations
=========  ==========================================================================================
serial     one
cover      at least one for every iteration, in up to two dimensions of groups
resident   a number that the runtime chooses; each takes every so-many-th iteration
sequence   one, which takes all iterations in order
=========  ==========================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.codegen.spirv import arithmetic, atomics, control, convert, messages, private
from qd_core.codegen.spirv.control import loop
from qd_core.codegen.spirv.emitter import Emitter
from qd_core.codegen.spirv.grammar import enum
from qd_core.codegen.spirv.layout import ArgumentLayout
from qd_core.codegen.spirv.memory import load_at
from qd_core.codegen.spirv.private import Pool, capacity, pool_slots, report
from qd_core.codegen.spirv.scratch import uses_pool
from qd_core.codegen.spirv.target import SpirvTarget
from qd_core.ir.nodes import Arg
from qd_core.ir.program import DeviceWord, Extent, Fixed, Program, Task

__all__ = ["HANDLER_MODULES", "Form", "TaskCode", "emit_task"]

HANDLER_MODULES = (arithmetic, atomics, control, convert, messages, private)
"""Modules that add their operations to `emitter.HANDLERS` when they are imported."""

Form = Literal["serial", "cover", "resident", "sequence"]


@dataclass(frozen=True, slots=True)
class TaskCode:
    """One compiled task: a module whose entry point is ``main``, its form, and the invocations of a group."""

    binary: bytes
    form: Form
    group: int
    pooled: bool


def emit_task(program: Program, number: int, target: SpirvTarget, options: CompileOptions) -> TaskCode:
    """Write the module of task ``number``.

    Raises
    ------
    UnsupportedError
        The target lacks a type or an atomic.
    """
    task = program.tasks[number]
    layout = ArgumentLayout.of(program, target)
    em = Emitter(program, task, target, options, layout)
    pooled = uses_pool(task.body)
    form, group = _form(task, target, pooled)
    em.module.mode("LocalSize", group, 1, 1)
    _Entry(em, task, first_extent(program, number), form, group, pooled).write()
    em.do("Return")
    return TaskCode(em.module.binary(), form, group, pooled)


def first_extent(program: Program, number: int) -> int:
    """Position of a task's first extent among all."""
    return sum(len(t.extents) for t in program.tasks[:number])


def _form(task: Task, target: SpirvTarget, pooled: bool) -> tuple[Form, int]:
    if not task.extents:
        return "serial", 1
    if task.attrs.get("serialize"):
        return "sequence", 1
    wanted = task.attrs.get("block_dim") or target.group
    group = max(min(int(wanted), target.max_group), 1)
    resident = pooled or any(isinstance(e, DeviceWord) for e in task.extents)
    return ("resident" if resident else "cover"), group


class _Entry:
    def __init__(self, em: Emitter, task: Task, first: int, form: Form, group: int, pooled: bool) -> None:
        self.em, self.task, self.first, self.form, self.group, self.pooled = em, task, first, form, group, pooled
        self.u64 = em.type(dt.u64)

    def write(self) -> None:
        """Write the whole function."""
        em = self.em
        if self.form == "serial":
            self.serial()
            return
        counts = [self.count(self.first + n, e) for n, e in enumerate(self.task.extents)]
        total = counts[0]
        for count in counts[1:]:
            total = em.op("IMul", self.u64, total, count)
        thread, threads = self.thread()
        if self.form == "cover":
            with em.when(em.op("ULessThan", em.bool, thread, total)):
                self.indexed(thread, counts, total)
            return
        start = thread
        if self.pooled:
            threads = self.share(thread, threads)
            start = em.op("Select", self.u64, em.op("ULessThan", em.bool, thread, threads), thread, total)

        def test(phis: list[int]) -> int:
            return em.op("ULessThan", em.bool, phis[0], total)

        def body(phis: list[int]) -> list[int]:
            self.indexed(phis[0], counts, total)
            return [em.op("IAdd", self.u64, phis[0], threads)]

        loop(em, [self.u64], [start], test, body)

    def serial(self) -> None:
        """Write the body for the one invocation."""
        em = self.em
        if not self.pooled:
            self.iteration(None)
            return
        threads = self.share(em.u64(0), em.u64(1))
        with em.when(em.op("INotEqual", em.bool, threads, em.u64(0))):
            self.iteration(None)

    def share(self, thread: int, threads: int) -> int:
        """Divide the pool among as many of ``threads`` as it has room for; return their number (u64)."""
        em = self.em
        slots, needed = pool_slots(em), capacity(em, self.task.body)
        if needed is None:
            own = em.op("UDiv", self.u64, slots, threads)
            em.pool = Pool(em, thread, threads, own, checked=True)
            return threads
        one = em.op("Select", self.u64, em.op("IEqual", em.bool, needed, em.u64(0)), em.u64(1), needed)
        room = em.op("UDiv", self.u64, slots, one)
        used = em.op("Select", self.u64, em.op("ULessThan", em.bool, room, threads), room, threads)
        with em.when(em.op("IEqual", em.bool, used, em.u64(0))):
            report(em, needed)
        em.pool = Pool(em, thread, used, needed, checked=False)
        return used

    # -- extents and threads
    # ----------------------------------------------------------------------------------------------
    def count(self, number: int, extent: Extent) -> int:
        """Iterations along an axis (u64)."""
        em = self.em
        if isinstance(extent, Fixed):
            return em.u64(extent.count)
        if not isinstance(extent, DeviceWord):
            return em.word(em.layout.extents + number)
        dtype = extent.param.type.dtype
        address = em.op("IAdd", self.u64, em.address(extent.param), em.u64(extent.index * dtype.nbytes))
        count = convert.cast(em, load_at(em, address, dtype), dtype, dt.i64)
        return em.op("Select", self.u64, em.op("SLessThan", em.bool, count, em.u64(0)), em.u64(0), count)

    def thread(self) -> tuple[int, int]:
        """Number of this invocation, and of all (u64)."""
        em = self.em
        (x, y), (groups_x, groups_y) = (self.builtin(n) for n in ("GlobalInvocationId", "NumWorkgroups"))
        row = em.op("IMul", self.u64, groups_x, em.u64(self.group))
        thread = em.op("IAdd", self.u64, em.op("IMul", self.u64, y, row), x)
        return thread, em.op("IMul", self.u64, row, groups_y)

    def builtin(self, name: str) -> tuple[int, int]:
        """First two components of an input (u64)."""
        em, m = self.em, self.em.module
        u32 = em.type(dt.u32)
        vector = m.type("Vector", u32, 3)
        variable = m.variable("Input", m.pointer("Input", vector))
        m.decorate(variable, "BuiltIn", enum("BuiltIn", name))
        value = em.op("Load", vector, variable)
        x, y = (em.op("UConvert", self.u64, em.op("CompositeExtract", u32, value, n)) for n in range(2))
        return x, y

    # -- indices
    # ----------------------------------------------------------------------------------------------------------
    def indexed(self, linear: int, counts: list[int], total: int) -> None:
        """Write the body for iteration ``linear``."""
        em, args = self.em, self.task.body.args
        em.linear = linear
        if len(args) == 1:
            em.env[args[0]] = self.index(linear, args[0])
        else:
            em.env.update(zip(args, self.unravel(linear, counts, total), strict=True))
        self.iteration(linear)

    def index(self, wide: int, arg: Arg) -> int:
        return wide if arg.type.bits == 64 else self.em.op("UConvert", self.em.type(arg.type), wide)

    def unravel(self, linear: int, counts: list[int], total: int) -> list[int]:
        """Indices of an N-dimensional box: by 32-bit divisions where the number of iterations allows, which all
        threads agree on.
        """
        em, args = self.em, self.task.body.args
        if all(isinstance(e, Fixed) for e in self.task.extents):
            product = 1
            for e in self.task.extents:
                product *= e.count  # type: ignore[union-attr]
            return self._divide(dt.u32 if product < 2**32 else dt.u64, linear, counts)
        narrow, wide, merge = em.label(), em.label(), em.label()
        small = em.op("ULessThan", em.bool, total, em.u64(2**32))
        em.do("SelectionMerge", merge, 0)
        em.choose(small, narrow, wide)
        ends: list[tuple[list[int], int]] = []
        for label, kind in ((narrow, dt.u32), (wide, dt.u64)):
            em.start(label)
            ends.append((self._divide(kind, linear, counts), em.block))
            em.jump(merge)
        em.start(merge)
        (a, a_end), (b, b_end) = ends
        return [em.op("Phi", em.type(arg.type), x, a_end, y, b_end) for arg, x, y in zip(args, a, b, strict=True)]

    def _divide(self, kind: dt.DType, linear: int, counts: list[int]) -> list[int]:
        em, args = self.em, self.task.body.args
        t = em.type(kind)

        def cut(x: int) -> int:
            return x if kind is dt.u64 else em.op("UConvert", t, x)

        rest, result = cut(linear), list[int]()
        for count in reversed(counts[1:]):
            divisor = cut(count)
            q = em.op("UDiv", t, rest, divisor)
            result.append(em.op("ISub", t, rest, em.op("IMul", t, q, divisor)))
            rest = q
        result.append(rest)
        pairs = zip(reversed(result), args, strict=True)
        return [x if kind.bits == a.type.bits else em.op("UConvert", em.type(a.type), x) for x, a in pairs]

    def iteration(self, linear: int | None) -> None:
        """Write the task's body once."""
        em = self.em
        em.linear = linear
        em.nodes(self.task.body)
