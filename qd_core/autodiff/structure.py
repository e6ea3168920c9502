"""What transforms ask about a function's shape: nesting, program order, carried values, indices in affine form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qd_core.ir.nodes import Arg, Function, Node, Param, Region, Result, Role, Value
from qd_core.ir.nodes import indices_of as indices

__all__ = ["Affine", "Carried", "Structure", "carried", "is_loop", "is_temporary"]

_AFFINE_OPS = frozenset(("add", "sub", "mul", "neg", "cast"))
_WRITES = frozenset(("store", "atomic"))


@dataclass(frozen=True, slots=True)
class Carried:
    """A value carried by a loop: region arguments (`while`: of condition and body), first and next value, result."""

    args: tuple[Arg, ...]
    init: Value
    next: Value
    result: Value

    @property
    def arg(self) -> Arg:
        """The argument of the body."""
        return self.args[-1]


def is_loop(node: Node) -> bool:
    """Whether the node is a serial loop."""
    return node.op.name in ("for", "while")


def carried(loop: Node) -> list[Carried]:
    """Carried values of a serial loop, in order."""
    body = loop.regions[-1]
    if loop.op.name == "while":
        pairs = zip(loop.regions[0].args, body.args, strict=True)
        return [Carried(a, loop.operands[k], body.yields[k], loop.results[k]) for k, a in enumerate(pairs)]
    return [Carried((a,), loop.operands[2 + k], body.yields[k], loop.results[k]) for k, a in enumerate(body.args[1:])]


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant + sum(coefficient * base)`` over value numbers, sorted by number."""

    constant: int
    terms: tuple[tuple[int, int], ...] = ()

    def plus(self, other: Affine, scale: int = 1) -> Affine:
        """Return ``self + scale * other``."""
        terms = dict(self.terms)
        for base, c in other.terms:
            terms[base] = terms.get(base, 0) + scale * c
        return Affine(self.constant + scale * other.constant, tuple(sorted((b, c) for b, c in terms.items() if c)))


Writers = dict[tuple[Region, tuple[tuple[tuple[int, int], ...], ...]], dict[tuple[int, ...], Node]]
"""Writing nodes of one array: (region, terms of the indices) to constants of the indices to node."""


class Structure:
    """Facts about a function, gathered in one traversal.

    Attributes
    ----------
    nodes : list of Node
        All nodes in program order, a region operation before what is inside it.
    home : dict of Value or Node to Region
        Region in which a value is defined; parameters are absent.
    position : dict of Node to int
        Place in `nodes`.
    owner : dict of Region to (Node or None)
        Operation that a region belongs to.
    depth : dict of Region to int
        Number of regions around it.
    number : dict of Value to int
        Value numbers: equal numbers mean equal values wherever both are defined.
    written : set of Param
        Arrays that some node stores to or combines into.
    """

    def __init__(self, function: Function) -> None:
        self.root = function.body
        self.nodes: list[Node] = []
        self.home: dict[Value, Region] = {}
        self.position: dict[Node, int] = {}
        self.owner: dict[Region, Node | None] = {}
        self.depth: dict[Region, int] = {}
        self.chain: dict[Region, tuple[tuple[Node, Region], ...]] = {}
        self.number: dict[Value, int] = {}
        self.uniform: set[int] = set()
        self._affine: dict[Value, Affine] = {}
        self._keys: dict[Any, int] = {}
        self._varying: dict[Node, set[int]] = {}
        self._enter(function.body, None, ())
        self.written = {n.operands[0] for n in self.nodes if n.op.name in _WRITES}
        for p in function.params:
            self._name(p, p, True)
        self._number(function.body, True)

    # -- nesting ------------------------------------------------------------------------------------------------
    def _enter(self, region: Region, owner: Node | None, chain: tuple[tuple[Node, Region], ...]) -> None:
        self.owner[region], self.depth[region], self.chain[region] = owner, len(chain), chain
        for a in region.args:
            self.home[a] = region
        for node in region.nodes:
            self.home[node] = region
            self.position[node] = len(self.nodes)
            self.nodes.append(node)
            for r in node.results:
                self.home[r] = region
            for inner in node.regions:
                self._enter(inner, node, (*chain, (node, inner)))

    def outside(self, value: Value, node: Node) -> bool:
        """Whether ``value``, which something inside ``node`` uses, is defined outside it."""
        home = self.home.get(value)
        return home is None or self.depth[home] <= self.depth[self.home[node]]

    def task(self, node: Node) -> Node | None:
        """The `parallel_for` around a node; None in serial glue."""
        chain = self.chain[self.home[node]]
        return chain[0][0] if chain and chain[0][0].op.name == "parallel_for" else None

    def common_loops(self, a: Node, b: Node) -> tuple[list[Node], bool]:
        """Serial loops around both nodes, outermost first; and whether they sit in different branches of one `if`."""
        loops: list[Node] = []
        for (m, r), (n, s) in zip(self.chain[self.home[a]], self.chain[self.home[b]], strict=False):
            if m is not n or r is not s:
                return loops, m is n and m.op.name == "if"
            if is_loop(m):
                loops.append(m)
        return loops, False

    # -- values -------------------------------------------------------------------------------------------------
    def affine(self, index: Value) -> Affine:
        """Return an integer value in affine form."""
        known = self._affine.get(index)
        return known if known is not None else Affine(0, ((self.number[index], 1),))

    def _name(self, value: Value, key: Any, uniform: bool) -> None:
        n = self._keys.setdefault(key, len(self._keys))
        self.number[value] = n
        if uniform:
            self.uniform.add(n)

    def _number(self, region: Region, root: bool) -> None:
        for a in region.args:
            self._name(a, a, False)
        for node in region.nodes:
            self._number_node(node, root)
            for inner in node.regions:
                self._number(inner, False)
            for r in node.results:
                self._name(r, r, root)

    def _number_node(self, node: Node, root: bool) -> None:
        if node.type is None:
            return
        pure = node.op.pure and not node.regions
        stable = pure or (node.op.name == "load" and node.operands[0] not in self.written)
        if not stable:
            self._name(node, node, root)
            return
        operands = tuple(self.number[o] for o in node.operands)
        value = node.attrs.get("value")
        self._name(
            node,
            (node.op, node.type, *operands, *(repr(v) for v in node.attrs.values())),
            root or self.uniform.issuperset(operands),
        )
        if value is not None and node.type.is_integral:
            self._affine[node] = Affine(int(value))
        elif node.op.name in _AFFINE_OPS and node.type.is_integral:
            self._combine(node)

    def _combine(self, node: Node) -> None:
        """Affine form of integer sums, differences, constant multiples and conversions between integers."""
        if any(not o.type.is_integral for o in node.operands):
            return
        a, *rest = (self.affine(o) for o in node.operands)
        name = node.op.name
        if name == "cast" and node.type.bits >= node.operands[0].type.bits:
            self._affine[node] = a
        elif name == "neg":
            self._affine[node] = Affine(0).plus(a, -1)
        elif name in ("add", "sub"):
            self._affine[node] = a.plus(rest[0], 1 if name == "add" else -1)
        elif name == "mul" and not rest[0].terms:
            self._affine[node] = Affine(0).plus(a, rest[0].constant)
        elif name == "mul" and not a.terms:
            self._affine[node] = Affine(0).plus(rest[0], a.constant)

    # -- memory -------------------------------------------------------------------------------------------------
    def place(self, access: Node) -> tuple[object, ...]:
        """What tells accesses apart, but for their position: array, region and indices."""
        return (access.operands[0], self.home[access], *(self.affine(i) for i in indices(access)))

    def writers(self) -> dict[Value, Writers]:
        """Stores and atomics of each array by region and terms, then constants; of equal places the last one."""
        found: dict[Value, Writers] = {}
        for node in self.nodes:
            if node.op.name in _WRITES:
                forms = [self.affine(i) for i in indices(node)]
                group = self.home[node], tuple(f.terms for f in forms)
                places = found.setdefault(node.operands[0], {}).setdefault(group, {})
                places[tuple(f.constant for f in forms)] = node
        return found

    def overwriter(self, load: Node, writers: Writers) -> Node | None:
        """A node among ``writers`` that may change the element after ``load`` read it."""
        forms = [self.affine(i) for i in indices(load)]
        terms, constants = tuple(f.terms for f in forms), tuple(f.constant for f in forms)
        for (_, others), places in writers.items():
            candidates = places.values()
            if others == terms and self._steady(load, next(iter(candidates)), forms):
                candidates = [places[constants]] if constants in places else []
            for write in candidates:
                if self.may_follow(load, write):
                    return write
        return None

    def _steady(self, a: Node, b: Node, forms: list[Affine]) -> bool:
        """Whether indices with these bases cannot change while the loops around both nodes run."""
        loops, _ = self.common_loops(a, b)
        return all(self._fixed(base, loops) for f in forms for base, _ in f.terms)

    def may_follow(self, first: Node, then: Node) -> bool:
        """Whether the memory access ``then`` can happen after ``first`` in one launch, at the same address.

        Iterations of one parallel loop are independent (else the primal has a race), so its indices stand for the
        same numbers.
        """
        loops, exclusive = self.common_loops(first, then)
        later = self.position[then] > self.position[first] and not exclusive
        return (later or bool(loops)) and not self._apart(first, then, loops, later)

    def _apart(self, first: Node, then: Node, loops: list[Node], later: bool) -> bool:
        """Some axis proves that ``then``, at or after ``first``, never touches its element."""
        return any(
            self._axis_apart(self.affine(a), self.affine(c), loops, later)
            for a, c in zip(indices(first), indices(then), strict=True)
        )

    def _axis_apart(self, a: Affine, c: Affine, loops: list[Node], later: bool) -> bool:
        difference = c.plus(a, -1)
        if difference.terms:
            return False
        bases = [base for base, _ in a.terms if not self._fixed(base, loops)]
        if not bases:
            return difference.constant != 0
        return self._moves_away(a, difference.constant, loops, later, bases)

    def _moves_away(self, a: Affine, offset: int, loops: list[Node], later: bool, bases: list[int]) -> bool:
        """Both are ``k·t + c`` in the outermost common loop's index t: they meet ``-offset/k`` trips later, if ever."""
        outer = loops[0]
        if outer.op.name != "for" or bases != [self.number[outer.regions[0].args[0]]]:
            return False
        k = dict(a.terms)[bases[0]]
        trips = -offset // k * (-1 if outer.attrs["reverse"] else 1)
        return offset % k != 0 or trips < 0 or (trips == 0 and not later and len(loops) == 1)

    def _fixed(self, base: int, loops: list[Node]) -> bool:
        """Whether a base keeps its value through the common loops: it is defined outside them."""
        return not loops or base not in self._defined_in(loops[0])

    def _defined_in(self, loop: Node) -> set[int]:
        """Numbers of the values that may differ from trip to trip."""
        known = self._varying.get(loop)
        if known is None:
            known = self._varying[loop] = set()
            self._collect(loop, known)
        return known

    def _collect(self, node: Node, varying: set[int]) -> None:
        for region in node.regions:
            varying.update(self.number[a] for a in region.args)
            for inner in region.nodes:
                self._collect(inner, varying)
                stable = (inner.op.pure and not inner.regions) or (
                    inner.op.name == "load" and inner.operands[0] not in self.written
                )
                if inner.type is not None and not (
                    stable and varying.isdisjoint(self.number[o] for o in inner.operands)
                ):
                    varying.add(self.number[inner])
        varying.update(self.number[r] for r in node.results)


def is_temporary(array: Value) -> bool:
    """Whether an array is a temporary of the primal, whose contents no other launch sees."""
    return isinstance(array, Param) and array.role is Role.TEMP


def path_of(array: Value) -> str:
    """What the user calls an array."""
    return array.path if isinstance(array, Param) else "?"


def defined_by(value: Value) -> Node | None:
    """The node that defines a value; None for parameters and region arguments."""
    return value if isinstance(value, Node) else value.node if isinstance(value, Result) else None
