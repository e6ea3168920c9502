"""Memory that iterations own while they run: one pool, used by one task at a time."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qd_core.errors import DeviceFault

if TYPE_CHECKING:
    from qd_vulkan.memory import Allocation, Heap

__all__ = ["Pool"]

_MIN_NBYTES, _MAX_NBYTES = 64 << 20, 1 << 30


class Pool:
    """The pool, allocated at its first use, and the word in which kernels report that it was too small.

    Parameters
    ----------
    memory : Heap
        Where the pool lies.
    visible : Heap
        Where the word lies: memory that the host sees.
    memory_nbytes : int
        Bytes of the device; the pool takes a sixteenth, within limits, or what ``QD_VULKAN_POOL_NBYTES`` says.
    """

    def __init__(self, memory: Heap, visible: Heap, memory_nbytes: int) -> None:
        self._memory, self._visible = memory, visible
        wanted = os.environ.get("QD_VULKAN_POOL_NBYTES")
        self.nbytes = int(wanted) if wanted else min(max(memory_nbytes // 16, _MIN_NBYTES), _MAX_NBYTES)
        self._pool: Allocation | None = None
        self._fault: Allocation | None = None

    def words(self) -> bytes:
        """Return the words of a launch that uses the pool: address, 4-byte slots, address of the fault."""
        if self._pool is None:
            self._pool = self._memory.allocate(self.nbytes)
            self._fault = self._visible.allocate(8)
            ctypes.memset(self._fault.mapped, 0, 8)
        assert self._fault is not None
        return struct.pack("<QQQ", self._pool.address, self.nbytes // 4, self._fault.address)

    def check(self, kernels: Sequence[str]) -> None:
        """Raise `DeviceFault` if a kernel needed more than there is; the device must be idle."""
        if self._fault is None:
            return
        word = ctypes.c_uint64.from_address(self._fault.mapped)
        needed, word.value = word.value, 0
        if needed:
            names = ", ".join(dict.fromkeys(kernels))
            raise DeviceFault(
                f"an iteration needs {4 * needed} bytes of private memory, which do not fit the pool of "
                f"{self.nbytes} bytes",
                why=f"kernels launched since the device was last seen well: {names}",
                hint="set QD_VULKAN_POOL_NBYTES to a larger number of bytes, or save less in reverse mode",
            )
