"""What there is in the body of a task: one walk answers all questions that choices of code hang on."""

from __future__ import annotations

from qd_core.codegen.llvm.cost import cycles, trips
from qd_core.ir.nodes import Node, Region, Value

__all__ = ["Survey"]

_ACCESSES = frozenset({"load", "store", "atomic"})


class Survey:
    """Facts about a body, inner regions included.

    Attributes
    ----------
    ops : set of str
        Names of its operations.
    types : set
        Types of its results.
    used : set of Value
        Values that something uses.
    accesses : list of Node
        Loads, stores and atomics of arrays, in order.
    cycles : float
        Rough cycles of one scalar run.
    atomics, loads : dict of Node to float
        Cycles that each atomic, and each load, takes of them.
    nodes : int
        Number of nodes.
    likely : float
        Number of nodes, those of conditional regions at half: rare cases of elementary functions are long.
    """

    __slots__ = ("accesses", "atomics", "cycles", "likely", "loads", "nodes", "ops", "types", "used")

    def __init__(self, body: Region) -> None:
        self.ops: set[str] = set()
        self.types: set[object] = set()
        self.used: set[Value] = set()
        self.accesses: list[Node] = []
        self.atomics: dict[Node, float] = {}
        self.loads: dict[Node, float] = {}
        self.cycles, self.likely, self.nodes = 0.0, 0.0, 0
        self._region(body, 1.0, 1.0)

    @property
    def loops(self) -> bool:
        """Whether it holds a serial loop."""
        return "for" in self.ops or "while" in self.ops

    def _region(self, region: Region, runs: float, share: float) -> None:
        ops, types, used = self.ops, self.types, self.used
        total = 0.0
        for node in region.nodes:
            name = node.op.name
            ops.add(name)
            types.add(node.type)
            used.update(node.operands)
            total += cycles(name)
            if name in _ACCESSES:
                self.accesses.append(node)
                if name != "store":
                    (self.atomics if name == "atomic" else self.loads)[node] = runs * cycles(name)
            for inner in node.regions:
                self._region(inner, runs * trips(node), share * (0.5 if name == "if" else 1.0))
        self.cycles += total * runs
        self.nodes += len(region.nodes)
        self.likely += len(region.nodes) * share
