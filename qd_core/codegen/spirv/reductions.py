"""Atomics that need not be atomic (`Ownership` says which): plain updates of an iteration's own elements, and totals.

A *total* is one element that all iterations combine into. Each invocation combines into a variable; where the target
has memory that a group shares, the group combines its invocations' values, and one atomic a group updates the element.
Besides being faster by far, it rounds less: an element that is large against what is added to it loses nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from qd_core import dtypes as dt
from qd_core.codegen.llvm.ownership import Ownership
from qd_core.codegen.llvm.survey import Survey
from qd_core.codegen.spirv.arithmetic import combine
from qd_core.codegen.spirv.atomics import update
from qd_core.codegen.spirv.emitter import HANDLERS, Emitter
from qd_core.codegen.spirv.grammar import enum
from qd_core.dtypes import DType
from qd_core.ir.nodes import Node, Param, Value, indices_of

__all__ = ["Totals"]

_GROUP = 2
_ORDERED = 0x8 | 0x100
"""Scope of a barrier and of what it orders; acquire, release and the memory that a group shares."""

_TYPES = (dt.i32, dt.u32, dt.i64, dt.u64, dt.f32, dt.f64)


@dataclass(frozen=True, slots=True)
class _Total:
    """One element: an atomic that stands for all on it, and the variable of this invocation."""

    node: Node
    variable: int

    @property
    def dtype(self) -> DType:
        return self.node.type

    @property
    def kind(self) -> str:
        return str(self.node.attrs["kind"])


class Totals:
    """Writes what a task does about its totals before and after its iterations.

    Parameters
    ----------
    em : Emitter
        Of the task; its `owned` and `totals` are filled.
    group : int
        Invocations in a group.
    parallel : bool
        There are several invocations; a single one updates memory at each atomic.
    """

    def __init__(self, em: Emitter, group: int, parallel: bool) -> None:
        self.em, self.group = em, group
        body = em.task.body
        found = Ownership(Survey(body), body.args, "no_overlap" in em.options.variant.guards)
        em.owned = found.owned
        self.totals: list[_Total] = []
        for nodes in found.totals.values() if parallel else ():
            if nodes[0].type in _TYPES:
                self._open(nodes)

    def _open(self, nodes: list[Node]) -> None:
        em, m, node = self.em, self.em.module, nodes[0]
        variable = m.variable("Function", m.pointer("Function", em.type(node.type)))
        em.do("Store", variable, em.const(node.type, _identity(node.attrs["kind"], node.type)))
        em.totals.update(dict.fromkeys(nodes, variable))
        self.totals.append(_Total(node, variable))

    def close(self) -> None:
        """Bring what was combined to memory; all invocations must come here."""
        em = self.em
        shared = em.target.shared_nbytes >= 12 * self.group and self.group > 1  # a word of each width an invocation
        for total in self.totals:
            value = em.op("Load", em.type(total.dtype), total.variable)
            if shared:
                local = self._local()
                value = self._combined(total, value, local)
                with em.when(em.op("IEqual", em.bool, local, em.u32(0))):
                    self._update(total, value)
            else:
                self._update(total, value)

    def _update(self, total: _Total, value: int) -> None:
        """Update the element, unless no iteration had anything for it: then its indices may name no element."""
        em, node = self.em, total.node
        with em.when(self._changes(total, value)), em.scope():
            for index in indices_of(node):
                _define(em, index)
            update(em, node, value)

    def _changes(self, total: _Total, value: int) -> int:
        em, d = self.em, total.dtype
        if total.kind in ("min", "max") and d.is_real:  # NaN changes nothing
            return em.op("FOrdEqual", em.bool, value, value)
        word = em.type(dt.u64 if d.bits == 64 else dt.u32)
        neutral = em.const(d, _identity(total.kind, d))
        if d.is_real:
            value, neutral = (em.op("Bitcast", word, v) for v in (value, neutral))
        return em.op("INotEqual", em.bool, value, neutral)

    def _combined(self, total: _Total, value: int, local: int) -> int:
        """Combine the values of a group: some invocations a share of them each, then the first one theirs.

        Two barriers and about two square roots of the group's size of steps: barriers are dear on processors.
        """
        em, d, u32 = self.em, total.dtype, self.em.type(dt.u32)
        parts = 1 << (max(self.group - 1, 1).bit_length() + 1) // 2
        self._put(d, local, value)
        self._barrier()
        with em.when(em.op("ULessThan", em.bool, local, em.u32(min(parts, self.group)))):
            share = value
            for first in range(parts, self.group, parts):
                share = combine(em, total.kind, d, share, self._other(total, em.op("IAdd", u32, local, em.u32(first))))
            self._put(d, local, share)
        self._barrier()
        result = self._take(d, em.u32(0))
        for n in range(1, min(parts, self.group)):
            result = combine(em, total.kind, d, result, self._take(d, em.u32(n)))
        self._barrier()  # the next total uses the same memory
        return result

    def _other(self, total: _Total, index: int) -> int:
        """Value of another invocation; neutral where there is none of that number."""
        em, d = self.em, total.dtype
        if self.group & (self.group - 1) == 0:
            return self._take(d, index)
        inside = em.op("ULessThan", em.bool, index, em.u32(self.group))
        found = self._take(d, em.op("Select", em.type(dt.u32), inside, index, em.u32(0)))
        return em.op("Select", em.type(d), inside, found, em.const(d, _identity(total.kind, d)))

    # -- memory of a group --------------------------------------------------------------------------------------------
    def _barrier(self) -> None:
        em = self.em
        em.do("ControlBarrier", em.u32(_GROUP), em.u32(_GROUP), em.u32(_ORDERED))

    def _place(self, dtype: DType, index: int) -> tuple[int, int]:
        """Return the type of the word of an invocation, and a pointer to it."""
        em, m = self.em, self.em.module
        word = em.type(dt.u64 if dtype.bits == 64 else dt.u32)

        def declare() -> int:
            words = m.type("Array", word, em.u32(self.group))
            return m.variable("Workgroup", m.pointer("Workgroup", words))

        memory = em.shared(("group", word), declare)
        return word, em.op("AccessChain", m.pointer("Workgroup", word), memory, index)

    def _put(self, dtype: DType, index: int, value: int) -> None:
        em = self.em
        word, place = self._place(dtype, index)
        em.do("Store", place, em.op("Bitcast", word, value) if dtype.is_real else value)

    def _take(self, dtype: DType, index: int) -> int:
        em = self.em
        word, place = self._place(dtype, index)
        raw = em.op("Load", word, place)
        return em.op("Bitcast", em.type(dtype), raw) if dtype.is_real else raw

    def _local(self) -> int:
        """Number of the invocation in its group (u32)."""
        em, m = self.em, self.em.module
        u32 = em.type(dt.u32)

        def declare() -> int:
            variable = m.variable("Input", m.pointer("Input", u32))
            m.decorate(variable, "BuiltIn", enum("BuiltIn", "LocalInvocationIndex"))
            return em.op("Load", u32, variable)

        return em.shared("local", declare)


def _identity(kind: str, d: DType) -> Any:
    """Value that changes nothing when combined."""
    if kind in ("min", "max"):
        if d.is_real:  # NaN loses against every number, and leaves a NaN alone
            return math.nan
        return d.max if kind == "min" else d.min
    if kind == "and":
        return -1
    return -0.0 if d.is_real else 0


def _define(em: Emitter, value: Value) -> None:
    """Write an index again: the body's own does not dominate the end."""
    if isinstance(value, Node):
        for operand in value.operands:
            if not isinstance(operand, Param):
                _define(em, operand)
        HANDLERS[value.op.name](em, value)
