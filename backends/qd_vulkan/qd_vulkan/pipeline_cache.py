"""Compiled pipelines on disk: what the driver made of SPIR-V, for the next process."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from qd_vulkan import binding as vk

if TYPE_CHECKING:
    from qd_vulkan.instance import Physical
    from qd_vulkan.loader import Table

__all__ = ["load_cache", "store_cache"]


def _path(physical: Physical) -> Path:
    base = os.environ.get("QD_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    p = physical.properties
    return (
        Path(base)
        / "qd_core"
        / f"vulkan-{bytes(p.pipelineCacheUUID).hex()}-{p.vendorID:x}-{p.deviceID:x}-{p.driverVersion:x}.bin"
    )


def load_cache(functions: Table, device: int, physical: Physical | None) -> int:
    """Create a pipeline cache with what is on disk, empty for ``None``. Drivers ignore data that is not theirs."""
    data = b""
    if physical is not None:
        try:
            data = _path(physical).read_bytes()
        except OSError:
            pass
    info = vk.make(vk.PipelineCacheCreateInfo, initialDataSize=len(data), pInitialData=data or None)
    cache = ctypes.c_uint64()
    functions.CreatePipelineCache(device, ctypes.byref(info), None, ctypes.byref(cache))
    return cache.value


def store_cache(functions: Table, device: int, cache: int, physical: Physical) -> None:
    """Write the cache to disk, whole or not at all; a disk that cannot be written is no error."""
    nbytes = ctypes.c_size_t()
    functions.GetPipelineCacheData(device, cache, ctypes.byref(nbytes), None)
    data = ctypes.create_string_buffer(nbytes.value)
    functions.GetPipelineCacheData(device, cache, ctypes.byref(nbytes), data)
    path = _path(physical)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data.raw[: nbytes.value])
        os.replace(file.name, path)
    except OSError:
        pass
