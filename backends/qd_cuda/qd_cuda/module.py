"""Loaded code of one kernel: its functions, its grids, and its native entry."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qd_core.backend.contract import Artifact, Module, NativeEntry
from qd_core.errors import LaunchError
from qd_cuda.compiler import Code, TaskShape, unpack
from qd_cuda.driver import CudaError, Driver

if TYPE_CHECKING:
    from qd_cuda.device import CudaDevice

__all__ = ["BLOCKS", "CudaModule", "Grid", "LoadedTask", "grid_of"]

BLOCKS = (64, 128, 256)
"""Threads a block: the smallest that leaves each multiprocessor few blocks, so that small launches use all of them."""

FEW_BLOCKS = 4
"""Blocks a multiprocessor below which the next smaller block is better."""

FEW_ITERATIONS = 512
"""Iterations a multiprocessor up to which several threads share one, where they can."""

MANY_BLOCKS = 8
"""Blocks a multiprocessor from which on threads may take several iterations each."""

_ERROR_LOG, _ERROR_LOG_NBYTES = 5, 6
_LOG_NBYTES = 8192

MOST_BLOCKS = 2**31 - 1

Grid = tuple[int, int]
"""Blocks, and threads a block; no blocks where there is nothing to do."""


class LoadedTask:
    """One task's function and what bounds its grid.

    Attributes
    ----------
    handle : int
        The driver's function.
    shape : TaskShape
    limits : dict
        Blocks that the device holds at once, by block size.
    """

    def __init__(self, device: CudaDevice, handle: int, shape: TaskShape) -> None:
        self.handle, self.shape = handle, shape
        sizes = {*BLOCKS, shape.block} - {0}
        self.limits = {} if shape.serial else {s: device.resident_blocks(handle, s) for s in sizes}


def grid_of(task: LoadedTask, count: int, processors: int) -> Grid:
    """Return the grid for ``count`` iterations, -1 where only the device knows."""
    if task.shape.serial:
        return (1, 1)
    if 0 <= count <= FEW_ITERATIONS * processors:
        count *= task.shape.parts
    block = task.shape.block or BLOCKS[-1]
    if not task.shape.block and count >= 0:
        block = next((b for b in BLOCKS if count <= b * FEW_BLOCKS * processors), block)
    if count < 0:
        return (task.limits[block], block)
    share = task.shape.share
    per_block = (
        block * share if block == BLOCKS[-1] and count >= MANY_BLOCKS * processors * block * share > 0 else block
    )
    blocks = -(-count // per_block)
    return (min(blocks, MOST_BLOCKS if share else task.limits[block]), block)


class CudaModule(Module):
    """A module in the device's context."""

    def __init__(self, device: CudaDevice, artifact: Artifact) -> None:
        self.artifact, self.device = artifact, device
        self.code: Code = unpack(artifact)
        handle = _load(device.cuda, self.code.ptx)
        weakref.finalize(self, device.retire, handle).atexit = False
        self.tasks = [
            LoadedTask(device, _function(device.cuda, handle, entry.symbol), shape)
            for entry, shape in zip(artifact.tasks, self.code.tasks, strict=True)
        ]
        self.scratch = any(shape.scratch for shape in self.code.tasks)
        self.name = ""
        self._entry: NativeEntry | None = None

    def grids(self, extents: Sequence[int]) -> list[Grid]:
        """Return the grid of each task."""
        grids: list[Grid] = []
        at = 0
        for task in self.tasks:
            count = 1
            for extent in extents[at : at + len(task.shape.axes)]:
                count = -1 if extent < 0 or count < 0 else count * extent
            at += len(task.shape.axes)
            grids.append(grid_of(task, count, self.device.processors))
        return grids

    def native(self) -> NativeEntry | None:
        """Return the C entry on the default stream; None for arguments that do not fit the parameter block."""
        if not self.code.inline or self.device.entry is None:
            return None
        if self._entry is None:
            from qd_cuda.native import native_entry

            self._entry = native_entry(self.device, self)
        return self._entry


def _load(cuda: Driver, ptx: bytes) -> int:
    """Translate PTX; `LaunchError` with the translator's log where it refuses."""
    log = ctypes.create_string_buffer(_LOG_NBYTES)
    options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_NBYTES)
    values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_NBYTES)
    handle = ctypes.c_void_p()
    try:
        cuda("ModuleLoadDataEx", ctypes.byref(handle), ptx, 2, ctypes.byref(options), ctypes.byref(values))
    except CudaError as error:
        text = log.value.decode(errors="replace").strip()
        raise LaunchError(f"the driver refuses a kernel's PTX: {error}", why=text or "it gives no reason") from error
    assert handle.value
    return handle.value


def _function(cuda: Driver, module: int, symbol: str) -> int:
    function = ctypes.c_void_p()
    cuda("ModuleGetFunction", ctypes.byref(function), module, symbol.encode())
    assert function.value
    return function.value
