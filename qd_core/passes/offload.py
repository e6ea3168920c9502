"""Cut a kernel into tasks.

The root region is serial glue between parallel loops. Each `parallel_for` becomes a parallel task, each maximal run of
other nodes a serial
one. A root value that another task needs is recomputed there when it hangs only on scalars, extents and constants (a
*host value*: extents
of parallel loops made of these are evaluated by the packers). Any other is stored at the end of its serial task into a
temporary
array, one a dtype, and loaded by its readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.errors import Span, format_span
from qd_core.ir.build import Builder, constant_of
from qd_core.ir.nodes import ArrayType, Function, Node, Param, Region, Role, Value
from qd_core.ir.program import DeviceWord, Extent, Fixed, HostExpr, Program, Site, Task, accesses
from qd_core.ir.rewrite import Copier, defining_node, eliminate_dead, has_effect, operands_deep, walk

__all__ = ["offload"]


def offload(function: Function) -> Program:
    """Return ``function`` as a program of tasks.

    Parameters that no task uses are dropped; temporaries and the log are added. ``function`` is dead-code eliminated
    in place.
    """
    eliminate_dead(function)
    return _Offload(_without_stops(function)).run()


def _without_stops(function: Function) -> Function:
    """Let the operand of every `stop_grad` stand for it: only derivatives know the difference."""
    if all(n.op.name != "stop_grad" for n in walk(function.body)):
        return function

    def rule(copier: Copier, node: Node) -> bool:
        if node.op.name == "stop_grad":
            copier.mapping[node] = copier.value(node.operands[0])
        return node.op.name == "stop_grad"

    body = Region()
    Copier(Builder(body), {p: p for p in function.params}, rule).nodes(function.body.nodes)
    return Function(function.name, function.params, body, function.span, dict(function.attrs))


@dataclass(slots=True)
class _Segment:
    """Consecutive root nodes that become one task: serial ``nodes``, or one parallel ``loop`` with its ``counts``."""

    nodes: list[Node] = field(default_factory=list[Node])
    loop: Node | None = None
    counts: tuple[Value, ...] = ()

    def needs(self) -> Iterator[Value]:
        """Values that the task uses, its own included."""
        for node in self.nodes:
            yield from operands_deep(node)
        if self.loop is not None:
            yield from self.loop.operands[::2]
            for node in self.loop.regions[0].nodes:
                yield from operands_deep(node)


class _Offload:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.host: set[Value] = set()
        self.segments: list[_Segment] = []
        self.home: dict[Value, int] = {}
        self.temps: dict[DType, Param] = {}
        self.slots: dict[Value, tuple[Param, int]] = {}
        self.sites: list[Site] = []
        self.site_of: dict[Node, int] = {}

    def run(self) -> Program:
        self._split()
        for index, segment in enumerate(self.segments):
            for value in (*segment.needs(), *segment.counts):
                if self.home.get(value, index) != index:
                    self._reserve(value)
        tasks = tuple(t for i, s in enumerate(self.segments) if (t := self._task(i, s)) is not None)
        return self._program(tasks)

    # -- segments -------------------------------------------------------------------------------------------------
    def _split(self) -> None:
        extra = Region()
        builder = Builder(extra)
        for node in self.function.body.nodes:
            builder.span = node.span
            if node.op.name == "parallel_for":
                counts = _counts(builder, node)
                self._place(extra.nodes)
                extra.nodes.clear()
                self.segments.append(_Segment(loop=node, counts=counts))
            elif not node.op.terminator:
                self._place([node])

    def _place(self, nodes: list[Node]) -> None:
        """Put nodes that are no host values into the current serial segment."""
        for node in nodes:
            if self._is_host(node):
                self.host.add(node)
                continue
            if not self.segments or self.segments[-1].loop is not None:
                self.segments.append(_Segment())
            self.segments[-1].nodes.append(node)
            for value in (node, *node.results):
                self.home[value] = len(self.segments) - 1

    def _is_host(self, node: Node) -> bool:
        return node.op.pure and not node.regions and all(v in self.host or isinstance(v, Param) for v in node.operands)

    def _reserve(self, value: Value) -> None:
        if value in self.slots:
            return
        dtype: DType = value.type
        param = self.temps.get(dtype)
        if param is None:
            param = self.temps[dtype] = Param(ArrayType(dtype, 1, (), (0,)), f"temporary.{dtype.name}", Role.TEMP)
        (size,) = param.type.fixed_shape
        param.type = ArrayType(dtype, 1, (), (size + 1,))
        self.slots[value] = (param, size)

    # -- tasks ----------------------------------------------------------------------------------------------------
    def _task(self, index: int, segment: _Segment) -> Task | None:
        produced = [v for v in self.slots if self.home[v] == index]
        if segment.loop is None and not produced and not any(has_effect(n) for n in segment.nodes):
            return None
        args = segment.loop.regions[0].args if segment.loop is not None else ()
        region = Region()
        builder = Builder(region)
        with builder.inside([(a.type, a.name) for a in args], loop=True) as body:
            copier = Copier(builder, rule=self._rule)
            self._import(copier, index, segment)
            if segment.loop is None:
                copier.nodes(segment.nodes)
            else:
                self._indices(copier, segment.loop, body)
                copier.nodes(segment.loop.regions[0].nodes[:-1])
            for value in produced:
                param, slot = self.slots[value]
                builder.store(param, [builder.const(dt.i32, slot)], copier.value(value))
            builder.yield_()
        eliminate_dead(body)
        kind = "serial" if segment.loop is None else "parallel"
        attrs = dict(segment.loop.attrs) if segment.loop is not None else {}
        return Task(f"{kind}_{index}", tuple(map(self._extent, segment.counts)), body, attrs)

    def _import(self, copier: Copier, index: int, segment: _Segment) -> None:
        """Make values of other segments visible: recompute host values, load the others."""
        for value in segment.needs():
            if value in copier.mapping:
                continue
            if value in self.host:
                self._recompute(copier, value)
            elif self.home.get(value, index) != index:
                param, slot = self.slots[value]
                copier.mapping[value] = copier.builder.load(param, [copier.builder.const(dt.i32, slot)])

    def _recompute(self, copier: Copier, value: Value) -> None:
        """Copy the chain of a host value, operands first (iteratively: chains can be long)."""
        stack = [value]
        while stack:
            node = defining_node(stack[-1])
            assert node is not None
            missing = [v for v in node.operands if v in self.host and v not in copier.mapping]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if node not in copier.mapping:
                copier.node(node)

    def _indices(self, copier: Copier, loop: Node, body: Region) -> None:
        """Give the loop's own index values: start plus the zero-based index."""
        for arg, index, start in zip(loop.regions[0].args, body.args, loop.operands[::2], strict=True):
            copier.mapping[arg] = copier.builder.emit("add", index, copier.value(start))

    def _extent(self, count: Value) -> Extent:
        known = constant_of(count)
        if known is not None:
            return Fixed(max(int(known), 0))
        if count not in self.host and not isinstance(count, Param):
            return DeviceWord(*self.slots[count])
        region = Region()
        copier = Copier(Builder(region))
        if not isinstance(count, Param):
            self._recompute(copier, count)
        copier.builder.yield_(copier.value(count))
        eliminate_dead(region)
        return HostExpr(region)

    # -- messages -------------------------------------------------------------------------------------------------
    def _rule(self, copier: Copier, node: Node) -> bool:
        if node.op.name not in ("check", "print"):
            return False
        site = self.site_of.get(node)
        if site is None:
            site = self.site_of[node] = len(self.sites)
            self.sites.append(_site(node, self.function.name))
        operands = copier.values(node.operands)
        if node.op.name == "check" and constant_of(operands[0]) is True:
            return True
        copier.builder.generic(node.op.name, None, operands, {**node.attrs, "site": site})
        return True

    def _program(self, tasks: tuple[Task, ...]) -> Program:
        params = [*self.function.params, *self.temps.values()]
        if self.sites:
            path = "log"
            while any(p.path == path for p in params):  # the user's
                path = f"({path})"
            params.append(Param(ArrayType(dt.i64, 1), path, Role.LOG))
        used = _used_params(tasks)
        kept = tuple(p for p in params if p in used or p.role in (Role.LOG, Role.RESULT))
        reads, writes = set[int](), set[int]()
        position = {p: i for i, p in enumerate(kept)}
        for task in tasks:
            r, w = accesses(task.body)
            reads |= {position[p] for p in r}
            writes |= {position[p] for p in w}
        return Program(
            self.function.name, kept, tasks, tuple(self.sites), frozenset(reads), frozenset(writes), self.function
        )


def _counts(builder: Builder, loop: Node) -> tuple[Value, ...]:
    """Iterations per axis as i64 values (negative for an empty range)."""
    pairs = zip(loop.operands[::2], loop.operands[1::2], strict=True)
    return tuple(builder.emit("sub", builder.cast(stop, dt.i64), builder.cast(start, dt.i64)) for start, stop in pairs)


def _used_params(tasks: tuple[Task, ...]) -> set[Value]:
    used: set[Value] = set()
    for task in tasks:
        regions = [task.body, *(e.body for e in task.extents if isinstance(e, HostExpr))]
        used |= {e.param for e in task.extents if isinstance(e, DeviceWord)}
        for region in regions:
            for node in region.nodes:
                used.update(v for v in operands_deep(node) if isinstance(v, Param))
    return used


def _site(node: Node, kernel: str) -> Site:
    span: Span | None = node.span
    payload = node.operands[1:] if node.op.name == "check" else node.operands
    where = f"{span.file}:{span.line}" if span is not None else "unknown place"
    kind = node.attrs["kind"] if node.op.name == "check" else "print"
    message = node.attrs["parts"] if kind == "print" else node.attrs.get("message", "")
    details = tuple((k, v) for k, v in node.attrs.items() if k not in ("kind", "parts", "message"))
    return Site(
        kind,
        message,
        tuple(v.type.name for v in payload),
        f"{where} in {kernel}",
        format_span(span) if span is not None else "",
        details,
    )
