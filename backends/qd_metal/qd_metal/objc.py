"""The driver over pyobjc: calls of Metal one to one. Nothing here runs in tests: `docs/metal.md` lists it.

The device must be of the family Metal 3, which has addresses of buffers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from qd_metal.driver import Dispatch, DriverError, Memory
from qd_metal.facts import COMMON

__all__ = ["ObjcDriver"]


class ObjcDriver:
    """Metal's default device.

    Parameters
    ----------
    metal : module
        The framework.
    device : MTLDevice
        The device.
    queue : MTLCommandQueue or None
        A queue to share, such as that of another framework; a new one by default.
    """

    def __init__(self, metal: Any, device: Any, queue: Any = None) -> None:
        self.metal, self.device = metal, device
        self.queue = queue if queue is not None else device.newCommandQueue()

    @staticmethod
    def open(queue: Any = None) -> ObjcDriver | str:
        """Return the driver, or why there is none."""
        try:
            import Metal  # pyright: ignore[reportMissingImports]
        except ImportError:
            return "pyobjc-framework-Metal is not installed"
        device = queue.device() if queue is not None else Metal.MTLCreateSystemDefaultDevice()
        if device is None:
            return "there is no Metal device"
        if not device.supportsFamily_(Metal.MTLGPUFamilyMetal3):
            return f"{device.name()} is not of the family Metal 3"
        return ObjcDriver(Metal, device, queue)

    def facts(self) -> tuple[str, ...]:
        """Return what the family guarantees, and the largest group."""
        return (*COMMON, f"group.{min(int(self.device.maxThreadsPerThreadgroup().width), 1024)}")

    def name(self) -> str:
        """Return the device's name."""
        return str(self.device.name())

    def memory_nbytes(self) -> int:
        """Return the working set that the device recommends."""
        return int(self.device.recommendedMaxWorkingSetSize())

    def allocate(self, nbytes: int) -> Memory:
        """Make a shared buffer."""
        size = -(-nbytes // 16) * 16
        buffer = self.device.newBufferWithLength_options_(size, self.metal.MTLResourceStorageModeShared)
        if buffer is None:
            raise DriverError(f"a buffer of {size} bytes cannot be made")
        host = ctypes.addressof(ctypes.c_char.from_buffer(buffer.contents().as_buffer(size)))
        return Memory(buffer, int(buffer.gpuAddress()), host, size)

    def free(self, memory: Memory) -> None:
        """Let go of a buffer: its last reference was the caller's."""
        memory.handle.setPurgeableState_(self.metal.MTLPurgeableStateEmpty)

    def library(self, text: str, symbols: Sequence[str]) -> list[Any]:
        """Compile a source text without fast math."""
        options = self.metal.MTLCompileOptions.alloc().init()
        options.setFastMathEnabled_(False)
        options.setLanguageVersion_(self.metal.MTLLanguageVersion3_0)
        library, error = self.device.newLibraryWithSource_options_error_(text, options, None)
        if library is None:
            raise DriverError(str(error.localizedDescription()))
        pipelines: list[Any] = []
        for symbol in symbols:
            function = library.newFunctionWithName_(symbol)
            pipeline, error = self.device.newComputePipelineStateWithFunction_error_(function, None)
            if pipeline is None:
                raise DriverError(str(error.localizedDescription()), 0, symbol)
            pipelines.append(pipeline)
        return pipelines

    def commit(self, dispatches: Sequence[Dispatch]) -> Any:
        """Encode kernels that run one after the other, and start them."""
        commands = self.queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        usage = self.metal.MTLResourceUsageRead | self.metal.MTLResourceUsageWrite
        for dispatch in dispatches:
            encoder.setComputePipelineState_(dispatch.pipeline)
            encoder.setBuffer_offset_atIndex_(dispatch.words.handle, dispatch.offset, 0)
            for memory in dispatch.resident:
                encoder.useResource_usage_(memory.handle, usage)
            groups = self.metal.MTLSizeMake(dispatch.groups, 1, 1)
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(groups, self.metal.MTLSizeMake(dispatch.threads, 1, 1))
            encoder.memoryBarrierWithScope_(self.metal.MTLBarrierScopeBuffers)
        encoder.endEncoding()
        commands.commit()
        return commands

    def wait(self, commands: Any) -> None:
        """Wait until a command buffer is done."""
        commands.waitUntilCompleted()
        if commands.error() is not None:
            raise DriverError(str(commands.error().localizedDescription()))
