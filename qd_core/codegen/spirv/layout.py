"""Where a launch's words lie: the packed arguments, then the extents of all tasks, then what the runtime adds for
private memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from qd_core import dtypes as dt
from qd_core.codegen.spirv.scratch import uses_pool
from qd_core.codegen.spirv.target import SpirvTarget
from qd_core.ir.nodes import ArrayType, Param, Role
from qd_core.ir.program import Program

__all__ = ["NEED", "POOL_WORDS", "ArgumentLayout"]

POOL_WORDS = 4
"""Address of the pool of private memory, its length in 4-byte slots, the address of the word that tells of a fault, and
the address of `NEED`."""

NEED = Param(ArrayType(dt.i32, 1), "private.need", Role.RESIDUAL)
"""One element a task: slots that an iteration needs at most, where a sizing task finds that out."""


@dataclass(frozen=True, slots=True)
class ArgumentLayout:
    """Offsets in 64-bit words.

    Attributes
    ----------
    offsets : dict of Param to int
        First word of each parameter.
    extents : int
        First of the extents: one an axis of each task, in task order.
    pool : int or None
        First of the pool's words, where a task uses it or may report a fault.
    size : int
        Number of words in all.
    inline : bool
        The words are push constants; otherwise the address of a copy is the only one.
    """

    offsets: dict[Param, int]
    extents: int
    pool: int | None
    size: int
    inline: bool

    @staticmethod
    def of(program: Program, target: SpirvTarget) -> ArgumentLayout:
        """Lay out the words of ``program``."""
        offsets: dict[Param, int] = {}
        size = 0
        for param in program.params:
            offsets[param] = size
            size += 1 + 2 * param.type.ndim if isinstance(param.type, ArrayType) else 1
        extents = size
        size += sum(len(t.extents) for t in program.tasks)
        pool = None
        if target.loop_limit or any(uses_pool(t.body) for t in program.tasks):
            pool, size = size, size + POOL_WORDS
            offsets[NEED] = pool + 3
        return ArgumentLayout(offsets, extents, pool, size, size <= target.push_words)
