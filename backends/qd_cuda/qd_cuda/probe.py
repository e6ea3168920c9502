"""Which devices there are, and why not."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

from qd_core.backend.contract import DeviceInfo
from qd_cuda.driver import CudaError, Driver, driver
from qd_cuda.facts import best_model, ptx_of_driver, target_of

__all__ = ["Found", "find_devices"]

_MAJOR, _MINOR = 75, 76

_REMEDIES = {
    "CUDA_ERROR_NO_DEVICE": "check that nvidia-smi lists a device and that CUDA_VISIBLE_DEVICES names one",
    "CUDA_ERROR_OPERATING_SYSTEM": "check the permissions of /dev/nvidia* (in a container: give it the GPU)",
    "CUDA_ERROR_NOT_PERMITTED": "check the permissions of /dev/nvidia*",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "restart the machine: kernel module and library are of different versions",
    "CUDA_ERROR_SYSTEM_NOT_READY": "start the fabric manager of the machine (nvidia-fabricmanager)",
}
_INSTALL = "install the NVIDIA driver; nothing else of CUDA is needed"


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a probe: usable devices with the driver's ordinal, or reason and remedy."""

    devices: tuple[tuple[int, DeviceInfo], ...] = ()
    reason: str = ""
    remedy: str = ""


def find_devices() -> Found:
    """Look for devices; never raises."""
    found = driver()
    if isinstance(found, str):
        name = next((n for n in _REMEDIES if n in found), "")
        return Found(reason=found, remedy=_REMEDIES.get(name, _INSTALL))
    try:
        return _devices(found)
    except CudaError as error:
        return Found(reason=str(error), remedy=_REMEDIES.get(error.name, _INSTALL))


def _devices(cuda: Driver) -> Found:
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda("DriverGetVersion", ctypes.byref(version))
    cuda("DeviceGetCount", ctypes.byref(count))
    ptx = ptx_of_driver(version.value)
    usable: list[tuple[int, DeviceInfo]] = []
    refused: list[str] = []
    for ordinal in range(count.value):
        info = _describe(cuda, ordinal, ptx)
        if isinstance(info, str):
            refused.append(info)
        else:
            usable.append((ordinal, info))
    usable = _visible(usable)
    if usable:
        numbered = (
            (ordinal, DeviceInfo(n, i.name, i.target, i.memory_nbytes)) for n, (ordinal, i) in enumerate(usable)
        )
        return Found(tuple(numbered))
    return _nothing(refused, version.value)


def _describe(cuda: Driver, ordinal: int, ptx: int) -> DeviceInfo | str:
    """Return a device's description, or why it cannot be used."""
    device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    cuda("DeviceGet", ctypes.byref(device), ordinal)
    cuda("DeviceGetName", name, 256, device)
    cuda("DeviceTotalMem", ctypes.byref(memory), device)
    major, minor = (cuda.attribute(a, device.value) for a in (_MAJOR, _MINOR))
    title = name.value.decode(errors="replace")
    model = best_model(10 * major + minor, ptx)
    if model is None:
        return f"{title} has compute capability {major}.{minor}, and the driver takes PTX up to {ptx / 10}"
    return DeviceInfo(ordinal, title, target_of(model), memory.value)


def _visible(devices: list[tuple[int, DeviceInfo]]) -> list[tuple[int, DeviceInfo]]:
    """Devices that ``QD_VISIBLE_DEVICE`` names by position or by a part of the name, in its order."""
    chosen = os.environ.get("QD_VISIBLE_DEVICE", "").strip()
    if not chosen:
        return devices
    result: list[tuple[int, DeviceInfo]] = []
    for word in (w.strip() for w in chosen.split(",")):
        named = [d for d in devices if (str(d[0]) == word if word.isdigit() else word.lower() in d[1].name.lower())]
        result += [d for d in named if d not in result]
    return result


def _nothing(refused: list[str], version: int) -> Found:
    if refused:
        remedy = (
            f"needed: compute capability 6.0 and a driver for CUDA 9 (found: {version // 1000}.{version % 1000 // 10})"
        )
        return Found(reason="no usable device: " + "; ".join(refused), remedy=remedy)
    chosen = os.environ.get("QD_VISIBLE_DEVICE")
    if chosen:
        return Found(
            reason=f"no device is among QD_VISIBLE_DEVICE={chosen!r}", remedy="unset it, or name a device of nvidia-smi"
        )
    return Found(reason="the driver finds no device", remedy=_REMEDIES["CUDA_ERROR_NO_DEVICE"])
