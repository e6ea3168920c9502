"""What the writers of a grid's task share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qd_core.codegen.llvm.emitter import Emitter
from qd_core.dtypes import DType
from qd_core.ir.nodes import Node, Param, Value

if TYPE_CHECKING:
    from qd_core.codegen.llvm.grid import GridFacts
    from qd_core.codegen.llvm.grid_atomics import Bins
    from qd_core.codegen.llvm.grid_scratch import Pool

__all__ = ["GridState", "evaluate", "is_invariant"]


@dataclass(slots=True, eq=False)
class GridState:
    """One task being written.

    Attributes
    ----------
    thread, block, size, grid : str
        Number in the block, of the block, threads a block, blocks (i32).
    first, threads : str
        Number of this thread in the grid, and of all threads that take part (i64).
    count : str
        Iterations (i64).
    globals : list of str
        Definitions that go before the function.
    pairs : dict of Node to Node
        Additions that are done two at a time, by each other.
    half : set of Node
        First ones whose second has not been written.
    split : Node or None
        The loop that several threads share.
    several, parts, part : str
        Whether they do (i1), how many (i64), and which this one is (i64).
    split_end : str
        Where those that do not lead meet the others again.
    """

    facts: GridFacts
    number: int
    parallel: bool
    thread: str = "0"
    block: str = "0"
    size: str = "1"
    grid: str = "1"
    first: str = "0"
    threads: str = "1"
    count: str = "1"
    globals: list[str] = field(default_factory=list[str])
    accumulators: dict[Node, tuple[str, DType]] = field(default_factory=dict[Node, tuple[str, DType]])
    flags: dict[Node, str] = field(default_factory=dict[Node, str])
    bins: Bins | None = None
    pool: Pool | None = None
    pairs: dict[Node, Node] = field(default_factory=dict[Node, Node])
    half: set[Node] = field(default_factory=set[Node])
    split: Node | None = None
    several: str = ""
    parts: str = ""
    part: str = ""
    split_end: str = ""

    @staticmethod
    def of(em: Emitter) -> GridState:
        """Return the state of the task that an emitter writes."""
        return em.known[GridState]


def is_invariant(value: Value) -> bool:
    """Whether a value is the same for all iterations and depends on no memory."""
    if isinstance(value, Param):
        return isinstance(value.type, DType)
    if not isinstance(value, Node) or value.regions:
        return False
    return value.op.name in ("const", "extent") or (value.op.pure and all(map(is_invariant, value.operands)))


def evaluate(em: Emitter, value: Value) -> str:
    """Write an invariant value's operations at this place; return the operand."""
    if isinstance(value, Node):
        if value.op.name != "extent":
            for operand in value.operands:
                evaluate(em, operand)
        em.handlers[value.op.name](em, value)
    return em.env[value].ref
