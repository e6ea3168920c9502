"""Activity: which values get an adjoint or a tangent, and what must be refused.

A value is *varied* when it depends differentiably on an element of an array that has gradient storage, *useful* when
such an element depends on it, and *active* when both. Only real values take part; an array without gradient storage
is a constant when read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qd_core.autodiff.rules import RULES, NotDifferentiable, differentiable
from qd_core.autodiff.structure import Structure, carried, indices, is_loop, is_temporary, path_of
from qd_core.errors import NotDifferentiableError
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import ArrayType, Node, Param, Role, Value
from qd_core.passes.pin import is_extremum

__all__ = ["Activity", "Component", "Detours", "Part", "analyze"]


Component = tuple[int, ...] | None
"""Constant indices of a component in an element; None: they are not constant."""
Part = tuple[str, Component, int]
"""Array path, component, line of the first access (0: not known)."""


@dataclass(frozen=True, slots=True)
class Detours:
    """How one launch can lose gradients that a later one wants.

    Attributes
    ----------
    stored : tuple of Part
        Arrays without a gradient that get values which depend on a differentiated array.
    wanted : tuple of Part
        Arrays without a gradient of which a differentiated array depends.
    passed : tuple of (Part, Part)
        Arrays without a gradient of which others depend.
    """

    stored: tuple[Part, ...] = ()
    wanted: tuple[Part, ...] = ()
    passed: tuple[tuple[Part, Part], ...] = ()


class Activity:
    """Result of the analysis.

    Attributes
    ----------
    active : set of Value
        Values that get an adjoint (or tangent).
    masked : set of Value
        Active values that a `select`, `min` or `max` may discard: their zero adjoints must not meet an infinite
        partial.
    shadows : mapping of Param to Param
        Array to the array of its gradients (or duals).
    effects : set of Node
        Region operations with something to differentiate inside.
    detours : Detours
        Ways past arrays that have no gradient.
    """

    def __init__(
        self,
        active: set[Value],
        masked: set[Value],
        shadows: Mapping[Param, Param],
        effects: set[Node],
        detours: Detours,
    ) -> None:
        self.active, self.masked, self.shadows, self.effects = active, masked, shadows, effects
        self.detours = detours

    def has_code(self, node: Node) -> bool:
        """Whether the node has a counterpart in the transformed function."""
        if node.regions:
            return node in self.effects or any(r in self.active for r in node.results)
        return node in self.active or _moves(node, self.shadows, self.active)


def _moves(node: Node, shadows: Mapping[Param, Param], active: set[Value]) -> bool:
    """A store or extremum moves the element's gradient even when the value is constant; an atomic add does not."""
    return _touches(node, shadows) and (node.op.name == "store" or is_extremum(node) or node.operands[-1] in active)


def _touches(node: Node, shadows: Mapping[Param, Param]) -> bool:
    return node.op.name in ("store", "atomic") and node.operands[0] in shadows


Edges = dict[Value, list[Value]]


def analyze(structure: Structure, shadows: Mapping[Param, Param]) -> Activity:
    """Find active values.

    Raises
    ------
    NotDifferentiableError
        At the user's line: an operation without a derivative on the path, an atomic other than `add`, `min` and `max`
        on a differentiated array, an active value stored in an array without gradients and read again, or an access to
        the gradients themselves.
    """
    forward, backward = _edges(structure)
    kept = {a: s for a, s in shadows.items() if not is_temporary(a)}
    sources = [n for n in structure.nodes if _reads(n, kept)]
    sinks = [n.operands[-1] for n in structure.nodes if _touches(n, kept) and n.operands[-1].type.is_real]
    varied, useful = _reach(sources, forward), _reach(sinks, backward)
    shadows = {a: s for a, s in shadows.items() if a in kept or (a in varied and a in useful)}
    for node in structure.nodes:
        _refuse(node, shadows, varied, useful)
    _refuse_detours(structure, shadows, varied, useful)
    active = {v for v in varied & useful if not isinstance(v.type, ArrayType)}
    masked = _reach(
        [
            o
            for n in structure.nodes
            if (n.op.name in ("select", "min", "max") and n in active) or (is_extremum(n) and _touches(n, shadows))
            for o in n.operands
            if o in active
        ],
        backward,
    )
    detours = _detours(structure, shadows, varied, useful, forward)
    return Activity(active, masked & active, shadows, _effects(structure, shadows, active), detours)


def _reads(node: Node, shadows: Mapping[Param, Param]) -> bool:
    return node.op.name in ("load", "atomic") and node.operands[0] in shadows and node.type.is_real


def _edges(structure: Structure) -> tuple[Edges, Edges]:
    forward: Edges = defaultdict(list)
    backward: Edges = defaultdict(list)
    for node in structure.nodes:
        for source, target in _flow(node):
            if _is_real(source) and _is_real(target):
                forward[source].append(target)
                backward[target].append(source)
    return forward, backward


def _is_real(value: Value) -> bool:
    """Whether a value is real, or an array of reals."""
    return value.type.dtype.is_real if isinstance(value.type, ArrayType) else value.type.is_real


def _flow(node: Node) -> Iterable[tuple[Value, Value]]:
    """Pairs (source, target) of values such that the target depends differentiably on the source."""
    if node.op.name == "if":
        for region in node.regions:
            yield from zip(region.yields, node.results, strict=True)
    elif is_loop(node):
        for c in carried(node):
            yield from ((source, target) for source in (c.init, c.next) for target in (*c.args, c.result))
    elif node.op.name in _ACCESSES and is_temporary(node.operands[0]):
        yield (node.operands[0], node) if node.op.name == "load" else (node.operands[-1], node.operands[0])
    elif node.type is not None and node.op.name not in ("load", "atomic", "scratch"):
        yield from (
            (o, node)
            for i, o in enumerate(node.operands)
            if differentiable(node.op.name, i) and hasattr(o.type, "is_real")
        )


_ACCESSES = ("load", "store", "atomic")


def _reach(seeds: Iterable[Value], edges: Edges) -> set[Value]:
    reached: set[Value] = set(seeds)
    stack = list(reached)
    while stack:
        for v in edges.get(stack.pop(), ()):
            if v not in reached:
                reached.add(v)
                stack.append(v)
    return reached


def _effects(structure: Structure, shadows: Mapping[Param, Param], active: set[Value]) -> set[Node]:
    found: set[Node] = set()
    for node in structure.nodes:
        if not node.regions and (node in active or _moves(node, shadows, active)):
            found.update(n for n, _ in structure.chain[structure.home[node]])
    return found


def _detours(
    structure: Structure, shadows: Mapping[Param, Param], varied: set[Value], useful: set[Value], forward: Edges
) -> Detours:
    reads: dict[Part, list[Value]] = defaultdict(list)
    stores: dict[Part, set[Value]] = defaultdict(set)
    lines: dict[tuple[str, Component], int] = {}
    for node in structure.nodes:
        if node.op.name in _ACCESSES and _without_gradient(node.operands[0], shadows):
            path, component, line = _part(node)
            part = path, component, lines.setdefault((path, component), line)
            if node.op.name != "store":
                reads[part].append(node)
            if node.op.name != "load":
                stores[part].add(node.operands[-1])
    passed: list[tuple[Part, Part]] = []
    for source, nodes in reads.items() if stores else ():
        reached = _reach(nodes, forward)
        passed.extend((source, target) for target, values in stores.items() if not reached.isdisjoint(values))
    return Detours(
        tuple(p for p, values in stores.items() if not varied.isdisjoint(values)),
        tuple(p for p, nodes in reads.items() if not useful.isdisjoint(nodes)),
        tuple(passed),
    )


def _without_gradient(array: Value, shadows: Mapping[Param, Param]) -> bool:
    real = isinstance(array, Param) and array.role is Role.DATA and _is_real(array)
    return real and array not in shadows and not is_temporary(array)


def _part(node: Node) -> Part:
    """What an access touches, as a tape compares it."""
    array = node.operands[0]
    assert isinstance(array, Param)
    constants = [constant_of(i) for i in indices(node)[array.type.ndim :]]
    component = None if None in constants else tuple(int(c) for c in constants)
    return array.path, component, node.span.line if node.span is not None else 0


# -- what is refused ------------------------------------------------------------------------------------------------
def _refuse(node: Node, shadows: Mapping[Param, Param], varied: set[Value], useful: set[Value]) -> None:
    rule = RULES[node.op.name]
    if isinstance(rule, NotDifferentiable):
        _refuse_rule(node, rule, varied, useful)
    elif node.op.name in ("load", "store", "atomic"):
        _refuse_access(node, shadows, useful)


def _refuse_rule(node: Node, rule: NotDifferentiable, varied: set[Value], useful: set[Value]) -> None:
    bits = node.op.name == "bitcast" and node.operands[0] in varied
    if bits or (node in varied and node in useful) or (node.op.name == "scratch_load" and node in useful):
        raise NotDifferentiableError(
            f"`{node.op.name}` cannot be differentiated",
            span=node.span,
            why=rule.reason,
            hint="compute it from values that do not depend on a differentiated array",
        )


def _refuse_access(node: Node, shadows: Mapping[Param, Param], useful: set[Value]) -> None:
    array, kind = node.operands[0], node.attrs.get("kind")
    if array in shadows.values():
        raise NotDifferentiableError(
            f"`{path_of(array)}` is accessed in a kernel that is itself differentiated",
            span=node.span,
            why="derivatives of gradients are not formed",
            hint="move the access to another kernel",
        )
    if array not in shadows or kind is None:
        return
    if kind != "add" and not is_extremum(node):
        raise NotDifferentiableError(
            f"atomic {kind} on the differentiated array `{path_of(array)}`",
            span=node.span,
            why="its derivative depends on the order in which iterations arrive",
            hint="give the array no gradient, or reduce with atomic add, min or max",
        )
    if node in useful:
        raise NotDifferentiableError(
            f"the old value of an atomic {kind} on `{path_of(array)}` reaches a differentiated array",
            span=node.span,
            why="it depends on the order in which iterations arrive",
        )


def _refuse_detours(
    structure: Structure, shadows: Mapping[Param, Param], varied: set[Value], useful: set[Value]
) -> None:
    """An active value must not pass through an array that has no gradient storage."""
    reads: dict[Value, list[Node]] = defaultdict(list)
    for node in structure.nodes:
        if node.op.name in ("load", "atomic") and node.operands[0] not in shadows and node in useful:
            reads[node.operands[0]].append(node)
    for node in structure.nodes:
        if node.op.name in ("store", "atomic") and node.operands[-1] in varied and node.operands[0] not in shadows:
            _refuse_detour(structure, node, reads.get(node.operands[0], ()))


def _refuse_detour(structure: Structure, store: Node, reads: Iterable[Node]) -> None:
    for load in reads:
        if structure.may_follow(store, load):
            name = path_of(store.operands[0])
            line = f" (line {load.span.line})" if load.span is not None else ""
            raise NotDifferentiableError(
                f"`{name}` has no gradient, but a differentiated value passes through it: it is read{line}",
                span=store.span,
                why="the gradient would silently lose this path",
                hint=f"give `{name}` a gradient (needs_grad=True)",
            )
