"""From a launch to what a grid of threads is told: its block of arguments, and how many groups run each task.

For devices whose launches name groups and not threads, whose code takes one block of words.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from qd_core.backend.contract import Artifact

__all__ = ["GroupLimits", "argument_block"]


class _Task(Protocol):
    @property
    def form(self) -> str:
        """``"grid"``, ``"serial"``, ``"sequence"``, or any that keeps its threads resident."""
        ...

    @property
    def group(self) -> int:
        """Threads of a group."""
        ...

    @property
    def entry(self) -> int:
        """Number of the artifact's task that it belongs to."""
        ...


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Most groups of a task, and of one whose threads stay resident: the device knows its number of iterations, or it
    needs private memory.
    """

    grid: int
    resident: int

    def groups(self, form: str, group: int, extents: Sequence[int]) -> int:
        """Groups of one task; a negative extent of a resident one is a word that an earlier task writes."""
        known = [max(n, 0) for n in extents] if form == "grid" else [n for n in extents if n >= 0]
        total = math.prod(known)
        if total == 0:
            return 0
        if form in ("serial", "sequence"):
            return 1
        limit = self.grid if form == "grid" else self.resident
        return limit if len(known) < len(extents) else min(-(-total // group), limit)

    def grids(self, artifact: Artifact, tasks: Sequence[_Task], extents: Sequence[int]) -> list[int]:
        """Return the number of groups of each of ``tasks``; 0 where there is nothing to do."""
        ends = list(itertools.accumulate(e.axes for e in artifact.tasks))
        own = [extents[end - e.axes : end] for end, e in zip(ends, artifact.tasks, strict=True)]
        return [self.groups(task.form, task.group, own[task.entry]) for task in tasks]


def argument_block(words: bytes, count: int, extents: Sequence[int], axes: int, pool: bytes) -> bytes:
    """Return the block of one launch: ``count`` of core's words, the extents of ``axes``, the pool's words."""
    return words[: 8 * count] + struct.pack(f"<{axes}q", *extents) + pool
