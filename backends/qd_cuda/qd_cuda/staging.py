"""Small copies to the device through pinned memory: the caller's memory is free at once, and nobody waits."""

from __future__ import annotations

import ctypes
import threading

from qd_cuda.driver import Driver

__all__ = ["STAGED_NBYTES", "Staging"]

STAGED_NBYTES = 64 << 10
"""Largest copy that goes through pinned memory; larger ones wait, at the driver's speed."""

_SLOTS = 32
_PORTABLE = 1
_NO_TIMING = 2


class Staging:
    """A ring of pinned slots, each with the event after which it may be used again."""

    def __init__(self, cuda: Driver) -> None:
        self.cuda, self.lock = cuda, threading.Lock()
        host = ctypes.c_void_p()
        cuda("MemHostAlloc", ctypes.byref(host), _SLOTS * STAGED_NBYTES, _PORTABLE)
        assert host.value
        self.host, self.next = host.value, 0
        self.events: list[ctypes.c_void_p] = []
        self.used = [False] * _SLOTS
        for _ in range(_SLOTS):
            event = ctypes.c_void_p()
            cuda("EventCreate", ctypes.byref(event), _NO_TIMING)
            self.events.append(event)

    def copy_in(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy ``nbytes`` at most `STAGED_NBYTES` to device address ``target``."""
        with self.lock:
            self._copy_in(target, source, nbytes, stream)

    def _copy_in(self, target: int, source: int, nbytes: int, stream: int) -> None:
        slot = self.next
        self.next = (slot + 1) % _SLOTS
        if self.used[slot]:
            self.cuda("EventSynchronize", self.events[slot])
        at = self.host + slot * STAGED_NBYTES
        ctypes.memmove(at, source, nbytes)
        self.used[slot] = False
        self.cuda("MemcpyHtoDAsync", target, at, nbytes, stream)
        self.cuda("EventRecord", self.events[slot], stream)
        self.used[slot] = True

    def close(self) -> None:
        """Free everything; all copies are done."""
        for event in self.events:
            self.cuda("EventDestroy", event)
        self.cuda("MemFreeHost", self.host)
