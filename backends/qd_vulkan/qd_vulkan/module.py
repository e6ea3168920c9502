"""Loaded code: one pipeline a task."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from qd_core.backend.contract import Access, Artifact, Launch, Module, NativeEntry
from qd_core.codegen.dispatch import GroupLimits
from qd_vulkan import binding as vk
from qd_vulkan.compiler import unpack
from qd_vulkan.hazards import Touch
from qd_vulkan.native import KERNEL, native_entry

if TYPE_CHECKING:
    from qd_vulkan.device import VulkanDevice

__all__ = ["LIMITS", "VulkanModule"]

BATCH = 64
"""Launches and copies in a command buffer before it is submitted."""

LIMITS = GroupLimits(grid=8192, resident=256)

_WRITES = (Access.WRITE, Access.READ_WRITE)


class VulkanModule(Module):
    """Pipelines of one kernel.

    Parameters
    ----------
    device : VulkanDevice
        Where it is loaded.
    artifact : Artifact
        Code of this device's target.
    """

    def __init__(self, device: VulkanDevice, artifact: Artifact) -> None:
        self.artifact, self.device = artifact, device
        self.code = unpack(artifact)
        self.pipelines = [self._pipeline(task.binary) for task in self.code.tasks]
        leaves = self.code.leaves
        self.name = ""
        self._entry: NativeEntry | None = None
        self._table: Any = None
        self._used = {leaves[p] for task in artifact.tasks for p in task.uses}
        self._written = {leaves[p] for task in artifact.tasks for p in task.writes}

    def native(self) -> NativeEntry | None:
        """Return the C entry; None where the host reads messages or results, or private memory is sized first."""
        if self.code.host_reads or self.code.sized:
            return None
        if self._entry is None:
            with self.device.guard("native launches"):
                self._entry, self._table = native_entry(self, BATCH, LIMITS.grid, LIMITS.resident)
        return self._entry

    def take_launched(self) -> bool:
        """Whether the entry was used since the last call."""
        position = KERNEL.index("launched")
        was, self._table[position] = bool(self._table[position]), 0
        return was

    def _pipeline(self, binary: bytes) -> int:
        f, device = self.device.f, self.device.handle
        shader, pipeline = ctypes.c_uint64(), ctypes.c_uint64()
        info = vk.make(vk.ShaderModuleCreateInfo, codeSize=len(binary), pCode=binary)
        f.CreateShaderModule(device, ctypes.byref(info), None, ctypes.byref(shader))
        try:
            stage = vk.make(
                vk.PipelineShaderStageCreateInfo, stage=vk.STAGE_COMPUTE, module=shader.value, pName=b"main"
            )
            create = vk.make(vk.ComputePipelineCreateInfo, stage=stage, layout=self.device.layout, basePipelineIndex=-1)
            f.CreateComputePipelines(device, self.device.cache, 1, ctypes.byref(create), None, ctypes.byref(pipeline))
        finally:
            f.DestroyShaderModule(device, shader, None)
        return pipeline.value

    def touches(self, launch: Launch) -> list[Touch]:
        """Return the memory that a launch touches."""
        result: list[Touch] = []
        for n, use in enumerate(launch.uses):
            if n in self._used:
                ref = use.ref
                result.append(
                    (
                        id(ref.buffer.handle),
                        ref.offset,
                        ref.offset + ref.nbytes,
                        n in self._written or use.access in _WRITES,
                    )
                )
        return result
