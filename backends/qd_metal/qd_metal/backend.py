"""The plugin's entry point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qd_core.backend.contract import Availability, Backend, Compiler, ContractVersion, Device, DeviceInfo, Target
from qd_core.errors import BackendUnavailableError
from qd_metal.driver import Driver, find_driver
from qd_metal.facts import BASE, target_from

__all__ = ["MetalBackend"]

_REMEDY = "use a Mac with macOS 13 or later and install pyobjc-framework-Metal"


class MetalBackend(Backend):
    """Apple GPUs as `qd.metal`."""

    name = "metal"
    contract = ContractVersion(1, 0)
    priority = 70

    def __init__(self) -> None:
        self._driver: Driver | str | None = None

    def driver(self) -> Driver | str:
        """Return the driver, or why there is none."""
        if self._driver is None:
            try:
                self._driver = find_driver()
            except Exception as error:
                self._driver = f"{type(error).__name__}: {error}"
        return self._driver

    def probe(self) -> Availability:
        """Whether there is a device and the layer to reach it."""
        found = self.driver()
        return Availability(False, found, _REMEDY) if isinstance(found, str) else Availability(True)

    def targets(self) -> Sequence[Target]:
        """A device of the family Metal 3, then the one that is here."""
        return (BASE, *(info.target for info in self.devices()))

    def devices(self) -> Sequence[DeviceInfo]:
        """The system's default device."""
        found = self.driver()
        if isinstance(found, str):
            return ()
        target = target_from(f"msl3.0 {found.name()}", found.facts(), found.memory_nbytes())
        return (DeviceInfo(0, found.name(), target, found.memory_nbytes()),)

    def compiler(self, target: Target) -> Compiler:
        """Return a compiler."""
        from qd_metal.compiler import MetalCompiler

        return MetalCompiler(target)

    def open(self, info: DeviceInfo, options: Mapping[str, Any]) -> Device:
        """Open the device."""
        from qd_metal.device import MetalDevice

        found = self.driver()
        if isinstance(found, str):
            raise BackendUnavailableError(found, backend=self.name, hint=_REMEDY)
        return MetalDevice(found, info)
