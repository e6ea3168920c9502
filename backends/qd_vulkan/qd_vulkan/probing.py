"""What a device serves of what its driver advertises, and what faults the driver has, asked by small kernels.

The answers are features of the target. They are kept on disk for the driver's version.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from qd_core import dtypes as dt
from qd_core.backend.contract import Access, BufferRef, BufferUse, DeviceInfo, HostSpan, Launch, Role, Target
from qd_core.errors import QuadrantsError
from qd_vulkan import probes
from qd_vulkan.compiler import VulkanCompiler
from qd_vulkan.facts import target_from
from qd_vulkan.loader import VulkanError
from qd_vulkan.pipeline_cache import cache_path, write_whole
from qd_vulkan.probes import Array, Probe

if TYPE_CHECKING:
    from qd_vulkan.device import VulkanDevice
    from qd_vulkan.instance import Instance, Physical

__all__ = ["Session", "probed"]

_VERSION = 2
_KINDS = ("add", "min", "max", "and", "or", "xor", "exchange", "cas")
_ALWAYS = ("i32", "u32", "i64", "u64", "f32")
"""Types without which a device is not used at all."""

_FAULTS = {"loop_limit": probes.long_loop, "plain_products": probes.zero_sign}
"""Features that a driver needs where the kernel's answer is wrong."""


@lru_cache(maxsize=16)
def probed(instance: Instance, physical: Physical, target: Target) -> tuple[str, ...]:
    """Return the features of ``target`` that hold, and those that the driver's faults demand."""
    path = cache_path(physical, f"probe{_VERSION}", "json")
    try:
        known = json.loads(path.read_text())
        if known["advertised"] == list(target.features):
            return tuple(known["serves"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    serves = ask(instance, physical, target)
    write_whole(path, json.dumps({"advertised": target.features, "serves": serves}).encode())
    return serves


def ask(instance: Instance, physical: Physical, target: Target) -> tuple[str, ...]:
    """Run the kernels, on a device on which as much is turned on as its driver lets."""
    advertised = list(target.features)
    for name in _refused(instance, physical, target):
        advertised.remove(name)
    session = Session(instance, physical, target.name, advertised)
    with session.opened():
        session.elements()
        session.groups()
        session.atomics()
        session.faults()
    return tuple(session.features)


def _refused(instance: Instance, physical: Physical, target: Target) -> list[str]:
    """Optional features with which no device can be made, although they are advertised."""
    always = [f for f in target.features if not _is_optional(f)]
    optional = [f for f in target.features if _is_optional(f)]
    if _opens(instance, physical, target.name, target.features):
        return []
    return [f for f in optional if not _opens(instance, physical, target.name, [*always, f])]


def _is_optional(feature: str) -> bool:
    kind, _, rest = feature.partition(".")
    return kind in ("native", "clock", "atomics64") or (kind == "type" and rest not in _ALWAYS)


def _opens(instance: Instance, physical: Physical, name: str, features: Iterable[str]) -> bool:
    try:
        with Session(instance, physical, name, features).opened():
            return True
    except VulkanError:
        return False


class Session:
    """A device for probing, and the features that hold so far.

    Parameters
    ----------
    instance, physical : Instance, Physical
        What is asked.
    name : str
        Name of the target.
    features : iterable of str
        What is turned on.
    """

    def __init__(self, instance: Instance, physical: Physical, name: str, features: Iterable[str]) -> None:
        self.instance, self.physical, self.name = instance, physical, name
        self.features = list(features)
        self.device: VulkanDevice | None = None

    @contextmanager
    def opened(self) -> Generator[None]:
        """Open the device."""
        from qd_vulkan.device import VulkanDevice

        info = DeviceInfo(0, self.physical.name, target_from(self.name, tuple(self.features)))
        self.device = VulkanDevice(self.instance, self.physical, info, {"offline_cache": False})
        try:
            yield
        finally:
            self.device.close()

    # -- questions ----------------------------------------------------------------------------------------------------
    def elements(self) -> None:
        """Types in registers and in memory."""
        for dtype in dt.ALL:
            feature = f"type.{dtype.name}"
            if feature in self.features and not self.serves(probes.type_probe(dtype), feature):
                self.drop(feature)

    def groups(self) -> None:
        """Sizes of groups, memory of a group, what lanes of a subgroup do together, the clock."""
        self._largest("group", probes.group_probe, 1)
        self._largest("shared", probes.shared_probe, 1024)
        size = self.run(probes.subgroup_size()) if self._has("subgroup") else None
        measured = int(size[0]) if size is not None and probes.subgroup_size().right(size) else 0
        for feature in [f for f in self.features if f.startswith("subgroup.")]:
            if feature.partition(".")[2].isdigit():
                self.replace(feature, f"subgroup.{measured}" if measured else None)
            elif not measured or not self.serves(probes.subgroup_probes(measured)[feature], feature):
                self.drop(feature)
        if "clock" in self.features and not self.serves(probes.clock_probe(), "clock"):
            self.drop("clock")

    def _largest(self, name: str, probe: Callable[[int], Probe], least: int) -> None:
        """Halve an advertised number until the kernel is right."""
        for feature in [f for f in self.features if f.startswith(name + ".")]:
            number = int(feature.partition(".")[2])
            while number >= least and not self.serves(probe(number), f"{name}.{number}"):
                number //= 2
            self.replace(feature, f"{name}.{number}" if number >= least else None)

    def atomics(self) -> None:
        """Each atomic that is one instruction; one that is not right is emulated, by compare-and-swap, if that is."""
        for feature in [f for f in self.features if f.startswith("native.")]:
            _, kind, name = feature.split(".")
            if not self.serves(probes.atomic_probe(dt.by_name(name), [kind]), feature):
                self.drop(feature)
        for bits in (32, 64):
            width = f"atomics{bits}"
            for dtype in (d for d in dt.ALL if d.kind in "iu" and d.bits == bits) if width in self.features else ():
                if not self.serves(probes.atomic_probe(dtype, _KINDS), width):
                    self._emulate(dtype, width)

    def _emulate(self, dtype: dt.DType, width: str) -> None:
        for kind in _KINDS:
            if width not in self.features or self.serves(probes.atomic_probe(dtype, [kind]), f"{kind}.{dtype.name}"):
                continue
            emulated = f"emulated.{kind}.{dtype.name}"
            if kind != "cas":
                self.features.append(emulated)
            if kind == "cas" or not self.serves(probes.atomic_probe(dtype, [kind]), emulated):
                self.drop(width)

    def faults(self) -> None:
        """Faults that code can avoid."""
        for feature, probe in _FAULTS.items():
            if not self.serves(probe(), feature):
                self.features.append(feature)

    # -- answers ------------------------------------------------------------------------------------------------------
    def serves(self, probe: Probe, feature: str) -> bool:
        """Whether a kernel gives the right answer. ``feature`` names what is asked."""
        found = self.run(probe)
        return found is not None and probe.right(found)

    def run(self, probe: Probe) -> Array | None:
        """Return what a kernel leaves in its array; None where it cannot be compiled, loaded or run."""
        device, data = self.device, probe.given.copy()
        assert device is not None
        try:
            module = device.load(probe.make(VulkanCompiler(target_from(self.name, tuple(self.features)))))
            ref = BufferRef(device.allocate(data.nbytes), 0, data.nbytes)
            span, stream = HostSpan(data.ctypes.data, data.nbytes, data), device.default_stream
            stream.copy_in(ref, span)
            words = memoryview(array("Q", [int(device.address(ref)), data.size, 1]))
            use = BufferUse(ref, Access.READ_WRITE, Role.DATA, "y")
            stream.run(module, Launch(words, (probe.extent,), [use], "probe"))
            stream.copy_out(span, ref)
        except (QuadrantsError, VulkanError):
            return None
        return data

    def drop(self, feature: str) -> None:
        """The feature does not hold."""
        self.features.remove(feature)

    def replace(self, feature: str, by: str | None) -> None:
        """Another number holds, or none."""
        if by != feature:
            self.drop(feature)
            self.features += [by] if by else []

    def _has(self, name: str) -> bool:
        return any(f.startswith(name + ".") for f in self.features)
