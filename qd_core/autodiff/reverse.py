"""Reverse mode: a function to the function that propagates adjoints.

The result is built scope by scope: the primal values a scope needs (`residuals.Demand` says which), then its
operations in reverse order. Adjoints are SSA values: a region receives the adjoints of the outer values it uses, and
of the values it carries, as carried values or plain captures, and yields them; memory sees only the adjoints of
arrays. Stores, atomics, checks and messages of the primal are not executed again. Design and proofs:
``docs/design/autodiff.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.autodiff.activity import Activity, analyze
from qd_core.autodiff.blocks import RESIDUAL_BYTES
from qd_core.autodiff.conflicts import Conflicts
from qd_core.autodiff.replay import Replay
from qd_core.autodiff.residuals import Demand
from qd_core.autodiff.rules import pull, uses
from qd_core.autodiff.structure import Carried, Structure, carried, indices, is_loop, is_temporary, path_of
from qd_core.ir.build import Builder, constant_of
from qd_core.ir.nodes import ArrayType, Function, Node, Param, Region, Role, Value
from qd_core.ir.rewrite import eliminate_dead
from qd_core.passes.hoist import hoist_invariants

__all__ = ["reverse", "shadow_params"]


def reverse(
    function: Function,
    gradients: Iterable[str],
    *,
    shared: bool = False,
    rewound: bool = False,
    residual_bytes: int = RESIDUAL_BYTES,
) -> Function:
    """Return the function that propagates adjoints from outputs to inputs.

    Parameters
    ----------
    function : Function
        A kernel; it is not changed.
    gradients : iterable of str
        Paths of the array parameters that have gradient storage. Others are constants when read.
    shared : bool
        Gradients of different parameters may be the same memory: every parallel update is atomic.
    rewound : bool
        Who launches the derivative can put arrays back to what the launch of ``function`` found: those named by the
        attribute ``found``, pairs of a path and what to raise otherwise.
    residual_bytes : int
        What an iteration may record in one serial loop, in bytes. Longer loops are recorded in blocks (`blocks`), of
        √n trips where the budget is less.

    Returns
    -------
    Function
        ``{name}_grad``: the parameters of ``function`` and, for each array in ``gradients`` whose elements take part,
        the array ``{path}.grad`` of the same type (an existing parameter of that path is used). Executed after
        ``function`` with the same arguments it adds to gradients of what was read, and sets gradients of what was
        overwritten to zero. Its attribute ``no_overlap`` is a tuple of pairs of paths which the caller must not
        alias.

    Raises
    ------
    NotDifferentiableError
        See `activity.analyze` and `residuals.Demand`.
    """
    primal = hoist_invariants(function, no_overlap=True)
    params, shadows = shadow_params(primal, gradients, ".grad", Role.ADJOINT)
    return _Reverse(primal, params, shadows, shared, rewound, residual_bytes).run(function)


def shadow_params(
    function: Function, paths: Iterable[str], suffix: str, role: Role
) -> tuple[list[Param], dict[Param, Param]]:
    """Parameters with ``path + suffix`` for the real arrays among ``paths``, and the mapping from array to it."""
    by_path = {p.path: p for p in function.params}
    wanted = {*paths, *(p.path for p in function.params if is_temporary(p))}
    params = list(function.params)
    shadows: dict[Param, Param] = {}
    for p in function.params:
        if p.path in wanted and isinstance(p.type, ArrayType) and p.type.dtype.is_real:
            existing = by_path.get(p.path + suffix)
            kind = p.role if is_temporary(p) else role
            shadows[p] = existing if existing is not None else Param(p.type, p.path + suffix, kind)
            if existing is None:
                params.append(shadows[p])
    return params, shadows


class _Reverse:
    """State of one transposition."""

    def __init__(
        self,
        primal: Function,
        params: list[Param],
        shadows: Mapping[Param, Param],
        shared: bool,
        rewound: bool,
        budget: int,
    ) -> None:
        self.structure = Structure(primal)
        self.activity: Activity = analyze(self.structure, shadows)
        self.demand = Demand.cheapest(self.structure, self.activity, rewound=rewound)
        self.conflicts = Conflicts(self.structure, self.activity, shared)
        self.captures = _Captures(self.structure, self.activity)
        self.params, self.shadows = params, shadows
        self.body = Region()
        self.b = Builder(self.body)
        self.replay = Replay(self.b, self.structure, self.demand, budget)
        self.adjoint: dict[Value, Value] = {}
        self.waiting: list[tuple[Param, tuple[Value, ...], Value]] = []
        """Stores to components of one element, not yet written: see `put`."""

    def run(self, function: Function) -> Function:
        self.clear()
        self.replay.fill()
        self.scope(self.structure.root)
        self.b.span = function.span
        self.b.yield_()
        used = {v for n in _deep(self.body) for v in n.operands}
        params = [p for p in self.params if p.role is not Role.ADJOINT or p in used or p in function.params]
        result = Function(f"{function.name}_grad", params, self.body, function.span, dict(function.attrs))
        result.attrs["no_overlap"] = self.conflicts.must_not_overlap(self.demand)
        if self.demand.found:
            result.attrs["found"] = tuple((path_of(a), refusal) for a, refusal in self.demand.found.items())
        detours = self.activity.detours
        result.attrs["detours"] = detours.stored, detours.wanted, detours.passed
        eliminate_dead(result)
        return result

    def clear(self) -> None:
        """Nothing depends on temporaries after the launch: their adjoints start as zero."""
        for array, shadow in self.activity.shadows.items():
            if is_temporary(array):
                kind = shadow.type
                for index in np.ndindex(*kind.fixed_shape, *kind.element_shape):
                    self.b.store(shadow, [self.b.const(dt.i32, k) for k in index], self.b.const(kind.dtype, 0.0))

    # -- scopes -------------------------------------------------------------------------------------------------
    def scope(self, region: Region) -> None:
        """Emit the reverse scope of a region at the end of the builder's region."""
        self.replay.section(region)
        for node in reversed(region.nodes[:-1]):
            if self.activity.has_code(node):
                if node.regions:
                    self.settle()
                if node.regions and region is self.structure.root:
                    self.replay.prepare(node)
                self.b.span = node.span
                _RULES.get(node.op.name, _Reverse.elementwise)(self, node)
        self.settle()

    def add(self, value: Value, contribution: Value) -> None:
        """Add to the adjoint of an active value; others are ignored."""
        if value in self.activity.active:
            known = self.adjoint.get(value)
            self.adjoint[value] = contribution if known is None else self.b.emit("add", known, contribution)

    def zero(self, like: Value) -> Value:
        return self.b.const(like.type, 0.0)

    def take(self, value: Value) -> Value:
        """Remove and return the adjoint of a value; zero when it has none."""
        known = self.adjoint.pop(value, None)
        return self.zero(value) if known is None else known

    def primal(self, value: Value) -> Value:
        return self.replay.value(value)

    # -- operations ---------------------------------------------------------------------------------------------
    def elementwise(self, node: Node) -> None:
        adjoint = self.adjoint.pop(node, None)
        if adjoint is None:
            return
        masked = node in self.activity.masked
        for i, operand in enumerate(node.operands):
            if operand in self.activity.active:
                wanted, result = uses(node.op.name, i)
                x = [self.primal(o) if k in wanted else None for k, o in enumerate(node.operands)]
                r = self.primal(node) if result else None
                self.add(operand, pull(self.b, node.op.name, x, r, i, adjoint, operand.type, masked=masked))

    def element(self, node: Node) -> tuple[Param, tuple[Value, ...]]:
        """Adjoint array and indices of an access."""
        return self.shadows[node.operands[0]], tuple(self.primal(i) for i in indices(node))  # type: ignore[index]

    def get(self, array: Param, index: tuple[Value, ...]) -> Value:
        """Load from an adjoint array."""
        if self.waiting and not self.beside(array, index):
            self.settle()
        return self.b.load(array, index)

    def put(self, array: Param, index: tuple[Value, ...], value: Value) -> None:
        """Store to an adjoint array, after all loads of the element's other components: lanes then read and write whole
        elements, where a load would have to wait for the store to a part of what it reads.
        """
        if not self.beside(array, index):
            self.settle()
        self.waiting.append((array, index, value))

    def beside(self, array: Param, index: tuple[Value, ...]) -> bool:
        """Whether an access is to another component of the element that stores wait for."""
        n = array.type.ndim
        return len(index) > n and all(
            a is array and i[:n] == index[:n] and _apart(i[n:], index[n:]) for a, i, _ in self.waiting
        )

    def settle(self) -> None:
        """Write the stores that wait, the first component first."""
        for array, index, value in reversed(self.waiting):
            self.b.store(array, index, value)
        self.waiting.clear()

    def load(self, node: Node) -> None:
        adjoint = self.adjoint.pop(node, None)
        if adjoint is None:
            return
        array, index = self.element(node)
        if self.conflicts.exclusive(node):
            self.put(array, index, self.b.emit("add", self.get(array, index), adjoint))
        else:
            self.settle()
            self.b.atomic("add", array, index, adjoint)

    def store(self, node: Node) -> None:
        array, index = self.element(node)
        value = node.operands[-1]
        if value in self.activity.active:
            self.add(value, self.get(array, index))
        self.put(array, index, self.zero(value))

    def atomic(self, node: Node) -> None:
        array, index = self.element(node)
        value = node.operands[-1]
        taken = self.get(array, index) if node.attrs["kind"] == "add" else self.claim(node, array, index)
        self.add(value, taken)

    def claim(self, node: Node, array: Param, index: tuple[Value, ...]) -> Value:
        """The gradient of an extremum if this value achieves it and is the first to ask; what nobody takes is the
        initial value's.
        """
        self.settle()
        zero = self.zero(node.operands[-1])
        best = self.b.load(node.operands[0], index)
        with self.b.inside() as mine:
            self.b.yield_(self.b.atomic("exchange", array, index, zero))
        with self.b.inside() as other:
            self.b.yield_(zero)
        return self.b.if_(self.b.emit("eq", self.primal(node.operands[-1]), best), mine, other)[0]

    # -- control ------------------------------------------------------------------------------------------------
    def branch(self, node: Node) -> None:
        outer = self.captures.of(node)
        results = [(r, self.adjoint.pop(r)) for r in node.results if r in self.adjoint]
        start = {v: self.adjoint.get(v) for v in outer}
        regions = [self.branch_region(node, region, results, start) for region in node.regions]
        self.adjoint.update(zip(outer, self.b.if_(self.primal(node.operands[0]), *regions), strict=True))

    def branch_region(
        self, node: Node, region: Region, results: list[tuple[Any, Value]], start: dict[Value, Value | None]
    ) -> Region:
        self.restore(start)
        with self.b.inside() as new:
            for result, adjoint in results:
                self.add(region.yields[result.index], adjoint)
            self.scope(region)
            self.b.span = node.span
            self.b.yield_(*(self.take(v) for v in start))
        self.restore(start)
        return new

    def restore(self, adjoints: dict[Value, Value | None]) -> None:
        for v, a in adjoints.items():
            if a is None:
                self.adjoint.pop(v, None)
            else:
                self.adjoint[v] = a

    def loop(self, node: Node) -> None:
        active = self.activity.active
        own = [c for c in carried(node) if c.arg in active or c.result in active]
        outer = self.captures.of(node)
        inits = [*(self.take(c.result) for c in own), *(self.take(v) for v in outer)]
        low, high, downward = self.replay.span(node)
        blocks = self.replay.blocks(node)
        if blocks is None:
            results = self.reversed_trips(node, own, outer, (low, high), inits)
        else:
            with self.b.inside([(low.type, "block"), *((v.type, "adj") for v in inits)], loop=True) as body:
                bounds = self.replay.enter_block(node, body.args[0])
                self.b.yield_(*self.reversed_trips(node, own, outer, bounds, body.args[1:]))
            results = self.b.for_(self.b.const(low.type, 0), blocks.count, inits, body, reverse=not downward)
        self.adjoint.update(zip(outer, results[len(own) :], strict=True))
        for c, adjoint in zip(own, results, strict=False):
            self.add(c.init, adjoint)

    def reversed_trips(
        self, node: Node, own: list[Carried], outer: list[Value], bounds: tuple[Value, Value], inits: Sequence[Value]
    ) -> tuple[Value, ...]:
        """The adjoint of the trips with index in ``bounds``, in the opposite direction."""
        body = self.loop_body(node, own, outer, bounds[0])
        return self.b.for_(*bounds, inits, body, reverse=not node.attrs.get("reverse", False))

    def loop_body(self, node: Node, own: list[Carried], outer: list[Value], low: Value) -> Region:
        args = [(low.type, "t"), *((c.arg.type, "adj") for c in own), *((v.type, "adj") for v in outer)]
        with self.b.inside(args, loop=True) as body:
            self.replay.enter(node, body.args[0])
            self.adjoint.update(zip(outer, body.args[1 + len(own) :], strict=True))
            for c, adjoint in zip(own, body.args[1:], strict=False):
                self.add(c.next, adjoint)
            self.scope(node.regions[-1])
            self.b.span = node.span
            self.b.yield_(*(self.take(c.arg) for c in own), *(self.take(v) for v in outer))
        return body

    def parallel(self, node: Node) -> None:
        """Adjoints of root values that iterations use meet in temporary memory."""
        outer = self.captures.of(node)
        sums = [self.temporary(v) for v in outer]
        before = {v: self.adjoint.pop(v, None) for v in outer}
        for s, v in zip(sums, outer, strict=True):
            self.b.store(s, (), self.zero(v))
        bounds = [self.primal(v) for v in node.operands]
        with self.b.inside([(a.type, a.name) for a in node.regions[0].args], loop=True) as body:
            self.replay.bind(node.regions[0].args, body.args)
            self.scope(node.regions[0])
            for s, v in zip(sums, outer, strict=True):
                if v in self.adjoint:
                    self.b.atomic("add", s, (), self.adjoint.pop(v))
            self.b.span = node.span
            self.b.yield_()
        self.b.parallel_for(list(zip(bounds[::2], bounds[1::2], strict=True)), body, **node.attrs)
        self.restore(before)
        for s, v in zip(sums, outer, strict=True):
            self.add(v, self.b.load(s, ()))

    def temporary(self, value: Value) -> Param:
        param = Param(ArrayType(value.type, 0, (), ()), f"adjoint {len(self.params)}", Role.TEMP)
        self.params.append(param)
        return param


def _apart(a: Sequence[Value], b: Sequence[Value]) -> bool:
    """Whether constant indices differ."""
    pairs = [(constant_of(x), constant_of(y)) for x, y in zip(a, b, strict=True)]
    return all(None not in pair for pair in pairs) and any(x != y for x, y in pairs)


_RULES: dict[str, Callable[[_Reverse, Node], None]] = {
    "load": _Reverse.load, "store": _Reverse.store, "atomic": _Reverse.atomic, "if": _Reverse.branch,
    "for": _Reverse.loop, "while": _Reverse.loop, "parallel_for": _Reverse.parallel,
}  # fmt: skip


class _Captures:
    """Active values defined outside a region operation that active operations inside it use, in order of use."""

    def __init__(self, structure: Structure, activity: Activity) -> None:
        self._structure, self._activity = structure, activity
        self._of: dict[Node, list[Value]] = {}
        self._region(structure.root)

    def of(self, node: Node) -> list[Value]:
        return self._of.get(node, [])

    def _region(self, region: Region) -> dict[Value, None]:
        used: dict[Value, None] = {}
        active = self._activity.active
        for node in region.nodes:
            if (self._activity.has_code(node) and node.op.name != "atomic") or (
                node.op.name == "atomic" and node.operands[-1] in active
            ):
                used.update((o, None) for o in node.operands if o in active)
            inner: dict[Value, None] = {}
            for r in node.regions:
                inner.update(self._region(r))
                inner.update(self._yielded(node, r))
            if node.regions:
                outside = [v for v in inner if self._structure.outside(v, node)]
                self._of[node] = outside
                used.update(dict.fromkeys(outside))
        return used

    def _yielded(self, node: Node, region: Region) -> dict[Value, None]:
        active = self._activity.active
        if is_loop(node):
            return {c.next: None for c in carried(node) if c.next in active and (c.arg in active or c.result in active)}
        return (
            {y: None for y, r in zip(region.yields, node.results, strict=True) if y in active and r in active}
            if node.op.name == "if"
            else {}
        )


def _deep(region: Region) -> Iterable[Node]:
    stack = [region]
    while stack:
        for node in stack.pop().nodes:
            yield node
            stack.extend(node.regions)
