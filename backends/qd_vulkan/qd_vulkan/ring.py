"""A ring of host-visible memory for what one launch or copy needs until the device has used it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qd_vulkan.commands import Commands
    from qd_vulkan.memory import Allocation

__all__ = ["Ring"]

_ALIGNMENT = 64


class Ring:
    """Hands out parts of one allocation in turn; a part is reused once the commands that were recorded with it are
    done.

    Parameters
    ----------
    memory : Allocation
        Mapped memory.
    commands : Commands
        Where the parts are used.
    """

    def __init__(self, memory: Allocation, commands: Commands) -> None:
        self.memory, self.commands = memory, commands
        self._head = 0
        self._used: deque[tuple[int, int, int]] = deque()

    def take(self, nbytes: int) -> int:
        """Return the offset of ``nbytes`` in the ring, at most half of it; waits for the device where it is full."""
        size = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        assert size <= self.memory.nbytes // 2
        start = self._head if self._head + size <= self.memory.nbytes else 0
        while self._used and self._collides(start, size):
            self.commands.wait(self._used.popleft()[2])
        self._head = start + size
        self.commands.recording()
        self._used.append((start, start + size, self.commands.pending))
        return start

    def _collides(self, start: int, size: int) -> bool:
        """Whether the part meets one in use. Parts are used in order, so looking at all finds the oldest that must
        go.
        """
        return any(low < start + size and start < high for low, high, _ in self._used)
