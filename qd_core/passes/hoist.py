"""Move loop-invariant computation out of serial loops.

Elementwise operations move whenever their operands are defined outside (nothing traps in this IR). A load moves when
it stands directly in `for` bodies, which therefore execute it if they run at all, and nothing in those loops can
write its element; it is guarded by "the loops run", so no address is read that the program would not have read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from qd_core import dtypes as dt
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Node, Region, Value
from qd_core.ir.rewrite import Copier

__all__ = ["hoist_invariants"]

_WRITES = frozenset(("store", "atomic"))


def hoist_invariants(function: Function, *, no_overlap: bool = False) -> Function:
    """Return the function with invariant computation moved before the outermost serial loop that it does not depend on.

    Parameters
    ----------
    function : Function
        A kernel; not changed.
    no_overlap : bool
        Different array parameters do not share memory. Otherwise any write in a loop keeps loads inside.
    """
    plan = _Plan(no_overlap)
    plan.region(function.body, ())
    if not plan.target:
        return function
    body = Region()
    builder = Builder(body)
    copier = Copier(builder, rule=plan.rule)
    copier.nodes(function.body.nodes)
    return Function(function.name, function.params, body, function.span, dict(function.attrs))


class _Plan:
    """Which node moves before which loop, in program order."""

    def __init__(self, no_overlap: bool) -> None:
        self.no_overlap = no_overlap
        self.target: dict[Node, Node] = {}
        self.moved: dict[Node, list[Node]] = defaultdict(list)
        self.guards: dict[Node, tuple[Node, ...]] = {}
        self._depth: dict[Value, int] = {}
        self._written: dict[Node, set[Value]] = {}

    # -- analysis -----------------------------------------------------------------------------------------------
    def region(self, region: Region, loops: tuple[tuple[Node, bool], ...]) -> None:
        """Plan for a region inside ``loops``: (serial loop or other region operation, whether loads may pass it)."""
        depth = len(loops)
        self._depth.update((a, depth) for a in region.args)
        for node in region.nodes:
            for inner in node.regions:
                self._written.setdefault(node, set()).update(self._writes(inner))
                self.region(inner, (*loops, (node, node.op.name == "for")))
            self._depth.update((r, depth) for r in node.results)
            self._depth[node] = self._level(node, loops, depth)

    def _writes(self, region: Region) -> set[Value]:
        """Arrays written anywhere inside."""
        found: set[Value] = set()
        stack = [region]
        while stack:
            for node in stack.pop().nodes:
                if node.op.name in _WRITES:
                    found.add(node.operands[0])
                stack.extend(node.regions)
        return found

    def _level(self, node: Node, loops: tuple[tuple[Node, bool], ...], depth: int) -> int:
        """Depth at which the node will stand: 0 is the root region."""
        load = node.op.name == "load"
        if node.op.terminator or node.regions or not (node.op.pure or load):
            return depth
        lowest = max((self._depth.get(o, 0) for o in node.operands), default=0)
        level = depth
        while level > lowest and self._passes(node, load, *loops[level - 1]):
            if load:  # its guard needs the bounds of every loop it leaves
                lowest = max(lowest, *(self._depth.get(v, 0) for v in loops[level - 1][0].operands[:2]))
                if level <= lowest:
                    break
            level -= 1
        if level < depth and node.op.name != "const":
            self._move(node, tuple(n for n, _ in loops[level:]), load)
        return level

    def _move(self, node: Node, crossed: tuple[Node, ...], load: bool) -> None:
        self.target[node] = crossed[0]
        self.moved[crossed[0]].append(node)
        self.guards[node] = crossed if load else ()

    def _passes(self, node: Node, load: bool, around: Node, plain: bool) -> bool:
        """Whether the node may move from inside ``around`` to before it."""
        if around.op.name not in ("for", "while"):
            return False
        if not load:
            return True
        written = self._written[around]
        return plain and not (node.operands[0] in written if self.no_overlap else written)

    # -- rewriting ----------------------------------------------------------------------------------------------
    def rule(self, copier: Copier, node: Node) -> bool:
        """Skip what has moved; emit it before its loop."""
        if node in self.target:
            return True
        for moved in self.moved.get(node, ()):
            copier.builder.span = moved.span
            self._emit(copier, moved)
        copier.builder.span = node.span
        return False

    def _emit(self, copier: Copier, node: Node) -> None:
        guards = self.guards[node]
        _copy_constants(copier, node.operands)
        if not guards:
            copier.default(node)
            return
        b = copier.builder
        condition: Value = b.const(dt.u1, True)
        for loop in guards:
            _copy_constants(copier, loop.operands[:2])
            condition = b.emit("and", condition, b.emit("lt", *copier.values(loop.operands[:2])))
        with b.inside() as then:
            b.yield_(b.load(copier.value(node.operands[0]), copier.values(node.operands[1:])))
        with b.inside() as otherwise:
            b.yield_(b.const(node.type, 0))
        copier.mapping[node] = b.if_(condition, then, otherwise)[0]


def _copy_constants(copier: Copier, values: Sequence[Value]) -> None:
    """Constants that stand further inside are needed here already."""
    for v in values:
        if isinstance(v, Node) and v.op.name == "const" and v not in copier.mapping:
            copier.default(v)
