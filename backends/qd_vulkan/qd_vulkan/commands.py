"""Command buffers of one queue, ordered by a timeline semaphore."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import TYPE_CHECKING

from qd_vulkan import binding as vk

if TYPE_CHECKING:
    from qd_vulkan.loader import Table
    from qd_vulkan.native import StreamTable

__all__ = ["Commands"]

_FOREVER = 2**64 - 1
_WRITES = vk.ACCESS_SHADER_WRITE | vk.ACCESS_TRANSFER_WRITE
_DEVICE_STAGES = vk.PIPELINE_STAGE_COMPUTE | vk.PIPELINE_STAGE_TRANSFER


class Commands:
    """Records, submits and waits.

    The n-th submission signals the value n. `recording` is the command buffer in which commands are recorded, opened
    on demand.

    Attributes
    ----------
    submitted, completed : int
        Last value submitted, and last one known to be done.
    table : StreamTable or None
        Words through which native launches find the open command buffer.
    """

    def __init__(self, functions: Table, device: int, queue: int, family: int) -> None:
        self.f, self.device, self.queue = functions, device, queue
        self.submitted = self.completed = 0
        self.table: StreamTable | None = None
        self._recording = 0
        self._flying: deque[tuple[int, int]] = deque()
        pool, semaphore = ctypes.c_uint64(), ctypes.c_uint64()
        info = vk.make(vk.CommandPoolCreateInfo, flags=vk.POOL_RESET_COMMAND_BUFFER, queueFamilyIndex=family)
        functions.CreateCommandPool(device, ctypes.byref(info), None, ctypes.byref(pool))
        kind = vk.make(vk.SemaphoreTypeCreateInfo, semaphoreType=vk.SEMAPHORE_TIMELINE)
        create = vk.make(vk.SemaphoreCreateInfo, pNext=ctypes.addressof(kind))
        functions.CreateSemaphore(device, ctypes.byref(create), None, ctypes.byref(semaphore))
        self.pool, self.semaphore = pool.value, semaphore.value
        self._begin = vk.make(vk.CommandBufferBeginInfo, flags=vk.ONE_TIME_SUBMIT)
        self.between = vk.make(
            vk.MemoryBarrier, srcAccessMask=_WRITES, dstAccessMask=vk.ACCESS_MEMORY_READ | vk.ACCESS_MEMORY_WRITE
        )
        self._to_host = vk.make(vk.MemoryBarrier, srcAccessMask=_WRITES, dstAccessMask=vk.ACCESS_HOST_READ)

    @property
    def pending(self) -> int:
        """Value that marks the present end of the queue once it is reached."""
        return self.submitted + 1 if self._recording else self.submitted

    def recording(self) -> int:
        """Return the open command buffer."""
        if not self._recording:
            self._recording = self._take()
            self.f.BeginCommandBuffer(self._recording, ctypes.byref(self._begin))
        return self._recording

    def _take(self) -> int:
        if len(self._flying) > 1:
            self.poll()
            if self._flying[0][0] <= self.completed:
                return self._flying.popleft()[1]
        info = vk.make(vk.CommandBufferAllocateInfo, commandPool=self.pool, level=0, commandBufferCount=1)
        handle = ctypes.c_void_p()
        self.f.AllocateCommandBuffers(self.device, ctypes.byref(info), ctypes.byref(handle))
        assert handle.value
        return handle.value

    def barrier(self) -> None:
        """Let later commands see what earlier ones wrote, and write where earlier ones read."""
        self.f.CmdPipelineBarrier(
            self.recording(), _DEVICE_STAGES, _DEVICE_STAGES, 0, 1, ctypes.byref(self.between), 0, None, 0, None
        )

    def flush(self) -> None:
        """Submit what was recorded."""
        if not self._recording:
            return
        f, commands = self.f, self._recording
        f.CmdPipelineBarrier(
            commands, _DEVICE_STAGES, vk.PIPELINE_STAGE_HOST, 0, 1, ctypes.byref(self._to_host), 0, None, 0, None
        )
        # Commands of the next submission run after this one: submissions only order their starts.
        f.CmdPipelineBarrier(
            commands, _DEVICE_STAGES, _DEVICE_STAGES, 0, 1, ctypes.byref(self.between), 0, None, 0, None
        )
        f.EndCommandBuffer(commands)
        self._recording = 0
        if self.table is not None:
            self.table.close()
        value, handle, semaphore = (
            ctypes.c_uint64(self.submitted + 1),
            ctypes.c_void_p(commands),
            ctypes.c_uint64(self.semaphore),
        )
        timeline = vk.make(
            vk.TimelineSemaphoreSubmitInfo, signalSemaphoreValueCount=1, pSignalSemaphoreValues=ctypes.addressof(value)
        )
        info = vk.make(
            vk.SubmitInfo, pNext=ctypes.addressof(timeline), commandBufferCount=1,
            pCommandBuffers=ctypes.addressof(handle),
            signalSemaphoreCount=1, pSignalSemaphores=ctypes.addressof(semaphore),
        )  # fmt: skip
        f.QueueSubmit(self.queue, 1, ctypes.byref(info), 0)
        self.submitted += 1
        self._flying.append((self.submitted, commands))

    def poll(self) -> int:
        """Return the last value that was reached."""
        value = ctypes.c_uint64()
        self.f.GetSemaphoreCounterValue(self.device, self.semaphore, ctypes.byref(value))
        self.completed = value.value
        return self.completed

    def wait(self, value: int) -> None:
        """Wait until ``value`` is reached, submitting what it needs."""
        if value > self.submitted:
            self.flush()
        if value <= self.completed:
            return
        semaphore, wanted = ctypes.c_uint64(self.semaphore), ctypes.c_uint64(value)
        info = vk.make(
            vk.SemaphoreWaitInfo,
            semaphoreCount=1,
            pSemaphores=ctypes.addressof(semaphore),
            pValues=ctypes.addressof(wanted),
        )
        self.f.WaitSemaphores(self.device, ctypes.byref(info), _FOREVER)
        self.completed = max(self.completed, value)

    def close(self) -> None:
        """Destroy pool and semaphore; nothing may be in flight."""
        self.f.DestroyCommandPool(self.device, self.pool, None)
        self.f.DestroySemaphore(self.device, self.semaphore, None)
