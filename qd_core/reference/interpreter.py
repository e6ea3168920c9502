"""Executes programs with NumPy: a task's iterations are the lanes of one array program.

A value is 0-dimensional while it is the same for all lanes (uniform) and 1-dimensional over the lanes where they may
differ. Control flow that lanes disagree on runs under a mask: both sides of an ``if``, each loop until its last lane
has left. What a masked-off lane's values are nobody can see: it neither touches memory nor writes messages, and
results are merged by the mask.

Lanes of a chunk execute every operation together, chunks one after the other: one of the orders that parallel
iterations may have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qd_core.errors import InvalidIRError
from qd_core.ir.nodes import Param
from qd_core.ir.program import DeviceWord, Fixed, Task
from qd_core.reference.control import CONTROL
from qd_core.reference.effects import EFFECTS
from qd_core.reference.lanes import Array, Execute, Lanes, Prepared
from qd_core.reference.log import MESSAGES
from qd_core.reference.memory import Memory

__all__ = ["Interpreter", "Prepared"]

EXECUTE = {**CONTROL, **EFFECTS, **MESSAGES}
"""Execution of every operation that has no NumPy meaning of its own."""


class Interpreter:
    """One launch of a program.

    Parameters
    ----------
    prepared : Prepared
        The program.
    memory : Memory
        The launch's arguments.
    execute : mapping, optional
        Execution of operations by name, for a device that watches them.
    """

    def __init__(self, prepared: Prepared, memory: Memory, execute: Mapping[str, Execute] = EXECUTE) -> None:
        self.prepared, self.memory, self.execute = prepared, memory, execute

    def run(self, extents: Sequence[int]) -> None:
        """Execute all tasks in order.

        Parameters
        ----------
        extents : sequence of int
            One an axis of each task in order, as in `Launch.extents`; -1 where the program knows or an earlier task
            wrote it.

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
            given = int(self._array(extent.param).reshape(-1)[extent.index])
        elif given < 0:
            raise InvalidIRError(
                f"{self.prepared.program.name}: the launch does not give an extent that the host computes"
            )
        return max(given, 0)

    def _task(self, task: Task, shape: tuple[int, ...], chunk: int) -> None:
        if not shape:
            Lanes(self.prepared, self.memory, self.execute).region(task.body, None)
            return
        total = int(np.prod(shape, dtype=np.int64))
        for first in range(0, total, chunk):
            linear = np.arange(first, min(first + chunk, total), dtype=np.int64)
            lanes = Lanes(self.prepared, self.memory, self.execute, linear)
            for arg, index in zip(task.body.args, np.unravel_index(linear, shape), strict=True):
                lanes.env[arg] = index.astype(arg.type.numpy)
            lanes.region(task.body, None)

    def _array(self, param: Param) -> Array:
        return self.memory.array(param, self.prepared.offsets[param])
