"""What a compiler receives: a kernel cut into tasks.

`passes.offload` makes a :class:`Program` from a function. A task's region refers to the program's parameters only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qd_core.ir.nodes import Function, Param, Region, Role, Value
from qd_core.ir.rewrite import walk

__all__ = ["DeviceWord", "Extent", "Fixed", "HostExpr", "Program", "Site", "Task", "Variant", "accesses"]


@dataclass(frozen=True, slots=True)
class Fixed:
    """An extent known at compile time (iterations)."""

    count: int


@dataclass(frozen=True, slots=True, eq=False)
class HostExpr:
    """An extent that the packers compute: ``body`` yields one i64 from scalar parameters and `extent` operations only.

    The value can be negative for an empty range; packers clamp it to 0.
    """

    body: Region


@dataclass(frozen=True, slots=True)
class DeviceWord:
    """An extent that an earlier task of the kernel writes: element ``index`` (i64) of the temporary array ``param``."""

    param: Param
    index: int


Extent = Fixed | HostExpr | DeviceWord


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One parallel loop, or a run of serial code.

    Attributes
    ----------
    name : str
        Stable name for symbols, dumps and the profiler.
    extents : tuple of Extent
        One an axis of the iteration space, outermost first; empty for a serial task (the region runs once).
    body : Region
        Arguments: one i32 or i64 index an axis, zero-based. Its terminator is an empty `yield`.
    attrs : dict
        Hints of the user (`block_dim`, `serialize`).
    """

    name: str
    extents: tuple[Extent, ...]
    body: Region
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the user's source that can write a log record.

    Attributes
    ----------
    kind : str
        ``"assert"``, ``"bounds"``, ``"division"``, ``"print"``, ...
    message : str or tuple
        Text, or the `parts` of a print.
    dtypes : tuple of str
        Types of the recorded words.
    location : str
        ``file:line`` with the function's name.
    excerpt : str
        The formatted source excerpt.
    details : tuple of (str, value)
        Further attributes of the node (`names` of the recorded values, `array`).
    """

    kind: str
    message: Any
    dtypes: tuple[str, ...]
    location: str
    excerpt: str = ""
    details: tuple[tuple[str, Any], ...] = ()


@dataclass(slots=True, eq=False)
class Program:
    """A kernel as tasks over one parameter list.

    ``params`` holds the user's leaves in signature order, then what core supplies (results, temporaries, residuals,
    log).
    ``sites[n]`` describes the record with site number ``n``; `check` and `print` nodes carry it as attribute ``site``.
    ``writes`` and ``reads`` are positions in ``params`` of the arrays that any task writes or reads.
    """

    name: str
    params: tuple[Param, ...]
    tasks: tuple[Task, ...]
    sites: tuple[Site, ...] = ()
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    function: Function | None = None

    @property
    def log(self) -> Param | None:
        """The array that messages are written to; None for a program without messages."""
        return next((p for p in self.params if p.role is Role.LOG), None)

    def uses(self, task: Task) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Positions of the arrays that a task touches and of those it writes, extent words and the log included."""
        reads, writes = accesses(task.body)
        reads |= {e.param for e in task.extents if isinstance(e, DeviceWord)}
        if self.log is not None and any(n.op.name in ("check", "print") for n in walk(task.body)):
            writes.add(self.log)
        position = {p: n for n, p in enumerate(self.params)}
        uses, written = (tuple(sorted(position[p] for p in group)) for group in (reads | writes, writes))
        return uses, written


@dataclass(frozen=True, slots=True)
class Variant:
    """A fact that a launch guard proved, under which a program may be compiled again (``"no_overlap"``)."""

    guards: frozenset[str] = frozenset()


def accesses(region: Region) -> tuple[set[Param], set[Param]]:
    """Return the arrays that a region reads and those that it writes; messages write the log without naming it."""
    reads: set[Value] = set()
    writes: set[Value] = set()
    for node in walk(region):
        if node.op.name in ("load", "store", "atomic"):
            if node.op.reads:
                reads.add(node.operands[0])
            if node.op.writes:
                writes.add(node.operands[0])
    return {p for p in reads if isinstance(p, Param)}, {p for p in writes if isinstance(p, Param)}
