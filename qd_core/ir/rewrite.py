"""Copying IR through the smart builder, with substitutions: the walk that transforms share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Node, Region, Result, Value

__all__ = ["Copier", "eliminate_dead", "operands_deep", "walk"]

Rule = Callable[["Copier", Node], bool]


class Copier:
    """Copies nodes into a builder, replacing values.

    Parameters
    ----------
    builder : Builder
        Where copies go; its folding and numbering apply.
    mapping : dict of Value to Value
        Replacements known beforehand; every copied value is added. Values not in it stand for themselves.
    rule : callable or None
        ``rule(copier, node)`` handles a node itself and returns True (having set `mapping` for its results), or False.
    """

    __slots__ = ("builder", "mapping", "rule")

    def __init__(self, builder: Builder, mapping: dict[Value, Value] | None = None, rule: Rule | None = None) -> None:
        self.builder, self.mapping, self.rule = builder, {} if mapping is None else mapping, rule

    def value(self, value: Value) -> Value:
        """Return what stands for ``value`` in the copy."""
        return self.mapping.get(value, value)

    def values(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return what stands for each of ``values``."""
        get = self.mapping.get
        return tuple(get(v, v) for v in values)

    def nodes(self, nodes: Iterable[Node]) -> None:
        """Copy ``nodes`` in order to the end of the builder's region."""
        for node in nodes:
            self.node(node)

    def body(self, region: Region) -> tuple[Value, ...]:
        """Copy a region's nodes but its terminator here; return what it yields."""
        self.nodes(region.nodes[:-1])
        return self.values(region.yields)

    def region(self, region: Region, *, loop: bool) -> Region:
        """Copy ``region`` as a detached region with new arguments."""
        with self.builder.inside([(a.type, a.name) for a in region.args], loop=loop) as new:
            self.mapping.update(zip(region.args, new.args, strict=True))
            self.builder.span = region.terminator.span
            self.builder.yield_(*self.body(region))
        return new

    def node(self, node: Node) -> None:
        """Copy one node."""
        self.builder.span = node.span
        if self.rule is None or not self.rule(self, node):
            self.default(node)

    def default(self, node: Node) -> None:
        """Copy one node as it is, without asking the rule about it (its regions' nodes are asked)."""
        copy = _COPY.get(node.op.name)
        if copy is not None:
            copy(self, node)
        elif node.op.numpy is not None:
            self.builder.exact = node.attrs.get("exact")
            self.mapping[node] = self.builder.emit(node.op.name, *self.values(node.operands))
            self.builder.exact = None
        else:
            self.mapping[node] = self.builder.generic(node.op.name, node.type, self.values(node.operands), node.attrs)

    def results(self, node: Node, values: Sequence[Value]) -> None:
        """Let ``values`` stand for the results of a region operation."""
        self.mapping.update(zip(node.results, values, strict=True))


def _const(c: Copier, n: Node) -> None:
    c.mapping[n] = c.builder.const(n.type, n.attrs["value"])


def _cast(c: Copier, n: Node) -> None:
    c.mapping[n] = c.builder.cast(c.value(n.operands[0]), n.type)


def _bitcast(c: Copier, n: Node) -> None:
    c.mapping[n] = c.builder.bitcast(c.value(n.operands[0]), n.type)


def _extent(c: Copier, n: Node) -> None:
    c.mapping[n] = c.builder.extent(c.value(n.operands[0]), n.attrs["axis"])


def _load(c: Copier, n: Node) -> None:
    array, *indices = c.values(n.operands)
    c.mapping[n] = c.builder.load(array, indices)


def _store(c: Copier, n: Node) -> None:
    array, *indices, value = c.values(n.operands)
    c.builder.store(array, indices, value)


def _check(c: Copier, n: Node) -> None:
    ok, *values = c.values(n.operands)
    c.builder.check(n.attrs["kind"], ok, values, **{k: v for k, v in n.attrs.items() if k != "kind"})


def _if(c: Copier, n: Node) -> None:
    condition = c.value(n.operands[0])
    then, otherwise = (c.region(r, loop=False) for r in n.regions)
    c.builder.span = n.span
    c.results(n, c.builder.if_(condition, then, otherwise))


def _for(c: Copier, n: Node) -> None:
    start, stop, *inits = c.values(n.operands)
    body = c.region(n.regions[0], loop=True)
    c.builder.span = n.span
    c.results(n, c.builder.for_(start, stop, inits, body, reverse=n.attrs["reverse"], breaks=n.attrs["breaks"]))


def _while(c: Copier, n: Node) -> None:
    inits = c.values(n.operands)
    condition, body = (c.region(r, loop=True) for r in n.regions)
    c.builder.span = n.span
    c.results(n, c.builder.while_(inits, condition, body))


def _parallel_for(c: Copier, n: Node) -> None:
    flat = c.values(n.operands)
    body = c.region(n.regions[0], loop=True)
    c.builder.span = n.span
    c.builder.parallel_for(list(zip(flat[::2], flat[1::2], strict=True)), body, **n.attrs)


_COPY: dict[str, Callable[[Copier, Node], Any]] = {
    "const": _const, "cast": _cast, "bitcast": _bitcast, "extent": _extent, "load": _load, "store": _store,
    "check": _check,
    "if": _if, "for": _for, "while": _while, "parallel_for": _parallel_for,
}  # fmt: skip


def walk(region: Region) -> Iterator[Node]:
    """All nodes of a region and of the regions inside it, outer before inner."""
    for node in region.nodes:
        yield node
        for inner in node.regions:
            yield from walk(inner)


def operands_deep(node: Node) -> Iterator[Value]:
    """Operands of a node and of every node in its regions."""
    yield from node.operands
    for region in node.regions:
        for inner in walk(region):
            yield from inner.operands


def has_effect(node: Node) -> bool:
    """Whether a node or anything inside it writes memory or a message."""
    return node.op.writes or any(has_effect(n) for r in node.regions for n in r.nodes if not n.op.terminator)


def eliminate_dead(function_or_region: Function | Region) -> None:
    """Remove, in place, nodes without effect whose results nobody uses; one backward traversal.

    Carried values of loops that only feed themselves stay: they are removed by `passes.prune`.
    """
    region = function_or_region.body if isinstance(function_or_region, Function) else function_or_region
    _sweep(region, set())


def _sweep(region: Region, live: set[Value]) -> bool:
    """Sweep one region backwards; return whether anything with an effect is left in it."""
    kept: list[Node] = []
    effects = False
    for node in reversed(region.nodes):
        if node.op.terminator:
            live.update(node.operands)
            kept.append(node)
            continue
        wanted = node in live or any(r in live for r in node.results)
        if not wanted and not node.regions and not node.op.writes:
            continue
        inner = False
        for r in node.regions:
            inner |= _sweep(r, live)
        if wanted or inner or node.op.writes:
            live.update(node.operands)
            kept.append(node)
            effects |= inner or node.op.writes
    region.nodes[:] = reversed(kept)
    return effects


def defining_node(value: Value) -> Node | None:
    """Node that computes ``value``; None for parameters and region arguments."""
    return value if isinstance(value, Node) else value.node if isinstance(value, Result) else None
