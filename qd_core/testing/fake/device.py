"""A device of the host's memory that behaves like a strange one.

Its addresses mean nothing to the host, its streams can be asynchronous, and it stops with argument and role at whatever
a real device would silently get wrong: a host address, a freed or foreign buffer, memory that was never written, a
write to what is declared read-only, work that uses memory already given back, a result never copied back.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qd_core.backend.capabilities import CapabilitySet
from qd_core.backend.contract import (
    Address,
    ArgumentABI,
    Artifact,
    Availability,
    Backend,
    Buffer,
    BufferRef,
    Compiler,
    ContractVersion,
    Device,
    DeviceInfo,
    Event,
    HostSpan,
    Launch,
    Module,
    Stream,
    Target,
)
from qd_core.errors import ClosedError, DeviceFault
from qd_core.reference.backend import CAPABILITIES, ReferenceCompiler, ReferenceModule
from qd_core.reference.interpreter import Interpreter
from qd_core.reference.lanes import Execute
from qd_core.testing.fake.execute import WATCHED
from qd_core.testing.fake.memory import AddressSpace, Allocation, FakeMemory, FakeViolation, named

__all__ = ["FakeBackend", "FakeCompiler", "FakeDevice", "FakeStream"]

Array = np.ndarray[Any, Any]

FAKE_CAPABILITIES = replace(CAPABILITIES, features=CAPABILITIES.features - {"exchange.dlpack"} | {"memory.address"})


class FakeCompiler(ReferenceCompiler):
    """The reference's compiler for packed addresses."""

    def __init__(self, target: Target) -> None:
        super().__init__(target, ArgumentABI(pointers="address"))


@dataclass(slots=True)
class _Work:
    """One piece of queued work: what to do, the kernel's name, the memory it uses."""

    do: Callable[[], None]
    kernel: str = ""
    memory: tuple[Allocation, ...] = ()


class _FakeEvent(Event):
    """A position in a fake stream's queue."""

    def __init__(self, stream: FakeStream, position: int) -> None:
        self.stream, self.position = stream, position

    def synchronize(self) -> None:
        """Do the stream's work up to the event."""
        self.stream.drain(self.position)


class FakeStream(Stream):
    """Work in order; on an asynchronous device nothing is done before somebody waits for it."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = self.fake = device
        self._queue: deque[_Work] = deque()
        self._done = 0
        self._launched: list[str] = []

    # -- queue --------------------------------------------------------------------------------------------------------
    def submit(self, do: Callable[[], None], *refs: BufferRef, kernel: str = "") -> None:
        """Queue work that uses ``refs``; do it now on a synchronous device."""
        self._queue.append(_Work(do, kernel, tuple(r.buffer.handle for r in refs)))
        if not self.fake.asynchronous:
            self.drain()

    def pending(self, allocation: Allocation) -> bool:
        """Whether queued work uses ``allocation``."""
        return any(allocation in work.memory for work in self._queue)

    def drain(self, position: int | None = None) -> None:
        """Do queued work up to ``position`` (all of it); what follows a failure is dropped."""
        while self._queue and (position is None or self._done < position):
            work = self._queue.popleft()
            self._done += 1
            if work.kernel:
                self._launched.append(work.kernel)
            try:
                work.do()
            except BaseException:
                self._queue.clear()
                raise

    # -- contract -----------------------------------------------------------------------------------------------------
    def run(self, module: Module, launch: Launch) -> None:
        """Check the launch and queue it."""
        assert isinstance(module, ReferenceModule)
        self.fake.check_open()
        memory = FakeMemory(self.fake, module.program, launch)
        extents, refs = list(launch.extents), [u.ref for u in launch.uses]
        self.fake.launches += 1
        self.submit(lambda: self.fake.execute(module, memory, extents), *refs, kernel=memory.kernel)

    def copy_in(self, dst: BufferRef, src: HostSpan) -> None:
        """Queue a copy of a snapshot of ``src``."""
        self.fake.check_ref(dst, src.nbytes, "a copy to the device")
        data = _host_bytes(src).copy()
        self.submit(lambda: self.fake.write(dst, data, staged=True), dst)

    def copy_out(self, dst: HostSpan, src: BufferRef) -> None:
        """Do all queued work, then copy; `FakeViolation` for bytes that nobody ever wrote."""
        self.fake.check_ref(src, dst.nbytes, "a copy from the device")
        self.drain()
        _host_bytes(dst)[:] = self.fake.read(src)[: dst.nbytes]

    def copy(self, dst: BufferRef, src: BufferRef) -> None:
        """Queue a copy; what was never written stays so."""
        self.fake.check_ref(src, 0, "a copy")
        self.fake.check_ref(dst, src.nbytes, "a copy")
        self.submit(lambda: self.fake.transfer(dst, src), dst, src)

    def fill(self, dst: BufferRef, pattern: bytes) -> None:
        """Queue a fill."""
        self.fake.check_ref(dst, 0, "a fill")
        data = np.resize(np.frombuffer(pattern, np.uint8), dst.nbytes)
        self.submit(lambda: self.fake.write(dst, data, staged=False), dst)

    def record(self) -> Event:
        """Mark the end of the queue."""
        return _FakeEvent(self, self._done + len(self._queue))

    def wait(self, event: Event) -> None:
        """Queue the other stream's work up to ``event`` before what follows here."""
        self.submit(event.synchronize)

    def synchronize(self) -> None:
        """Do all queued work; `DeviceFault` names the kernels launched since the last good synchronisation."""
        try:
            self.drain()
        except DeviceFault as error:
            kernels = ", ".join(self._launched)
            raise DeviceFault(f"{error.message}; launched since the last synchronisation: {kernels}") from error
        self._launched.clear()


class FakeDevice(Device):
    """Memory with addresses of its own.

    Parameters
    ----------
    info : DeviceInfo
        What was opened.
    asynchronous : bool
        Work waits in queues until somebody synchronises.
    shared : bool
        The host may see the memory (`host_view`), at other addresses than the device's.

    Attributes
    ----------
    allocated, freed, launches : int
        Counts since the device was opened.
    """

    def __init__(self, info: DeviceInfo, asynchronous: bool = False, shared: bool = False) -> None:
        self.info, self.capabilities = info, info.target.capabilities
        self.asynchronous, self.shared = asynchronous, shared
        self.space = AddressSpace()
        self.allocated = self.freed = self.launches = 0
        self.default_stream = self.new_stream()
        self.streams = [self.default_stream]
        self.closed = False

    def new_stream(self) -> FakeStream:
        """Make a queue: what a device that breaks a promise overrides."""
        return FakeStream(self)

    def operations(self) -> Mapping[str, Execute]:
        """Execution of operations by name."""
        return WATCHED

    # -- checks -------------------------------------------------------------------------------------------------------
    def check_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self.closed:
            raise ClosedError(f"the device {self.info.name!r} was closed")

    def blame_ref(self, ref: BufferRef) -> str:
        """Say what is wrong with ``ref``, or return an empty string."""
        if ref.buffer.device is not self:
            return "buffer belongs to another device"
        if ref.buffer.freed:
            return "buffer was freed"
        if ref.offset < 0 or ref.nbytes < 0 or ref.offset + ref.nbytes > ref.buffer.nbytes:
            return f"bytes {ref.offset} to {ref.offset + ref.nbytes} leave a buffer of {ref.buffer.nbytes} bytes"
        return ""

    def check_ref(self, ref: BufferRef, nbytes: int, what: str) -> None:
        """Raise `FakeViolation` unless ``nbytes`` of ``ref`` can be used."""
        self.check_open()
        wrong = self.blame_ref(ref)
        if wrong:
            raise FakeViolation(f"{what} uses memory whose {wrong}")
        if nbytes > ref.nbytes:
            raise FakeViolation(f"{what} of {nbytes} bytes is given room for {ref.nbytes}")

    # -- what streams do ----------------------------------------------------------------------------------------------
    def execute(self, module: ReferenceModule, memory: FakeMemory, extents: Sequence[int]) -> None:
        """Run all tasks of one kernel."""
        try:
            self.interpret(module, memory, extents)
        except BaseException:  # nobody copies back what a failed launch wrote
            for use in memory.uses.values():
                use.ref.buffer.handle.unread = None
            raise

    def interpret(self, module: ReferenceModule, memory: FakeMemory, extents: Sequence[int]) -> None:
        """Interpret all tasks in order."""
        Interpreter(module.prepared, memory, self.operations()).run(extents)

    def write(self, dst: BufferRef, data: Array, *, staged: bool) -> None:
        """Overwrite the first bytes of ``dst``."""
        allocation: Allocation = dst.buffer.handle
        if not allocation.touched:
            allocation.staged = staged
        allocation.touched = True
        allocation.data[dst.offset : dst.offset + data.size] = data
        allocation.defined[dst.offset : dst.offset + data.size] = 0xFF

    def read(self, src: BufferRef) -> Array:
        """Return the bytes of ``src``; `FakeViolation` where some were never written."""
        allocation: Allocation = src.buffer.handle
        part = slice(src.offset, src.offset + src.nbytes)
        undefined = allocation.defined[part] == 0
        if undefined.any():
            first = int(np.argmax(undefined))
            raise FakeViolation(f"a copy from the device reads byte {first} of {src.nbytes}, which nothing ever wrote")
        allocation.unread = None
        return allocation.data[part]

    def transfer(self, dst: BufferRef, src: BufferRef) -> None:
        """Copy bytes and whether they were written."""
        target, source = dst.buffer.handle, src.buffer.handle
        into, part = slice(dst.offset, dst.offset + src.nbytes), slice(src.offset, src.offset + src.nbytes)
        target.data[into], target.defined[into] = source.data[part].copy(), source.defined[part].copy()
        target.touched, source.unread = True, None

    # -- contract -----------------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int, *, alignment: int = 256, stream: Stream | None = None) -> Buffer:
        """Reserve memory of which nothing is written."""
        self.check_open()
        allocation = self.space.allocate(nbytes, alignment)
        self.allocated += 1
        return Buffer(self, nbytes, handle=allocation)

    def free(self, buffer: Buffer, *, after: Stream | None = None) -> None:
        """Give memory back, once ``after`` has done its work; without it no queued work may use the memory."""
        if buffer.device is not self:
            raise FakeViolation("a buffer of another device is freed")
        if buffer.freed:
            raise FakeViolation("a buffer is freed twice")
        allocation: Allocation = buffer.handle
        buffer.freed = True
        self.freed += 1
        if after is None:
            if any(s.pending(allocation) for s in self.streams):
                raise FakeViolation(f"a buffer of {buffer.nbytes} bytes is freed while queued work uses it")
            self._release(allocation)
        else:
            assert isinstance(after, FakeStream)
            after.submit(lambda: self._release(allocation))

    def _release(self, allocation: Allocation) -> None:
        allocation.release()
        use = allocation.unread
        if use is not None and allocation.staged:
            role = use.role.value
            lost = "came from the host and was written, and its memory is freed without a copy back"
            raise FakeViolation(f"kernel {allocation.writer!r}: {named(use.path, role)} {lost}", use.path, role)

    def address(self, ref: BufferRef) -> Address:
        """Return an address of this device's space, which no other source makes."""
        self.check_ref(ref, 0, "Device.address")
        allocation: Allocation = ref.buffer.handle
        address = allocation.base + ref.offset
        allocation.issued.add(address)
        return Address(address)

    def host_view(self, ref: BufferRef) -> HostSpan | None:
        """The memory for the host, on a shared device; all of it then counts as written."""
        self.check_ref(ref, 0, "Device.host_view")
        if not self.shared:
            return None
        allocation: Allocation = ref.buffer.handle
        allocation.defined[:] = 0xFF
        data = allocation.data[ref.offset : ref.offset + ref.nbytes]
        return HostSpan(data.ctypes.data, data.size, data)

    def load(self, artifact: Artifact) -> Module:
        """Read a program's text."""
        self.check_open()
        return ReferenceModule(artifact)

    def stream(self, *, external: int | None = None) -> Stream:
        """Make a queue of its own."""
        self.streams.append(self.new_stream())
        return self.streams[-1]

    @property
    def leaked(self) -> int:
        """Buffers that were never freed."""
        return self.allocated - self.freed

    def close(self) -> None:
        """Refuse further use; queued work is lost, as on a device that is switched off."""
        self.closed = True


class FakeBackend(Backend):
    """The fake device as a backend.

    Parameters
    ----------
    name : str
        What it is registered as.
    asynchronous, shared : bool
        As of `FakeDevice`.
    capabilities : CapabilitySet
        Claims of the device.

    Attributes
    ----------
    opened : list of FakeDevice
        Every device that was opened, for tests that look at its counts.
    """

    contract = ContractVersion(1, 0)
    priority = -200

    def __init__(
        self,
        name: str = "fake",
        *,
        asynchronous: bool = False,
        shared: bool = False,
        capabilities: CapabilitySet = FAKE_CAPABILITIES,
    ) -> None:
        self.name, self.asynchronous, self.shared, self.capabilities = name, asynchronous, shared, capabilities
        self.opened: list[FakeDevice] = []

    def probe(self) -> Availability:
        """Always available."""
        return Availability(True)

    def targets(self) -> Sequence[Target]:
        """The one target."""
        return (Target("fake", self.capabilities),)

    def devices(self) -> Sequence[DeviceInfo]:
        """The one device."""
        return (DeviceInfo(0, "fake device", self.targets()[0]),)

    def compiler(self, target: Target) -> Compiler:
        """Return the compiler."""
        return FakeCompiler(target)

    def open(self, info: DeviceInfo, options: Mapping[str, Any]) -> Device:
        """Open a device."""
        device = self.make(info)
        self.opened.append(device)
        return device

    def make(self, info: DeviceInfo) -> FakeDevice:
        """Make the device: what a backend that breaks a promise overrides."""
        return FakeDevice(info, self.asynchronous, self.shared)


def _host_bytes(span: HostSpan) -> Array:
    if not span.nbytes:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * span.nbytes).from_address(span.address))
