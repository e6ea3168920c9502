"""The plugin's entry point."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qd_core.backend.contract import Availability, Backend, Compiler, ContractVersion, Device, DeviceInfo, Target
from qd_core.errors import BackendUnavailableError
from qd_vulkan.absence import Absence, why_none
from qd_vulkan.facts import BASE, memory_nbytes, target_from, target_of
from qd_vulkan.instance import Instance, instance
from qd_vulkan.probing import probed

if TYPE_CHECKING:
    from qd_vulkan.instance import Physical

__all__ = ["VulkanBackend"]


class VulkanBackend(Backend):
    """Vulkan compute as `qd.vulkan`."""

    name = "vulkan"
    contract = ContractVersion(1, 0)
    priority = 50

    def probe(self) -> Availability:
        """Whether a loader, a driver and a device with what is needed are there."""
        found = instance()
        if isinstance(found, Absence):
            return Availability(False, found.reason, found.remedy)
        if self._physical(found):
            return Availability(True)
        none = why_none(found.physical_devices())
        return Availability(False, none.reason, none.remedy)

    def _physical(self, found: Instance) -> list[Physical]:
        usable = [p for p in found.physical_devices() if not p.missing]
        usable.sort(key=lambda p: _RANK.get(p.properties.deviceType, 9))
        return _visible(usable)

    def targets(self) -> Sequence[Target]:
        """A target with every optional type, then those of the devices here."""
        return (BASE, *(info.target for info in self.devices()))

    def devices(self) -> Sequence[DeviceInfo]:
        """Usable devices, discrete GPUs first, CPUs last."""
        found = instance()
        if isinstance(found, Absence):
            return ()
        return tuple(
            DeviceInfo(n, p.name, _probed(found, p), memory_nbytes(p)) for n, p in enumerate(self._physical(found))
        )

    def compiler(self, target: Target) -> Compiler:
        """Return a compiler."""
        from qd_vulkan.compiler import VulkanCompiler

        return VulkanCompiler(target)

    def open(self, info: DeviceInfo, options: Mapping[str, Any]) -> Device:
        """Open a device."""
        from qd_vulkan.device import VulkanDevice

        found = instance()
        if isinstance(found, Absence):
            raise BackendUnavailableError(found.reason, backend=self.name, hint=found.remedy)
        return VulkanDevice(found, self._physical(found)[info.index], info, options)


def _probed(found: Instance, physical: Physical) -> Target:
    """Return the target of a device: what small kernels found that it serves, and the faults of its driver."""
    target = target_of(physical)
    return target_from(target.name, probed(found, physical, target), physical)


_RANK = {2: 0, 1: 1, 3: 2, 0: 3, 4: 4}
"""Order of device types: discrete, integrated, virtual, other, CPU."""


def _visible(devices: list[Physical]) -> list[Physical]:
    """Devices that ``QD_VISIBLE_DEVICE`` names by position or by a part of the name, in its order; all where it is
    not set.
    """
    chosen = os.environ.get("QD_VISIBLE_DEVICE", "").strip()
    if not chosen:
        return devices
    result: list[Physical] = []
    for word in (w.strip() for w in chosen.split(",")):
        named = [
            d for n, d in enumerate(devices) if (n == int(word) if word.isdigit() else word.lower() in d.name.lower())
        ]
        result += [d for d in named if d not in result]
    return result
