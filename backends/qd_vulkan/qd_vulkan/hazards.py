"""Which commands must wait for which: memory touched since the last barrier."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Hazards", "Touch"]

Touch = tuple[int, int, int, bool]
"""Identity of an allocation, first byte, byte past the last, and whether it is written."""


class Hazards:
    """Remembers what was read and written since the last barrier, one range an allocation and kind.

    A range grows to the hull of what was touched: too many barriers are possible, too few are not.
    """

    def __init__(self) -> None:
        self._read: dict[int, tuple[int, int]] = {}
        self._written: dict[int, tuple[int, int]] = {}

    def conflict(self, touches: Iterable[Touch]) -> bool:
        """Whether a barrier must come before commands that touch this memory."""
        return any(_meets(self._written, t) or (t[3] and _meets(self._read, t)) for t in touches)

    def add(self, touches: Iterable[Touch]) -> None:
        """Remember what recorded commands touch."""
        for buffer, low, high, written in touches:
            ranges = self._written if written else self._read
            known = ranges.get(buffer)
            ranges[buffer] = (low, high) if known is None else (min(low, known[0]), max(high, known[1]))

    def clear(self) -> None:
        """A barrier was recorded."""
        self._read.clear()
        self._written.clear()


def _meets(ranges: dict[int, tuple[int, int]], touch: Touch) -> bool:
    known = ranges.get(touch[0])
    return known is not None and touch[1] < known[1] and known[0] < touch[2]
