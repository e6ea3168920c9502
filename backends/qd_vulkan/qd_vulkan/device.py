"""An open device: memory, code, and its one queue."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qd_core.backend.contract import Address, Artifact, Buffer, BufferRef, Device, DeviceInfo, HostSpan, Module, Stream
from qd_core.errors import ClosedError, DeviceFault
from qd_vulkan import binding as vk
from qd_vulkan.commands import Commands
from qd_vulkan.instance import chain
from qd_vulkan.loader import Table, VulkanError, strings
from qd_vulkan.memory import Allocation, Heap, memory_type
from qd_vulkan.module import VulkanModule
from qd_vulkan.pipeline_cache import load_cache, store_cache
from qd_vulkan.pool import Pool
from qd_vulkan.ring import Ring
from qd_vulkan.stream import VulkanStream

if TYPE_CHECKING:
    from qd_vulkan.instance import Instance, Physical

__all__ = ["VulkanDevice"]

PUSH_NBYTES = 128
ARGUMENTS_NBYTES = 4 << 20
STAGING_NBYTES = 16 << 20
_UNIFIED = (1, 4)
"""Device types whose memory is the host's: integrated GPUs and CPUs."""


class VulkanDevice(Device):
    """A logical device with one queue.

    Parameters
    ----------
    instance : Instance
        Kept open as long as the device.
    physical : Physical
        What to open.
    info : DeviceInfo
        Its description.
    options : mapping
        ``offline_cache`` keeps compiled pipelines on disk.
    """

    def __init__(self, instance: Instance, physical: Physical, info: DeviceInfo, options: Mapping[str, Any]) -> None:
        self.instance, self.physical, self.info = instance, physical, info
        self.capabilities = info.target.capabilities
        self.lock = threading.RLock()
        self.closed = False
        self._cached = bool(options.get("offline_cache", True))
        self.handle = self._create()
        resolve = instance.functions.GetDeviceProcAddr
        self.f = Table(lambda name: resolve(self.handle, name), vk.DEVICE_FUNCTIONS)
        queue = ctypes.c_void_p()
        self.f.GetDeviceQueue(self.handle, physical.queue_family, 0, ctypes.byref(queue))
        assert queue.value
        self.commands = Commands(self.f, self.handle, queue.value, physical.queue_family)
        self.layout = self._layout()
        self.cache = (
            load_cache(self.f, self.handle, physical) if self._cached else load_cache(self.f, self.handle, None)
        )
        self._heaps()
        self._doomed: list[tuple[int, Allocation]] = []
        self._pipelines: set[int] = set()
        self._retired: list[tuple[int, list[int]]] = []
        self.default_stream = self.queue = VulkanStream(self)
        instance.devices.add(self)

    # -- opening
    # --------------------------------------------------------------------------------------------------------
    def _create(self) -> int:
        p = self.physical
        priority = ctypes.c_float(1.0)
        queue = vk.make(
            vk.DeviceQueueCreateInfo,
            queueFamilyIndex=p.queue_family,
            queueCount=1,
            pQueuePriorities=ctypes.addressof(priority),
        )
        features, more = self._features()
        wanted = [e for e in ("VK_KHR_portability_subset", *more) if e in p.extensions]
        names = strings(wanted)
        info = vk.make(
            vk.DeviceCreateInfo, pNext=ctypes.addressof(features[0]), queueCreateInfoCount=1,
            pQueueCreateInfos=ctypes.addressof(queue),
            enabledExtensionCount=len(wanted), ppEnabledExtensionNames=ctypes.addressof(names),
        )  # fmt: skip
        handle = ctypes.c_void_p()
        self.instance.functions.CreateDevice(p.handle, ctypes.byref(info), None, ctypes.byref(handle))
        assert handle.value
        return handle.value

    def _features(self) -> tuple[list[Any], list[str]]:
        """Structures that turn on what the target claims, and nothing else; and the extensions they belong to."""
        claimed = set(self.info.target.features)
        basic, f11, f12, floats, clock = (vk.make(k) for k in (
            vk.PhysicalDeviceFeatures2, vk.PhysicalDeviceVulkan11Features, vk.PhysicalDeviceVulkan12Features,
            vk.PhysicalDeviceShaderAtomicFloatFeatures, vk.PhysicalDeviceShaderClockFeatures,
        ))  # fmt: skip
        small, half = "type.i8" in claimed or "type.u8" in claimed, "type.f16" in claimed
        short = bool({"type.i16", "type.u16"} & claimed)
        basic.features.shaderInt64 = f12.timelineSemaphore = f12.bufferDeviceAddress = 1
        basic.features.shaderFloat64 = "type.f64" in claimed
        basic.features.shaderInt16, f11.storageBuffer16BitAccess = short, short or half
        f12.shaderInt8, f12.storageBuffer8BitAccess, f12.shaderFloat16 = small, small, half
        f12.shaderBufferInt64Atomics = "atomics64" in claimed
        for bits in (32, 64):
            for name in (f"shaderBufferFloat{bits}Atomics", f"shaderBufferFloat{bits}AtomicAdd"):
                setattr(floats, name, f"native.add.f{bits}" in claimed and getattr(self.physical.atomic_float, name))
        clock.shaderSubgroupClock = "clock" in claimed
        features, extensions = [basic, f11, f12], list[str]()
        if any(f.startswith("native.add.") for f in claimed):
            features.append(floats)
            extensions.append("VK_EXT_shader_atomic_float")
        if "clock" in claimed:
            features.append(clock)
            extensions.append("VK_KHR_shader_clock")
        chain(*features)
        return features, extensions

    def _layout(self) -> int:
        pushed = vk.PushConstantRange(vk.STAGE_COMPUTE, 0, PUSH_NBYTES)
        info = vk.make(
            vk.PipelineLayoutCreateInfo, pushConstantRangeCount=1, pPushConstantRanges=ctypes.addressof(pushed)
        )
        layout = ctypes.c_uint64()
        self.f.CreatePipelineLayout(self.handle, ctypes.byref(info), None, ctypes.byref(layout))
        return layout.value

    def _heaps(self) -> None:
        staging = os.environ.get("QD_VULKAN_STAGING", "0") not in ("", "0")
        host = vk.MEMORY_HOST_VISIBLE | vk.MEMORY_HOST_COHERENT
        unified = memory_type(self.physical, vk.MEMORY_DEVICE_LOCAL | host, vk.MEMORY_HOST_CACHED)
        shared = self.physical.properties.deviceType in _UNIFIED and unified is not None and not staging
        local = unified if shared else memory_type(self.physical, vk.MEMORY_DEVICE_LOCAL)
        visible = memory_type(self.physical, host, vk.MEMORY_HOST_CACHED)
        assert local is not None
        assert visible is not None
        self.memory = Heap(self.f, self.handle, local, shared)
        self.host_memory = Heap(self.f, self.handle, visible, True)
        self.arguments = Ring(self.host_memory.allocate(ARGUMENTS_NBYTES), self.commands)
        self.staging = Ring(self.host_memory.allocate(STAGING_NBYTES), self.commands)
        self.pool = Pool(self.f, self.memory, self.host_memory, self.info.memory_nbytes)

    # -- errors
    # -----------------------------------------------------------------------------------------------------------
    @contextmanager
    def guard(self, what: str, kernel: str = "") -> Generator[None]:
        """Hold the device; turn a failed call into a `DeviceFault` that names the kernels since the last good wait."""
        with self.lock:
            if self.closed:
                raise ClosedError(f"the device {self.info.name!r} was closed")
            stream = self.queue
            try:
                with stream.held():
                    yield
            except VulkanError as error:
                raise stream.fault(f"{what}{f' of {kernel}' if kernel else ''}", error) from error

    def place(self, ref: BufferRef) -> Allocation:
        """Return the memory of a buffer; `DeviceFault` for a freed one or another device's."""
        if ref.buffer.device is not self:
            raise DeviceFault(f"a buffer of another device is used on {self.info.name!r}")
        if ref.buffer.freed:
            raise DeviceFault("a freed buffer is used")
        if ref.offset < 0 or ref.offset + ref.nbytes > ref.buffer.nbytes:
            raise DeviceFault(
                f"bytes {ref.offset} to {ref.offset + ref.nbytes} are outside a buffer of {ref.buffer.nbytes} bytes"
            )
        return ref.buffer.handle

    # -- memory
    # -----------------------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int, *, alignment: int = 256, stream: Stream | None = None) -> Buffer:
        """Allocate memory."""
        with self.guard("an allocation"):
            self.reclaim()
            try:
                allocation = self.memory.allocate(nbytes, alignment)
            except DeviceFault:
                if not self._doomed:
                    raise
                self.default_stream.synchronize()  # memory of freed buffers comes back with the work that used it
                allocation = self.memory.allocate(nbytes, alignment)
            return Buffer(self, nbytes, handle=allocation)

    def free(self, buffer: Buffer, *, after: Stream | None = None) -> None:
        """Free a buffer once the work recorded so far is done."""
        if buffer.freed:
            raise DeviceFault("a buffer is freed twice")
        buffer.freed = True
        with self.lock:
            if not self.closed:
                self._doomed.append((self.commands.pending, buffer.handle))

    def reclaim(self) -> None:
        """Return the memory of freed buffers, and destroy the code of dropped modules, whose work is done."""
        if not self._doomed and not self._retired:
            return
        completed = self.commands.poll()
        for retired in [r for r in self._retired if r[0] <= completed]:
            self._retired.remove(retired)
            self._destroy_pipelines(retired[1])
        done = [a for value, a in self._doomed if value <= completed]
        self._doomed = [d for d in self._doomed if d[0] > completed]
        for allocation in done:
            self.memory.free(allocation)

    def address(self, ref: BufferRef) -> Address:
        """Device address."""
        return Address(self.place(ref).address + ref.offset)

    def host_view(self, ref: BufferRef) -> HostSpan | None:
        """The same memory for the host, where the device's memory is mapped."""
        place = self.place(ref)
        return HostSpan(place.mapped + ref.offset, ref.nbytes, ref.buffer) if place.mapped else None

    # -- code
    # -------------------------------------------------------------------------------------------------------------
    def private_nbytes(self) -> int:
        """Bytes of the pool that iterations take their private memory from."""
        return self.pool.reserved_nbytes

    def load(self, artifact: Artifact) -> Module:
        """Make pipelines of SPIR-V."""
        with self.guard("loading code"):
            module = VulkanModule(self, artifact)
            self._pipelines.update(module.pipelines)
            weakref.finalize(module, self._retire, module.pipelines)
            return module

    def _retire(self, pipelines: list[int]) -> None:
        """Remember pipelines of a module that is gone until the work recorded with them is done."""
        self._retired.append((self.commands.pending, pipelines))

    def _destroy_pipelines(self, pipelines: Iterable[int]) -> None:
        for pipeline in pipelines:
            self._pipelines.discard(pipeline)
            self.f.DestroyPipeline(self.handle, pipeline, None)

    def close(self) -> None:
        """Wait for the device, then free everything."""
        with self.lock:
            if self.closed:
                return
            self.queue.deferred = None
            try:
                self.default_stream.synchronize()
            except DeviceFault:
                pass  # a lost device can still be destroyed
            self.closed = True
            self._destroy_pipelines(list(self._pipelines))
            if self._cached:
                store_cache(self.f, self.handle, self.cache, self.physical)
            self.f.DestroyPipelineCache(self.handle, self.cache, None)
            self.f.DestroyPipelineLayout(self.handle, self.layout, None)
            self.commands.close()
            self.memory.close()
            self.host_memory.close()
            self.f.DestroyDevice(self.handle, None)
            self.instance.devices.discard(self)
