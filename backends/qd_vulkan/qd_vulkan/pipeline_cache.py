"""Compiled pipelines on disk: what the driver made of SPIR-V, for the next process."""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from qd_vulkan import binding as vk

if TYPE_CHECKING:
    from qd_vulkan.instance import Physical
    from qd_vulkan.loader import Table

__all__ = ["cache_path", "load_cache", "store_cache", "write_whole"]


def cache_path(physical: Physical, kind: str, suffix: str) -> Path:
    """Return the file of one kind for one version of one driver and device."""
    base = os.environ.get("QD_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    p = physical.properties
    driver = hashlib.sha256(bytes(p.pipelineCacheUUID) + bytes(physical.properties12.driverInfo)).hexdigest()[:16]
    name = f"vulkan-{kind}-{driver}-{p.vendorID:x}-{p.deviceID:x}-{p.driverVersion:x}.{suffix}"
    return Path(base) / "qd_core" / name


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; a disk that cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    except OSError:
        pass


def load_cache(functions: Table, device: int, physical: Physical | None) -> int:
    """Create a pipeline cache with what is on disk, empty for ``None``. Drivers ignore data that is not theirs."""
    data = b""
    if physical is not None:
        try:
            data = cache_path(physical, "pipelines", "bin").read_bytes()
        except OSError:
            pass
    info = vk.make(vk.PipelineCacheCreateInfo, initialDataSize=len(data), pInitialData=data or None)
    cache = ctypes.c_uint64()
    functions.CreatePipelineCache(device, ctypes.byref(info), None, ctypes.byref(cache))
    return cache.value


def store_cache(functions: Table, device: int, cache: int, physical: Physical) -> None:
    """Write the cache to disk."""
    nbytes = ctypes.c_size_t()
    functions.GetPipelineCacheData(device, cache, ctypes.byref(nbytes), None)
    data = ctypes.create_string_buffer(nbytes.value)
    functions.GetPipelineCacheData(device, cache, ctypes.byref(nbytes), data)
    write_whole(cache_path(physical, "pipelines", "bin"), data.raw[: nbytes.value])
