"""Long loops in blocks: the memory that recording takes stays within a budget.

A loop of n trips is cut into blocks of S. A sweep stores the carried values at the start of every block, and records
trips in S slots, so that at its end the last block is recorded. The reversed loop goes over the blocks, last first, and
sweeps each of the others again before it reverses its trips. Memory is S + n/S slots; at most one more execution of the
loop. S is the whole loop while that fits the budget, and at least √n.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from qd_core import dtypes as dt
from qd_core.ir.build import Builder, constant_of
from qd_core.ir.nodes import Node, Value

__all__ = ["RESIDUAL_BYTES", "Blocks", "trips", "whole"]

RESIDUAL_BYTES = 32768
"""Default budget of an iteration for what it records in one loop."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a loop over ``[low, high)`` is cut.

    Attributes
    ----------
    low, high : Value
        Bounds of the loop.
    size, count : Value
        Trips of a block (at least 1) and number of blocks, in the type of the index.
    downward : bool
        Whether the primal runs from ``high`` to ``low``.
    states : dict of Value to Node
        Private memory for each carried argument, one slot a block.
    """

    low: Value
    high: Value
    size: Value
    count: Value
    downward: bool
    states: dict[Value, Node] = field(default_factory=dict[Value, Node])

    @staticmethod
    def cut(b: Builder, low: Value, high: Value, downward: bool, limit: int) -> Blocks:
        """Cut a loop so that a block has at most ``limit`` trips, or √n if that is more."""
        n = trips(b, low, high)
        one = b.const(dt.i64, 1)
        root = b.emit("add", b.cast(b.emit("sqrt", b.cast(n, dt.f32)), dt.i64), one)
        size = b.emit("max", b.emit("min", n, b.emit("max", root, b.const(dt.i64, limit))), one)
        count = b.emit("raw_div", b.emit("sub", b.emit("add", n, size), one), size)
        return Blocks(low, high, b.cast(size, low.type), b.cast(count, low.type), downward)

    def range(self, b: Builder, block: Value) -> tuple[Value, Value]:
        """First index of a block and the one after its last."""
        first = b.emit("add", self.low, b.emit("mul", block, self.size))
        left = b.emit("sub", b.cast(self.high, dt.i64), b.cast(first, dt.i64))
        return first, b.emit("add", first, b.cast(b.emit("min", b.cast(self.size, dt.i64), left), first.type))

    def recorded_last(self, b: Builder, block: Value) -> Value:
        """Whether the sweep left the trips of ``block`` recorded: it was the last one."""
        zero = b.const(block.type, 0)
        last = zero if self.downward else b.emit("sub", self.count, b.const(block.type, 1))
        return b.emit("eq", block, last)


def trips(b: Builder, low: Value, high: Value) -> Value:
    """Number of trips as i64."""
    length = b.emit("sub", b.cast(high, dt.i64), b.cast(low, dt.i64))
    return b.emit("max", length, b.const(dt.i64, 0))


def whole(b: Builder, low: Value, high: Value, limit: int) -> bool:
    """Whether the loop is known to have at most ``limit`` trips when it is compiled."""
    known = constant_of(trips(b, low, high))
    return known is not None and int(known) <= limit
