"""The plugin's entry point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qd_core.backend.contract import Availability, Backend, Compiler, ContractVersion, Device, DeviceInfo, Target
from qd_core.errors import BackendUnavailableError

__all__ = ["CudaBackend"]


class CudaBackend(Backend):
    """NVIDIA devices as `qd.cuda`."""

    name = "cuda"
    contract = ContractVersion(1, 0)
    priority = 100

    def probe(self) -> Availability:
        """Whether the driver, a device and LLVM are there."""
        from importlib.util import find_spec

        from qd_cuda.probe import find_devices

        if find_spec("llvmlite") is None:
            return Availability(
                False, "llvmlite, which generates PTX, is not installed", "python -m pip install llvmlite"
            )
        found = find_devices()
        return Availability(bool(found.devices), found.reason, found.remedy)

    def targets(self) -> Sequence[Target]:
        """Every model that code can be generated for."""
        from qd_cuda.facts import MODELS, target_of

        return tuple(target_of(model) for model in MODELS)

    def devices(self) -> Sequence[DeviceInfo]:
        """Usable devices in the driver's order."""
        from qd_cuda.probe import find_devices

        return tuple(info for _, info in find_devices().devices)

    def compiler(self, target: Target) -> Compiler:
        """Return a compiler."""
        from qd_cuda.compiler import CudaCompiler

        return CudaCompiler(target)

    def open(self, info: DeviceInfo, options: Mapping[str, Any]) -> Device:
        """Open a device: its primary context is retained, and so shared with other libraries of the process."""
        from qd_cuda.device import CudaDevice
        from qd_cuda.driver import driver
        from qd_cuda.probe import find_devices

        cuda, found = driver(), find_devices()
        if isinstance(cuda, str) or info.index >= len(found.devices):
            raise BackendUnavailableError(found.reason or "the device is gone", backend=self.name, hint=found.remedy)
        return CudaDevice(cuda, found.devices[info.index][0], info)
