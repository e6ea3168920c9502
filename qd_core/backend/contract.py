"""The backend contract: what a plugin implements and what core guarantees.

Core packs every argument; a plugin never walks them. Buffers, host memory and device addresses are different types,
and an address comes only
from :meth:`Device.address`. All tasks of a kernel run in one call. Roles of buffers label messages and steer nothing.

The contract has its own version. Additions raise the minor version and have defaults here; removals raise the major
version.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NewType

from qd_core.backend.capabilities import CapabilitySet
from qd_core.ir.nodes import Access, Role
from qd_core.ir.program import Program, Site, Variant

if TYPE_CHECKING:
    from qd_core.errors import Span

__all__ = [
    "CONTRACT_VERSION",
    "Access",
    "Address",
    "ArgumentABI",
    "Artifact",
    "Availability",
    "Backend",
    "Buffer",
    "BufferRef",
    "BufferUse",
    "CompileOptions",
    "Compiler",
    "ContractVersion",
    "Device",
    "DeviceInfo",
    "Event",
    "HostSpan",
    "Launch",
    "Module",
    "NativeEntry",
    "Role",
    "Stream",
    "Target",
    "TaskEntry",
]

Address = NewType("Address", int)
"""Opaque 64-bit number, meaningful to one device's code; made only by :meth:`Device.address`."""


@dataclass(frozen=True, order=True, slots=True)
class ContractVersion:
    """Version of this contract; equal majors fit, and core must have at least the plugin's minor."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


CONTRACT_VERSION = ContractVersion(1, 1)


# -- memory ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class HostSpan:
    """``nbytes`` of host memory at ``address``, kept alive by ``owner``."""

    address: int
    nbytes: int
    owner: object


class _WeakReferable:
    """Gives a slotted dataclass a slot for weak references (`weakref_slot` needs Python 3.11)."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True, eq=False)
class Buffer(_WeakReferable):
    """Device memory. ``owner`` is the adopted foreign tensor, None for memory that the device allocated.

    ``handle`` is the plugin's own.
    """

    device: Device
    nbytes: int
    owner: object | None = None
    handle: Any = None
    freed: bool = False


@dataclass(frozen=True, slots=True)
class BufferRef:
    """``nbytes`` of a buffer from byte ``offset``."""

    buffer: Buffer
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class BufferUse:
    """One buffer of a launch, for barriers, residency and messages: ``path`` is what the user calls it."""

    ref: BufferRef
    access: Access
    role: Role
    path: str


# -- description ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can run here; if not, ``reason`` says why and ``remedy`` what to do."""

    available: bool
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What code can be generated for, with or without such a device: name (``"x86_64-avx2"``), static capabilities."""

    name: str
    capabilities: CapabilitySet
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device that can be opened: position among the backend's devices, human name, memory in bytes (0: unknown)."""

    index: int
    name: str
    target: Target
    memory_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class ArgumentABI:
    """How packed words reach the code.

    Parameters
    ----------
    pointers : str
        ``"address"``: an array leaf's first word is an address; ``"ordinal"``: it is the index into ``Launch.uses``.
    inline_nbytes : int
        Bytes of words that the device takes by value.
    lanes : int
        Lanes of one instruction stream (SIMD width or subgroup size); 1 when there are none.
    max_group : int
        Largest number of threads in a group; 1 when there are no groups.
    """

    pointers: str = "address"
    inline_nbytes: int = 0
    lanes: int = 1
    max_group: int = 1


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Everything that changes code. All fields, in full, are part of the cache key."""

    fast_math: bool = True
    debug: bool = False
    check_out_of_bound: bool = False
    opt_level: int = 2
    variant: Variant = field(default_factory=Variant)
    lanes: int = 0
    extra: tuple[tuple[str, str], ...] = ()


# -- code -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TaskEntry:
    """One compiled task.

    ``axes`` is the number of its extents in `Launch.extents`. ``uses`` are positions among the program's parameters of
    the arrays that the task touches,
    with ``writes`` those it writes. ``after`` are earlier tasks that must have finished first.
    """

    symbol: str
    axes: int
    uses: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    shared_nbytes: int = 0

    @staticmethod
    def of(program: Program, number: int, symbol: str, group: tuple[int, ...] = ()) -> TaskEntry:
        """Describe task ``number`` of ``program``, which waits for all tasks before it."""
        task = program.tasks[number]
        uses, writes = program.uses(task)
        return TaskEntry(symbol, len(task.extents), uses, writes, tuple(range(number)), group)


@dataclass(frozen=True, slots=True)
class Artifact:
    """Compiled code as plain data (it can be pickled), ready for a disk cache.

    ``stages`` maps names (``"llvm"``, ``"asm"``) to text and is filled only when dumping was asked for.
    """

    format: str
    blob: bytes
    tasks: tuple[TaskEntry, ...]
    sites: tuple[Site, ...] = ()
    stages: Mapping[str, str] = field(default_factory=dict[str, str])
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class NativeEntry:
    """A C function ``i32 f(void *context, i64 *words, i64 *extents, void *stream)``, alive as long as ``owner``.

    ``brief``: it only enqueues, and is called with the interpreter's lock held however much work there is.
    """

    function: int
    context: int
    owner: object
    brief: bool = False


@dataclass(slots=True)
class Launch:
    """A packed launch, read-only to the plugin.

    ``words`` is final: a flat array of 64-bit words. ``extents`` holds one i64 for each axis of each task in order, -1
    where the device
    knows. ``uses`` names every array in ``words`` in leaf order: for barriers, residency and messages, never for
    packing.
    """

    words: memoryview
    extents: Sequence[int]
    uses: Sequence[BufferUse]
    name: str = ""
    span: Span | None = None


class Module(ABC):
    """Loaded code of one kernel."""

    artifact: Artifact

    def native(self) -> NativeEntry | None:
        """C entry that the native packer may call instead of `Stream.run`; None is always allowed."""
        return None


class Event:
    """A point in a stream's work. The default is of a device whose streams are synchronous: it has always passed."""

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""


class Stream(ABC):
    """An ordered queue of work."""

    device: Device

    @abstractmethod
    def run(self, module: Module, launch: Launch) -> None:
        """Run all tasks of one kernel."""

    @abstractmethod
    def copy_in(self, dst: BufferRef, src: HostSpan) -> None:
        """Copy host memory to the device; ``src`` may be reused on return."""

    @abstractmethod
    def copy_out(self, dst: HostSpan, src: BufferRef) -> None:
        """Copy device memory to the host; done on return."""

    @abstractmethod
    def copy(self, dst: BufferRef, src: BufferRef) -> None:
        """Copy within the device."""

    @abstractmethod
    def fill(self, dst: BufferRef, pattern: bytes) -> None:
        """Repeat ``pattern`` (1, 2, 4 or 8 bytes) over ``dst``."""

    def record(self) -> Event:
        """Mark the present end of the queue."""
        return Event()

    def wait(self, event: Event) -> None:
        """Let later work of this stream start after ``event``."""
        event.synchronize()

    def flush(self) -> None:  # noqa: B027 - a synchronous stream has nothing to submit
        """Submit what is queued."""

    def synchronize(self) -> None:  # noqa: B027 - a synchronous stream is always done
        """Wait until all work is done; `DeviceFault` names the kernels launched since the last good synchronisation."""


class Device(ABC):
    """An open device: its memory, code and streams."""

    info: DeviceInfo
    capabilities: CapabilitySet
    default_stream: Stream

    @abstractmethod
    def allocate(self, nbytes: int, *, alignment: int = 256, stream: Stream | None = None) -> Buffer:
        """Allocate memory (contents undefined; 0 bytes allowed); `DeviceFault` says sizes when there is not enough."""

    @abstractmethod
    def free(self, buffer: Buffer, *, after: Stream | None = None) -> None:
        """Free an allocated buffer once ``after`` has done its present work, or drop an adopted one."""

    @abstractmethod
    def address(self, ref: BufferRef) -> Address:
        """Address of ``ref`` for this device's code: the only source of addresses."""

    def adopt(self, tensor: object) -> Buffer | None:
        """Wrap foreign memory that this device can use in place; None: core copies in and out."""
        return None

    def host_view(self, ref: BufferRef) -> HostSpan | None:
        """Host-addressable view of ``ref`` without a copy, where memory is shared; None otherwise."""
        return None

    def private_nbytes(self) -> int | None:
        """Most memory, in bytes, that this device has set aside for kernels' private memory; None: not known."""
        return None

    @abstractmethod
    def load(self, artifact: Artifact) -> Module:
        """Load code made by a compiler of this device's target."""

    def stream(self, *, external: int | None = None) -> Stream:
        """New stream, or a wrapper of a foreign one; a device with one queue returns its default stream."""
        return self.default_stream

    def close(self) -> None:  # noqa: B027 - nothing to release is a valid answer
        """Free everything; the device is unusable afterwards."""


class Compiler(ABC):
    """Turns programs into artifacts for one target; needs no device."""

    target: Target
    abi: ArgumentABI

    @abstractmethod
    def identity(self) -> str:
        """Tool chain, versions, target: the whole string goes into cache keys."""

    def pipeline(self) -> Sequence[Callable[[Program], Program]]:
        """Passes that core runs on the program before `compile` (legalisation for this target)."""
        return ()

    @abstractmethod
    def compile(self, program: Program, options: CompileOptions) -> Artifact:
        """Generate code."""


class Backend(ABC):
    """A plugin's entry point: ``[project.entry-points."qd_core.backends"] name = "package:ClassOrFactory"``.

    Attributes
    ----------
    name : str
        What users ask for: ``qd.init(arch=qd.<name>)``.
    contract : ContractVersion
        Version the plugin was written against.
    priority : int
        Order among installed backends where the user only asks for an accelerator; higher is tried first.
    """

    name: str
    contract: ContractVersion
    priority: int = 0

    @abstractmethod
    def probe(self) -> Availability:
        """Cheap check whether the backend can run here; never raises."""

    @abstractmethod
    def targets(self) -> Sequence[Target]:
        """What can be compiled for on this machine, with or without devices."""

    @abstractmethod
    def devices(self) -> Sequence[DeviceInfo]:
        """Devices that can be opened."""

    @abstractmethod
    def compiler(self, target: Target) -> Compiler:
        """Return a compiler for one of `targets`."""

    @abstractmethod
    def open(self, info: DeviceInfo, options: Mapping[str, Any]) -> Device:
        """Open a device."""
