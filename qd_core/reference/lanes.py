"""The state of iterations that run together, and the values they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qd_core.errors import InvalidIRError
from qd_core.ir.fold import apply
from qd_core.ir.nodes import ArrayType, Node, Param, Region, Value
from qd_core.ir.program import Program, Task
from qd_core.ir.rewrite import operands_deep, walk
from qd_core.reference.memory import Memory, word_offsets

__all__ = ["Array", "Execute", "Lanes", "Mask", "Prepared"]

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
        self.log = program.log
        self.used: set[Value] = set()
        for task in program.tasks:
            for node in task.body.nodes:
                self.used.update(operands_deep(node))
        self.chunks = [_chunk(task) for task in program.tasks]


def _chunk(task: Task) -> int:
    if task.attrs.get("serialize"):
        return 1
    return CHUNK_WITH_SCRATCH if any(n.op.name == "scratch" for n in walk(task.body)) else CHUNK


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

    def __init__(
        self, prepared: Prepared, memory: Memory, execute: Mapping[str, Execute], linear: Array | None = None
    ) -> None:
        self.prepared, self.memory, self.execute, self.linear = prepared, memory, execute, linear
        self.count = 1 if linear is None else linear.size
        offsets = prepared.offsets
        self.env: dict[Value, Any] = {p: memory.scalar(p, offsets[p]) for p in prepared.scalars}

    def values(self, values: Sequence[Value]) -> list[Any]:
        """Return the present data of ``values``."""
        env = self.env
        return [env[v] for v in values]

    def active(self, mask: Mask) -> Array:
        """Return the numbers of the active lanes, ascending."""
        return np.arange(self.count) if mask is None else np.flatnonzero(mask)

    def spread(self, value: Array, lanes: Array) -> Array:
        """Return a value at ``lanes``: one entry a lane."""
        return np.full(lanes.size, value, value.dtype) if value.ndim == 0 else value[lanes]

    def array(self, value: Value) -> tuple[Param, Array]:
        """Return an array parameter and its view."""
        if not isinstance(value, Param):
            raise InvalidIRError(f"{value!r} is no array parameter")
        return value, self.memory.array(value, self.prepared.offsets[value])

    def region(self, region: Region, mask: Mask) -> list[Any]:
        """Execute a region and return what it yields."""
        env, table = self.env, self.execute
        for node in region.nodes[:-1]:
            execute = table.get(node.op.name)
            if execute is not None:
                execute(self, node, mask)
            else:
                env[node] = apply(node.op, tuple([env[v] for v in node.operands]), node.type)
        return [env[v] for v in region.yields]


Execute = Callable[[Lanes, Node, Mask], None]
