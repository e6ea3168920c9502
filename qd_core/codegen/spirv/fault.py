"""The word in which a kernel tells the runtime that it could not do what it was asked."""

from __future__ import annotations

from qd_core import dtypes as dt
from qd_core.codegen.spirv.emitter import Emitter

__all__ = ["LOOP_ENDED", "report"]

LOOP_ENDED = 1 << 62
"""The device ended a loop whose condition still held. Smaller numbers are slots of private memory that were needed."""

_ALIGNED = 2


def report(em: Emitter, number: int) -> None:
    """Write a number (u64) where the runtime looks for a fault."""
    assert em.layout.pool is not None
    u64 = em.type(dt.u64)
    em.do("Store", em.place(em.word(em.layout.pool + 2), u64), number, _ALIGNED, 8)
