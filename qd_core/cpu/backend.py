"""The CPU as a backend."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from qd_core.backend.contract import Availability, Backend, Compiler, ContractVersion, Device, DeviceInfo, Target
from qd_core.cpu.target import host_target

__all__ = ["CpuBackend"]


class CpuBackend(Backend):
    """The built-in backend, `qd.cpu`; chosen where no accelerator is asked for."""

    name = "cpu"
    contract = ContractVersion(1, 0)
    priority = -10

    def probe(self) -> Availability:
        """LLVM must be importable."""
        from importlib.util import find_spec

        if find_spec("llvmlite") is None:
            return Availability(
                False, "llvmlite, which generates machine code, is not installed", "python -m pip install llvmlite"
            )
        return Availability(True)

    def targets(self) -> Sequence[Target]:
        """The host."""
        return (host_target(),)

    def devices(self) -> Sequence[DeviceInfo]:
        """The host's processor."""
        return (DeviceInfo(0, _processor_name(), host_target(), _memory_nbytes()),)

    def compiler(self, target: Target) -> Compiler:
        """Return the compiler for the host."""
        from qd_core.cpu.compiler import CpuCompiler

        return CpuCompiler(target)

    def open(self, info: DeviceInfo, options: Mapping[str, Any]) -> Device:
        """Open the processor; the option ``cpu_max_num_threads`` (0: all) limits the threads of the pool."""
        from qd_core.cpu.device import CpuDevice

        return CpuDevice(info, int(options.get("cpu_max_num_threads", 0) or 0))


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def _memory_nbytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0
