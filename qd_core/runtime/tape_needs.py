"""What the derivatives recorded on a tape still need, array by array, and which contents have lost a gradient.

Launches ask before each write, so the common answers are cheap: a comparison of bounds along the first axis decides
most of them, and boxes are merged only when that does not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qd_core.autodiff.hulls import Box, merge, overlap

if TYPE_CHECKING:
    from qd_core.autodiff.activity import Component
    from qd_core.runtime.interop import Place
    from qd_core.runtime.launch import Executable

__all__ = ["Cell", "Cells", "Lost", "rows"]

Boxes = tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """A value that depends on a differentiated array, stored where there is no gradient."""

    path: str
    component: Component
    kernel: str
    line: int


@dataclass(slots=True, eq=False)
class Cell:
    """One array, by its place in memory.

    Attributes
    ----------
    low, high : int
        First and last index along the first axis of what is needed; ``low > high`` where nothing is.
    kernels : dict of str to Executable
        Those whose derivatives need it, by name.
    lost : list of Lost
        Contents whose gradient is lost.
    others : list of Cell
        Arrays that share some of its memory.
    differentiated : bool
        Whether a recorded launch with a derivative took it.
    """

    low: int = 1
    high: int = 0
    kernels: dict[str, Executable] = field(default_factory=dict["str", "Executable"])
    lost: list[Lost] = field(default_factory=list["Lost"])
    others: list[Cell] = field(default_factory=list["Cell"])
    differentiated: bool = False
    _boxes: Boxes = ()
    _new: list[Box] = field(default_factory=list["Box"])

    def need(self, boxes: Boxes, executable: Executable, low: int, high: int) -> None:
        """Note that the derivative of ``executable`` reads ``boxes``, of rows ``low`` to ``high``."""
        self._new.extend(boxes)
        if self.low > self.high:
            self.low, self.high = low, high
        else:
            self.low, self.high = min(low, self.low), max(high, self.high)
        self.kernels.setdefault(executable.program.name, executable)

    @property
    def has_past(self) -> bool:
        """Whether what the array holds now, or an array that shares memory with it, was differentiated."""
        return self.differentiated or any(c.differentiated for c in self.others)

    def meets(self, boxes: Boxes | None) -> bool:
        """Whether a write to ``boxes`` (None: all) changes what is needed here."""
        if boxes is None:
            return self.low <= self.high
        low, high = rows(boxes)
        if low > self.high or high < self.low:
            return False
        if self._new:
            self._boxes, self._new = merge((*self._boxes, *self._new)), []
        return overlap(self._boxes, boxes)

    def needed(self, boxes: Boxes | None) -> Cell | None:
        """The cell, this one or one that shares memory with it, of which a write to ``boxes`` changes what is needed.

        Where memory is shared in part, indices say nothing: any write counts.
        """
        if self.low <= self.high and self.meets(boxes):
            return self
        return next((c for c in self.others if c.low <= c.high), None)


class Cells:
    """All arrays that a tape has met."""

    def __init__(self) -> None:
        self._by_place: dict[Place, Cell] = {}
        self._sorted: list[Place] = []
        self._longest = 0

    def at(self, place: Place) -> Cell:
        """Return the cell of the array at ``place``."""
        cell = self._by_place.get(place)
        if cell is None:
            cell = Cell()
            for other in self._overlapping(place):
                cell.others.append(self._by_place[other])
                self._by_place[other].others.append(cell)
            self._by_place[place] = cell
            insort(self._sorted, place)
            self._longest = max(self._longest, place[2] - place[1])
        return cell

    def _overlapping(self, place: Place) -> Iterable[Place]:
        space, start, end = place
        first = bisect_left(self._sorted, (space, start - self._longest, 0))
        for other in self._sorted[first:]:
            if other[0] != space or other[1] >= end:
                break
            if start < other[2]:
                yield other


def rows(boxes: Boxes) -> tuple[int, int]:
    """First and last index of ``boxes`` along the first axis; (0, 0) where there is no axis."""
    if not boxes:
        return 1, 0
    if not boxes[0]:
        return 0, 0
    return min(b[0][0] for b in boxes), max(b[0][1] for b in boxes)
