"""Entry points for processors that run a grid of threads: one function a task, every thread a strided share of the
iterations.

A task is a kernel with three parameters by value: the words of the arguments, all extents, and what the launcher adds
(`LAUNCH`). The grid is as large as the device holds at once; threads step through the iterations, so that indices of
several axes are split by divisions once and advanced by additions with carry. What all iterations add to one element is
summed in registers, then over the block, and reaches memory once a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from qd_core.codegen.llvm import approximate, grid_atomics, grid_scratch, grid_shifts, grid_split
from qd_core.codegen.llvm.emitter import Emitter
from qd_core.codegen.llvm.grid_state import GridState
from qd_core.codegen.llvm.grid_walk import Walk, lanes_of
from qd_core.codegen.llvm.module import ModuleWriter
from qd_core.codegen.llvm.target import TaskForm
from qd_core.errors import InvalidIRError
from qd_core.ir.program import Task

__all__ = ["BLOCK", "LAUNCH", "GridFacts", "GridForm", "task_symbol"]

BLOCK = 256
"""Threads of a full block."""

LAUNCH = ("pool", "pool_slots", "fault")
"""Words that the launcher adds: address and length (in 4-byte slots) of the memory for `scratch`, and the address of a
word for the slots that a thread lacked."""


@dataclass(frozen=True, eq=False)
class GridFacts:
    """What a vendor contributes, as text of LLVM IR.

    Parameters
    ----------
    convention : str
        Calling convention of a kernel.
    thread, block, block_size, grid_size : str
        Calls that give i32: number in the block, number of the block, threads a block, blocks.
    barrier : str
        Call that waits for all threads of the block.
    shuffle : str
        Call with ``{mask}`` (lanes that take part), ``{value}`` (i32) and ``{delta}`` that gives the value of the lane
        ``delta`` further.
    halves, join : str
        Calls that take an i64 apart into ``{ i32, i32 }``, the low half first, and put it together from ``{0}``,
        ``{1}``.
    subgroup : int
        Lanes that move together.
    shared_space : int
        Address space of memory that a block shares.
    block_scope : str
        Synchronisation scope of a block, for atomics on shared memory.
    fast : mapping
        Calls by ``"operation.type"`` (``"rsqrt.f32"``) with ``{0}``, ``{1}`` for operands: faster functions with an
        error of at most 2 ulp over the whole range.
    add_pair : str
        Instruction with ``{pointer}``, ``{a}`` and ``{b}`` that atomically adds to two neighbouring f32; empty where
        there is none.
    """

    convention: str
    thread: str
    block: str
    block_size: str
    grid_size: str
    barrier: str
    shuffle: str
    halves: str
    join: str
    subgroup: int = 32
    shared_space: int = 3
    block_scope: str = ""
    fast: Mapping[str, str] = field(default_factory=dict[str, str])
    add_pair: str = ""


def task_symbol(number: int) -> str:
    """Name of the kernel of a task."""
    return f"task_{number}"


@dataclass(frozen=True, eq=False)
class GridForm(TaskForm):
    """One kernel a task.

    Parameters
    ----------
    facts : GridFacts
        The vendor's part.
    inline : bool
        Words and extents are parameters by value; otherwise addresses of arrays in global memory.
    """

    facts: GridFacts
    inline: bool = True
    handlers = MappingProxyType(
        {
            **grid_scratch.HANDLERS,
            **grid_atomics.HANDLERS,
            **approximate.HANDLERS,
            **grid_shifts.HANDLERS,
            **grid_split.HANDLERS,
        }
    )

    def task(self, module: ModuleWriter, number: int, task: Task) -> None:
        """Write one kernel."""
        parallel = bool(task.extents) and not task.attrs.get("serialize")
        em = module.emitter(lanes_of(task) if parallel else 1)
        em.prepare(module.survey(task), None)
        if parallel:
            em.owned = module.ownership(task).owned
        state = em.known[GridState] = GridState(self.facts, number, parallel)
        em.jump("begin")
        em.start("begin")
        Walk(em, state, task, sum(len(t.extents) for t in module.program.tasks[:number])).write()
        em.line("ret void")
        head = f"define {self.facts.convention} void @{task_symbol(number)}({self._parameters(module)})"
        body = "\n".join([f"{head} {module.attributes} {{", "entry:", *em.entry, *em.lines, "}"])
        module.functions.append("\n".join([*state.globals, body]))

    def _parameters(self, module: ModuleWriter) -> str:
        axes = sum(len(t.extents) for t in module.program.tasks)
        by_value = "ptr noalias readonly byval([{} x i64]) align 8 {}"
        launch = by_value.format(len(LAUNCH), "%launch")
        if not self.inline:
            return f"ptr noalias readonly %words, ptr noalias readonly %extents, {launch}"
        words = max(module.words, 1)
        return ", ".join([by_value.format(words, "%words"), by_value.format(max(axes, 1), "%extents"), launch])

    def finish(self, module: ModuleWriter) -> None:
        """Nothing to add: the launcher runs the tasks in order."""

    def allocate(self, emitter: Emitter, nbytes: str) -> str:
        """Private memory has writers of its own here."""
        raise InvalidIRError("private memory on a grid is reserved by slots")
