"""The reference interpreter as a backend.

Its artifact is the program's text. It has no addresses: an array's first word is an ordinal of the launch's buffers.
A device with an address space of its own subclasses :class:`ReferenceDevice` and overrides
:meth:`ReferenceDevice.memory`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.backend.capabilities import CapabilitySet, atomics, types
from qd_core.backend.contract import (
    Address,
    ArgumentABI,
    Artifact,
    Availability,
    Backend,
    Buffer,
    BufferRef,
    CompileOptions,
    Compiler,
    ContractVersion,
    Device,
    DeviceInfo,
    HostSpan,
    Launch,
    Module,
    Stream,
    Target,
    TaskEntry,
)
from qd_core.errors import ClosedError, DeviceFault, LaunchError
from qd_core.ir.nodes import Param
from qd_core.ir.ops import BITS, NUM
from qd_core.ir.parse import parse_program
from qd_core.ir.print import print_program
from qd_core.ir.program import DeviceWord, Program, Task, accesses
from qd_core.ir.verify import verify
from qd_core.reference.interpreter import Interpreter, Prepared
from qd_core.reference.memory import Memory, OrdinalMemory, buffer_bytes

__all__ = [
    "CAPABILITIES",
    "ReferenceBackend",
    "ReferenceCompiler",
    "ReferenceDevice",
    "ReferenceModule",
    "ReferenceStream",
]

FORMAT = "qd-ir-text"

CAPABILITIES = CapabilitySet(
    types=types(*dt.ALL),
    atomics=atomics(("add", "min", "max"), NUM) | atomics(("and", "or", "xor"), BITS) | atomics(("exchange",), dt.ALL),
    features=frozenset({"exchange.dlpack", "launch.device_extent", "log.records", "memory.private"}),
    limits={"lanes": 1, "workers": 1},
)
"""What the interpreter does: everything that the IR can say."""

_FRESH = 0xFF
"""Byte of new memory: NaN and -1, so that relying on zeros shows."""


class ReferenceCompiler(Compiler):
    """Checks a program and keeps its text."""

    def __init__(self, target: Target, abi: ArgumentABI | None = None) -> None:
        self.target, self.abi = target, abi or ArgumentABI(pointers="ordinal")

    def identity(self) -> str:
        """Format of the text and NumPy's version, which elementary functions depend on."""
        return f"{self.target.name} {FORMAT} 1 numpy {np.__version__}"

    def compile(self, program: Program, options: CompileOptions) -> Artifact:
        """Return the program's text; `InvalidIRError` for an invalid program. Options change nothing here."""
        verify(program)
        text = print_program(program, locations=True)
        position = {p: n for n, p in enumerate(program.params)}
        tasks = tuple(_entry(n, task, position) for n, task in enumerate(program.tasks))
        return Artifact(FORMAT, text.encode(), tasks, program.sites, {"ir": text})


def _entry(number: int, task: Task, position: Mapping[Param, int]) -> TaskEntry:
    reads, writes = accesses(task.body)
    reads |= {e.param for e in task.extents if isinstance(e, DeviceWord)}
    uses, written = (tuple(sorted(position[p] for p in group)) for group in (reads | writes, writes))
    return TaskEntry(f"{task.name}.{number}", len(task.extents), uses, written, tuple(range(number)))


class ReferenceModule(Module):
    """A program read back from its text."""

    def __init__(self, artifact: Artifact) -> None:
        if artifact.format != FORMAT:
            raise LaunchError(
                f"an artifact of format {artifact.format!r} is no program text", why=f"this device loads {FORMAT!r}"
            )
        self.artifact = artifact
        self.program = parse_program(artifact.blob.decode())
        verify(self.program)
        self.prepared = Prepared(self.program)


class ReferenceStream(Stream):
    """Runs and copies at once, in the calling thread."""

    def __init__(self, device: ReferenceDevice) -> None:
        self.device = self.reference = device

    def run(self, module: Module, launch: Launch) -> None:
        """Interpret all tasks; `InterpreterError` where the program leaves an array."""
        assert isinstance(module, ReferenceModule)
        self.reference.check_open()
        memory = self.reference.memory(module, launch)
        Interpreter(module.prepared, memory).run(launch.extents)

    def copy_in(self, dst: BufferRef, src: HostSpan) -> None:
        """Copy host memory to a buffer."""
        self.reference.bytes_of(dst)[: src.nbytes] = _host_bytes(src)

    def copy_out(self, dst: HostSpan, src: BufferRef) -> None:
        """Copy a buffer to host memory."""
        _host_bytes(dst)[:] = self.reference.bytes_of(src)[: dst.nbytes]

    def copy(self, dst: BufferRef, src: BufferRef) -> None:
        """Copy between buffers, which may overlap."""
        self.reference.bytes_of(dst)[: src.nbytes] = self.reference.bytes_of(src).copy()

    def fill(self, dst: BufferRef, pattern: bytes) -> None:
        """Repeat a pattern over a buffer."""
        target = self.reference.bytes_of(dst)
        target[:] = np.resize(np.frombuffer(pattern, np.uint8), target.size)


class ReferenceDevice(Device):
    """Host memory seen through NumPy; a buffer's handle is a uint8 array.

    Parameters
    ----------
    info : DeviceInfo
        What was opened.
    """

    def __init__(self, info: DeviceInfo) -> None:
        self.info, self.capabilities = info, info.target.capabilities
        self.default_stream = ReferenceStream(self)
        self.closed = False

    def check_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self.closed:
            raise ClosedError(f"the device {self.info.name!r} was closed")

    def memory(self, module: ReferenceModule, launch: Launch) -> Memory:
        """Return the arguments of a launch: what the words of array leaves mean on this device."""
        return OrdinalMemory(launch.words, launch.uses)

    def bytes_of(self, ref: BufferRef) -> np.ndarray[Any, Any]:
        """Return the memory of ``ref`` as uint8; `DeviceFault` for a freed buffer, another device's, or bytes
        outside.
        """
        self.check_open()
        if ref.buffer.device is not self:
            raise DeviceFault(f"a buffer of another device is used on {self.info.name!r}")
        return buffer_bytes(ref)

    def allocate(self, nbytes: int, *, alignment: int = 256, stream: Stream | None = None) -> Buffer:
        """Allocate memory filled with a pattern that shows."""
        self.check_open()
        try:
            raw = np.full(nbytes + alignment, _FRESH, np.uint8)
        except MemoryError as error:
            raise DeviceFault(f"{nbytes} bytes of host memory cannot be allocated") from error
        start = -raw.ctypes.data % alignment
        return Buffer(self, nbytes, handle=raw[start : start + nbytes])

    def free(self, buffer: Buffer, *, after: Stream | None = None) -> None:
        """Drop the memory; using the buffer afterwards is a `DeviceFault`."""
        if buffer.freed:
            raise DeviceFault("a buffer is freed twice")
        buffer.freed, buffer.handle, buffer.owner = True, None, None

    def address(self, ref: BufferRef) -> Address:
        """Where the bytes are in host memory: orders and compares buffers; the interpreter itself uses ordinals."""
        return Address(ref.buffer.handle.ctypes.data + ref.offset) if ref.buffer.nbytes else Address(0)

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

    def load(self, artifact: Artifact) -> Module:
        """Read a program's text."""
        self.check_open()
        return ReferenceModule(artifact)

    def close(self) -> None:
        """Refuse further use."""
        self.closed = True


class ReferenceBackend(Backend):
    """The interpreter as `qd.reference`."""

    name = "reference"
    contract = ContractVersion(1, 0)
    priority = -100

    def probe(self) -> Availability:
        """NumPy is core's own dependency: always available."""
        return Availability(True)

    def targets(self) -> Sequence[Target]:
        """The one target."""
        return (Target("numpy", CAPABILITIES),)

    def devices(self) -> Sequence[DeviceInfo]:
        """The one device."""
        return (DeviceInfo(0, "NumPy interpreter", self.targets()[0]),)

    def compiler(self, target: Target) -> Compiler:
        """Return the compiler."""
        return ReferenceCompiler(target)

    def open(self, info: DeviceInfo, options: Mapping[str, Any]) -> Device:
        """Open the interpreter; it has no options."""
        return ReferenceDevice(info)


def _host_bytes(span: HostSpan) -> np.ndarray[Any, Any]:
    if not span.nbytes:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * span.nbytes).from_address(span.address))


def _from_dlpack(tensor: Any) -> np.ndarray[Any, Any] | None:
    try:
        return np.from_dlpack(tensor)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        return None
