"""Why no device can be used, and what to do about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qd_vulkan.instance import Physical

__all__ = ["Absence", "no_driver", "no_loader", "why_none"]


@dataclass(frozen=True, slots=True)
class Absence:
    """What is missing, and the command or step that brings it."""

    reason: str
    remedy: str


_LOADERS = {
    "linux": "apt-get install libvulkan1 (Debian, Ubuntu) or dnf install vulkan-loader (Fedora)",
    "darwin": "brew install vulkan-loader molten-vk",
    "win32": "install the graphics driver: it brings vulkan-1.dll",
}
_DRIVERS = {
    "linux": "install the driver of the device, or one that runs on any CPU: apt-get install mesa-vulkan-drivers "
    "(Debian, Ubuntu), dnf install mesa-vulkan-drivers (Fedora)",
    "darwin": "brew install molten-vk",
    "win32": "install the driver of the device",
}


def _here(steps: dict[str, str]) -> str:
    return steps.get(sys.platform, steps["linux"])


def no_loader(cause: object) -> Absence:
    """The loader's library cannot be loaded."""
    chosen = os.environ.get("QD_VULKAN_LIBRARY")
    remedy = "unset QD_VULKAN_LIBRARY, or let it name the loader's library" if chosen else _here(_LOADERS)
    return Absence(f"no Vulkan loader: {cause}", remedy)


def no_driver(cause: object) -> Absence:
    """The loader finds no driver that works."""
    return _without_driver(f"the Vulkan loader has no usable driver: {cause}")


def why_none(devices: Sequence[Physical]) -> Absence:
    """None of ``devices`` can be used, or is among those that were asked for."""
    lacking = [f"{p.name} lacks {', '.join(p.missing)}" for p in devices if p.missing]
    if devices and len(lacking) == len(devices):
        return Absence("no usable Vulkan device: " + "; ".join(lacking), "update the driver of the device")
    chosen = os.environ.get("QD_VISIBLE_DEVICE")
    if devices and chosen:
        names = ", ".join(f"{n}: {p.name}" for n, p in enumerate(devices))
        return Absence(f"no Vulkan device is among QD_VISIBLE_DEVICE={chosen!r}", f"unset it, or name one of {names}")
    return _without_driver("no Vulkan device")


def _without_driver(reason: str) -> Absence:
    """A device whose node this user must not open looks like none at all."""
    for named in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        files = [f for f in os.environ.get(named, "").split(os.pathsep) if f]
        lost = [f for f in files if not os.access(f, os.R_OK)]
        if lost:
            return Absence(reason, f"unset {named}, or let it name a driver's manifest: {lost[0]} cannot be read")
    closed = _closed_nodes()
    if closed:
        return Absence(
            reason, f"this user must not open {closed[0]}: sudo usermod -aG render,video $USER, and log in anew"
        )
    return Absence(reason, _here(_DRIVERS))


def _closed_nodes(folder: Path = Path("/dev/dri")) -> list[Path]:
    """Render nodes that this user must not open."""
    return [node for node in sorted(folder.glob("renderD*")) if not os.access(node, os.R_OK | os.W_OK)]
