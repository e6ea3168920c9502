"""Primal values in reverse scopes: recomputed, replayed from inside nested regions, or recorded trip by trip."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from qd_core import dtypes as dt
from qd_core.autodiff.blocks import Blocks, trips, whole
from qd_core.autodiff.residuals import Demand
from qd_core.autodiff.structure import Carried, Structure, carried, is_loop
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Node, Param, Region, Value
from qd_core.ir.rewrite import Copier

__all__ = ["Replay"]


class Replay:
    """Emits primal values that `Demand` asks for.

    One mapping from original values to their copies serves all scopes: the copies made for a reverse scope are made
    when it is entered, after every replay that surrounds it, and replays inside it only define values of deeper
    regions.
    """

    def __init__(self, builder: Builder, structure: Structure, demand: Demand, budget: int) -> None:
        self.b, self.structure, self.demand, self.budget = builder, structure, demand, budget
        self.mapping: dict[Value, Value] = {}
        self._plain = Copier(builder, self.mapping)
        self._spans: dict[Node, tuple[Value, Value]] = {}
        self._records: dict[Node, dict[Value, Value]] = {}
        self._blocks: dict[Node, Blocks] = {}
        self._origin: dict[Node, Value] = {}
        self._reserve: dict[Region | Node, list[Node]] = defaultdict(list)
        for loop in demand.recorded:
            home = self._scratch_home(loop)
            if home is not None:
                self._reserve[home].append(loop)

    def value(self, value: Value) -> Value:
        """Return the copy of a primal value in the current scope."""
        return value if isinstance(value, Param) else self.mapping[value]

    def bind(self, originals: Sequence[Value], copies: Sequence[Value]) -> None:
        """Let ``copies`` stand for region arguments."""
        self.mapping.update(zip(originals, copies, strict=True))

    def fill(self) -> None:
        """Fill the temporaries that are read again, as the primal did."""
        root = self.structure.root
        keep = self.demand.slices.get(root)
        if keep:
            Copier(self.b, {}, lambda copier, node: _replay_node(copier, node, keep)).nodes(root.nodes[:-1])

    def section(self, region: Region) -> None:
        """Emit the primal values that the reverse scope of ``region`` needs, in program order."""
        for node in region.nodes[:-1]:
            self.b.span = node.span
            if node in self.demand.needed and node not in self.demand.saved:
                self._plain.default(node)
            elif node.regions and node.op.name != "parallel_for" and self.demand.replays(node):
                self._replay(node)
        self._allocate_for(region)

    def prepare(self, node: Node) -> None:
        """Record what a loop of the root region needs right before its reverse: private memory ends with the task."""
        self._allocate_for(node)
        if self._deferred(node):
            self._sweep(node, record=True)

    def _deferred(self, node: Node) -> bool:
        return (
            is_loop(node) and bool(self.demand.recorded.get(node)) and self.structure.home[node] is self.structure.root
        )

    # -- loops --------------------------------------------------------------------------------------------------
    def span(self, loop: Node) -> tuple[Value, Value, bool]:
        """Indices [low, high) that a loop ran through, and whether it ran downward."""
        known = self._spans.get(loop)
        low, high = known if known is not None else (self.value(loop.operands[0]), self.value(loop.operands[1]))
        return low, high, loop.attrs.get("reverse", False)

    def enter(self, loop: Node, index: Value) -> None:
        """Start the reverse scope of a loop's body at ``index``: bind its index and the recorded carried values."""
        if loop.op.name == "for":
            self.mapping[loop.regions[0].args[0]] = index
        slots = self._records.get(loop, {})
        if slots:
            slot = self.b.emit("sub", index, self._origin.get(loop, self.span(loop)[0]))
            for value, scratch in slots.items():
                self.mapping[value] = self.b.scratch_load(scratch, slot)

    def _replay(self, node: Node) -> None:
        keep = self.demand.slices[node]
        wanted = self.demand.wants_results(node)
        if node in self.demand.counted:
            self._count(node)
        elif not self.demand.recorded.get(node):
            self._replayer(keep).node(node)
            return
        deferred = self._deferred(node)
        if wanted or (self.demand.recorded.get(node) and not deferred):
            self._sweep(node, record=not deferred)

    def _replayer(self, keep: set[Value]) -> Copier:
        return Copier(self.b, self.mapping, lambda copier, node: _replay_node(copier, node, keep))

    def _count(self, loop: Node) -> None:
        """Run the loop's control alone to learn how many trips it makes."""
        kept = self._kept(loop)
        copier = self._replayer(self.demand.slices[loop])
        if loop.op.name == "while":
            self._spans[loop] = (self.b.const(dt.i32, 0), _copy_while(copier, loop, kept, dt.i32)[-1])
            return
        start, stop = (self.value(v) for v in loop.operands[:2])
        trips = _copy_for(copier, loop, kept, start.type)[-1]
        downward = loop.attrs["reverse"]
        self._spans[loop] = (
            (self.b.emit("sub", stop, trips), stop) if downward else (start, self.b.emit("add", start, trips))
        )

    def _kept(self, loop: Node) -> list[Carried]:
        return [c for c in carried(loop) if c.arg in self.demand.slices[loop]]

    def _sweep(self, loop: Node, *, record: bool) -> None:
        """Replay a loop whose number of trips is known, recording carried values at the start of each trip."""
        low, high, _ = self.span(loop)
        if record and loop not in self._records:
            self._allocate(loop)
        kept = self._kept(loop)
        inits = [self.value(c.init) for c in kept]
        blocks = self._blocks.get(loop) if record else None
        results = (
            self._trips(loop, low, high, inits, record) if blocks is None else self._sweep_blocks(loop, blocks, inits)
        )
        self.bind([c.result for c in kept], results)

    def _sweep_blocks(self, loop: Node, blocks: Blocks, inits: Sequence[Value]) -> tuple[Value, ...]:
        args = [c.arg for c in self._kept(loop)]
        with self.b.inside([(blocks.low.type, "block"), *((a.type, a.name) for a in args)], loop=True) as body:
            block, *values = body.args
            for arg, value in zip(args, values, strict=True):
                self.b.scratch_store(blocks.states[arg], block, value)
            first, stop = blocks.range(self.b, block)
            self.b.yield_(*self._trips(loop, first, stop, values, True))
        return self.b.for_(self.b.const(block.type, 0), blocks.count, inits, body, reverse=blocks.downward)

    def blocks(self, loop: Node) -> Blocks | None:
        """How the reversed loop goes over the trips: block by block, or all at once."""
        return self._blocks.get(loop)

    def enter_block(self, loop: Node, block: Value) -> tuple[Value, Value]:
        """Record the trips of a block, unless the sweep has just done that; return its bounds."""
        blocks = self._blocks[loop]
        first, stop = blocks.range(self.b, block)
        recorded = blocks.recorded_last(self.b, block)
        states = [self.b.scratch_load(blocks.states[c.arg], block) for c in self._kept(loop)]
        self._trips(loop, first, self.b.select(recorded, first, stop), states, True)
        self._origin[loop] = first
        return first, stop

    def _trips(self, loop: Node, low: Value, high: Value, inits: Sequence[Value], record: bool) -> tuple[Value, ...]:
        """Replay the trips with index in [low, high), from values ``inits``; slots count from ``low``."""
        kept, body = self._kept(loop), loop.regions[-1]
        with self.b.inside([(low.type, "t"), *((c.arg.type, c.arg.name) for c in kept)], loop=True) as new:
            if loop.op.name == "for":
                self.mapping[body.args[0]] = new.args[0]
            self.bind([c.arg for c in kept], new.args[1:])
            self._replayer(self.demand.slices[loop]).nodes(body.nodes[:-1])
            if record:
                self._record(loop, self.b.emit("sub", new.args[0], low))
            self.b.yield_(*(self.value(c.next) for c in kept))
        return self.b.for_(low, high, inits, new, reverse=loop.attrs.get("reverse", False))

    def _record(self, loop: Node, slot: Value) -> None:
        for value, scratch in self._records.get(loop, {}).items():
            self.b.scratch_store(scratch, slot, self.value(value))

    # -- private memory -----------------------------------------------------------------------------------------
    def _allocate_for(self, place: Region | Node) -> None:
        for loop in self._reserve.get(place, ()):
            self._allocate(loop)

    def _allocate(self, loop: Node) -> None:
        low, high, downward = self.span(loop)
        recorded = self.demand.recorded.get(loop, ())
        limit = max(self.budget // max(sum(v.type.nbytes for v in recorded), 1), 16)
        length = trips(self.b, low, high)
        if not whole(self.b, low, high, limit):
            blocks = self._blocks[loop] = Blocks.cut(self.b, low, high, downward, limit)
            length, count = self.b.cast(blocks.size, dt.i64), self.b.cast(blocks.count, dt.i64)
            blocks.states.update((c.arg, self.b.scratch(c.arg.type, count)) for c in self._kept(loop))
        self._records[loop] = {v: self.b.scratch(v.type, length) for v in recorded}

    def _scratch_home(self, loop: Node) -> Region | Node | None:
        """Where an inner loop's memory is reserved, shared by the trips around it: where its length is first known.

        A region of a reverse scope, an operation of the root region, or None: at the loop itself.
        """
        if loop in self.demand.counted:
            return None
        chain = self.structure.chain[self.structure.home[loop]]
        known = [self.structure.depth[self.structure.home[v]] for v in loop.operands[:2] if v in self.structure.home]
        task = int(bool(chain) and chain[0][0].op.name == "parallel_for")
        depth = max(task, *known, 0)
        if not any(is_loop(n) for n, _ in chain[depth:]):
            return None
        return chain[depth - 1][1] if depth else chain[0][0]


def _replay_node(copier: Copier, node: Node, keep: set[Value]) -> bool:
    """Rule of a replay: copy what is in the slice, drop results and carried values that are not."""
    if not node.regions:
        return node not in keep
    handler = _REPLAY.get(node.op.name)
    if handler is not None:
        handler(copier, node, keep)
    return True


def _replay_if(copier: Copier, node: Node, keep: set[Value]) -> None:
    kept = [k for k, r in enumerate(node.results) if r in keep]
    if not kept and node not in keep:
        return
    condition = copier.value(node.operands[0])
    regions = []
    for region in node.regions:
        with copier.builder.inside() as new:
            copier.nodes(region.nodes[:-1])
            copier.builder.yield_(*(copier.value(region.yields[k]) for k in kept))
        regions.append(new)
    copier.builder.span = node.span
    results = copier.builder.if_(condition, *regions)
    copier.mapping.update(zip((node.results[k] for k in kept), results, strict=True))


def _replay_for(copier: Copier, node: Node, keep: set[Value]) -> None:
    kept = [c for c in carried(node) if c.arg in keep]
    if kept or node in keep:
        results = _copy_for(copier, node, kept)
        copier.mapping.update(zip((c.result for c in kept), results, strict=True))


def _copy_for(copier: Copier, node: Node, kept: list[Carried], counter: DType | None = None) -> tuple[Value, ...]:
    start, stop = copier.values(node.operands[:2])
    body, breaks = node.regions[0], node.attrs["breaks"]
    inits = [copier.value(c.init) for c in kept]
    go_on = body.yields[-1:] if breaks else ()
    new = _body(copier, body, [body.args[0], *(c.arg for c in kept)], [c.next for c in kept], go_on, counter)
    if counter is not None:
        inits.append(copier.builder.const(counter, 0))
    return copier.builder.for_(start, stop, inits, new, reverse=node.attrs["reverse"], breaks=breaks)


def _replay_while(copier: Copier, node: Node, keep: set[Value]) -> None:
    kept = [c for c in carried(node) if c.arg in keep]
    if kept or node in keep:
        results = _copy_while(copier, node, kept)
        copier.mapping.update(zip((c.result for c in kept), results, strict=True))


def _copy_while(copier: Copier, node: Node, kept: list[Carried], counter: DType | None = None) -> tuple[Value, ...]:
    inits = [copier.value(c.init) for c in kept]
    if counter is not None:
        inits.append(copier.builder.const(counter, 0))
    extra = [] if counter is None else [(counter, "trips")]
    with copier.builder.inside([*((c.args[0].type, "") for c in kept), *extra], loop=True) as condition:
        copier.mapping.update(zip((c.args[0] for c in kept), condition.args, strict=False))
        copier.nodes(node.regions[0].nodes[:-1])
        copier.builder.yield_(copier.value(node.regions[0].yields[0]))
    body = _body(copier, node.regions[1], [c.arg for c in kept], [c.next for c in kept], (), counter)
    return copier.builder.while_(inits, condition, body)


def _replay_parallel(copier: Copier, node: Node, keep: set[Value]) -> None:
    if node in keep:
        copier.default(node)


_REPLAY: dict[str, Callable[[Copier, Node, set[Value]], None]] = {
    "if": _replay_if,
    "for": _replay_for,
    "while": _replay_while,
    "parallel_for": _replay_parallel,
}


def _body(
    copier: Copier,
    region: Region,
    args: Sequence[Value],
    yields: Sequence[Value],
    tail: Sequence[Value],
    counter: DType | None,
) -> Region:
    """Replay a loop's body with some of its arguments; a last carried value of type ``counter`` counts trips."""
    b = copier.builder
    extra = [(counter, "trips")] if counter is not None else []
    with b.inside([*((a.type, getattr(a, "name", "")) for a in args), *extra], loop=True) as new:
        copier.mapping.update(zip(args, new.args, strict=False))
        copier.nodes(region.nodes[:-1])
        count = () if counter is None else (b.emit("add", new.args[-1], b.const(counter, 1)),)
        b.yield_(*copier.values(yields), *count, *copier.values(tail))
    return new
