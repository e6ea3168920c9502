"""Forward mode: a function to the function that computes results and their tangents in one walk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from qd_core.autodiff.activity import Activity, analyze
from qd_core.autodiff.reverse import shadow_params
from qd_core.autodiff.rules import push
from qd_core.autodiff.structure import Structure, carried, indices, path_of
from qd_core.errors import NotDifferentiableError
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Node, Param, Region, Role, Value
from qd_core.ir.rewrite import Copier, eliminate_dead, walk
from qd_core.passes.hoist import hoist_invariants
from qd_core.passes.pin import is_extremum

__all__ = ["forward"]


def forward(function: Function, duals: Iterable[str]) -> Function:
    """Return the function that executes ``function`` and propagates tangents.

    Parameters
    ----------
    function : Function
        A kernel; it is not changed.
    duals : iterable of str
        Paths of the array parameters that have storage for tangents. Others are constants when read.

    Returns
    -------
    Function
        ``{name}_dual``: the parameters of ``function`` and, for each array in ``duals``, the array ``{path}.dual`` of
        the same type.

    Raises
    ------
    NotDifferentiableError
        See `activity.analyze`.
    """
    primal = hoist_invariants(function)
    params, shadows = shadow_params(primal, duals, ".dual", Role.DUAL)
    structure = Structure(primal)
    body = Region()
    walker = _Forward(Builder(body), analyze(structure, shadows), shadows)
    for node in primal.body.nodes:
        walker.copier.node(node)
        inner = (i for r in node.regions for i in walk(r))
        if any(is_extremum(n) and n.operands[0] in shadows for n in (node, *inner)):
            check_repeatable(structure, node)
            walker.settle(node)
    result = Function(f"{function.name}_dual", params, body, function.span, dict(function.attrs))
    eliminate_dead(result)
    return result


def check_repeatable(structure: Structure, node: Node) -> None:
    """Refuse a root operation with atomic extrema that would not compute the same values if it ran again."""
    inside = [n for n in structure.nodes if n is node or any(o is node for o, _ in structure.chain[structure.home[n]])]
    written = {n.operands[0] for n in inside if n.op.name in ("store", "atomic")}
    used = set[Value]()
    for n in reversed(inside):
        owner = structure.owner[structure.home[n]]
        if n.op.terminator and owner is not None and owner.op.name == "if":
            # What a branch yields for a result that nobody uses is no use: bounds checks leave such loads.
            used.update(o for o, r in zip(n.operands, owner.results, strict=True) if r in used)
        else:
            used.update(n.operands)
    for n in inside:
        if n in used and n.op.name in ("load", "atomic") and n.operands[0] in written:
            raise NotDifferentiableError(
                f"a minimum or maximum is formed in a loop that reads `{path_of(n.operands[0])}`, which it also writes",
                span=n.span,
                why="forward mode runs the loop again to find the achieving element",
                hint="split the loop, or use reverse mode",
            )


class _Forward:
    """State of one walk: ``tangent`` maps original active values to their tangents."""

    def __init__(self, builder: Builder, activity: Activity, shadows: Mapping[Param, Param]) -> None:
        self.b, self.activity, self.shadows = builder, activity, shadows
        self.copier = Copier(builder, rule=self.rule)
        self.tangent: dict[Value, Value] = {}
        self.settling = False

    def settle(self, node: Node) -> None:
        """Run a root operation again, without its effects, to find whose tangents its minima and maxima have."""
        self.settling = True
        self.copier.node(node)
        self.settling = False

    def rule(self, copier: Copier, node: Node) -> bool:
        """Copy a node; emit its tangent when it has one."""
        if self.settling and node.op.writes and not node.regions:
            if is_extremum(node) and node.operands[0] in self.shadows:
                self.achieved(node)
            if node.op.name == "atomic":
                # Nobody uses the old value (`check_repeatable`), but a branch may yield it.
                copier.mapping[node] = self.b.const(node.type, 0)
            return node.op.name not in ("scratch", "scratch_store")
        if not self.activity.has_code(node):
            return False
        handler = _RULES.get(node.op.name)
        if handler is not None:
            handler(self, node)
        else:
            copier.default(node)
            self.elementwise(node)
        return True

    def of(self, value: Value) -> Value:
        """Tangent of a value; zero when it has none."""
        known = self.tangent.get(value)
        return known if known is not None else self.b.const(value.type, 0.0)

    def elementwise(self, node: Node) -> None:
        tangents = [self.tangent.get(o) if o in self.activity.active else None for o in node.operands]
        x, masked = self.copier.values(node.operands), node in self.activity.masked
        t = push(self.b, node.op.name, x, self.copier.value(node), tangents, masked=masked)
        if t is not None:
            self.tangent[node] = t

    # -- memory -------------------------------------------------------------------------------------------------
    def element(self, node: Node) -> tuple[Param, tuple[Value, ...]]:
        return self.shadows[node.operands[0]], self.copier.values(indices(node))  # type: ignore[index]

    def load(self, node: Node) -> None:
        self.copier.default(node)
        if node.operands[0] in self.shadows:
            self.tangent[node] = self.b.load(*self.element(node))

    def store(self, node: Node) -> None:
        self.copier.default(node)
        self.b.store(*self.element(node), self.of(node.operands[-1]))

    def atomic(self, node: Node) -> None:
        self.copier.default(node)
        if is_extremum(node):
            return
        self.b.atomic("add", *self.element(node), self.of(node.operands[-1]))

    def achieved(self, node: Node) -> None:
        """Store the tangent of a value that equals the extremum."""
        value = self.copier.value(node.operands[-1])
        best = self.b.load(self.copier.value(node.operands[0]), self.copier.values(indices(node)))
        with self.b.inside() as mine:
            self.b.store(*self.element(node), self.of(node.operands[-1]))
            self.b.yield_()
        with self.b.inside() as other:
            self.b.yield_()
        self.b.if_(self.b.emit("eq", value, best), mine, other)

    # -- control ------------------------------------------------------------------------------------------------
    def fill(self, region: Region, extra: Sequence[Value], breaks: bool = False) -> None:
        """Copy a region's nodes here and yield its values, the tangents of ``extra``, and last whether to go on."""
        values = self.copier.body(region)
        own, last = (values[:-1], values[-1:]) if breaks else (values, ())
        self.b.span = region.terminator.span
        self.b.yield_(*own, *(self.of(v) for v in extra), *last)

    def finish(self, node: Node, results: Sequence[Value], active: Sequence[Value]) -> None:
        count = len(node.results)
        self.copier.results(node, results[:count])
        self.tangent.update(zip(active, results[count:], strict=True))

    def branch(self, node: Node) -> None:
        active = [k for k, r in enumerate(node.results) if r in self.activity.active]
        condition = self.copier.value(node.operands[0])
        regions: list[Region] = []
        for region in node.regions:
            with self.b.inside() as new:
                self.fill(region, [region.yields[k] for k in active])
            regions.append(new)
        self.b.span = node.span
        self.finish(node, self.b.if_(condition, *regions), [node.results[k] for k in active])

    def loop(self, node: Node) -> None:
        own = [c for c in carried(node) if c.arg in self.activity.active or c.result in self.activity.active]
        operands = self.copier.values(node.operands)
        duals = [self.of(c.init) for c in own]
        regions: list[Region] = []
        for position, region in enumerate(node.regions):
            args = [c.args[position] for c in own]
            with self.b.inside(
                [*((a.type, a.name) for a in region.args), *((a.type, f"{a.name}.dual") for a in args)], loop=True
            ) as new:
                self.copier.mapping.update(zip(region.args, new.args, strict=False))
                self.tangent.update(zip(args, new.args[len(region.args) :], strict=True))
                test = node.op.name == "while" and position == 0
                self.fill(region, [] if test else [c.next for c in own], node.attrs.get("breaks", False))
            regions.append(new)
        self.b.span = node.span
        self.finish(node, self.emit_loop(node, operands, duals, regions), [c.result for c in own])

    def emit_loop(
        self, node: Node, operands: Sequence[Value], duals: Sequence[Value], regions: Sequence[Region]
    ) -> tuple[Value, ...]:
        if node.op.name == "while":
            return self.b.while_([*operands, *duals], regions[0], regions[1])
        return self.b.for_(
            operands[0],
            operands[1],
            [*operands[2:], *duals],
            regions[0],
            reverse=node.attrs["reverse"],
            breaks=node.attrs["breaks"],
        )


_RULES: dict[str, Callable[[_Forward, Node], None]] = {
    "load": _Forward.load, "store": _Forward.store, "atomic": _Forward.atomic,
    "if": _Forward.branch, "for": _Forward.loop, "while": _Forward.loop,
}  # fmt: skip
