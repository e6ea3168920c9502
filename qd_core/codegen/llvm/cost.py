"""Estimates of what running a region costs: enough to choose chunk sizes, and between a branch and a select."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from qd_core import dtypes as dt
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Node, Region
from qd_core.ir.rewrite import walk

if TYPE_CHECKING:
    from qd_core.codegen.llvm.survey import Survey

__all__ = ["choose_lanes", "count_nodes", "cycles", "is_cheap", "is_open", "trips"]

_CYCLES = {
    "const": 0.0, "extent": 0.0, "load": 2.0, "store": 2.0, "atomic": 20.0, "scratch": 8.0,
    "div": 4.0, "sqrt": 6.0, "rsqrt": 8.0, "floordiv": 8.0, "mod": 8.0, "raw_div": 8.0, "raw_mod": 20.0,
    "print": 20.0, "yield": 0.0,
}  # fmt: skip
_TRIPS = 16.0
"""Iterations assumed of a serial loop whose bounds are not constants."""

_CHEAP_CYCLES = 12.0


def cycles(name: str) -> float:
    """Rough cycles of one scalar operation, its regions left aside."""
    return _CYCLES.get(name, 1.0)


def trips(node: Node) -> float:
    """How often the regions of a node run."""
    if node.op.name == "if":
        return 0.75
    if node.op.name != "for":
        return _TRIPS
    count = _constant_trips(node)
    return _TRIPS if count is None else float(max(count, 0))


def _constant_trips(loop: Node) -> int | None:
    start, stop = (constant_of(v) for v in loop.operands[:2])
    return None if start is None or stop is None else int(stop - start)


def is_open(region: Region) -> bool:
    """Whether a region holds a loop whose length is known only when it runs."""
    inner = (node for node in walk(region) if node.op.name in ("for", "while"))
    return any(node.op.name == "while" or _constant_trips(node) is None for node in inner)


def is_cheap(region: Region) -> bool:
    """Whether running a region for no lane costs less than asking whether there is one; only regions that touch no
    memory.
    """
    cost = 0.0
    for node in region.nodes[:-1]:
        if node.regions or not node.op.pure:
            return False
        cost += _CYCLES.get(node.op.name, 1.0)
    return cost <= _CHEAP_CYCLES


def count_nodes(region: Region) -> int:
    """Number of nodes, those of inner regions included."""
    return len(region.nodes) + sum(count_nodes(r) for n in region.nodes for r in n.regions)


_SMALL_LOOPS = 400
"""Nodes of a body whose values fit the registers twice."""

_SCATTER = 0.5
"""What an atomic that lanes do one by one costs more in a vector body, relative to its own cost."""

_GATHER = 1.0
"""What a load of elements that the data choose costs more in a vector body, relative to its own cost."""

_REDUCTION = 24
"""Nodes of a body that does little more than combine values into a total."""


def choose_lanes(
    body: Survey,
    lanes: int,
    divergent: bool,
    scattered: AbstractSet[Node],
    gathered: Sequence[Node] = (),
    totals: int = 0,
) -> int:
    """Return how many lanes a body gets on a target whose registers hold ``lanes`` 32-bit elements.

    An inner loop that carries values waits for its own results: two vectors in flight hide that (measured: 6.9 instead
    of 12.4 ms for a recurrence of a sine), unless lanes leave at different iterations. 64-bit reals fill two registers
    already; in long straight code one register of them is as fast, and half the code. A body that mostly gathers and
    scatters gains nothing from lanes (measured: 144 instead of 289 µs for the gradient of 16000 springs). One that
    little more than adds up waits for each addition unless four registers take turns (measured: 112 instead of 234 µs
    for a sum of 2e6 values).
    """
    apart = sum(body.atomics[n] for n in scattered) * (1 + _SCATTER)
    if scattered:
        apart += sum(body.loads[n] for n in gathered) * (1 + _GATHER)
    if apart > body.cycles * (1 - 1 / lanes):
        return 1
    if totals and body.nodes <= _REDUCTION and not body.loops:
        return 4 * lanes
    small = body.likely <= _SMALL_LOOPS
    if dt.f64 in body.types:
        return lanes if small or body.loops else max(lanes // 2, 1)
    return 2 * lanes if small and body.loops and not divergent else lanes
