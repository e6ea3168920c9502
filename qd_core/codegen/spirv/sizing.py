"""How much private memory the iterations of a task need, found by running a slice of the task beforehand.

The slice keeps what decides the lengths of private memory and whether it is reserved: loads, arithmetic, loops and
branches, but no store, no atomic and nothing that only feeds results. Each iteration reports its need by an atomic
maximum. Where a length hangs on what an atomic returned or on private memory itself, or is read from an array that the
task writes, there is no slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qd_core import dtypes as dt
from qd_core.codegen.spirv.scratch import is_pooled, uses_pool
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Arg, Node, Param, Region, Result, Value
from qd_core.ir.program import Task, accesses
from qd_core.ir.rewrite import Copier, eliminate_dead, walk

__all__ = ["MAX_SLOTS", "sizing_task", "slots_of"]

MAX_SLOTS = 2**31 - 1
"""Largest need that is told from larger ones."""


class _Unknown(Exception):
    """A length cannot be found without running the task."""


def sizing_task(task: Task, need: Param, place: int) -> Task | None:
    """Return the task that stores the largest need of any iteration of ``task``, or None where there is no slice.

    Parameters
    ----------
    task : Task
        A task that uses the pool.
    need : Param
        An i32 array in which element ``place``, 0 beforehand, becomes the 4-byte slots that an iteration needs at most.
    """
    try:
        demand = _Demand(task)
    except _Unknown:
        return None
    region = Region()
    builder = Builder(region)
    with builder.inside([(a.type, a.name) for a in task.body.args], loop=True) as body:
        copier = Copier(builder, dict(zip(task.body.args, body.args, strict=True)))
        zero = builder.const(dt.i64, 0)
        most = _Writer(copier, demand).region(task.body, zero, zero)
        bounded = builder.emit("min", most, builder.const(dt.i64, MAX_SLOTS))
        builder.atomic("max", need, [builder.const(dt.i32, place)], builder.cast(bounded, dt.i32))
        builder.yield_()
    eliminate_dead(body)
    attrs = {k: v for k, v in task.attrs.items() if k != "serialize"}
    return replace(task, body=body, attrs=attrs)


def slots_of(b: Builder, node: Node, length: Value) -> Value:
    """4-byte slots (i64) of a `scratch` node of ``length`` scalars."""
    count = b.emit("max", b.cast(length, dt.i64), b.const(dt.i64, 0))
    return b.emit("mul", count, b.const(dt.i64, 2 if node.type.dtype.bits == 64 else 1))


class _Demand:
    """Values that the lengths, and the control flow around them, hang on."""

    def __init__(self, task: Task) -> None:
        self.wanted: set[Value] = set()
        self._owner: dict[Region, Node] = {r: n for n in walk(task.body) for r in n.regions}
        self._written = accesses(task.body)[1]
        self._stack: list[Value] = []
        self._kept: set[Node] = set()
        self._structure(task.body)
        while self._stack:
            value = self._stack.pop()
            if value not in self.wanted and not isinstance(value, Param):
                self.wanted.add(value)
                self._visit(value)

    def _structure(self, region: Region) -> None:
        for node in region.nodes:
            if is_pooled(node):
                self._stack.append(node.operands[0])
            if any(map(uses_pool, node.regions)):
                self._keep(node)
                for inner in node.regions:
                    self._structure(inner)

    def _keep(self, node: Node) -> None:
        """Want what decides how often and which way a region operation runs."""
        if node in self._kept:
            return
        self._kept.add(node)
        if node.op.name == "while":
            self._stack.append(node.regions[0].yields[0])
        elif node.op.name == "for":
            self._stack += node.operands[:2]
            self._stack += node.regions[0].yields[-1:] if node.attrs["breaks"] else ()
        else:
            self._stack.append(node.operands[0])

    def _visit(self, value: Value) -> None:
        if isinstance(value, Arg):
            node = self._owner.get(value.region) if value.region is not None else None
            if node is not None:
                self._visit_carried(node, _carried_index(node, value))
        elif isinstance(value, Result):
            if value.node.op.name == "if":
                self._keep(value.node)
                self._stack += (r.yields[value.index] for r in value.node.regions)
            else:
                self._visit_carried(value.node, value.index)
        else:
            assert isinstance(value, Node)
            self._visit_node(value)

    def _visit_node(self, node: Node) -> None:
        if node.op.name == "load":
            if node.operands[0] in self._written:
                raise _Unknown
            self._stack += node.operands[1:]
        elif node.op.pure:
            self._stack += (v for v in node.operands if not isinstance(v, Param) or v.type in dt.ALL)
        else:
            raise _Unknown

    def _visit_carried(self, node: Node, k: int) -> None:
        """Want carried value ``k`` of a loop everywhere it goes; -1 is the index of a `for`."""
        self._keep(node)
        if k < 0:
            return
        bounds = 2 if node.op.name == "for" else 0
        self._stack += (node.operands[bounds + k], node.regions[-1].yields[k], node.results[k])
        self._stack += (r.args[k + (node.op.name == "for")] for r in node.regions)


def _carried_index(node: Node, arg: Arg) -> int:
    region = arg.region
    assert region is not None
    return region.args.index(arg) - (node.op.name == "for")


class _Writer:
    """Copies what is wanted, with the need so far beside it."""

    def __init__(self, copier: Copier, demand: _Demand) -> None:
        self.copier, self.b, self.wanted = copier, copier.builder, demand.wanted

    def region(self, region: Region, used: Value, most: Value) -> Value:
        """Copy a region that starts with ``used`` slots in use; return the largest number in use so far."""
        for node in region.nodes[:-1]:
            if is_pooled(node):
                slots = slots_of(self.b, node, self.copier.value(node.operands[0]))
                used = self.b.emit("add", used, slots)
                most = self.b.emit("max", most, used)
            elif node.regions:
                most = self._nested(node, used, most)
            elif node in self.wanted:
                self.copier.node(node)
        return most

    def _nested(self, node: Node, used: Value, most: Value) -> Value:
        kept = [k for k, r in enumerate(node.results) if r in self.wanted]
        if not kept and not any(map(uses_pool, node.regions)):
            return most
        copy = {"if": self._if, "for": self._for, "while": self._while}[node.op.name]
        *values, most = copy(node, kept, used, most)
        self.copier.mapping.update(zip((node.results[k] for k in kept), values, strict=True))
        return most

    def _if(self, node: Node, kept: Sequence[int], used: Value, most: Value) -> tuple[Value, ...]:
        sides: list[Region] = []
        for region in node.regions:
            with self.b.inside() as side:
                after = self.region(region, used, most)
                self.b.yield_(*self.copier.values([region.yields[k] for k in kept]), after)
            sides.append(side)
        then, otherwise = sides
        return self.b.if_(self.copier.value(node.operands[0]), then, otherwise)

    def _for(self, node: Node, kept: Sequence[int], used: Value, most: Value) -> tuple[Value, ...]:
        start, stop, *inits = node.operands
        (region,) = node.regions
        index, *carried = region.args
        types = [(index.type, index.name), *((carried[k].type, "") for k in kept), (dt.i64, "most")]
        with self.b.inside(types, loop=True) as body:
            self.copier.mapping.update(zip((index, *(carried[k] for k in kept)), body.args, strict=False))
            after = self.region(region, used, body.args[-1])
            yields = [region.yields[k] for k in kept]
            goes_on = region.yields[-1:] if node.attrs["breaks"] else ()
            self.b.yield_(*self.copier.values(yields), after, *self.copier.values(goes_on))
        first, last, *carried = self.copier.values([start, stop, *(inits[k] for k in kept)])
        reverse, breaks = (bool(node.attrs[name]) for name in ("reverse", "breaks"))
        return self.b.for_(first, last, [*carried, most], body, reverse=reverse, breaks=breaks)

    def _while(self, node: Node, kept: Sequence[int], used: Value, most: Value) -> tuple[Value, ...]:
        copies: list[Region] = []
        for region in node.regions:
            types = [*((region.args[k].type, "") for k in kept), (dt.i64, "most")]
            with self.b.inside(types, loop=True) as copy:
                self.copier.mapping.update(zip((region.args[k] for k in kept), copy.args, strict=False))
                after = self.region(region, used, copy.args[-1])
                if region is node.regions[0]:
                    self.b.yield_(self.copier.value(region.yields[0]))
                else:
                    self.b.yield_(*self.copier.values([region.yields[k] for k in kept]), after)
            copies.append(copy)
        inits = [*self.copier.values([node.operands[k] for k in kept]), most]
        test, body = copies
        return self.b.while_(inits, test, body)
