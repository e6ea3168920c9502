"""Estimates of what running a region costs: enough to choose chunk sizes, and between a branch and a select."""

from __future__ import annotations

from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Node, Region

__all__ = ["count_nodes", "is_cheap", "region_cycles"]

_CYCLES = {
    "const": 0.0, "extent": 0.0, "load": 2.0, "store": 2.0, "atomic": 20.0, "scratch": 8.0, "scratch_load": 1.0, "scratch_store": 1.0,
    "div": 4.0, "sqrt": 6.0, "rsqrt": 8.0, "floordiv": 8.0, "mod": 8.0, "raw_div": 8.0, "raw_mod": 20.0, "check": 1.0, "print": 20.0, "yield": 0.0,
}  # fmt: skip
_TRIPS = 16.0
"""Iterations assumed of a serial loop whose bounds are not constants."""

_CHEAP_CYCLES = 12.0


def region_cycles(region: Region) -> float:
    """Rough cycles of one scalar run of a region."""
    return sum(_node_cycles(n) for n in region.nodes)


def _node_cycles(node: Node) -> float:
    if not node.regions:
        return _CYCLES.get(node.op.name, 1.0)
    inner = sum(region_cycles(r) for r in node.regions)
    return inner * _trips(node) + 1.0


def _trips(node: Node) -> float:
    if node.op.name == "if":
        return 0.75
    if node.op.name != "for":
        return _TRIPS
    start, stop = (constant_of(v) for v in node.operands[:2])
    return float(max(stop - start, 0)) if start is not None and stop is not None else _TRIPS


def is_cheap(region: Region) -> bool:
    """Whether running a region for no lane costs less than asking whether there is one; only regions that touch no memory."""
    cost = 0.0
    for node in region.nodes[:-1]:
        if node.regions or not node.op.pure:
            return False
        cost += _CYCLES.get(node.op.name, 1.0)
    return cost <= _CHEAP_CYCLES


def count_nodes(region: Region) -> int:
    """Number of nodes, those of inner regions included."""
    return len(region.nodes) + sum(count_nodes(r) for n in region.nodes for r in n.regions)
