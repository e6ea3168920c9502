"""The driver API through ctypes: a table of functions, errors with names."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p
from typing import Any

__all__ = ["CudaError", "Driver", "PoolProperties", "driver", "load_driver"]

c_device, c_address, c_handle = c_int, c_uint64, c_void_p

_TABLE: dict[str, tuple[str, Sequence[Any]]] = {
    "Init": ("cuInit", (c_uint,)),
    "DriverGetVersion": ("cuDriverGetVersion", (POINTER(c_int),)),
    "DeviceGetCount": ("cuDeviceGetCount", (POINTER(c_int),)),
    "DeviceGet": ("cuDeviceGet", (POINTER(c_device), c_int)),
    "DeviceGetName": ("cuDeviceGetName", (c_char_p, c_int, c_device)),
    "DeviceGetAttribute": ("cuDeviceGetAttribute", (POINTER(c_int), c_int, c_device)),
    "DeviceTotalMem": ("cuDeviceTotalMem_v2", (POINTER(c_size_t), c_device)),
    "PrimaryCtxRetain": ("cuDevicePrimaryCtxRetain", (POINTER(c_handle), c_device)),
    "PrimaryCtxRelease": ("cuDevicePrimaryCtxRelease_v2", (c_device,)),
    "CtxGetCurrent": ("cuCtxGetCurrent", (POINTER(c_handle),)),
    "CtxPushCurrent": ("cuCtxPushCurrent_v2", (c_handle,)),
    "CtxPopCurrent": ("cuCtxPopCurrent_v2", (POINTER(c_handle),)),
    "CtxSynchronize": ("cuCtxSynchronize", ()),
    "MemGetInfo": ("cuMemGetInfo_v2", (POINTER(c_size_t), POINTER(c_size_t))),
    "MemAlloc": ("cuMemAlloc_v2", (POINTER(c_address), c_size_t)),
    "MemFree": ("cuMemFree_v2", (c_address,)),
    "MemHostAlloc": ("cuMemHostAlloc", (POINTER(c_void_p), c_size_t, c_uint)),
    "MemHostGetDevicePointer": ("cuMemHostGetDevicePointer_v2", (POINTER(c_address), c_void_p, c_uint)),
    "MemFreeHost": ("cuMemFreeHost", (c_void_p,)),
    "MemcpyHtoDAsync": ("cuMemcpyHtoDAsync_v2", (c_address, c_void_p, c_size_t, c_handle)),
    "MemcpyDtoHAsync": ("cuMemcpyDtoHAsync_v2", (c_void_p, c_address, c_size_t, c_handle)),
    "MemcpyDtoDAsync": ("cuMemcpyDtoDAsync_v2", (c_address, c_address, c_size_t, c_handle)),
    "MemsetD8Async": ("cuMemsetD8Async", (c_address, c_ubyte, c_size_t, c_handle)),
    "MemsetD16Async": ("cuMemsetD16Async", (c_address, c_ushort, c_size_t, c_handle)),
    "MemsetD32Async": ("cuMemsetD32Async", (c_address, c_uint, c_size_t, c_handle)),
    "MemsetD2D32Async": ("cuMemsetD2D32Async", (c_address, c_size_t, c_uint, c_size_t, c_size_t, c_handle)),
    "ModuleLoadDataEx": ("cuModuleLoadDataEx", (POINTER(c_handle), c_char_p, c_uint, c_void_p, c_void_p)),
    "ModuleUnload": ("cuModuleUnload", (c_handle,)),
    "ModuleGetFunction": ("cuModuleGetFunction", (POINTER(c_handle), c_handle, c_char_p)),
    "OccupancyMaxActiveBlocks": (
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        (POINTER(c_int), c_handle, c_int, c_size_t),
    ),
    "LaunchKernel": (
        "cuLaunchKernel",
        (c_handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_handle, c_void_p, c_void_p),
    ),
    "StreamCreate": ("cuStreamCreate", (POINTER(c_handle), c_uint)),
    "StreamDestroy": ("cuStreamDestroy_v2", (c_handle,)),
    "StreamSynchronize": ("cuStreamSynchronize", (c_handle,)),
    "StreamWaitEvent": ("cuStreamWaitEvent", (c_handle, c_handle, c_uint)),
    "EventCreate": ("cuEventCreate", (POINTER(c_handle), c_uint)),
    "EventDestroy": ("cuEventDestroy_v2", (c_handle,)),
    "EventRecord": ("cuEventRecord", (c_handle, c_handle)),
    "EventSynchronize": ("cuEventSynchronize", (c_handle,)),
    "EventQuery": ("cuEventQuery", (c_handle,)),
    "EventElapsedTime": ("cuEventElapsedTime", (POINTER(c_float), c_handle, c_handle)),
    "GetErrorName": ("cuGetErrorName", (c_int, POINTER(c_char_p))),
    "GetErrorString": ("cuGetErrorString", (c_int, POINTER(c_char_p))),
}

_OPTIONAL: dict[str, tuple[str, Sequence[Any]]] = {
    "MemPoolCreate": ("cuMemPoolCreate", (POINTER(c_handle), c_void_p)),
    "MemPoolDestroy": ("cuMemPoolDestroy", (c_handle,)),
    "MemPoolSetAttribute": ("cuMemPoolSetAttribute", (c_handle, c_int, c_void_p)),
    "MemPoolTrimTo": ("cuMemPoolTrimTo", (c_handle, c_size_t)),
    "MemAllocFromPoolAsync": ("cuMemAllocFromPoolAsync", (POINTER(c_address), c_size_t, c_handle, c_handle)),
    "MemFreeAsync": ("cuMemFreeAsync", (c_address, c_handle)),
}
"""Of drivers for CUDA 11.2 and later."""


class PoolProperties(ctypes.Structure):
    """``CUmemPoolProps``."""

    _fields_ = (
        ("alloc_type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location", c_int),
        ("security", c_void_p),
        ("max_size", c_size_t),
        ("reserved", c_ubyte * 56),
    )


class CudaError(Exception):
    """A driver call failed: ``code``, ``name`` (``CUDA_ERROR_...``), the driver's text, and the call."""

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call} failed: {text} ({name}, {code})")
        self.call, self.code, self.name, self.text = call, code, name, text


OUT_OF_MEMORY = 2


class Driver:
    """Functions of a driver library, each raising `CudaError` unless it succeeds.

    Parameters
    ----------
    library : object
        What ctypes loaded, or a double with the same functions.

    Attributes
    ----------
    addresses : dict
        Address of each function, for native code.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        self.addresses: dict[str, int] = {}
        self._functions: dict[str, Callable[..., int]] = {}
        for name, (symbol, types) in {**_TABLE, **_OPTIONAL}.items():
            raw = getattr(library, symbol, None)
            if raw is None:
                if name in _OPTIONAL:
                    continue
                raise OSError(f"the driver library has no {symbol}")
            raw.argtypes, raw.restype = list(types), c_int
            self._functions[name] = raw
            self.addresses[name] = ctypes.cast(raw, c_void_p).value or 0

    def has(self, name: str) -> bool:
        """Whether the library has a function."""
        return name in self._functions

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function; `CudaError` when it fails."""
        code = self._functions[name](*arguments)
        if code:
            raise self.error(name, code)

    def status(self, name: str, *arguments: Any) -> int:
        """Call a function and return its status."""
        return self._functions[name](*arguments)

    def error(self, name: str, code: int) -> CudaError:
        """Describe a status."""
        parts = [c_char_p(), c_char_p()]
        for function, out in zip(("GetErrorName", "GetErrorString"), parts, strict=True):
            self._functions[function](code, ctypes.byref(out))
        label, text = ((p.value or b"?").decode(errors="replace") for p in parts)
        symbol = {**_TABLE, **_OPTIONAL}.get(name, (name,))[0]
        return CudaError(symbol, code, label, text)

    def attribute(self, attribute: int, device: int) -> int:
        """Return an attribute of a device."""
        value = c_int()
        self("DeviceGetAttribute", ctypes.byref(value), attribute, device)
        return value.value


def _candidates() -> list[str]:
    chosen = os.environ.get("QD_CUDA_LIBRARY")
    if chosen:
        return [chosen]
    if sys.platform == "win32":
        return ["nvcuda.dll"]
    return ["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"]


def load_driver() -> Driver | str:
    """Load the driver library, or say why not."""
    reasons: list[str] = []
    for name in _candidates():
        try:
            loader = ctypes.WinDLL if sys.platform == "win32" else ctypes.CDLL
            return Driver(loader(name))
        except OSError as error:
            reasons.append(str(error))
    return f"the NVIDIA driver library could not be loaded ({reasons[0]})"


@functools.cache
def driver() -> Driver | str:
    """Return the process's driver, initialised, or why there is none."""
    found = load_driver()
    if isinstance(found, str):
        return found
    try:
        found("Init", 0)
    except CudaError as error:
        return f"the NVIDIA driver did not start: {error.text} ({error.name})"
    return found
