"""Device memory: a stream-ordered pool where the driver has one, plain allocations elsewhere."""

from __future__ import annotations

import ctypes

from qd_core.errors import DeviceFault
from qd_cuda.driver import OUT_OF_MEMORY, CudaError, Driver, PoolProperties

__all__ = ["Memory", "PinnedWord"]

_POOLS_SUPPORTED = 115
_RELEASE_THRESHOLD = 4
_PINNED, _ON_DEVICE = 1, 1
_HOST_MAPPED = 3
"""Flags of host memory: usable in every context, and by the device."""


class Memory:
    """Allocations of one device. The device's context is current in every call.

    Parameters
    ----------
    cuda : Driver
    ordinal : int
        The driver's number of the device.
    name : str
        For messages.

    Attributes
    ----------
    live : dict
        Bytes of each allocation by address.
    """

    def __init__(self, cuda: Driver, ordinal: int, name: str) -> None:
        self.cuda, self.ordinal, self.name = cuda, ordinal, name
        self.live: dict[int, int] = {}
        self.pool = self._open_pool()

    def _open_pool(self) -> int | None:
        cuda = self.cuda
        if not cuda.has("MemPoolCreate") or not cuda.attribute(_POOLS_SUPPORTED, self.ordinal):
            return None
        wanted = PoolProperties(alloc_type=_PINNED, location_type=_ON_DEVICE, location=self.ordinal)
        pool = ctypes.c_void_p()
        try:
            cuda("MemPoolCreate", ctypes.byref(pool), ctypes.byref(wanted))
            # Freed memory stays with the pool until it is trimmed or closed.
            keep = ctypes.c_uint64(2**64 - 1)
            cuda("MemPoolSetAttribute", pool, _RELEASE_THRESHOLD, ctypes.byref(keep))
        except CudaError:
            return None
        return pool.value

    def allocate(self, nbytes: int, stream: int) -> int:
        """Return the address of ``nbytes``; `DeviceFault` with sizes when there is not enough."""
        try:
            address = self._allocate(nbytes, stream)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            address = self._retry(nbytes, stream, error)
        self.live[address] = nbytes
        return address

    def _allocate(self, nbytes: int, stream: int) -> int:
        address = ctypes.c_uint64()
        if self.pool is None:
            self.cuda("MemAlloc", ctypes.byref(address), nbytes)
        else:
            self.cuda("MemAllocFromPoolAsync", ctypes.byref(address), nbytes, self.pool, stream)
        return address.value

    def _retry(self, nbytes: int, stream: int, error: CudaError) -> int:
        """Try once more when all work is done and the pool has given back what it kept."""
        try:
            self.cuda("CtxSynchronize")
            if self.pool is not None:
                self.cuda("MemPoolTrimTo", self.pool, 0)
            return self._allocate(nbytes, stream)
        except CudaError as again:
            if again.code != OUT_OF_MEMORY:
                raise
            free, total = self.sizes()
            held = sum(self.live.values())
            raise DeviceFault(
                f"{nbytes} bytes do not fit the memory of {self.name!r}",
                why=f"{free} of {total} bytes are free; {len(self.live)} buffers of this program hold {held}",
                hint="free arrays, or use smaller ones",
            ) from error

    def sizes(self) -> tuple[int, int]:
        """Bytes that are free, and in all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda("MemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def free(self, address: int, stream: int) -> None:
        """Free an allocation once the present work of ``stream`` is done."""
        del self.live[address]
        if self.pool is None:
            self.cuda("MemFree", address)
        else:
            self.cuda("MemFreeAsync", address, stream)

    def close(self) -> None:
        """Free everything; all work is done."""
        for address in list(self.live):
            self.free(address, 0)
        if self.pool is not None:
            self.cuda("CtxSynchronize")
            self.cuda("MemPoolDestroy", self.pool)
            self.pool = None


class PinnedWord:
    """One 64-bit word of host memory that kernels can write."""

    def __init__(self, cuda: Driver) -> None:
        self.cuda = cuda
        host, device = ctypes.c_void_p(), ctypes.c_uint64()
        cuda("MemHostAlloc", ctypes.byref(host), 8, _HOST_MAPPED)
        assert host.value
        self.host = host.value
        cuda("MemHostGetDevicePointer", ctypes.byref(device), host, 0)
        self.address = device.value
        self.value = 0

    @property
    def value(self) -> int:
        """What it holds."""
        return ctypes.c_uint64.from_address(self.host).value

    @value.setter
    def value(self, number: int) -> None:
        ctypes.c_uint64.from_address(self.host).value = number

    def close(self) -> None:
        """Free it."""
        self.cuda("MemFreeHost", self.host)
