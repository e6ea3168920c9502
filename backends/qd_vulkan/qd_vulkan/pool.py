"""Memory that iterations own while they run: one pool, used by one task at a time."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qd_core.codegen.spirv.fault import LOOP_ENDED
from qd_core.errors import DeviceFault, LaunchError

if TYPE_CHECKING:
    from qd_vulkan.compiler import Code
    from qd_vulkan.loader import Table
    from qd_vulkan.memory import Allocation, Heap

__all__ = ["Pool"]

_MIN_NBYTES, _MAX_NBYTES = 64 << 20, 1 << 30
_NEEDS_NBYTES = 65536


class Pool:
    """The pool, allocated at its first use, and the word in which kernels report that it was too small.

    Parameters
    ----------
    functions : Table
        Device functions.
    memory : Heap
        Where the pool lies.
    visible : Heap
        Where the word lies: memory that the host sees.
    memory_nbytes : int
        Bytes of the device; the pool takes a sixteenth, within limits, or what ``QD_VULKAN_POOL_NBYTES`` says.
    """

    def __init__(self, functions: Table, memory: Heap, visible: Heap, memory_nbytes: int) -> None:
        self._f = functions
        self._memory, self._visible = memory, visible
        wanted = os.environ.get("QD_VULKAN_POOL_NBYTES")
        self.nbytes = int(wanted) if wanted else min(max(memory_nbytes // 16, _MIN_NBYTES), _MAX_NBYTES)
        self._pool: Allocation | None = None
        self._fault: Allocation | None = None
        self._needs: Allocation | None = None

    @property
    def reserved_nbytes(self) -> int:
        """Bytes of the pool, once a kernel needed it."""
        return self.nbytes if self._pool is not None else 0

    def words(self, code: Code) -> bytes:
        """Return the words of a launch: address of the pool, its 4-byte slots, addresses of fault and needs."""
        if not code.pooled:
            return b""
        if self._fault is None:
            self._fault = self._visible.allocate(8)
            ctypes.memset(self._fault.mapped, 0, 8)
        if self._pool is None and any(t.pooled for t in code.tasks):
            self._pool, self._needs = self._memory.allocate(self.nbytes), self._memory.allocate(_NEEDS_NBYTES)
        pool, needs = (place.address if place is not None else 0 for place in (self._pool, self._needs))
        return struct.pack("<QQQQ", pool, self.nbytes // 4, self._fault.address, needs)

    def clear_needs(self, commands: int, tasks: int) -> None:
        """Record that no task of a launch needs anything yet."""
        if 4 * tasks > _NEEDS_NBYTES:
            raise LaunchError(f"a kernel of {tasks} tasks whose private memory is sized first", why="they are too many")
        needs = self._needs
        assert needs is not None
        self._f.CmdFillBuffer(commands, needs.block.buffer, needs.offset, 4 * tasks, 0)

    def check(self, kernels: Sequence[str]) -> None:
        """Raise `DeviceFault` if a kernel needed more than there is; the device must be idle."""
        if self._fault is None:
            return
        word = ctypes.c_uint64.from_address(self._fault.mapped)
        needed, word.value = word.value, 0
        names = ", ".join(dict.fromkeys(kernels))
        if needed == LOOP_ENDED:
            raise DeviceFault(
                "the device ended a loop although its condition still held",
                why=f"its driver limits the iterations of all loops together; kernels launched lately: {names}",
                hint="split the loop, or use another device or driver",
            )
        if needed:
            raise DeviceFault(
                f"an iteration needs {4 * needed} bytes of private memory, which do not fit the pool of "
                f"{self.nbytes} bytes",
                why=f"kernels launched since the device was last seen well: {names}",
                hint="set QD_VULKAN_POOL_NBYTES to a larger number of bytes, or save less in reverse mode",
            )
