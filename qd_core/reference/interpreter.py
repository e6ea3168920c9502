"""Executes programs with NumPy: a task's iterations are the lanes of one array program.

A value is 0-dimensional while it is the same for all lanes (uniform) and 1-dimensional over the lanes where they may differ. Control
flow that lanes disagree on runs under a mask: both sides of an ``if``, each loop until its last lane has left. What a masked-off
lane's values are nobody can see: it neither touches memory nor writes messages, and results are merged by the mask.

Lanes of a chunk execute every operation together, chunks one after the other: one of the orders that parallel iterations may have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.errors import InvalidIRError
from qd_core.ir.convert import convert
from qd_core.ir.fold import apply
from qd_core.ir.nodes import ArrayType, Node, Param, Region, Value
from qd_core.ir.program import DeviceWord, Fixed, Program, Task
from qd_core.ir.rewrite import operands_deep, walk
from qd_core.reference.memory import Memory, word_offsets

__all__ = ["Interpreter", "Lanes", "Prepared"]

Array = np.ndarray[Any, Any]
Mask = Array | None
"""Truth value a lane; None: all lanes are active."""

CHUNK = 65536
"""Iterations executed together: bounds the memory of their values."""

CHUNK_WITH_SCRATCH = 4096
"""The same where iterations own memory of a length known at run time."""


class Prepared:
    """What is computed once a program: word offsets, values in use, chunk lengths.

    Parameters
    ----------
    program : Program
        A verified program.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.offsets = word_offsets(program.params)
        self.scalars = [p for p in program.params if not isinstance(p.type, ArrayType)]
        self.log = next((p for p in program.params if p.role.value == "log"), None)
        self.used: set[Value] = set()
        for task in program.tasks:
            for node in task.body.nodes:
                self.used.update(operands_deep(node))
        self.chunks = [_chunk(task) for task in program.tasks]


def _chunk(task: Task) -> int:
    if task.attrs.get("serialize"):
        return 1
    return CHUNK_WITH_SCRATCH if any(n.op.name == "scratch" for n in walk(task.body)) else CHUNK


class Interpreter:
    """One launch of a program.

    Parameters
    ----------
    prepared : Prepared
        The program.
    memory : Memory
        The launch's arguments.
    """

    def __init__(self, prepared: Prepared, memory: Memory) -> None:
        self.prepared, self.memory = prepared, memory

    def run(self, extents: Sequence[int]) -> None:
        """Execute all tasks in order.

        Parameters
        ----------
        extents : sequence of int
            One an axis of each task in order, as in `Launch.extents`; -1 where the program knows or an earlier task wrote it.

        Raises
        ------
        InterpreterError
            An index is outside its array.
        """
        given = iter(extents)
        with np.errstate(all="ignore"):
            for task, chunk in zip(self.prepared.program.tasks, self.prepared.chunks, strict=True):
                shape = tuple(self._extent(e, int(next(given))) for e in task.extents)
                self._task(task, shape, chunk)

    def _extent(self, extent: Any, given: int) -> int:
        if isinstance(extent, Fixed):
            return extent.count
        if isinstance(extent, DeviceWord):
            given = int(self.array(extent.param).reshape(-1)[extent.index])
        elif given < 0:
            raise InvalidIRError(f"{self.prepared.program.name}: the launch does not give an extent that the host computes")
        return max(given, 0)

    def _task(self, task: Task, shape: tuple[int, ...], chunk: int) -> None:
        if not shape:
            Lanes(self, None).region(task.body, None)
            return
        total = int(np.prod(shape, dtype=np.int64))
        for first in range(0, total, chunk):
            linear = np.arange(first, min(first + chunk, total), dtype=np.int64)
            lanes = Lanes(self, linear)
            for arg, index in zip(task.body.args, np.unravel_index(linear, shape), strict=True):
                lanes.env[arg] = index.astype(arg.type.numpy)
            lanes.region(task.body, None)

    def array(self, param: Param) -> Array:
        """Return the view of an array parameter."""
        return self.memory.array(param, self.prepared.offsets[param])


class Lanes:
    """The state of the iterations that run together.

    Attributes
    ----------
    count : int
        Number of lanes; 1 for serial code.
    linear : ndarray or None
        ``(count,) int64`` iteration numbers; None for serial code.
    env : dict
        Value of everything computed so far: uniform 0-D or ``(count,)`` arrays.
    """

    def __init__(self, machine: Interpreter, linear: Array | None) -> None:
        self.machine, self.linear = machine, linear
        self.count = 1 if linear is None else linear.size
        memory, offsets = machine.memory, machine.prepared.offsets
        self.env: dict[Value, Any] = {p: memory.scalar(p, offsets[p]) for p in machine.prepared.scalars}

    def values(self, values: Sequence[Value]) -> list[Any]:
        """Return the present data of ``values``."""
        env = self.env
        return [env[v] for v in values]

    def active(self, mask: Mask) -> Array:
        """Return the numbers of the active lanes, ascending."""
        return np.arange(self.count) if mask is None else np.flatnonzero(mask)

    def spread(self, value: Array, lanes: Array) -> Array:
        """Return a value at ``lanes``: one entry a lane."""
        return np.broadcast_to(value, (lanes.size,)) if value.ndim == 0 else value[lanes]

    def array(self, value: Value) -> tuple[Param, Array]:
        """Return an array parameter and its view."""
        if not isinstance(value, Param):
            raise InvalidIRError(f"{value!r} is no array parameter")
        return value, self.machine.array(value)

    def region(self, region: Region, mask: Mask) -> list[Any]:
        """Execute a region and return what it yields."""
        env = self.env
        for node in region.nodes[:-1]:
            execute = EXECUTE.get(node.op.name)
            if execute is not None:
                execute(self, node, mask)
            else:
                env[node] = apply(node.op, tuple([env[v] for v in node.operands]), node.type)
        return [env[v] for v in region.yields]


# -- values ---------------------------------------------------------------------------------------------------------
def _const(x: Lanes, node: Node, mask: Mask) -> None:
    x.env[node] = np.asarray(node.attrs["value"], node.type.numpy)


def _cast(x: Lanes, node: Node, mask: Mask) -> None:
    x.env[node] = convert(x.env[node.operands[0]], node.type)


def _bitcast(x: Lanes, node: Node, mask: Mask) -> None:
    x.env[node] = np.ascontiguousarray(x.env[node.operands[0]]).reshape(x.env[node.operands[0]].shape).view(node.type.numpy)


def _extent(x: Lanes, node: Node, mask: Mask) -> None:
    param, view = x.array(node.operands[0])
    x.env[node] = np.asarray(view.shape[node.attrs["axis"]], np.int32)


# -- control --------------------------------------------------------------------------------------------------------
def _if(x: Lanes, node: Node, mask: Mask) -> None:
    condition = x.env[node.operands[0]]
    if condition.ndim == 0:
        values = x.region(node.regions[0 if condition else 1], mask)
    else:
        then = condition if mask is None else condition & mask
        other = ~condition if mask is None else ~condition & mask
        sides = [x.region(r, m) if m.any() else None for r, m in zip(node.regions, (then, other), strict=True)]
        values = _merge(condition, *sides)
    x.env.update(zip(node.results, values, strict=True))


def _merge(condition: Array, then: list[Any] | None, other: list[Any] | None) -> list[Any]:
    """Values of an ``if`` whose sides may not have run because no lane took them."""
    if then is None or other is None:
        return then or other or []
    return [np.where(condition, a, b) for a, b in zip(then, other, strict=True)]


class _Loop:
    """Lanes that are still in a loop, and their carried values."""

    def __init__(self, mask: Mask, carried: list[Any]) -> None:
        self.mask, self.carried, self.partial = mask, carried, False

    def advance(self, values: list[Any]) -> None:
        """Take over a body's yields for the lanes that ran it; before any lane has left, for all at once."""
        self.carried = [np.where(self.mask, new, old) for new, old in zip(values, self.carried, strict=True)] if self.partial else values

    def stay(self, condition: Array) -> bool:
        """Keep the lanes where ``condition`` holds; whether any is left."""
        if condition.ndim == 0:
            return bool(condition)
        mask = condition if self.mask is None else condition & self.mask
        before = mask.size if self.mask is None else np.count_nonzero(self.mask)
        left = np.count_nonzero(mask)
        if left < before:
            self.mask, self.partial = mask, True
        return left > 0


def _for(x: Lanes, node: Node, mask: Mask) -> None:
    start, stop, *carried = x.values(node.operands)
    body, reverse, one = node.regions[0], node.attrs["reverse"], start.dtype.type(1)
    loop = _Loop(mask, carried)
    going = loop.stay(np.less(start, stop))
    index, last = (stop - one, start) if reverse else (start, stop - one)
    while going:
        x.env.update(zip(body.args, (np.asarray(index), *loop.carried), strict=True))
        values = x.region(body, loop.mask)
        going = values.pop() if node.attrs["breaks"] else None
        loop.advance(values)
        going = (going is None or loop.stay(going)) and loop.stay(np.asarray(index != last))
        index = index - one if reverse else index + one
    x.env.update(zip(node.results, loop.carried, strict=True))


def _while(x: Lanes, node: Node, mask: Mask) -> None:
    condition, body = node.regions
    loop = _Loop(mask, x.values(node.operands))
    while True:
        x.env.update(zip(condition.args, loop.carried, strict=True))
        (going,) = x.region(condition, loop.mask)
        if not loop.stay(going):
            break
        x.env.update(zip(body.args, loop.carried, strict=True))
        loop.advance(x.region(body, loop.mask))
    x.env.update(zip(node.results, loop.carried, strict=True))


def _parallel_for(x: Lanes, node: Node, mask: Mask) -> None:
    raise InvalidIRError("parallel_for inside a task", span=node.span)


EXECUTE: dict[str, Callable[[Lanes, Node, Mask], None]] = {
    "const": _const, "cast": _cast, "bitcast": _bitcast, "extent": _extent, "if": _if, "for": _for, "while": _while,
    "parallel_for": _parallel_for,
}  # fmt: skip
"""Execution of everything that has no NumPy meaning of its own; `effects` and `log` add theirs."""
