"""A device whose memory is host memory, for backends that compute on the host.

:class:`HostDevice` and :class:`HostStream` are `Device` and `Stream` but for what is the backend's own: loading code
and running it. A buffer's handle is a uint8 array.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from qd_core.backend.contract import Address, Buffer, BufferRef, Device, DeviceInfo, HostSpan, Stream
from qd_core.errors import ClosedError, DeviceFault

__all__ = ["HostDevice", "HostStream", "buffer_bytes"]

Bytes = np.ndarray[Any, Any]


class HostDevice(Device):
    """Memory of a device in host memory; addresses are host addresses.

    Parameters
    ----------
    info : DeviceInfo
        What was opened.

    Attributes
    ----------
    fresh : int or None
        Byte that new memory is filled with; None leaves it as it comes.
    closed : bool
        Whether `close` was called.
    """

    fresh: int | None = None

    def __init__(self, info: DeviceInfo) -> None:
        self.info, self.capabilities = info, info.target.capabilities
        self.closed = False

    def check_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self.closed:
            raise ClosedError(f"the device {self.info.name!r} was closed")

    def bytes_of(self, ref: BufferRef) -> Bytes:
        """Return the memory of ``ref`` as uint8; `DeviceFault` for a freed or foreign buffer and bytes outside."""
        self.check_open()
        if ref.buffer.device is not self:
            raise DeviceFault(f"a buffer of another device is used on {self.info.name!r}")
        return buffer_bytes(ref)

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
        if self.fresh is not None:
            raw.fill(self.fresh)
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

    def close(self) -> None:
        """Refuse further use."""
        self.closed = True


class HostStream(Stream):
    """Copies at once: on return, the work is done."""

    def __init__(self, device: HostDevice) -> None:
        self.device = self.host = device

    def copy_in(self, dst: BufferRef, src: HostSpan) -> None:
        """Copy host memory to a buffer."""
        ctypes.memmove(self.host.locate(dst, src.nbytes), src.address, src.nbytes)

    def copy_out(self, dst: HostSpan, src: BufferRef) -> None:
        """Copy a buffer to host memory."""
        ctypes.memmove(dst.address, self.host.locate(src, dst.nbytes), dst.nbytes)

    def copy(self, dst: BufferRef, src: BufferRef) -> None:
        """Copy between buffers, which may overlap."""
        if src.nbytes > dst.nbytes:
            raise DeviceFault(f"{src.nbytes} bytes do not fit a place of {dst.nbytes} bytes")
        np.copyto(self.host.bytes_of(dst)[: src.nbytes], self.host.bytes_of(src))

    def fill(self, dst: BufferRef, pattern: bytes) -> None:
        """Repeat a pattern over a buffer."""
        target = self.host.bytes_of(dst)
        whole = target.size - target.size % len(pattern)
        target[:whole].view(f"V{len(pattern)}")[:] = np.void(pattern)
        target[whole:] = np.frombuffer(pattern, np.uint8)[: target.size - whole]


def buffer_bytes(ref: BufferRef) -> Bytes:
    """Return the bytes of part of a buffer whose handle is a uint8 array; `DeviceFault` for a freed one or outside."""
    buffer = ref.buffer
    if buffer.freed:
        raise DeviceFault("a freed buffer is used")
    if not (0 <= ref.offset and 0 <= ref.nbytes and ref.offset + ref.nbytes <= buffer.nbytes):
        first, last = ref.offset, ref.offset + ref.nbytes
        raise DeviceFault(f"bytes {first} to {last} lie outside: they leave a buffer of {buffer.nbytes} bytes")
    return buffer.handle[ref.offset : ref.offset + ref.nbytes]


def _from_dlpack(tensor: Any) -> Bytes | None:
    try:
        return np.from_dlpack(tensor)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        return None
