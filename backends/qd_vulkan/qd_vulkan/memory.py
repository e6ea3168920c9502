"""Device memory: large blocks, one buffer each, from which allocations are cut.

Drivers allow few allocations (4096 at the least) and each is slow. A block has one device address; an allocation is a
part of it.
"""

from __future__ import annotations

import bisect
import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qd_core.errors import DeviceFault
from qd_vulkan import binding as vk
from qd_vulkan.loader import VulkanError

if TYPE_CHECKING:
    from qd_vulkan.instance import Physical
    from qd_vulkan.loader import Table

__all__ = ["Allocation", "Heap", "memory_type"]

BLOCK_NBYTES = 64 << 20
ALIGNMENT = 256


@dataclass(eq=False, slots=True)
class Block:
    """One allocation of the driver with a buffer over all of it; ``holes`` are (offset, nbytes) in order."""

    memory: int
    buffer: int
    address: int
    nbytes: int
    mapped: int
    holes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def take(self, nbytes: int, alignment: int) -> int | None:
        """Cut ``nbytes`` from the first hole that has room; return the offset."""
        for n, (offset, room) in enumerate(self.holes):
            start = -(-offset // alignment) * alignment
            if start + nbytes <= offset + room:
                rest = [(offset, start - offset), (start + nbytes, offset + room - start - nbytes)]
                self.holes[n : n + 1] = [h for h in rest if h[1]]
                return start
        return None

    def give(self, offset: int, nbytes: int) -> None:
        """Return a cut to the holes and join it with its neighbours."""
        n = bisect.bisect(self.holes, (offset, 0))
        if n < len(self.holes) and offset + nbytes == self.holes[n][0]:
            nbytes += self.holes.pop(n)[1]
        if n and sum(self.holes[n - 1]) == offset:
            n -= 1
            offset, before = self.holes.pop(n)
            nbytes += before
        self.holes.insert(n, (offset, nbytes))


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """``nbytes`` of a block from ``offset``."""

    block: Block
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        """Device address."""
        return self.block.address + self.offset

    @property
    def mapped(self) -> int:
        """Host address, 0 where the host does not see the memory."""
        return self.block.mapped + self.offset if self.block.mapped else 0


class Heap:
    """Allocations of one memory type.

    Parameters
    ----------
    functions : Table
        Device functions.
    device : int
        Handle of the device.
    kind : int
        Index of the memory type.
    visible : bool
        The host sees the memory, and it is mapped.
    """

    def __init__(self, functions: Table, device: int, kind: int, visible: bool) -> None:
        self.f, self.device, self.kind, self.visible = functions, device, kind, visible
        self.blocks: list[Block] = []

    def allocate(self, nbytes: int, alignment: int = ALIGNMENT) -> Allocation:
        """Return ``nbytes`` of memory; `DeviceFault` where the driver has no more."""
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        for block in self.blocks:
            offset = block.take(size, max(alignment, ALIGNMENT))
            if offset is not None:
                return Allocation(block, offset, size)
        block = self._block(size if size > BLOCK_NBYTES // 2 else BLOCK_NBYTES, nbytes)
        self.blocks.append(block)
        offset = block.take(size, max(alignment, ALIGNMENT))
        assert offset is not None
        return Allocation(block, offset, size)

    def free(self, allocation: Allocation) -> None:
        """Return memory; a block of its own size that becomes empty goes back to the driver."""
        block = allocation.block
        block.give(allocation.offset, allocation.nbytes)
        if block.nbytes != BLOCK_NBYTES and block.holes == [(0, block.nbytes)]:
            self.blocks.remove(block)
            self._destroy(block)

    def close(self) -> None:
        """Return everything to the driver."""
        for block in self.blocks:
            self._destroy(block)
        self.blocks.clear()

    def _destroy(self, block: Block) -> None:
        self.f.DestroyBuffer(self.device, block.buffer, None)
        self.f.FreeMemory(self.device, block.memory, None)

    # -- blocks -------------------------------------------------------------------------------------------------------
    def _block(self, nbytes: int, wanted: int) -> Block:
        try:
            return self._create(nbytes)
        except VulkanError as error:
            if error.result not in (vk.OUT_OF_DEVICE_MEMORY, vk.OUT_OF_HOST_MEMORY):
                raise
            used = sum(b.nbytes for b in self.blocks)
            raise DeviceFault(
                f"the device has no memory for {wanted} bytes", why=f"{used} bytes are held already: {error}"
            ) from error

    def _create(self, nbytes: int) -> Block:
        f, device = self.f, self.device
        buffer, memory, mapped = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_void_p()
        info = vk.make(vk.BufferCreateInfo, size=nbytes, usage=vk.BUFFER_USAGE)
        f.CreateBuffer(device, ctypes.byref(info), None, ctypes.byref(buffer))
        try:
            needs = vk.MemoryRequirements()
            f.GetBufferMemoryRequirements(device, buffer, ctypes.byref(needs))
            flags = vk.make(vk.MemoryAllocateFlagsInfo, flags=vk.ALLOCATE_DEVICE_ADDRESS)
            request = vk.make(
                vk.MemoryAllocateInfo,
                pNext=ctypes.addressof(flags),
                allocationSize=needs.size,
                memoryTypeIndex=self.kind,
            )
            f.AllocateMemory(device, ctypes.byref(request), None, ctypes.byref(memory))
        except VulkanError:
            f.DestroyBuffer(device, buffer, None)
            raise
        f.BindBufferMemory(device, buffer, memory, 0)
        if self.visible:
            f.MapMemory(device, memory, 0, vk.WHOLE_SIZE, 0, ctypes.byref(mapped))
        where = vk.make(vk.BufferDeviceAddressInfo, buffer=buffer.value)
        address = f.GetBufferDeviceAddress(device, ctypes.byref(where))
        return Block(memory.value, buffer.value, address, nbytes, mapped.value or 0, [(0, nbytes)])


def memory_type(physical: Physical, wanted: int, preferred: int = 0) -> int | None:
    """Return the first memory type with all flags of ``wanted``, rather one with ``preferred`` as well; None where
    there is none.
    """
    memory: Any = physical.memory
    able = [n for n in range(memory.memoryTypeCount) if memory.memoryTypes[n].propertyFlags & wanted == wanted]
    better = [n for n in able if memory.memoryTypes[n].propertyFlags & preferred == preferred]
    return (better or able or [None])[0]
