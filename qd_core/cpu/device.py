"""Memory, code and the stream of the host's processor.

Device memory is host memory and device addresses are host addresses, but only this module knows.
"""

from __future__ import annotations

import ctypes
import functools
import weakref

import numpy as np

from qd_core.backend.contract import Artifact, DeviceInfo, Launch, Module, NativeEntry
from qd_core.backend.host import HostDevice, HostStream
from qd_core.codegen.jit import process_jit
from qd_core.codegen.llvm.types import KERNEL
from qd_core.cpu.compiler import FORMAT
from qd_core.cpu.context import Context
from qd_core.cpu.pool import MAX_THREADS, Pool, default_threads, process_pool
from qd_core.errors import LaunchError

__all__ = ["CpuDevice", "CpuModule", "CpuStream"]

_Kernel = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)


class CpuModule(Module):
    """Machine code of one kernel in this process."""

    def __init__(self, artifact: Artifact, context: Context) -> None:
        if artifact.format != FORMAT:
            raise LaunchError(
                f"an artifact of format {artifact.format!r} is no host object", why=f"this device loads {FORMAT!r}"
            )
        self.artifact, self._context = artifact, context
        jit = process_jit()
        loaded = jit.load(artifact.blob, (KERNEL,))
        self._function = loaded[KERNEL]
        # Not at exit: other threads may still run, and nothing is gained.
        weakref.finalize(self, jit.unload, loaded).atexit = False
        self._call = _Kernel(self._function)

    def native(self) -> NativeEntry:
        """Return the C entry; it lives as long as this module."""
        return NativeEntry(self._function, self._context.address, self)

    def __call__(self, words: int, extents: int) -> None:
        """Run all tasks on packed arguments at these addresses; the GIL is released meanwhile."""
        self._call(self._context.address, words, extents, None)


class CpuStream(HostStream):
    """Runs and copies at once: on return, the work is done."""

    def run(self, module: Module, launch: Launch) -> None:
        """Run all tasks of one kernel."""
        assert isinstance(module, CpuModule)
        self.host.check_open()
        extents = np.array(launch.extents, np.int64)
        words = np.frombuffer(launch.words, np.uint64)
        module(words.ctypes.data, extents.ctypes.data)


class CpuDevice(HostDevice):
    """The host's processor.

    Parameters
    ----------
    info : DeviceInfo
        What was opened.
    threads : int
        Threads that work; 0 takes all that the process may use.
    """

    def __init__(self, info: DeviceInfo, threads: int = 0) -> None:
        super().__init__(info)
        self._context = Context(functools.partial(_pool_of, min(threads or default_threads(), MAX_THREADS)))
        self.default_stream = CpuStream(self)

    @property
    def pool(self) -> Pool:
        """The worker pool."""
        return self._context.pool

    def private_nbytes(self) -> int:
        """Bytes that the arenas of all workers have reached; they belong to the process."""
        return self.pool.private_nbytes()

    def load(self, artifact: Artifact) -> CpuModule:
        """Link an object into the process."""
        self.check_open()
        return CpuModule(artifact, self._context)


def _pool_of(threads: int) -> Pool:
    pool = process_pool()
    pool.set_threads(threads)
    return pool
