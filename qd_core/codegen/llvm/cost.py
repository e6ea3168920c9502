"""Estimates of what running a region costs: enough to choose chunk sizes, and between a branch and a select."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from qd_core import dtypes as dt
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Node, Region
from qd_core.ir.rewrite import walk

__all__ = ["choose_lanes", "count_nodes", "has_loop", "is_cheap", "is_open", "region_cycles"]

_CYCLES = {
    "const": 0.0, "extent": 0.0, "load": 2.0, "store": 2.0, "atomic": 20.0, "scratch": 8.0,
    "div": 4.0, "sqrt": 6.0, "rsqrt": 8.0, "floordiv": 8.0, "mod": 8.0, "raw_div": 8.0, "raw_mod": 20.0,
    "print": 20.0, "yield": 0.0,
}  # fmt: skip
_TRIPS = 16.0
"""Iterations assumed of a serial loop whose bounds are not constants."""

_CHEAP_CYCLES = 12.0


def region_cycles(region: Region, only: AbstractSet[Node] | None = None) -> float:
    """Rough cycles of one scalar run of a region, or what the nodes in ``only`` take of them."""
    return sum(_node_cycles(n, only) for n in region.nodes)


def _node_cycles(node: Node, only: AbstractSet[Node] | None) -> float:
    if node.regions:
        return sum(region_cycles(r, only) for r in node.regions) * _trips(node) + 1.0
    return _CYCLES.get(node.op.name, 1.0) if only is None or node in only else 0.0


def _trips(node: Node) -> float:
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


def has_loop(region: Region) -> bool:
    """Whether a region holds a serial loop, at any depth."""
    return any(n.op.name in ("for", "while") or any(has_loop(r) for r in n.regions) for n in region.nodes if n.regions)


_SMALL_LOOPS = 400
"""Nodes of a body whose values fit the registers twice."""


def _likely_nodes(region: Region) -> float:
    """Number of nodes, those of conditional regions at half: rare cases of elementary functions are long."""
    return sum(1 + sum(map(_likely_nodes, n.regions)) * (0.5 if n.op.name == "if" else 1) for n in region.nodes)


_SCATTER = 0.5
"""What an atomic that lanes do one by one costs more in a vector body, relative to its own cost."""


def choose_lanes(region: Region, lanes: int, divergent: bool, scattered: AbstractSet[Node]) -> int:
    """Return how many lanes a body gets on a target whose registers hold ``lanes`` 32-bit elements.

    An inner loop that carries values waits for its own results: two vectors in flight hide that (measured: 6.9 instead
    of 12.4 ms for a recurrence of a sine), unless lanes leave at different iterations. 64-bit reals fill two registers
    already; in long straight code one register of them is as fast, and half the code. A body that mostly scatters gains
    nothing from lanes.
    """
    apart = region_cycles(region, scattered)
    if apart * (1 + _SCATTER) > region_cycles(region) * (1 - 1 / lanes):
        return 1
    small, loops = _likely_nodes(region) <= _SMALL_LOOPS, has_loop(region)
    if any(node.type is dt.f64 for node in walk(region)):
        return lanes if small or loops else max(lanes // 2, 1)
    return 2 * lanes if small and loops and not divergent else lanes
