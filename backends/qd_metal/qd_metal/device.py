"""An open device: shared memory, code, and its one queue."""

from __future__ import annotations

import os
from typing import Any

from qd_core.backend.contract import Address, Artifact, Buffer, BufferRef, Device, DeviceInfo, HostSpan, Module, Stream
from qd_core.errors import ClosedError, DeviceFault
from qd_metal.compiler import Code, unpack
from qd_metal.driver import Driver, DriverError, Memory
from qd_metal.stream import MetalStream

__all__ = ["MetalDevice", "MetalModule"]

POOL_NBYTES = 64 << 20


class MetalModule(Module):
    """Pipelines of one kernel, in the order of its tasks' functions."""

    def __init__(self, artifact: Artifact, code: Code, pipelines: list[Any]) -> None:
        self.artifact, self.code, self.pipelines = artifact, code, pipelines


class MetalDevice(Device):
    """A device with one queue. All its memory is shared with the host.

    Parameters
    ----------
    driver : Driver
        Metal, or what stands for it.
    info : DeviceInfo
        Its description.
    """

    def __init__(self, driver: Driver, info: DeviceInfo) -> None:
        self.driver, self.info, self.capabilities = driver, info, info.target.capabilities
        self.closed = False
        self.live: set[Memory] = set()
        self.default_stream = self.queue = MetalStream(self)

    def check_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self.closed:
            raise ClosedError(f"the device {self.info.name!r} was closed")

    def reserve(self, nbytes: int) -> Memory:
        """Allocate memory that this device keeps; `DeviceFault` where there is not enough."""
        try:
            memory = self.driver.allocate(nbytes)
        except DriverError as error:
            used = sum(m.nbytes for m in self.live)
            raise DeviceFault(
                f"{nbytes} bytes cannot be allocated on {self.info.name!r}: {used} bytes are in use; {error}"
            ) from error
        self.live.add(memory)
        return memory

    def allocate(self, nbytes: int, *, alignment: int = 256, stream: Stream | None = None) -> Buffer:
        """Allocate shared memory; alignments above a page are not served."""
        self.check_open()
        return Buffer(self, nbytes, handle=self.reserve(max(nbytes, 1)))

    def free(self, buffer: Buffer, *, after: Stream | None = None) -> None:
        """Free memory once the work so far is done."""
        if buffer.freed:
            raise DeviceFault("a buffer is freed twice")
        buffer.freed = True
        memory: Memory = buffer.handle
        self.live.discard(memory)
        if not self.closed:
            self.queue.release(memory)

    def memory_of(self, ref: BufferRef) -> Memory:
        """Return the memory of ``ref`` after checking that it may be used."""
        self.check_open()
        buffer = ref.buffer
        if buffer.device is not self:
            raise DeviceFault(f"a buffer of another device is used on {self.info.name!r}")
        if buffer.freed:
            raise DeviceFault("a freed buffer is used")
        if not (0 <= ref.offset and 0 <= ref.nbytes and ref.offset + ref.nbytes <= buffer.nbytes):
            first, last = ref.offset, ref.offset + ref.nbytes
            raise DeviceFault(f"bytes {first} to {last} lie outside: they leave a buffer of {buffer.nbytes} bytes")
        return buffer.handle

    def address(self, ref: BufferRef) -> Address:
        """Return the GPU address."""
        return Address(self.memory_of(ref).address + ref.offset)

    def host_view(self, ref: BufferRef) -> HostSpan | None:
        """None: shared memory may be looked at only once the work that writes it is done, which copies wait for."""
        return None

    def load(self, artifact: Artifact) -> Module:
        """Compile the source text."""
        self.check_open()
        code = unpack(artifact)
        try:
            pipelines = self.driver.library(code.text, [t.symbol for t in code.tasks])
        except DriverError as error:
            raise DeviceFault(f"Metal cannot compile a kernel: {error}") from error
        return MetalModule(artifact, code, pipelines)

    def pool_nbytes(self) -> int:
        """Bytes of the pool of private memory: ``QD_METAL_POOL_NBYTES``."""
        return int(os.environ.get("QD_METAL_POOL_NBYTES", POOL_NBYTES))

    def close(self) -> None:
        """Wait for the work, ignoring its faults, and free everything."""
        if self.closed:
            return
        try:
            self.default_stream.synchronize()
        except DeviceFault:
            pass  # whoever launched it has been told, or does not ask
        self.closed = True
        for memory in self.live:
            self.driver.free(memory)
        self.live.clear()
