"""Streams and events."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from typing import TYPE_CHECKING

from qd_core.backend.contract import BufferRef, Event, HostSpan, Launch, Module, Stream
from qd_core.errors import LaunchError
from qd_cuda.module import CudaModule
from qd_cuda.scratch import ScratchPool
from qd_cuda.staging import STAGED_NBYTES

if TYPE_CHECKING:
    from qd_cuda.device import CudaDevice

__all__ = ["CudaEvent", "CudaStream"]

_NO_TIMING = 2
_NAMES = 64
"""Kernels that an error message names at most."""


class CudaEvent(Event):
    """A point in a stream's work."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        handle = ctypes.c_void_p()
        device.cuda("EventCreate", ctypes.byref(handle), _NO_TIMING)
        assert handle.value
        self.handle = handle.value
        weakref.finalize(self, device.drop, "EventDestroy", self.handle).atexit = False

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""
        with self.device.guard("waiting for an event"):
            self.device.cuda("EventSynchronize", self.handle)


class CudaStream(Stream):
    """An ordered queue.

    Parameters
    ----------
    device : CudaDevice
    handle : int
        The driver's stream; 0 is the legacy default stream, which other streams made here wait for.
    owned : bool
        Destroy it with this object.
    """

    def __init__(self, device: CudaDevice, handle: int, *, owned: bool) -> None:
        self.device = self.cuda_device = device
        self.handle = handle
        self.scratch = ScratchPool(device, handle)
        self.names: deque[str] = deque(maxlen=_NAMES)
        if owned:
            weakref.finalize(self, device.drop, "StreamDestroy", handle).atexit = False

    # -- launches -----------------------------------------------------------------------------------------------------
    def run(self, module: Module, launch: Launch) -> None:
        """Start all tasks of a kernel."""
        device = self.cuda_device
        if not isinstance(module, CudaModule) or module.device is not device:
            raise LaunchError("a module of another device is run", why=f"this stream belongs to {device.info.name!r}")
        module.name = launch.name
        self.names.append(launch.name)
        with device.guard("a launch", (launch.name,)):
            if module.scratch:
                self.scratch.ready()
            if module.code.inline:
                self._start(module, launch, *_arrays(launch))
            else:
                self._start_indirect(module, launch)
            for other in {u.ref.buffer.handle.stream for u in launch.uses if u.ref.buffer.owner is not None}:
                self._let_wait(other)

    def _start(self, module: CudaModule, launch: Launch, words: object, extents: object) -> None:
        """Launch with parameters: two arrays by value, or addresses of such."""
        params = (ctypes.c_void_p * 3)(*(ctypes.addressof(p) for p in (words, extents, self.scratch.words)))  # type: ignore[arg-type]
        for task, (blocks, threads) in zip(module.tasks, module.grids(launch.extents), strict=True):
            if blocks:
                self.cuda_device.cuda(
                    "LaunchKernel", task.handle, blocks, 1, 1, threads, 1, 1, 0, self.handle, params, None
                )

    def _start_indirect(self, module: CudaModule, launch: Launch) -> None:
        """More arguments than a kernel takes by value: they go through memory."""
        device = self.cuda_device
        words, extents = _arrays(launch)
        nbytes = ctypes.sizeof(words) + ctypes.sizeof(extents)
        both = ctypes.create_string_buffer(bytes(words) + bytes(extents), nbytes)
        memory = device.memory.allocate(nbytes, self.handle)
        try:
            self._copy_in(memory, ctypes.addressof(both), nbytes)
            places = ctypes.c_uint64(memory), ctypes.c_uint64(memory + ctypes.sizeof(words))
            self._start(module, launch, *places)
        finally:
            device.memory.free(memory, self.handle)

    def _let_wait(self, other: int) -> None:
        """Let a foreign stream's later work start after this stream's present work."""
        if other != self.handle:
            event = CudaEvent(self.cuda_device)
            self.cuda_device.cuda("EventRecord", event.handle, self.handle)
            self.cuda_device.cuda("StreamWaitEvent", other, event.handle, 0)

    # -- copies -------------------------------------------------------------------------------------------------------
    def copy_in(self, dst: BufferRef, src: HostSpan) -> None:
        """Copy host memory to a buffer."""
        address = self.cuda_device.locate(dst, src.nbytes)
        if src.nbytes:
            with self.cuda_device.guard("a copy to the device", self.names):
                self._copy_in(address, src.address, src.nbytes)

    def _copy_in(self, target: int, source: int, nbytes: int) -> None:
        device = self.cuda_device
        if nbytes <= STAGED_NBYTES:
            device.staging.copy_in(target, source, nbytes, self.handle)
            return
        device.cuda("MemcpyHtoDAsync", target, source, nbytes, self.handle)
        device.cuda("StreamSynchronize", self.handle)

    def copy_out(self, dst: HostSpan, src: BufferRef) -> None:
        """Copy a buffer to host memory, after all work before."""
        address = self.cuda_device.locate(src, dst.nbytes)
        if dst.nbytes:
            with self.cuda_device.guard("a copy to the host", self.names):
                self.cuda_device.cuda("MemcpyDtoHAsync", dst.address, address, dst.nbytes, self.handle)
                self.cuda_device.cuda("StreamSynchronize", self.handle)
            self._done()

    def copy(self, dst: BufferRef, src: BufferRef) -> None:
        """Copy between buffers; the ranges may overlap."""
        device = self.cuda_device
        source, target = device.locate(src, src.nbytes), device.locate(dst, src.nbytes)
        if not src.nbytes or source == target:
            return
        with device.guard("a copy on the device", self.names):
            if abs(source - target) >= src.nbytes:
                device.cuda("MemcpyDtoDAsync", target, source, src.nbytes, self.handle)
                return
            between = device.memory.allocate(src.nbytes, self.handle)
            try:
                device.cuda("MemcpyDtoDAsync", between, source, src.nbytes, self.handle)
                device.cuda("MemcpyDtoDAsync", target, between, src.nbytes, self.handle)
            finally:
                device.memory.free(between, self.handle)

    def fill(self, dst: BufferRef, pattern: bytes) -> None:
        """Repeat a pattern over a buffer."""
        address = self.cuda_device.locate(dst, dst.nbytes)
        size = len(pattern)
        whole = dst.nbytes // size
        with self.cuda_device.guard("a fill", self.names):
            if whole:
                self._fill(address, pattern, whole)
            if dst.nbytes % size:
                rest = ctypes.create_string_buffer(pattern, size)
                self._copy_in(address + whole * size, ctypes.addressof(rest), dst.nbytes % size)

    def _fill(self, address: int, pattern: bytes, count: int) -> None:
        cuda, value = self.cuda_device.cuda, int.from_bytes(pattern, "little")
        narrow = {1: "MemsetD8Async", 2: "MemsetD16Async", 4: "MemsetD32Async"}.get(len(pattern))
        if narrow is not None:
            cuda(narrow, address, value, count, self.handle)
        elif pattern[:4] == pattern[4:]:
            cuda("MemsetD32Async", address, value & 0xFFFFFFFF, 2 * count, self.handle)
        else:
            # Two fills of a column of words, each row 8 bytes long.
            for half in range(2):
                cuda(
                    "MemsetD2D32Async", address + 4 * half, 8, (value >> 32 * half) & 0xFFFFFFFF, 1, count, self.handle
                )

    # -- order --------------------------------------------------------------------------------------------------------
    def record(self) -> Event:
        """Mark the present end of the queue."""
        with self.cuda_device.guard("an event"):
            event = CudaEvent(self.cuda_device)
            self.cuda_device.cuda("EventRecord", event.handle, self.handle)
            return event

    def wait(self, event: Event) -> None:
        """Let later work start after an event."""
        if not isinstance(event, CudaEvent) or event.device is not self.cuda_device:
            event.synchronize()
            return
        with self.cuda_device.guard("an event"):
            self.cuda_device.cuda("StreamWaitEvent", self.handle, event.handle, 0)

    def synchronize(self) -> None:
        """Wait until all work is done."""
        with self.cuda_device.guard("waiting for the device", self.names):
            self.cuda_device.cuda("StreamSynchronize", self.handle)
        self._done()

    def _done(self) -> None:
        names = list(dict.fromkeys(self.names))
        self.names.clear()
        self.cuda_device.last_native.value = 0
        self.cuda_device.reclaim()
        self.scratch.check(names)

    def elapsed(self, call: object) -> float:
        """Return the milliseconds of device time between two events around ``call()``, for benchmarks."""
        cuda, handles = self.cuda_device.cuda, [ctypes.c_void_p(), ctypes.c_void_p()]
        with self.cuda_device.guard("a measurement"):
            for handle in handles:
                cuda("EventCreate", ctypes.byref(handle), 0)
            cuda("EventRecord", handles[0], self.handle)
            call()  # type: ignore[operator]
            cuda("EventRecord", handles[1], self.handle)
            cuda("EventSynchronize", handles[1])
            spent = ctypes.c_float()
            cuda("EventElapsedTime", ctypes.byref(spent), *handles)
            for handle in handles:
                cuda("EventDestroy", handle)
            return spent.value


def _arrays(launch: Launch) -> tuple[ctypes.Array[ctypes.c_uint64], ctypes.Array[ctypes.c_int64]]:
    """Words and extents as arrays of at least one element, which is what the parameters have."""
    raw = launch.words.cast("B") if launch.words.format != "B" else launch.words
    words = (ctypes.c_uint64 * max(raw.nbytes // 8, 1)).from_buffer_copy(raw if raw.nbytes else bytes(8))
    return words, (ctypes.c_int64 * max(len(launch.extents), 1))(*launch.extents)
