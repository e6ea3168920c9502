"""Entry points: where an iteration's indices come from.

=========  ==========================================================================================
form       invocations
=========  ==========================================================================================
serial     one
sequence   one, which takes all iterations in order
grid       a number that the runtime chooses, at most one for every iteration; each takes every so-many-th
resident   the same, few enough to own memory, or without the number of iterations being known
=========  ==========================================================================================

An invocation that takes several iterations computes what they share once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.codegen.spirv import arithmetic, atomics, control, convert, messages, private
from qd_core.codegen.spirv.control import loop
from qd_core.codegen.spirv.emitter import Emitter
from qd_core.codegen.spirv.fault import report
from qd_core.codegen.spirv.grammar import enum
from qd_core.codegen.spirv.layout import NEED, ArgumentLayout
from qd_core.codegen.spirv.memory import load_at
from qd_core.codegen.spirv.private import Pool, capacity, is_shared_need, pool_slots
from qd_core.codegen.spirv.reductions import Totals
from qd_core.codegen.spirv.scratch import uses_pool
from qd_core.codegen.spirv.sizing import sizing_task
from qd_core.codegen.spirv.target import SpirvTarget
from qd_core.ir.nodes import Arg
from qd_core.ir.program import DeviceWord, Extent, Fixed, Program, Task

__all__ = ["HANDLER_MODULES", "Form", "TaskCode", "emit_task"]

HANDLER_MODULES = (arithmetic, atomics, control, convert, messages, private)
"""Modules that add their operations to `emitter.HANDLERS` when they are imported."""

Form = Literal["serial", "sequence", "grid", "resident"]

Share = Literal["computed", "measured", "guessed"]
"""Whence a task knows what an iteration needs of the pool: scalars and extents, a sizing task, or not at all."""


@dataclass(frozen=True, slots=True)
class TaskCode:
    """Code of one task: a module whose entry point is ``main``.

    Attributes
    ----------
    form, group : str, int
        How many invocations run, and how many of them make a group.
    entry : int
        Number of the task in the program.
    pooled : bool
        It uses the pool of private memory.
    sizing : bool
        It is no task itself, but finds out what the task needs of the pool; it runs first.
    """

    binary: bytes
    form: Form
    group: int
    entry: int
    pooled: bool = False
    sizing: bool = False


def emit_task(program: Program, number: int, target: SpirvTarget, options: CompileOptions) -> list[TaskCode]:
    """Write the modules of task ``number``: its own, after the one that sizes its private memory where there is one.

    Raises
    ------
    UnsupportedError
        The target lacks a type or an atomic.
    """
    task = program.tasks[number]
    pooled = uses_pool(task.body)
    sizing = sizing_task(task, NEED, number) if pooled and not is_shared_need(task.body) else None
    codes: list[TaskCode] = []
    if sizing is not None:
        codes.append(replace(_emit(program, number, sizing, target, options, None), sizing=True))
    share: Share | None = None
    if pooled:
        share = "measured" if sizing is not None else "computed" if is_shared_need(task.body) else "guessed"
    return [*codes, _emit(program, number, task, target, options, share)]


def _emit(
    program: Program, number: int, task: Task, target: SpirvTarget, options: CompileOptions, share: Share | None
) -> TaskCode:
    em = Emitter(program, task, target, options, ArgumentLayout.of(program, target))
    form, group = _form(task, target, share is not None)
    em.module.mode("LocalSize", group, 1, 1)
    _Entry(em, task, number, first_extent(program, number), form, group, share).write()
    em.do("Return")
    return TaskCode(em.module.binary(), form, group, number, share is not None)


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
    return ("resident" if resident else "grid"), group


class _Entry:
    def __init__(
        self, em: Emitter, task: Task, number: int, first: int, form: Form, group: int, share: Share | None
    ) -> None:
        self.em, self.task, self.number, self.first = em, task, number, first
        self.form, self.group, self.pooled_by = form, group, share
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
        start = thread
        if self.pooled_by:
            threads = self.share(thread, threads)
            start = em.op("Select", self.u64, em.op("ULessThan", em.bool, thread, threads), thread, total)

        totals = Totals(em, self.group, self.form != "sequence")

        def test(phis: list[int]) -> int:
            return em.op("ULessThan", em.bool, phis[0], total)

        def body(phis: list[int]) -> list[int]:
            self.indexed(phis[0], counts, total)
            return [em.op("IAdd", self.u64, phis[0], threads)]

        loop(em, [self.u64], [start], test, body)
        totals.close()

    def serial(self) -> None:
        """Write the body for the one invocation."""
        em = self.em
        if not self.pooled_by:
            self.iteration(None)
            return
        threads = self.share(em.u64(0), em.u64(1))
        with em.when(em.op("INotEqual", em.bool, threads, em.u64(0))):
            self.iteration(None)

    def share(self, thread: int, threads: int) -> int:
        """Divide the pool among as many of ``threads`` as it has room for; return their number (u64)."""
        em = self.em
        slots = pool_slots(em)
        if self.pooled_by == "guessed":
            own = em.op("UDiv", self.u64, slots, threads)
            em.pool = Pool(em, thread, threads, own, checked=True)
            return threads
        needed = capacity(em, self.task.body) if self.pooled_by == "computed" else self.measured()
        one = em.op("Select", self.u64, em.op("IEqual", em.bool, needed, em.u64(0)), em.u64(1), needed)
        room = em.op("UDiv", self.u64, slots, one)
        used = em.op("Select", self.u64, em.op("ULessThan", em.bool, room, threads), room, threads)
        with em.when(em.op("IEqual", em.bool, used, em.u64(0))):
            report(em, needed)
        # What was measured holds unless arrays overlap: a length that was read may have been overwritten since.
        em.pool = Pool(em, thread, used, needed, checked=self.pooled_by == "measured")
        return used

    def measured(self) -> int:
        """Slots (u64) that the sizing task found."""
        em = self.em
        address = em.op("IAdd", self.u64, em.address(NEED), em.u64(4 * self.number))
        return em.op("UConvert", self.u64, load_at(em, address, dt.u32))

    # -- extents and threads
    # ----------------------------------------------------------------------------------------------
    def count(self, number: int, extent: Extent) -> int:
        """Iterations along an axis (u64)."""
        em = self.em
        if isinstance(extent, Fixed):
            return em.u64(extent.count)
        if isinstance(extent, DeviceWord):
            dtype = extent.param.type.dtype
            address = em.op("IAdd", self.u64, em.address(extent.param), em.u64(extent.index * dtype.nbytes))
            count = convert.cast(em, load_at(em, address, dtype), dtype, dt.i64)
        else:
            count = em.word(em.layout.extents + number)
        return em.op("Select", self.u64, em.op("SLessThan", em.bool, count, em.u64(0)), em.u64(0), count)

    def thread(self) -> tuple[int, int]:
        """Number of this invocation, and of all (u64)."""
        em = self.em
        groups = self.builtin("NumWorkgroups")
        return self.builtin("GlobalInvocationId"), em.op("IMul", self.u64, groups, em.u64(self.group))

    def builtin(self, name: str) -> int:
        """First component of an input (u64)."""
        em, m = self.em, self.em.module
        u32 = em.type(dt.u32)
        vector = m.type("Vector", u32, 3)
        variable = m.variable("Input", m.pointer("Input", vector))
        m.decorate(variable, "BuiltIn", enum("BuiltIn", name))
        first = em.op("CompositeExtract", u32, em.op("Load", vector, variable), 0)
        return em.op("UConvert", self.u64, first)

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
