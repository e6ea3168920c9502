"""Which part of each array a launch touches: a box of indices an access, from interval arithmetic on index expressions.

Boxes are over-approximations: an index that hangs on memory spans its whole axis. They tell a tape which launches can
overwrite what an earlier one's derivative needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from qd_core.ir.nodes import Node, Param, Value
from qd_core.ir.program import Program, Task
from qd_core.ir.rewrite import walk

__all__ = ["Box", "Touched", "merge", "overlap", "touched"]

Interval = tuple[int, int]
Box = tuple[Interval, ...]
"""Inclusive bounds of each run-time axis."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Boxes by array path."""

    reads: Mapping[str, tuple[Box, ...]]
    writes: Mapping[str, tuple[Box, ...]]


def touched(
    program: Program,
    extents: Sequence[int],
    scalar_of: Callable[[str], Any],
    shape_of: Callable[[str], tuple[int, ...]],
) -> Touched:
    """Return what a launch of ``program`` reads and writes.

    Parameters
    ----------
    program : Program
        The kernel.
    extents : sequence of int
        One an axis of each task, as in `Launch.extents`; -1 where only the device knows.
    scalar_of, shape_of : callable
        Value of a scalar parameter and extents of an array parameter by path.
    """
    reads: dict[str, list[Box]] = {}
    writes: dict[str, list[Box]] = {}
    at = 0
    for task in program.tasks:
        own = extents[at : at + len(task.extents)]
        at += len(task.extents)
        if 0 not in own:
            _Walk(task, own, scalar_of, shape_of, reads, writes)
    return Touched({p: merge(b) for p, b in reads.items()}, {p: merge(b) for p, b in writes.items()})


@dataclass(frozen=True, slots=True)
class _Access:
    """Accesses of a task with the same run-time indices."""

    array: Param
    indices: tuple[Value, ...]
    reads: bool
    writes: bool


@lru_cache(maxsize=1024)
def _accesses(task: Task) -> tuple[tuple[_Access, ...], dict[Value, Node]]:
    """Return the distinct accesses of a task, and its serial loops by their index argument."""
    found: dict[tuple[Param, tuple[Value, ...]], tuple[bool, bool]] = {}
    loops: dict[Value, Node] = {}
    for node in walk(task.body):
        if node.op.name == "for":
            loops[node.regions[0].args[0]] = node
        if node.op.name not in ("load", "store", "atomic"):
            continue
        array = node.operands[0]
        assert isinstance(array, Param)
        if array.type.fixed_shape is None:
            key = array, node.operands[1 : 1 + array.type.ndim]
            reads, writes = found.get(key, (False, False))
            found[key] = reads or node.op.reads, writes or node.op.writes
    return tuple(_Access(array, indices, *how) for (array, indices), how in found.items()), loops


class _Walk:
    """Interval arithmetic over one task."""

    def __init__(
        self,
        task: Task,
        extents: Sequence[int],
        scalar_of: Callable[[str], Any],
        shape_of: Callable[[str], tuple[int, ...]],
        reads: dict[str, list[Box]],
        writes: dict[str, list[Box]],
    ) -> None:
        self.scalar_of, self.shape_of, self.reads, self.writes = scalar_of, shape_of, reads, writes
        self.known: dict[Value, Interval | None] = {
            arg: (0, n - 1) if n > 0 else None for arg, n in zip(task.body.args, extents, strict=True)
        }
        accesses, self.loops = _accesses(task)
        for access in accesses:
            self.access(access)

    def trip_range(self, loop: Node) -> Interval | None:
        start, stop = (self.interval(v) for v in loop.operands[:2])
        return (start[0], max(stop[1] - 1, start[0])) if start is not None and stop is not None else None

    def access(self, access: _Access) -> None:
        path = access.array.path
        box = tuple(self.axis(v, n) for v, n in zip(access.indices, self.shape_of(path), strict=True))
        if any(low > high for low, high in box):
            return
        if access.reads:
            self.reads.setdefault(path, []).append(box)
        if access.writes:
            self.writes.setdefault(path, []).append(box)

    def axis(self, index: Value, extent: int) -> Interval:
        interval = self.interval(index)
        return (0, extent - 1) if interval is None else (max(interval[0], 0), min(interval[1], extent - 1))

    def interval(self, value: Value) -> Interval | None:
        if value in self.known:
            return self.known[value]
        result = self._interval(value)
        self.known[value] = result
        return result

    def _interval(self, value: Value) -> Interval | None:
        if isinstance(value, Param):
            number = self.scalar_of(value.path) if value.type.is_integral else None
            return (int(number), int(number)) if number is not None else None
        if value in self.loops:
            return self.trip_range(self.loops[value])
        if not isinstance(value, Node):
            return None
        if value.op.name == "const":
            number = value.attrs["value"]
            return (int(number), int(number)) if not isinstance(number, float) else None
        if value.op.name == "extent":
            array = value.operands[0]
            assert isinstance(array, Param)
            n = self.shape_of(array.path)[value.attrs["axis"]]
            return (n, n)
        return self._combine(value)

    def _combine(self, node: Node) -> Interval | None:
        rule = _RULES.get(node.op.name)
        if rule is None or not node.type.is_integral:
            return None
        operands = node.operands[1:] if node.op.name == "select" else node.operands
        if any(not v.type.is_integral for v in operands):
            return None
        intervals = [self.interval(v) for v in operands]
        if any(i is None for i in intervals):
            return None
        result = rule(*intervals)
        low, high = int(node.type.min), int(node.type.max)
        return result if result is not None and low <= result[0] and result[1] <= high else None


def _products(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return (min(corners), max(corners))


def _floordiv(a: Interval, b: Interval) -> Interval | None:
    return (a[0] // b[0], a[1] // b[0]) if b[0] == b[1] and b[0] > 0 else None


def _mod(a: Interval, b: Interval) -> Interval | None:
    if b[0] != b[1] or b[0] <= 0:
        return None
    return (a[0] % b[0], a[1] % b[0]) if a[0] // b[0] == a[1] // b[0] else (0, b[0] - 1)


def _add(a: Interval, b: Interval) -> Interval:
    return (a[0] + b[0], a[1] + b[1])


def _sub(a: Interval, b: Interval) -> Interval:
    return (a[0] - b[1], a[1] - b[0])


def _neg(a: Interval) -> Interval:
    return (-a[1], -a[0])


def _same(a: Interval) -> Interval:
    return a


def _smaller(a: Interval, b: Interval) -> Interval:
    return (min(a[0], b[0]), min(a[1], b[1]))


def _larger(a: Interval, b: Interval) -> Interval:
    return (max(a[0], b[0]), max(a[1], b[1]))


def _either(a: Interval, b: Interval) -> Interval:
    return (min(a[0], b[0]), max(a[1], b[1]))


_RULES: dict[str, Callable[..., Interval | None]] = {
    "add": _add,
    "sub": _sub,
    "mul": _products,
    "neg": _neg,
    "min": _smaller,
    "max": _larger,
    "select": _either,
    "cast": _same,
    "floordiv": _floordiv,
    "mod": _mod,
}


def overlap(a: Iterable[Box], b: Iterable[Box]) -> bool:
    """Whether a box of ``a`` and one of ``b`` have an index in common."""
    others = list(b)
    return any(_meet(p, q) for p in a for q in others)


def _meet(p: Box, q: Box) -> bool:
    for (low, high), (first, last) in zip(p, q, strict=True):
        if low > last or first > high:
            return False
    return True


def merge(boxes: Iterable[Box]) -> tuple[Box, ...]:
    """Join boxes that differ in one axis only and touch there; drop those inside another."""
    result: list[Box] = []
    for box in sorted(set(boxes)):
        while result and (joined := _join(result[-1], box)) is not None:
            result.pop()
            box = joined
        result.append(box)
    return tuple(result)


def _join(a: Box, b: Box) -> Box | None:
    if all(x[0] <= y[0] and y[1] <= x[1] for x, y in zip(a, b, strict=True)):
        return a
    differing = [k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    if len(differing) != 1:
        return None
    k = differing[0]
    (low, high), (low_b, high_b) = a[k], b[k]
    if low_b > high + 1 or low > high_b + 1:
        return None
    return (*a[:k], (min(low, low_b), max(high, high_b)), *a[k + 1 :])
