"""The instance: one a process and a setting of validation, with the devices that can be used."""

from __future__ import annotations

import ctypes
import os
import weakref
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from qd_vulkan import binding as vk
from qd_vulkan.absence import Absence, no_driver, no_loader
from qd_vulkan.loader import LoaderMissing, Table, VulkanError, enumerate_all, load_library, names_array, strings

if TYPE_CHECKING:
    from qd_vulkan.device import VulkanDevice

__all__ = ["Instance", "Physical", "instance", "validation_wanted"]

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
_DEBUG, _PORTABILITY = "VK_EXT_debug_utils", "VK_KHR_portability_enumeration"


@dataclass(eq=False)
class Physical:
    """A physical device with what it reports.

    ``missing`` names what it lacks to be used at all.
    """

    handle: int
    properties: Any
    properties11: Any
    properties12: Any
    features: Any
    features11: Any
    features12: Any
    atomic_float: Any
    clock: Any
    extensions: frozenset[str]
    memory: Any
    queue_family: int
    missing: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name that the driver gives."""
        return self.properties.deviceName.decode()


class Instance:
    """An open instance.

    Parameters
    ----------
    validation : bool
        Turn the validation layer on, where it is installed.

    Attributes
    ----------
    messages : list of str
        What the validation layer said.
    devices : set of VulkanDevice
        Open devices: they are closed before the instance is.
    """

    def __init__(self, validation: bool) -> None:
        library = load_library()
        resolve = library.vkGetInstanceProcAddr
        resolve.restype, resolve.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
        self._resolve = resolve
        self.globals = Table(lambda name: resolve(None, name), vk.GLOBAL_FUNCTIONS)
        packed = ctypes.c_uint32()
        self.globals.EnumerateInstanceVersion(ctypes.byref(packed))
        self.api = packed.value
        self.messages: list[str] = []
        self.validated = validation and VALIDATION_LAYER in self._layers()
        self.handle = self._create()
        self.functions = Table(lambda name: resolve(self.handle, name), vk.INSTANCE_FUNCTIONS)
        self._messenger = self._listen() if self.validated else None
        self.devices: set[VulkanDevice] = set()
        self._finalizer = weakref.finalize(self, _destroy, self.functions, self.handle, self._messenger, self.devices)

    def _layers(self) -> list[str]:
        return names_array(self.globals.EnumerateInstanceLayerProperties, vk.LayerProperties, "layerName")

    def _extensions(self, layer: str | None = None) -> list[str]:
        name = layer.encode() if layer else None
        return names_array(
            lambda n, p: self.globals.EnumerateInstanceExtensionProperties(name, n, p),
            vk.ExtensionProperties,
            "extensionName",
        )

    def _create(self) -> int:
        present = {*self._extensions(), *(self._extensions(VALIDATION_LAYER) if self.validated else ())}
        self.validated = self.validated and _DEBUG in present
        wanted = [_DEBUG] if self.validated else []
        flags = 0
        if _PORTABILITY in present:
            wanted.append(_PORTABILITY)
            flags = vk.PORTABILITY_ENUMERATION
        layers = [VALIDATION_LAYER] if self.validated else []
        application = vk.make(
            vk.ApplicationInfo,
            pApplicationName=b"qd-core",
            pEngineName=b"qd-core",
            apiVersion=min(self.api, vk.API_1_2) or vk.API_1_2,
        )
        layer_names, extension_names = strings(layers), strings(wanted)
        info = vk.make(
            vk.InstanceCreateInfo, flags=flags, pApplicationInfo=_pointer(application), enabledLayerCount=len(layers),
            ppEnabledLayerNames=_pointer(layer_names),
            enabledExtensionCount=len(wanted), ppEnabledExtensionNames=_pointer(extension_names),
        )  # fmt: skip
        handle = ctypes.c_void_p()
        self.globals.CreateInstance(ctypes.byref(info), None, ctypes.byref(handle))
        assert handle.value
        return handle.value

    def _listen(self) -> Any:
        messages = self.messages

        @vk.DebugCallback
        def heard(severity: int, kind: int, data: Any, user: Any) -> int:
            said = vk.DebugUtilsMessengerCallbackData.from_address(data)
            messages.append((said.pMessage or b"").decode(errors="replace"))
            return 0

        table = Table(lambda name: self._resolve(self.handle, name), vk.DEBUG_FUNCTIONS)
        info = vk.make(vk.DebugUtilsMessengerCreateInfo, messageSeverity=0x1100, messageType=7, pfnUserCallback=heard)
        messenger = ctypes.c_uint64()
        table.CreateDebugUtilsMessengerEXT(self.handle, ctypes.byref(info), None, ctypes.byref(messenger))
        return table, messenger.value, heard

    # -- devices ----------------------------------------------------------------------------------------------------
    def physical_devices(self) -> list[Physical]:
        """Return what the drivers offer, usable or not, in the loader's order."""
        handles = enumerate_all(
            lambda n, p: self.functions.EnumeratePhysicalDevices(self.handle, n, p), ctypes.c_void_p
        )
        return [self._physical(h) for h in handles]

    def _physical(self, handle: int) -> Physical:
        f = self.functions
        basic = vk.PhysicalDeviceProperties()
        f.GetPhysicalDeviceProperties(handle, ctypes.byref(basic))
        extensions = frozenset(
            names_array(
                lambda n, p: f.EnumerateDeviceExtensionProperties(handle, None, n, p),
                vk.ExtensionProperties,
                "extensionName",
            )
        )
        features, f11, f12, floats, clock = (vk.make(k) for k in (
            vk.PhysicalDeviceFeatures2, vk.PhysicalDeviceVulkan11Features, vk.PhysicalDeviceVulkan12Features,
            vk.PhysicalDeviceShaderAtomicFloatFeatures, vk.PhysicalDeviceShaderClockFeatures,
        ))  # fmt: skip
        properties, p11, p12 = (vk.make(k) for k in (
            vk.PhysicalDeviceProperties2, vk.PhysicalDeviceVulkan11Properties, vk.PhysicalDeviceVulkan12Properties,
        ))  # fmt: skip
        if basic.apiVersion >= vk.API_1_2:
            more = {"VK_EXT_shader_atomic_float": floats, "VK_KHR_shader_clock": clock}
            chain(features, f11, f12, *(there for name, there in more.items() if name in extensions))
            f.GetPhysicalDeviceFeatures2(handle, ctypes.byref(features))
            chain(properties, p11, p12)
            f.GetPhysicalDeviceProperties2(handle, ctypes.byref(properties))
        memory = vk.PhysicalDeviceMemoryProperties()
        f.GetPhysicalDeviceMemoryProperties(handle, ctypes.byref(memory))
        family = self._queue_family(handle)
        missing = _missing(basic, features, f12, family)
        return Physical(
            handle, basic, p11, p12, features.features, f11, f12, floats, clock, extensions, memory, family, missing
        )

    def _queue_family(self, handle: int) -> int:
        families = enumerate_all(
            lambda n, p: self.functions.GetPhysicalDeviceQueueFamilyProperties(handle, n, p), vk.QueueFamilyProperties
        )
        able = [n for n, family in enumerate(families) if family.queueFlags & vk.QUEUE_COMPUTE]
        return able[0] if able else -1


def chain(first: Any, *others: Any) -> None:
    """Link structures by ``pNext``."""
    for here, following in zip((first, *others), others, strict=False):
        here.pNext = ctypes.addressof(following)


def _pointer(value: Any) -> int:
    return ctypes.addressof(value)


def _missing(basic: Any, features: Any, f12: Any, family: int) -> tuple[str, ...]:
    if basic.apiVersion < vk.API_1_2:
        return (f"Vulkan 1.2 (it has {vk.version(basic.apiVersion)})",)
    needs = {
        "a compute queue": family >= 0,
        "shaderInt64": features.features.shaderInt64,
        "bufferDeviceAddress": f12.bufferDeviceAddress,
        "timelineSemaphore": f12.timelineSemaphore,
    }
    return tuple(name for name, there in needs.items() if not there)


def _destroy(functions: Table, handle: int, messenger: Any, devices: set[VulkanDevice]) -> None:
    for device in list(devices):
        device.close()
    if messenger is not None:
        table, number, _callback = messenger
        table.DestroyDebugUtilsMessengerEXT(handle, number, None)
    functions.DestroyInstance(handle, None)


def validation_wanted() -> bool:
    """Whether the environment asks for the validation layer."""
    return os.environ.get("QD_VULKAN_VALIDATION", "0") not in ("", "0")


@lru_cache(maxsize=2)
def _instance(validation: bool) -> Instance | Absence:
    try:
        return Instance(validation)
    except LoaderMissing as error:
        return no_loader(error)
    except (VulkanError, AttributeError, OSError) as error:
        return no_driver(error)


def instance() -> Instance | Absence:
    """Return the instance, or why there is none."""
    return _instance(validation_wanted())
