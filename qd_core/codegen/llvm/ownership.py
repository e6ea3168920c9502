"""Atomics that need not be atomic, found in the body of a parallel task.

*Owned* elements: every access of the array in this task goes through one tuple of run-time indices that names another
element in each iteration. An atomic on it is a plain read, operation and write, of neighbours in one vector.

*Totals*: one element, the same for all iterations, that the task only combines values into and whose old value nobody
asks for. Each call of the task combines into a register and updates the element once: reductions at the speed of
reading, and with less rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from qd_core import dtypes as dt
from qd_core.codegen.llvm.atomics import identity, reduce_vector, update
from qd_core.codegen.llvm.emitter import Emitter
from qd_core.codegen.llvm.memory import place, pointer, to_memory
from qd_core.codegen.llvm.survey import Survey
from qd_core.codegen.llvm.types import LLVM, MEMORY
from qd_core.ir.nodes import Arg, Node, Param, Value

__all__ = ["Ownership", "Totals"]

_MAX_TOTALS = 8
"""Registers that accumulators may take."""


class Ownership:
    """Result of the analysis.

    Parameters
    ----------
    body : Survey
        What there is in a parallel task's body.
    axes : sequence of Arg
        Its indices.
    disjoint : bool
        Different array leaves are known not to overlap.

    Attributes
    ----------
    owned : set of Node
        Atomics on elements of their own iteration.
    totals : dict
        Atomics of each total by (array, indices).
    """

    def __init__(self, body: Survey, axes: Sequence[Arg], disjoint: bool) -> None:
        self.axes, self.used = set(axes), body.used
        self.owned: set[Node] = set()
        self.totals: dict[tuple[Value, ...], list[Node]] = {}
        self.atomics = body.atomics
        accesses: dict[Value, list[Node]] = defaultdict(list)
        for node in body.accesses if self.atomics else ():
            accesses[node.operands[0]].append(node)
        written = [p for p, nodes in accesses.items() if any(n.op.writes for n in nodes)]
        for param, nodes in accesses.items():
            self._array(param, nodes, disjoint or written == [param])

    def scattered(self, varying: AbstractSet[Value]) -> set[Node]:
        """Return the atomics that every lane must do for itself."""
        rest = self.atomics.keys() - self.owned - {n for nodes in self.totals.values() for n in nodes}
        return {n for n in rest if n in self.used or not varying.isdisjoint(n.operands[1:-1])}

    def _array(self, param: Value, nodes: list[Node], alone: bool) -> None:
        atomics = [n for n in nodes if n.op.name == "atomic"]
        if not atomics:
            return
        ndim = param.type.ndim
        places = {n.operands[1 : 1 + ndim] for n in nodes}
        # An overlapping leaf could update the same element through other indices: that update must not be lost.
        if alone and len(places) == 1 and self._injective(next(iter(places))):
            self.owned.update(atomics)
        elif len(atomics) == len(nodes) and not any(n in self.used for n in nodes):
            self._total(nodes)

    def _injective(self, indices: Sequence[Value]) -> bool:
        found = [self._axis(v) for v in indices]
        return None not in found and self.axes <= set(found)

    def _axis(self, value: Value) -> Value | str | None:
        """The axis that an index follows one to one, ``"fixed"`` where it is the same in all iterations, else None."""
        if value in self.axes:
            return value
        if isinstance(value, Param):
            return "fixed"
        if not isinstance(value, Node):
            return None
        if value.op.name in ("const", "extent"):
            return "fixed"
        if value.op.name == "cast":
            source = value.operands[0].type
            widens = (
                source is not dt.u1 and source.is_integral and value.type.is_integral and value.type.bits >= source.bits
            )
            return self._axis(value.operands[0]) if widens else None
        if value.op.name in ("add", "sub"):
            a, b = (self._axis(v) for v in value.operands)
            return a if b == "fixed" else b if a == "fixed" else None
        return None

    def _total(self, nodes: list[Node]) -> None:
        """Keep the atomics whose element no iteration chooses, where all atomics of the array are of one kind."""
        kinds = {n.attrs["kind"] for n in nodes}
        if len(kinds) != 1 or "exchange" in kinds:
            return
        if any(self._axis(v) != "fixed" for n in nodes for v in n.operands[1:-1]):
            return
        groups: dict[tuple[Value, ...], list[Node]] = defaultdict(list)
        for node in nodes:
            groups[node.operands[:-1]].append(node)
        if len(self.totals) + len(groups) <= _MAX_TOTALS:
            self.totals |= groups


class Totals:
    """Writes the accumulators of a task: an initial value in the entry block, one update at the end."""

    def __init__(self, em: Emitter, found: Ownership) -> None:
        self.em, self.slots = em, [(key, nodes[0]) for key, nodes in found.totals.items()]
        wide = em.lanes > 1
        for n, nodes in enumerate(found.totals.values()):
            kind, d = nodes[0].attrs["kind"], nodes[0].type
            t, value = em.typed(d, wide), identity(kind, d)
            em.entry.append(f"  %total{n} = alloca {t}, align 64")
            em.entry.append(f"  store {t} {f'splat ({LLVM[d]} {value})' if wide else value}, ptr %total{n}, align 64")
            for node in nodes:
                em.totals[node] = f"%total{n}"

    def finish(self) -> None:
        """Update each element with what was accumulated."""
        em, wide = self.em, self.em.lanes > 1
        for n, (_, node) in enumerate(self.slots):
            param, *indices, _ = node.operands
            kind, d = node.attrs["kind"], node.type
            whole = em.new(f"load {em.typed(d, wide)}, ptr %total{n}, align 64")
            one = reduce_vector(em, kind, whole, d) if wide else whole
            for value in indices:
                self._define(value)
            at = place(em, param, indices)
            update(em, kind, d, pointer(em, at, MEMORY[d]), to_memory(em, one, d, False))

    def _define(self, value: Value) -> None:
        """Write an index again: the body's own does not dominate the end."""
        if isinstance(value, Node):
            for operand in value.operands:
                if not isinstance(operand, Param):
                    self._define(operand)
            self.em.handlers[value.op.name](self.em, value)
