"""Memory, code and the stream of the host's processor.

Device memory is host memory and device addresses are host addresses, but only this module knows.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any

import numpy as np

from qd_core.backend.contract import (
    Address,
    Artifact,
    Buffer,
    BufferRef,
    Device,
    DeviceInfo,
    HostSpan,
    Launch,
    Module,
    NativeEntry,
    Stream,
)
from qd_core.codegen.jit import process_jit
from qd_core.codegen.llvm.types import KERNEL
from qd_core.cpu.compiler import FORMAT
from qd_core.cpu.context import Context
from qd_core.cpu.pool import Pool, default_threads, process_pool
from qd_core.errors import ClosedError, DeviceFault, LaunchError

__all__ = ["CpuDevice", "CpuModule", "CpuStream"]

_Kernel = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)


class CpuModule(Module):
    """Machine code of one kernel in this process."""

    def __init__(self, artifact: Artifact, context: Context) -> None:
        if artifact.format != FORMAT:
            raise LaunchError(
                f"an artifact of format {artifact.format!r} is no host object", why=f"this device loads {FORMAT!r}"
            )
        self.artifact, self._context = artifact, context
        jit = process_jit()
        loaded = jit.load(artifact.blob, (KERNEL,))
        self._function = loaded[KERNEL]
        # Not at exit: other threads may still run, and nothing is gained.
        weakref.finalize(self, jit.unload, loaded).atexit = False
        self._call = _Kernel(self._function)

    def native(self) -> NativeEntry:
        """Return the C entry; it lives as long as this module."""
        return NativeEntry(self._function, self._context.address, self)

    def __call__(self, words: int, extents: int) -> None:
        """Run all tasks on packed arguments at these addresses; the GIL is released meanwhile."""
        self._call(self._context.address, words, extents, None)


class CpuStream(Stream):
    """Runs and copies at once: on return, the work is done."""

    def __init__(self, device: CpuDevice) -> None:
        self.device = self.cpu = device

    def run(self, module: Module, launch: Launch) -> None:
        """Run all tasks of one kernel."""
        assert isinstance(module, CpuModule)
        self.cpu.check_open()
        extents = np.array(launch.extents, np.int64)
        words = np.frombuffer(launch.words, np.uint64)
        module(words.ctypes.data, extents.ctypes.data)

    def copy_in(self, dst: BufferRef, src: HostSpan) -> None:
        """Copy host memory to a buffer."""
        ctypes.memmove(self.cpu.locate(dst, src.nbytes), src.address, src.nbytes)

    def copy_out(self, dst: HostSpan, src: BufferRef) -> None:
        """Copy a buffer to host memory."""
        ctypes.memmove(dst.address, self.cpu.locate(src, dst.nbytes), dst.nbytes)

    def copy(self, dst: BufferRef, src: BufferRef) -> None:
        """Copy between buffers, which may overlap."""
        ctypes.memmove(self.cpu.locate(dst, src.nbytes), self.cpu.locate(src, src.nbytes), src.nbytes)

    def fill(self, dst: BufferRef, pattern: bytes) -> None:
        """Repeat a pattern over a buffer."""
        target = self.cpu.bytes_of(dst)
        whole = target.size - target.size % len(pattern)
        target[:whole].view(f"V{len(pattern)}")[:] = np.void(pattern)
        target[whole:] = np.frombuffer(pattern, np.uint8)[: target.size - whole]


class CpuDevice(Device):
    """The host's processor.

    Parameters
    ----------
    info : DeviceInfo
        What was opened.
    threads : int
        Threads that work; 0 takes all that the process may use.
    """

    def __init__(self, info: DeviceInfo, threads: int = 0) -> None:
        self.info, self.capabilities = info, info.target.capabilities
        self._context = Context(functools.partial(_pool_of, threads or default_threads()))
        self.default_stream = CpuStream(self)
        self.closed = False

    @property
    def pool(self) -> Pool:
        """The worker pool."""
        return self._context.pool

    def check_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self.closed:
            raise ClosedError(f"the device {self.info.name!r} was closed")

    def bytes_of(self, ref: BufferRef) -> np.ndarray[Any, Any]:
        """Return the memory of ``ref`` as uint8; `DeviceFault` for a freed or foreign buffer and bytes outside."""
        buffer = ref.buffer
        self.check_open()
        if buffer.device is not self:
            raise DeviceFault(f"a buffer of another device is used on {self.info.name!r}")
        if buffer.freed:
            raise DeviceFault("a freed buffer is used")
        if not (0 <= ref.offset and 0 <= ref.nbytes and ref.offset + ref.nbytes <= buffer.nbytes):
            raise DeviceFault(
                f"bytes {ref.offset} to {ref.offset + ref.nbytes} lie outside a buffer of {buffer.nbytes} bytes"
            )
        return buffer.handle[ref.offset : ref.offset + ref.nbytes]

    def locate(self, ref: BufferRef, nbytes: int) -> int:
        """Return the address of ``ref`` after checking that ``nbytes`` lie in it."""
        if nbytes > ref.nbytes:
            raise DeviceFault(f"{nbytes} bytes do not fit a place of {ref.nbytes} bytes")
        return self.bytes_of(ref).ctypes.data

    def allocate(self, nbytes: int, *, alignment: int = 256, stream: Stream | None = None) -> Buffer:
        """Allocate host memory."""
        self.check_open()
        try:
            raw = np.empty(nbytes + alignment, np.uint8)
        except MemoryError as error:
            raise DeviceFault(f"{nbytes} bytes of host memory cannot be allocated") from error
        start = -raw.ctypes.data % alignment
        return Buffer(self, nbytes, handle=raw[start : start + nbytes])

    def free(self, buffer: Buffer, *, after: Stream | None = None) -> None:
        """Give the memory back once nothing else refers to it."""
        if buffer.freed:
            raise DeviceFault("a buffer is freed twice")
        buffer.freed, buffer.handle, buffer.owner = True, None, None

    def address(self, ref: BufferRef) -> Address:
        """Return the host address."""
        return Address(self.bytes_of(ref).ctypes.data)

    def adopt(self, tensor: object) -> Buffer | None:
        """Wrap a writable contiguous NumPy array, or a host tensor that exports one through DLPack; None for others."""
        array = tensor if isinstance(tensor, np.ndarray) else _from_dlpack(tensor)
        if array is None or not array.flags.writeable or not array.flags.c_contiguous:
            return None
        handle = array.reshape(-1).view(np.uint8)
        return Buffer(self, handle.size, owner=tensor, handle=handle)

    def host_view(self, ref: BufferRef) -> HostSpan | None:
        """The same memory, for the host."""
        data = self.bytes_of(ref)
        return HostSpan(data.ctypes.data, data.size, data)

    def load(self, artifact: Artifact) -> CpuModule:
        """Link an object into the process."""
        self.check_open()
        return CpuModule(artifact, self._context)

    def close(self) -> None:
        """Refuse further use."""
        self.closed = True


def _pool_of(threads: int) -> Pool:
    pool = process_pool()
    pool.set_threads(threads)
    return pool


def _from_dlpack(tensor: Any) -> np.ndarray[Any, Any] | None:
    try:
        return np.from_dlpack(tensor)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        return None
