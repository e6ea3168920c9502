"""A driver library without a device: its own address space, a record of every call, and failures on demand.

It runs no kernels. What it checks: contexts are current, handles exist, copies stay inside live allocations, and every
address in a kernel's parameters lies in one.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from qd_cuda.driver import _OPTIONAL, _TABLE, Driver

BASE = 0x7000_0000_0000
"""First device address: nothing of the host lies there, so a host address among a kernel's arguments is found out."""

INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, INVALID_HANDLE, ILLEGAL_ADDRESS = 1, 2, 201, 400, 700
_NAMES = {
    1: "CUDA_ERROR_INVALID_VALUE", 2: "CUDA_ERROR_OUT_OF_MEMORY", 100: "CUDA_ERROR_NO_DEVICE",
    201: "CUDA_ERROR_INVALID_CONTEXT", 400: "CUDA_ERROR_INVALID_HANDLE", 700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    304: "CUDA_ERROR_OPERATING_SYSTEM", 800: "CUDA_ERROR_NOT_PERMITTED", 802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", 999: "CUDA_ERROR_UNKNOWN",
}  # fmt: skip
_ATTRIBUTES = {75: 9, 76: 0, 16: 132, 39: 2048, 115: 1}
CONTEXT = 0xC0DE


class Launched:
    """One recorded kernel launch."""

    def __init__(self, function: int, grid: int, block: int, stream: int, words: list[list[int]]) -> None:
        self.function, self.grid, self.block, self.stream, self.words = function, grid, block, stream, words


class FakeDriver:
    """The library.

    Attributes
    ----------
    calls : list of str
        Symbols called, in order.
    fail : dict
        Status to return by symbol, instead of doing the call.
    memory : dict
        Contents of live allocations by address.
    sizes : tuple of int
        Words of the three parameters of the next kernels.
    """

    def __init__(
        self, *, memory_nbytes: int = 1 << 30, devices: int = 1, version: int = 13000, pool: bool = True
    ) -> None:
        self.calls: list[str] = []
        self.fail: dict[str, int] = {}
        self.memory: dict[int, bytearray] = {}
        self.host: dict[int, Any] = {}
        self.handles: dict[int, str] = {}
        self.launches: list[Launched] = []
        self.sizes: tuple[int, int, int] = (1, 1, 3)
        self.check_words: tuple[int, ...] = ()
        self.total, self.devices, self.version = memory_nbytes, devices, version
        self.attributes = dict(_ATTRIBUTES)
        self.current: list[int] = []
        self.retained = 0
        self._next = itertools.count(1)
        self._at = BASE
        self._keep: list[Any] = []
        for symbol, types in {**_TABLE, **_OPTIONAL}.values():
            self._export(symbol, types)
        for symbol, _ in () if pool else _OPTIONAL.values():
            self.__dict__[symbol] = None

    def driver(self) -> Driver:
        """Return this library as a `Driver`."""
        return Driver(self)

    def _export(self, symbol: str, types: Any) -> None:
        stem = symbol.removesuffix("_v2")
        method: Callable[..., int] = getattr(self, stem)

        def call(*arguments: Any) -> int:
            self.calls.append(symbol)
            if symbol in self.fail:
                return self.fail[symbol]
            if not self.current and stem not in _WITHOUT_CONTEXT:
                return INVALID_CONTEXT
            return int(method(*arguments) or 0)

        # Pointers to values arrive as plain addresses: callbacks then work from ctypes and from native code alike.
        plain = [ctypes.c_void_p if hasattr(t, "_type_") and not isinstance(t._type_, str) else t for t in types]
        plain = [ctypes.c_void_p if t is ctypes.c_char_p else t for t in plain]
        function = ctypes.CFUNCTYPE(ctypes.c_int, *plain)(call)
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address
        self._keep.append(function)
        setattr(self, symbol + "_exported", function)
        self.__dict__[symbol] = ctypes.CFUNCTYPE(ctypes.c_int, *types)(address)

    @contextmanager
    def failing(self, symbol: str, code: int) -> Iterator[None]:
        """Let a call fail."""
        self.fail[symbol] = code
        try:
            yield
        finally:
            del self.fail[symbol]

    # -- helpers ------------------------------------------------------------------------------------------------------
    def _make(self, out: int, kind: str) -> None:
        handle = 0x1000 + 16 * next(self._next)
        self.handles[handle] = kind
        ctypes.c_uint64.from_address(out).value = handle

    def _drop(self, handle: int, kind: str) -> int:
        if self.handles.get(handle) != kind:
            return INVALID_HANDLE
        del self.handles[handle]
        return 0

    def place(self, address: int, nbytes: int) -> tuple[bytearray, int] | None:
        """The live allocation that holds ``nbytes`` at ``address``, and the offset in it."""
        for start, content in self.memory.items():
            if start <= address and address + nbytes <= start + len(content):
                return content, address - start
        return None

    def _stream_known(self, stream: int | None) -> bool:
        return not stream or stream in (1, 2) or self.handles.get(stream) == "stream"

    # -- driver and devices -------------------------------------------------------------------------------------------
    def cuInit(self, flags: int) -> int:
        return 0

    def cuDriverGetVersion(self, out: int) -> None:
        ctypes.c_int.from_address(out).value = self.version

    def cuDeviceGetCount(self, out: int) -> None:
        ctypes.c_int.from_address(out).value = self.devices

    def cuDeviceGet(self, out: int, ordinal: int) -> None:
        ctypes.c_int.from_address(out).value = ordinal

    def cuDeviceGetName(self, out: int, length: int, device: int) -> None:
        ctypes.memmove(out, b"Fake GPU %d\0" % device, 11)

    def cuDeviceGetAttribute(self, out: int, attribute: int, device: int) -> int:
        if attribute not in self.attributes:
            return INVALID_VALUE
        ctypes.c_int.from_address(out).value = self.attributes[attribute]
        return 0

    def cuDeviceTotalMem(self, out: int, device: int) -> None:
        ctypes.c_size_t.from_address(out).value = self.total

    def cuDevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        self.retained += 1
        ctypes.c_uint64.from_address(out).value = CONTEXT

    def cuDevicePrimaryCtxRelease(self, device: int) -> None:
        self.retained -= 1

    def cuCtxGetCurrent(self, out: int) -> None:
        ctypes.c_uint64.from_address(out).value = self.current[-1] if self.current else 0

    def cuCtxPushCurrent(self, context: int) -> int:
        if context != CONTEXT:
            return INVALID_CONTEXT
        self.current.append(context)
        return 0

    def cuCtxPopCurrent(self, out: int) -> int:
        if not self.current:
            return INVALID_CONTEXT
        ctypes.c_uint64.from_address(out).value = self.current.pop()
        return 0

    def cuCtxSynchronize(self) -> int:
        return 0

    def cuGetErrorName(self, code: int, out: int) -> None:
        self._text(out, _NAMES.get(code, "CUDA_ERROR_OTHER"))

    def cuGetErrorString(self, code: int, out: int) -> None:
        self._text(out, _NAMES.get(code, "other").removeprefix("CUDA_ERROR_").lower().replace("_", " "))

    def _text(self, out: int, text: str) -> None:
        raw = ctypes.create_string_buffer(text.encode())
        self._keep.append(raw)
        ctypes.c_uint64.from_address(out).value = ctypes.addressof(raw)

    # -- memory -------------------------------------------------------------------------------------------------------
    def cuMemGetInfo(self, free: int, total: int) -> None:
        used = sum(map(len, self.memory.values()))
        ctypes.c_size_t.from_address(free).value = self.total - used
        ctypes.c_size_t.from_address(total).value = self.total

    def cuMemAlloc(self, out: int, nbytes: int) -> int:
        if nbytes <= 0:
            return INVALID_VALUE
        if sum(map(len, self.memory.values())) + nbytes > self.total:
            return OUT_OF_MEMORY
        self.memory[self._at] = bytearray(b"\xa5") * nbytes
        ctypes.c_uint64.from_address(out).value = self._at
        self._at += (nbytes + 4095) // 256 * 256
        return 0

    def cuMemFree(self, address: int) -> int:
        return 0 if self.memory.pop(address, None) is not None else INVALID_VALUE

    def cuMemPoolCreate(self, out: int, properties: int) -> None:
        self._make(out, "pool")

    def cuMemPoolDestroy(self, pool: int) -> int:
        return self._drop(pool, "pool")

    def cuMemPoolSetAttribute(self, pool: int, attribute: int, value: int) -> int:
        return 0 if self.handles.get(pool) == "pool" else INVALID_HANDLE

    def cuMemPoolTrimTo(self, pool: int, keep: int) -> int:
        return 0

    def cuMemAllocFromPoolAsync(self, out: int, nbytes: int, pool: int, stream: int) -> int:
        if self.handles.get(pool) != "pool" or not self._stream_known(stream):
            return INVALID_HANDLE
        return self.cuMemAlloc(out, nbytes)

    def cuMemFreeAsync(self, address: int, stream: int) -> int:
        return self.cuMemFree(address) if self._stream_known(stream) else INVALID_HANDLE

    def cuMemHostAlloc(self, out: int, nbytes: int, flags: int) -> None:
        raw = ctypes.create_string_buffer(nbytes)
        self.host[ctypes.addressof(raw)] = raw
        ctypes.c_uint64.from_address(out).value = ctypes.addressof(raw)

    def cuMemHostGetDevicePointer(self, out: int, host: int, flags: int) -> int:
        if host not in self.host:
            return INVALID_VALUE
        ctypes.c_uint64.from_address(out).value = host
        return 0

    def cuMemFreeHost(self, host: int) -> int:
        return 0 if self.host.pop(host, None) is not None else INVALID_VALUE

    def cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> int:
        place = self.place(target, nbytes)
        if place is None or not self._stream_known(stream):
            return INVALID_VALUE
        content, at = place
        content[at : at + nbytes] = ctypes.string_at(source, nbytes)
        return 0

    def cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: int) -> int:
        place = self.place(source, nbytes)
        if place is None:
            return INVALID_VALUE
        content, at = place
        ctypes.memmove(target, bytes(content[at : at + nbytes]), nbytes)
        return 0

    def cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> int:
        a, b = self.place(source, nbytes), self.place(target, nbytes)
        if a is None or b is None or abs(source - target) < nbytes:
            return INVALID_VALUE
        b[0][b[1] : b[1] + nbytes] = a[0][a[1] : a[1] + nbytes]
        return 0

    def _fill(self, address: int, unit: bytes, count: int, step: int) -> int:
        place = self.place(address, (count - 1) * step + len(unit))
        if place is None:
            return INVALID_VALUE
        for n in range(count):
            at = place[1] + n * step
            place[0][at : at + len(unit)] = unit
        return 0

    def cuMemsetD8Async(self, address: int, value: int, count: int, stream: int) -> int:
        return self._fill(address, value.to_bytes(1, "little"), count, 1)

    def cuMemsetD16Async(self, address: int, value: int, count: int, stream: int) -> int:
        return self._fill(address, value.to_bytes(2, "little"), count, 2)

    def cuMemsetD32Async(self, address: int, value: int, count: int, stream: int) -> int:
        return self._fill(address, value.to_bytes(4, "little"), count, 4)

    def cuMemsetD2D32Async(self, address: int, pitch: int, value: int, width: int, height: int, stream: int) -> int:
        return self._fill(address, value.to_bytes(4, "little") * width, height, pitch)

    # -- code ---------------------------------------------------------------------------------------------------------
    def cuModuleLoadDataEx(self, out: int, image: int, count: int, options: int, values: int) -> int:
        text = ctypes.string_at(image)
        if b".visible .entry" not in text:
            return 218
        self._make(out, "module")
        return 0

    def cuModuleUnload(self, module: int) -> int:
        return self._drop(module, "module")

    def cuModuleGetFunction(self, out: int, module: int, name: int) -> int:
        if self.handles.get(module) != "module":
            return INVALID_HANDLE
        self._make(out, "function")
        return 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, out: int, function: int, block: int, shared: int) -> int:
        if self.handles.get(function) != "function" or not 0 < block <= 1024:
            return INVALID_VALUE
        ctypes.c_int.from_address(out).value = 2048 // block
        return 0

    def cuLaunchKernel(
        self,
        function: int,
        gx: int,
        gy: int,
        gz: int,
        bx: int,
        by: int,
        bz: int,
        shared: int,
        stream: int,
        params: int,
        extra: int,
    ) -> int:
        if (
            self.handles.get(function) != "function"
            or not self._stream_known(stream)
            or not gx * gy * gz * bx * by * bz
        ):
            return INVALID_VALUE
        blocks = [ctypes.c_uint64.from_address(params + 8 * n).value for n in range(3)]
        words = [list((ctypes.c_uint64 * n).from_address(at)) for at, n in zip(blocks, self.sizes, strict=True)]
        if any(self.place(words[0][n], 1) is None for n in self.check_words):
            return ILLEGAL_ADDRESS
        self.launches.append(Launched(function, gx, bx, stream or 0, words))
        return 0

    # -- streams and events -------------------------------------------------------------------------------------------
    def cuStreamCreate(self, out: int, flags: int) -> None:
        self._make(out, "stream")

    def cuStreamDestroy(self, stream: int) -> int:
        return self._drop(stream, "stream")

    def cuStreamSynchronize(self, stream: int) -> int:
        return 0 if self._stream_known(stream) else INVALID_HANDLE

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> int:
        return 0 if self.handles.get(event) == "event" and self._stream_known(stream) else INVALID_HANDLE

    def cuEventCreate(self, out: int, flags: int) -> None:
        self._make(out, "event")

    def cuEventDestroy(self, event: int) -> int:
        return self._drop(event, "event")

    def cuEventRecord(self, event: int, stream: int) -> int:
        return 0 if self.handles.get(event) == "event" and self._stream_known(stream) else INVALID_HANDLE

    def cuEventSynchronize(self, event: int) -> int:
        return 0 if self.handles.get(event) == "event" else INVALID_HANDLE

    def cuEventQuery(self, event: int) -> int:
        return 0

    def cuEventElapsedTime(self, out: int, start: int, end: int) -> None:
        ctypes.c_float.from_address(out).value = 1.0


_WITHOUT_CONTEXT = frozenset(
    {
        "cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
        "cuDeviceTotalMem", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuCtxGetCurrent",
        "cuCtxPushCurrent", "cuGetErrorName", "cuGetErrorString",
    }
)  # fmt: skip
