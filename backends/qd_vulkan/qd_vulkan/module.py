"""Loaded code: one pipeline a task."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qd_core.backend.contract import Artifact, Launch, Module
from qd_vulkan import binding as vk
from qd_vulkan.compiler import unpack
from qd_vulkan.hazards import Touch
from qd_vulkan.stream import grid, written

if TYPE_CHECKING:
    from qd_vulkan.device import VulkanDevice

__all__ = ["VulkanModule"]

RESIDENT_GROUPS = 256
"""Groups of a task whose number of iterations only the device knows."""


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
        self._used = {leaves[p] for task in artifact.tasks for p in task.uses}
        self._written = {leaves[p] for task in artifact.tasks for p in task.writes}

    def _pipeline(self, binary: bytes) -> int:
        f, device = self.device.f, self.device.handle
        shader, pipeline = ctypes.c_uint64(), ctypes.c_uint64()
        info = vk.make(vk.ShaderModuleCreateInfo, codeSize=len(binary), pCode=binary)
        f.CreateShaderModule(device, ctypes.byref(info), None, ctypes.byref(shader))
        try:
            stage = vk.make(vk.PipelineShaderStageCreateInfo, stage=vk.STAGE_COMPUTE, module=shader.value, pName=b"main")
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
                result.append((id(ref.buffer.handle), ref.offset, ref.offset + ref.nbytes, n in self._written or written(use.access)))
        return result

    def grids(self, extents: Sequence[int]) -> list[tuple[int, int]]:
        """Return the groups of each task; (0, 0) where there is nothing to do."""
        result: list[tuple[int, int]] = []
        at = 0
        for entry, task in zip(self.artifact.tasks, self.code.tasks, strict=True):
            own = extents[at : at + entry.axes]
            at += entry.axes
            # A negative number is a word that an earlier task writes: such a task is resident.
            known = [max(n, 0) for n in own] if task.form == "cover" else [n for n in own if n >= 0]
            result.append(_grid(task.form, task.group, known, entry.axes))
        return result


def _grid(form: str, group: int, known: Sequence[int], axes: int) -> tuple[int, int]:
    total = math.prod(known)
    if total == 0:
        return 0, 0
    if form in ("serial", "sequence"):
        return 1, 1
    if len(known) < axes:
        return RESIDENT_GROUPS, 1
    return grid(total, group, RESIDENT_GROUPS if form == "resident" else 0)
