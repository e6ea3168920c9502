"""An open device: its primary context, memory and code."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, NamedTuple

from qd_core.backend.contract import Address, Artifact, Buffer, BufferRef, Device, DeviceInfo, Module, Stream
from qd_core.backend.dlpack import Exchange, device_of, exchange
from qd_core.errors import ClosedError, DeviceFault
from qd_cuda.driver import CudaError, Driver
from qd_cuda.memory import Memory
from qd_cuda.module import CudaModule
from qd_cuda.staging import Staging
from qd_cuda.stream import CudaStream

__all__ = ["CudaDevice", "Place"]

_PROCESSORS, _THREADS_PER_PROCESSOR = 16, 39
_DLPACK_KINDS = (2, 13)
"""DLPack's device types: device memory, managed memory."""

_STREAM_BLOCKING = 0


class Place(NamedTuple):
    """Where a buffer lies: address, for foreign memory the stream that its owner works on, for own memory what the
    driver allocated.
    """

    address: int
    stream: int = 0
    base: int = 0


class CudaDevice(Device):
    """One device. Its context is the primary one, which other libraries of the process use too.

    Parameters
    ----------
    cuda : Driver
    ordinal : int
        The driver's number of the device.
    info : DeviceInfo

    Attributes
    ----------
    last_native : c_uint64
        Address of the table of the last native launch, for messages; `natives` has the kernel's name by it.
    """

    def __init__(self, cuda: Driver, ordinal: int, info: DeviceInfo) -> None:
        self.cuda, self.ordinal, self.info = cuda, ordinal, info
        self.capabilities = info.target.capabilities
        self.closed = False
        self._retired: list[tuple[str, int]] = []
        self.last_native = ctypes.c_uint64()
        self.natives: dict[int, Callable[[], str]] = {}
        context = ctypes.c_void_p()
        try:
            cuda("PrimaryCtxRetain", ctypes.byref(context), ordinal)
        except CudaError as error:
            raise DeviceFault(f"the device {info.name!r} cannot be opened: {error}") from error
        assert context.value
        self.context = context.value
        with self.guard("opening the device"):
            self.processors = cuda.attribute(_PROCESSORS, ordinal)
            self.resident_threads = self.processors * cuda.attribute(_THREADS_PER_PROCESSOR, ordinal)
            self.memory = Memory(cuda, ordinal, info.name)
            self.staging = Staging(cuda)
        self.entry = _native_function()
        self.streams: list[CudaStream] = []
        self.default_stream = self.queue = CudaStream(self, 0, owned=False)

    # -- errors -------------------------------------------------------------------------------------------------------
    @contextmanager
    def guard(self, what: str, kernels: Iterable[str] = ()) -> Generator[None]:
        """Make the context current; turn a failed call into a `DeviceFault` that names the kernels under way."""
        if self.closed:
            raise ClosedError(f"the device {self.info.name!r} was closed")
        cuda, previous = self.cuda, ctypes.c_void_p()
        try:
            cuda("CtxPushCurrent", self.context)
        except CudaError as error:
            raise self._fault(what, kernels, error) from error
        try:
            yield
        except CudaError as error:
            raise self._fault(what, kernels, error) from error
        finally:
            cuda.status("CtxPopCurrent", ctypes.byref(previous))

    def _fault(self, what: str, kernels: Iterable[str], error: CudaError) -> DeviceFault:
        last = self.natives.get(self.last_native.value)
        self.last_native.value = 0
        names = ", ".join(dict.fromkeys([*(k for k in kernels if k), *([last()] if last is not None else [])]))
        return DeviceFault(
            f"{what} failed on {self.info.name!r}: {error.text} ({error.name}, in {error.call})",
            why=f"kernels since the last good synchronisation: {names}" if names else "",
            hint="run with qd.init(debug=True), which checks every index" if names else "",
        )

    # -- memory -------------------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int, *, alignment: int = 256, stream: Stream | None = None) -> Buffer:
        """Allocate memory; the driver aligns to 256 bytes at least."""
        if not nbytes:
            self._check_open()
            return Buffer(self, 0, handle=Place(0))
        with self.guard("an allocation"):
            room = nbytes if alignment <= 256 else nbytes + alignment
            base = self.memory.allocate(room, _handle(stream))
            return Buffer(self, nbytes, handle=Place(base + -base % alignment, base=base))

    def free(self, buffer: Buffer, *, after: Stream | None = None) -> None:
        """Free an allocated buffer, or drop an adopted one."""
        if buffer.freed:
            raise DeviceFault("a buffer is freed twice")
        buffer.freed = True
        if buffer.owner is not None:
            buffer.owner = None
        elif buffer.nbytes and not self.closed:
            with self.guard("freeing memory"):
                self.memory.free(buffer.handle.base, _handle(after))

    def locate(self, ref: BufferRef, nbytes: int) -> int:
        """Return the address of ``ref`` after checking that ``nbytes`` lie in it."""
        self._check_open()
        buffer = ref.buffer
        if buffer.device is not self:
            raise DeviceFault(f"a buffer of another device is used on {self.info.name!r}")
        if buffer.freed:
            raise DeviceFault("a freed buffer is used")
        if not (0 <= ref.offset and 0 <= nbytes <= ref.nbytes and ref.offset + ref.nbytes <= buffer.nbytes):
            end = ref.offset + max(nbytes, ref.nbytes)
            raise DeviceFault(f"bytes {ref.offset} to {end} lie outside a buffer of {buffer.nbytes} bytes")
        return buffer.handle.address + ref.offset

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"the device {self.info.name!r} was closed")

    def address(self, ref: BufferRef) -> Address:
        """Return the device address."""
        return Address(self.locate(ref, ref.nbytes))

    def adopt(self, tensor: object) -> Buffer | None:
        """Wrap a contiguous tensor of this device that is exported through DLPack; None for others.

        Work of the tensor's owner that is under way comes first, and its later work waits for launches that use the
        buffer.
        """
        if not isinstance(tensor, Exchange) and (device_of(tensor) or (0, 0))[0] not in _DLPACK_KINDS:
            return None
        view = tensor if isinstance(tensor, Exchange) else exchange(tensor)
        if view is None or view.kind not in _DLPACK_KINDS or view.device != self.ordinal or not view.contiguous:
            return None
        return Buffer(self, view.nbytes, owner=view, handle=Place(view.address, _owner_stream(view.tensor)))

    def private_nbytes(self) -> int:
        """Bytes of the streams' pools of private memory."""
        return sum(4 * stream.scratch.words[1] for stream in (self.queue, *self.streams))

    # -- code ---------------------------------------------------------------------------------------------------------
    def load(self, artifact: Artifact) -> Module:
        """Translate PTX for this device (the driver keeps translations on disk)."""
        with self.guard("loading code"):
            return CudaModule(self, artifact)

    def resident_blocks(self, function: int, block: int) -> int:
        """Blocks of a function that the device holds at once."""
        blocks = ctypes.c_int()
        self.cuda("OccupancyMaxActiveBlocks", ctypes.byref(blocks), function, block, 0)
        return max(blocks.value, 1) * self.processors

    def retire(self, module: int) -> None:
        """Unload a module once all present work is done."""
        self.drop("ModuleUnload", module)

    def drop(self, call: str, handle: int) -> None:
        """Give a handle back at the next synchronisation; callable from finalizers."""
        if not self.closed:
            self._retired.append((call, handle))

    def reclaim(self) -> None:
        """Give back what was dropped; only the default stream's being idle is known, so wait for all where needed."""
        if not self._retired:
            return
        retired, self._retired = self._retired, []
        with self.guard("giving back what is not used any more"):
            if any(call == "ModuleUnload" for call, _ in retired):
                self.cuda("CtxSynchronize")
            for call, handle in retired:
                self.cuda(call, handle)

    # -- streams ------------------------------------------------------------------------------------------------------
    def stream(self, *, external: int | None = None) -> Stream:
        """New stream, ordered against the default one; or a wrapper of a foreign one."""
        if external is not None:
            return self._keep(CudaStream(self, external, owned=False))
        handle = ctypes.c_void_p()
        with self.guard("a stream"):
            self.cuda("StreamCreate", ctypes.byref(handle), _STREAM_BLOCKING)
        assert handle.value
        return self._keep(CudaStream(self, handle.value, owned=True))

    def _keep(self, stream: CudaStream) -> CudaStream:
        self.streams.append(stream)
        return stream

    def close(self) -> None:
        """Wait for the device, free everything, release the context."""
        if self.closed:
            return
        try:
            with self.guard("closing the device"):
                self.cuda("CtxSynchronize")
                for stream in (self.queue, *self.streams):
                    stream.scratch.close()
                self.reclaim()
                self.staging.close()
                self.memory.close()
        except DeviceFault:
            pass  # after a fault the context is lost, and everything in it goes with it
        finally:
            self.closed = True
            self.streams.clear()
            self.cuda.status("PrimaryCtxRelease", self.ordinal)


def _handle(stream: Stream | None) -> int:
    return stream.handle if isinstance(stream, CudaStream) else 0


def _owner_stream(tensor: Any) -> int:
    """The stream that a tensor's library works on at present; 0 where it is the default one or not known."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return int(torch.cuda.current_stream(tensor.device).cuda_stream)
    return 0


def _native_function() -> int | None:
    """The entry of native launches; None where this process cannot have one."""
    from qd_cuda.native import load_entry

    try:
        return load_entry()
    except (OSError, RuntimeError):
        return None
