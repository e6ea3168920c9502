"""The backend with every module checked by spirv-val, optimised by spirv-opt, and checked again before a device
sees it.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

from qd_vulkan import VulkanBackend
from qd_vulkan import compiler as module

from qd_core.backend.contract import Artifact, Availability, CompileOptions, Compiler, Target
from qd_core.ir.program import Program

__all__ = ["OptimizedBackend", "optimize", "validate"]

TOOLS = ("spirv-val", "spirv-opt")


def validate(binary: bytes) -> None:
    """Fail with the validator's words."""
    done = subprocess.run(["spirv-val", "--target-env", "vulkan1.2", "-"], input=binary, capture_output=True)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def optimize(binary: bytes) -> bytes:
    """Return the module after ``spirv-opt -O``."""
    done = subprocess.run(
        ["spirv-opt", "-O", "--target-env=vulkan1.2", "-", "-o", "-"], input=binary, capture_output=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout


class OptimizedCompiler(module.VulkanCompiler):
    """Validates and optimises what the compiler makes."""

    def compile(self, program: Program, options: CompileOptions) -> Artifact:
        """Return the artifact with optimised modules."""
        artifact = super().compile(program, options)
        code = module.unpack(artifact)
        tasks = []
        for task in code.tasks:
            validate(task.binary)
            binary = optimize(task.binary)
            validate(binary)
            tasks.append(replace(task, binary=binary))
        return replace(artifact, blob=module.pack(replace(code, tasks=tuple(tasks))))


class OptimizedBackend(VulkanBackend):
    """The backend under another name."""

    name = "vulkan_optimized"
    priority = -200

    def probe(self) -> Availability:
        """Whether the tools are there as well."""
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        return (
            Availability(False, f"{missing[0]} is not installed", "install spirv-tools") if missing else super().probe()
        )

    def compiler(self, target: Target) -> Compiler:
        """Return the checking compiler."""
        return OptimizedCompiler(target)
