"""The pool of private memory (`scratch`) of a stream: kernels on one stream take turns, so one pool serves all."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qd_core.errors import DeviceFault
from qd_cuda.memory import PinnedWord

if TYPE_CHECKING:
    from qd_cuda.device import CudaDevice

__all__ = ["ScratchPool"]

_SHARE = 16
_MOST = 4
"""Part of the device's memory that a pool takes at first, and at most once a kernel has lacked room."""

_FIRST_NBYTES = 1 << 30


class ScratchPool:
    """Memory made when the first kernel needs it.

    Attributes
    ----------
    words : array of 3 uint64
        What the launcher adds to a kernel's arguments: address, 4-byte slots, address of the fault word.
    """

    def __init__(self, device: CudaDevice, stream: int) -> None:
        self.device, self.stream, self.lock = device, stream, threading.Lock()
        self.words = (ctypes.c_uint64 * 3)()
        self.fault: PinnedWord | None = None
        self.wanted = int(os.environ.get("QD_CUDA_SCRATCH_NBYTES", 0)) or self._first()

    def _first(self) -> int:
        total = self.device.info.memory_nbytes
        return min(total // _SHARE, _FIRST_NBYTES) // 4 * 4

    def ready(self) -> None:
        """Make the pool, or a larger one after a fault; the device's context is current."""
        with self.lock:
            self._ready()

    def _ready(self) -> None:
        if self.words[0] and 4 * self.words[1] >= self.wanted:
            return
        if self.fault is None:
            self.fault = PinnedWord(self.device.cuda)
            self.words[2] = self.fault.address
        if self.words[0]:
            self.device.memory.free(self.words[0], self.stream)
            self.words[0] = self.words[1] = 0
        self.words[0] = self.device.memory.allocate(self.wanted, self.stream)
        self.words[1] = self.wanted // 4

    def check(self, names: Sequence[str]) -> None:
        """Raise `DeviceFault` where a kernel since the last check lacked room; later launches get more."""
        if self.fault is None or not self.fault.value:
            return
        slots, self.fault.value = self.fault.value, 0
        before = 4 * self.words[1]
        most = self.device.info.memory_nbytes // _MOST
        self.wanted = max(self.wanted, min(4 * slots * self.device.resident_threads, most))
        raise DeviceFault(
            f"private memory of {before} bytes did not hold what iterations of {', '.join(names) or 'a kernel'} keep",
            why=f"one iteration needs {4 * slots} bytes, and its length is known only to the iteration itself",
            hint=f"results of this launch are incomplete; launch again: there are {self.wanted} bytes now"
            if self.wanted > before
            else "shorten the loop that is differentiated, or set QD_CUDA_SCRATCH_NBYTES",
        )

    def close(self) -> None:
        """Free what does not go with the device's memory."""
        if self.fault is not None:
            self.fault.close()
            self.fault = None
