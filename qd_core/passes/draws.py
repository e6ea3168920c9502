"""Number the random draws of a kernel, and expand them.

A draw is a word of Philox, whose counter is (block, iteration low, iteration high, task) and whose key is the launch's
(see `runtime.draws`). So a number depends on launch, parallel iteration and how many blocks that iteration has used,
and on nothing else: no backend, no order of execution, no memory. This runs before derivatives are taken, which then
see plain integer arithmetic on a scalar argument: given the same key, they compute the same numbers again.

An iteration counts its blocks of four words in a value carried through loops and branches. Where control flow joins, a
partly used block is left, so that which word of a block is next is always known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Node, Param, Region, Value
from qd_core.ir.rewrite import Copier, walk

__all__ = ["RANDOM", "number_draws"]

RANDOM = "random()"
"""Path of the scalar parameter (u64) that keys a launch's stream; no argument can be called so."""

_WORDS = 4


def number_draws(function: Function) -> Function:
    """Return ``function`` with every `random` node expanded; the function itself when it draws nothing."""
    key = next((p for p in function.params if p.path == RANDOM), None)
    if key is None:
        return function
    body = Region()
    numbering = _Numbering(Builder(body), key, _drawing(function.body))
    numbering.start(0, ())
    Copier(numbering.builder, {p: p for p in function.params}, numbering.rule).nodes(function.body.nodes)
    return Function(function.name, function.params, body, function.span, dict(function.attrs))


def _drawing(region: Region) -> frozenset[Node]:
    """Region operations with draws inside."""
    return frozenset(
        n for n in walk(region) if n.regions and any(inner.op.name == "random" for r in n.regions for inner in walk(r))
    )


@dataclass(slots=True)
class _Place:
    """Where an iteration's stream is: the block in use, how many of its words are used, the rest of the counter."""

    block: Value
    used: int
    iteration: tuple[Value, Value]
    task: int


class _Numbering:
    """The rule that expands draws, with the place in the stream of what is being copied."""

    def __init__(self, builder: Builder, key: Param, drawing: frozenset[Node]) -> None:
        self.builder, self.key, self.drawing = builder, key, drawing
        self.tasks = 0
        self.place: _Place

    def start(self, task: int, indices: Sequence[tuple[Value, Value, Value]]) -> None:
        """Begin the stream of an iteration; ``indices`` are (index, start, stop) an axis."""
        b, linear = self.builder, self.builder.const(dt.u64, 0)
        for index, start, stop in indices:
            extent = b.emit("sub", b.cast(stop, dt.i64), b.cast(start, dt.i64))
            step = b.emit("sub", b.cast(index, dt.i64), b.cast(start, dt.i64))
            linear = b.emit("add", b.emit("mul", linear, b.cast(extent, dt.u64)), b.cast(step, dt.u64))
        high = b.emit("shr", linear, b.const(dt.u64, 32))
        self.place = _Place(b.const(dt.u32, 0), 0, (b.cast(linear, dt.u32), b.cast(high, dt.u32)), task)

    # -- draws ----------------------------------------------------------------------------------------------------
    def rule(self, copier: Copier, node: Node) -> bool:
        """Expand a draw, carry the block through control flow."""
        if node.op.name == "random":
            copier.mapping[node] = self._draw(node.type)
            return True
        if node not in self.drawing:
            return False
        {"if": self._if, "for": self._for, "while": self._while, "parallel_for": self._parallel}[node.op.name](
            copier, node
        )
        return True

    def _draw(self, dtype: DType) -> Value:
        from qd_core.elementary.random import number

        return number(self.builder, dtype, [self._word() for _ in range(1 if dtype.bits <= 32 else 2)])

    def _word(self) -> Value:
        from qd_core.elementary.random import philox4x32

        place, b = self.place, self.builder
        key = [b.cast(self.key, dt.u32), b.cast(b.emit("shr", self.key, b.const(dt.u64, 32)), dt.u32)]
        counter = [place.block, *place.iteration, b.const(dt.u32, place.task)]
        words = b.memo(("random", *map(id, counter)), lambda: philox4x32(b, key, counter))
        word = words[place.used]
        place.used += 1
        if place.used == _WORDS:
            place.block, place.used = self._next(), 0
        return word

    def _next(self) -> Value:
        return self.builder.emit("add", self.place.block, self.builder.const(dt.u32, 1))

    def _fresh(self) -> Value:
        """The next block of which nothing is used."""
        if self.place.used:
            self.place.block, self.place.used = self._next(), 0
        return self.place.block

    # -- control --------------------------------------------------------------------------------------------------
    def _inside(self, copier: Copier, region: Region, block: Value, used: int) -> tuple[Value, ...]:
        """Copy a region's nodes here, starting at a block; return its yields, then the next block."""
        place = self.place
        self.place = _Place(block, used, place.iteration, place.task)
        yields = copier.body(region)
        copier.builder.span = region.terminator.span
        fresh = self._fresh()
        self.place = place
        return (*yields, fresh)

    def _if(self, copier: Copier, node: Node) -> None:
        b, place = self.builder, self.place
        branches: list[Region] = []
        for region in node.regions:
            with b.inside() as branch:
                b.yield_(*self._inside(copier, region, place.block, place.used))
            branches.append(branch)
        b.span = node.span
        *results, block = b.if_(copier.value(node.operands[0]), *branches)
        copier.results(node, results)
        place.block, place.used = block, 0

    def _for(self, copier: Copier, node: Node) -> None:
        b, (old,) = self.builder, node.regions
        start, stop, *inits = copier.values(node.operands)
        breaks = node.attrs["breaks"]
        inits.append(self._fresh())
        with b.inside([*((a.type, a.name) for a in old.args), (dt.u32, "draws")], loop=True) as body:
            copier.mapping.update(zip(old.args, body.args, strict=False))
            *yields, block = self._inside(copier, old, body.args[-1], 0)
            b.yield_(*yields[:-1], block, yields[-1]) if breaks else b.yield_(*yields, block)
        b.span = node.span
        *results, self.place.block = b.for_(start, stop, inits, body, reverse=node.attrs["reverse"], breaks=breaks)
        copier.results(node, results)

    def _while(self, copier: Copier, node: Node) -> None:
        """The test may draw, and only a body hands on a block: the test is evaluated before the loop and at its end."""
        b, (test, old) = self.builder, node.regions
        inits = copier.values(node.operands)

        def tested(values: Sequence[Value], block: Value) -> tuple[Value, ...]:
            copier.mapping.update(zip(test.args, values, strict=True))
            return self._inside(copier, test, block, 0)

        inits = (*inits, *tested(inits, self._fresh()))
        carried = [*((a.type, a.name) for a in old.args), (dt.u1, "again"), (dt.u32, "draws")]
        with b.inside(carried, loop=True) as condition:
            b.yield_(condition.args[-2])
        with b.inside(carried, loop=True) as body:
            copier.mapping.update(zip(old.args, body.args, strict=False))
            *yields, block = self._inside(copier, old, body.args[-1], 0)
            b.yield_(*yields, *tested(yields, block))
        b.span = node.span
        *results, _, self.place.block = b.while_(inits, condition, body)
        copier.results(node, results)

    def _parallel(self, copier: Copier, node: Node) -> None:
        b, (old,), place = self.builder, node.regions, self.place
        self.tasks += 1
        flat = copier.values(node.operands)
        bounds = list(zip(flat[::2], flat[1::2], strict=True))
        with b.inside([(a.type, a.name) for a in old.args], loop=True) as body:
            copier.mapping.update(zip(old.args, body.args, strict=True))
            self.start(self.tasks, [(i, *pair) for i, pair in zip(body.args, bounds, strict=True)])
            copier.body(old)
            b.yield_()
        self.place = place
        b.span = node.span
        b.parallel_for(bounds, body, **node.attrs)
