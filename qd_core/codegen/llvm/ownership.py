"""Atomics that need not be atomic, found in the body of a parallel task.

*Owned* elements: every access of the array in this task goes through one tuple of run-time indices that names another
element in each iteration. An atomic on it is a plain read, operation and write, of neighbours in one vector.

*Totals*: one element, the same for all iterations, that the task only combines values into and whose old value nobody
asks for. Each block of iterations combines into a register, and the blocks are combined in their order: reductions at
the speed of reading, with less rounding, and the same in every run.

*Privates*: arrays that the task only adds to, at elements that its data choose, see `privates`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from qd_core import dtypes as dt
from qd_core.codegen.llvm.atomics import combine, identity, reduce_vector, update
from qd_core.codegen.llvm.elementwise import Typed
from qd_core.codegen.llvm.emitter import Emitter
from qd_core.codegen.llvm.memory import from_memory, place, pointer, to_memory
from qd_core.codegen.llvm.privates import private_arrays
from qd_core.codegen.llvm.survey import Survey
from qd_core.codegen.llvm.types import LLVM, MEMORY
from qd_core.dtypes import DType
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Arg, Node, Param, Value, indices_of
from qd_core.ir.ops import ORDERED_KINDS

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
    privates : dict
        Atomics of each array that may have private copies; empty unless ``disjoint``.
    rows : dict
        For each of these arrays the first indices, as far as they are the same in all iterations: copies are of what
        lies there.
    """

    def __init__(self, body: Survey, axes: Sequence[Arg], disjoint: bool) -> None:
        self.axes, self.used = set(axes), body.used
        self.owned: set[Node] = set()
        self.totals: dict[tuple[Value, ...], list[Node]] = {}
        self.privates: dict[Param, list[Node]] = {}
        self.rows: dict[Param, tuple[Value, ...]] = {}
        self.disjoint = disjoint
        self.atomics, self.loads = body.atomics, body.loads
        accesses: dict[Value, list[Node]] = defaultdict(list)
        for node in body.accesses if self.atomics else ():
            accesses[node.operands[0]].append(node)
        written = [p for p, nodes in accesses.items() if any(n.op.writes for n in nodes)]
        for param, nodes in accesses.items():
            self._array(param, nodes, disjoint or written == [param], disjoint or len(accesses) == 1)

    def scattered(self, varying: AbstractSet[Value]) -> set[Node]:
        """Return the atomics that every lane must do for itself."""
        rest = self.atomics.keys() - self.owned - {n for nodes in self.totals.values() for n in nodes}
        return {
            n for n in rest if n in self.used or n.attrs["kind"] == "cas" or not varying.isdisjoint(n.operands[1:-1])
        }

    def gathered(self, varying: AbstractSet[Value]) -> list[Node]:
        """Return the loads whose elements the data choose, lane by lane."""
        return [
            n
            for n in self.loads
            if not varying.isdisjoint(n.operands[1:])
            and any(v in varying and self._axis(v) is None for v in n.operands[1 : 1 + n.operands[0].type.ndim])
        ]

    def _array(self, param: Value, nodes: list[Node], alone: bool, unseen: bool) -> None:
        atomics = [n for n in nodes if n.op.name == "atomic"]
        if not atomics:
            return
        ndim = param.type.ndim
        places = {n.operands[1 : 1 + ndim] for n in nodes}
        # An overlapping leaf could update the same element through other indices: that update must not be lost.
        if alone and len(places) == 1 and self._injective(next(iter(places))):
            self.owned.update(atomics)
        # Another leaf could read the element under its own name: it must see what this iteration has done.
        elif unseen and len(atomics) == len(nodes) and not any(n in self.used for n in nodes):
            if not self._total(nodes) and self.disjoint and private_arrays(nodes) and isinstance(param, Param):
                self.privates[param] = nodes
                self.rows[param] = self._row(nodes)

    def _row(self, nodes: Sequence[Node]) -> tuple[Value, ...]:
        """Leading indices that are the same value in all accesses and iterations."""
        row: list[Value] = []
        for indices in zip(*(n.operands[1 : 1 + n.operands[0].type.ndim] for n in nodes), strict=True):
            if len(set(indices)) > 1 or self._axis(indices[0]) != "fixed":
                break
            row.append(indices[0])
        return tuple(row)

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

    def _total(self, nodes: list[Node]) -> bool:
        """Keep the atomics whose element no iteration chooses, where all on one element are surely of one kind."""
        if any(self._axis(v) != "fixed" for n in nodes for v in n.operands[1:-1]):
            return False
        groups: dict[tuple[Value, ...], list[Node]] = defaultdict(list)
        for node in nodes:
            groups[node.operands[:-1]].append(node)
        kinds = [{n.attrs["kind"] for n in group} for group in groups.values()]
        single = len(set[str]().union(*kinds)) == 1 or (_constant(groups) and all(len(k) == 1 for k in kinds))
        if not single or any(k & ORDERED_KINDS for k in kinds) or len(self.totals) + len(groups) > _MAX_TOTALS:
            return False
        self.totals |= groups
        return True


def _constant(places: Iterable[tuple[Value, ...]]) -> bool:
    """Whether places of one array have constant indices: different tuples are different elements then."""
    return all(constant_of(v) is not None for _, *indices in places for v in indices)


class Totals:
    """Writes the accumulators of a task, one block at a time, and the combination of the blocks."""

    def __init__(self, em: Emitter, found: Ownership) -> None:
        self.em, self.wide = em, em.lanes > 1
        self.slots = [nodes[0] for nodes in found.totals.values()]
        for n, nodes in enumerate(found.totals.values()):
            em.totals |= dict.fromkeys(nodes, f"%total{n}")

    def clear(self) -> None:
        """Begin a block."""
        em = self.em
        for n, node in enumerate(self.slots):
            d = node.type
            t, value = em.typed(d, self.wide), identity(node.attrs["kind"], d)
            em.entry.append(f"  %total{n} = alloca {t}, align 64")
            em.line(f"store {t} {f'splat ({LLVM[d]} {value})' if self.wide else value}, ptr %total{n}, align 64")

    def put(self, partials: str, block: str) -> None:
        """End a block: keep what was accumulated."""
        em = self.em
        first = em.new(f"mul i64 {block}, {len(self.slots)}")
        for n, node in enumerate(self.slots):
            d = node.type
            whole = em.new(f"load {em.typed(d, self.wide)}, ptr %total{n}, align 64")
            one = reduce_vector(em, node.attrs["kind"], whole, d) if self.wide else whole
            at = em.new(f"getelementptr i64, ptr {partials}, i64 {em.new(f'add i64 {first}, {n}')}")
            em.line(f"store {MEMORY[d]} {to_memory(em, one, d, False)}, ptr {at}, align 8")

    def update(self, partials: str, blocks: str) -> None:
        """Update each element with the blocks' values, combined in their order.

        An element for which no iteration had anything is left alone: its indices may name none.
        """
        em = self.em
        for n, node in enumerate(self.slots):
            param, indices = node.operands[0], indices_of(node)
            kind, d = node.attrs["kind"], node.type
            one = self._combined(partials, blocks, n, node)
            some, done = em.label("some"), em.label("updated")
            em.branch(self._changes(kind, d, one), some, done)
            em.start(some)
            for value in indices:
                define(em, value)
            at = place(em, param, indices)
            update(em, kind, d, pointer(em, at, MEMORY[d]), to_memory(em, one, d, False))
            em.jump(done)
            em.start(done)

    def _changes(self, kind: str, d: DType, value: str) -> str:
        """Whether combining a value can change anything."""
        em, neutral = self.em, identity(kind, d)
        if not d.is_real:
            return em.new(f"icmp ne {LLVM[d]} {value}, {neutral}")
        if kind in ("min", "max"):
            return em.new(f"fcmp ord {LLVM[d]} {value}, {value}")
        bits = [em.new(f"bitcast {LLVM[d]} {v} to i{d.bits}") for v in (value, neutral)]
        return em.new(f"icmp ne i{d.bits} {bits[0]}, {bits[1]}")

    def _combined(self, partials: str, blocks: str, n: int, node: Node) -> str:
        em, kind, d = self.em, node.attrs["kind"], node.type
        loop, done, before = em.label("sum"), em.label("summed"), em.block
        em.jump(loop)
        em.start(loop)
        block, so_far = em.new(""), em.new("")
        phi = len(em.lines) - 2
        index = em.new(f"add i64 {em.new(f'mul i64 {block}, {len(self.slots)}')}, {n}")
        raw = em.new(f"load {MEMORY[d]}, ptr {em.new(f'getelementptr i64, ptr {partials}, i64 {index}')}, align 8")
        total = combine(Typed(em, d, False), kind, so_far, from_memory(em, raw, d, False))
        after = em.new(f"add i64 {block}, 1")
        em.lines[phi] += f"phi i64 [ 0, %{before} ], [ {after}, %{em.block} ]"
        em.lines[phi + 1] += f"phi {LLVM[d]} [ {identity(kind, d)}, %{before} ], [ {total}, %{em.block} ]"
        em.branch(em.new(f"icmp slt i64 {after}, {blocks}"), loop, done)
        em.start(done)
        return total


def define(em: Emitter, value: Value) -> None:
    """Write an index that is the same in all iterations again: the body's own does not dominate other places."""
    if isinstance(value, Node):
        for operand in value.operands:
            if not isinstance(operand, Param):
                define(em, operand)
        em.handlers[value.op.name](em, value)
