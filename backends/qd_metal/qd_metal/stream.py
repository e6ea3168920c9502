"""The queue of a device: kernels are gathered into command buffers, copies wait for them."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qd_core.backend.contract import BufferRef, BufferUse, Event, HostSpan, Launch, Module, Stream
from qd_core.codegen.cstyle.grid import POOL_WORDS
from qd_core.codegen.dispatch import GroupLimits, argument_block
from qd_core.errors import DeviceFault
from qd_metal.compiler import Code
from qd_metal.driver import Dispatch, DriverError, Memory

if TYPE_CHECKING:
    from qd_metal.device import MetalDevice

__all__ = ["MetalStream"]

BATCH = 64
"""Launches in a command buffer before it is committed."""

WORDS_NBYTES = 4 << 20
_ALIGNMENT = 256
LIMITS = GroupLimits(grid=4096, resident=128)
_FAULT, _NEEDS = 0, 64
"""Offsets in the memory that kernels report to: the word of a fault, and what iterations need of the pool."""

_REPORT_NBYTES = 4096


@dataclass(frozen=True, slots=True)
class _Launched:
    name: str
    uses: tuple[BufferUse, ...]


@dataclass(slots=True)
class _Mark(Event):
    stream: MetalStream
    number: int

    def synchronize(self) -> None:
        if self.stream.finished < self.number:
            self.stream.synchronize()


class MetalStream(Stream):
    """The one queue of a device."""

    def __init__(self, device: MetalDevice) -> None:
        self.device = self.metal = device
        self.finished = 0
        self._queued: list[Dispatch] = []
        self._launched: list[_Launched] = []
        self._running: list[Any] = []
        self._freed: list[Memory] = []
        self._words: Memory | None = None
        self._used = 0
        self._pool: Memory | None = None
        self._report: Memory | None = None
        self._count = 0

    # -- launches -----------------------------------------------------------------------------------------------------
    def run(self, module: Module, launch: Launch) -> None:
        """Queue all tasks of a kernel."""
        from qd_metal.device import MetalModule

        assert isinstance(module, MetalModule)
        self.metal.check_open()
        code, touched = module.code, [self.metal.memory_of(u.ref) for u in launch.uses]
        private = [self._private(code)] if any(t.pooled or t.sizing for t in code.tasks) else []
        pool = self._pool_words() if private else bytes(8 * POOL_WORDS)
        block = argument_block(launch.words.tobytes(), code.words, launch.extents, code.extents, pool)
        words, offset = self._place(block)
        number = self._count
        for task, pipeline, groups in zip(
            code.tasks, module.pipelines, LIMITS.grids(module.artifact, code.tasks, launch.extents), strict=True
        ):
            if groups:
                used = {touched[code.leaves[p]] for p in module.artifact.tasks[task.entry].uses}
                resident = [*used, *itertools.chain(*private)]
                self._queued.append(Dispatch(pipeline, words, offset, resident, groups, task.group))
        self._launched.append(_Launched(launch.name, tuple(launch.uses)))
        self._count = number + 1
        if any(t.sizing for t in code.tasks):
            self.synchronize()  # the next kernel that is sized finds zeros
        elif len(self._launched) % BATCH == 0:
            self.flush()

    def _private(self, code: Code) -> tuple[Memory, Memory]:
        """Memory that iterations keep to themselves, and what kernels report to."""
        if self._pool is None or self._report is None:
            self._pool = self.metal.reserve(self.metal.pool_nbytes())
            self._report = self.metal.reserve(_REPORT_NBYTES)
            ctypes.memset(self._report.host, 0, _REPORT_NBYTES)
        if len(code.tasks) * 4 > _REPORT_NBYTES - _NEEDS:
            raise DeviceFault(f"private memory cannot be sized for a kernel of {len(code.tasks)} tasks")
        return self._pool, self._report

    def _pool_words(self) -> bytes:
        assert self._pool is not None
        assert self._report is not None
        report = self._report.address
        return struct.pack("<QQQQ", self._pool.address, self._pool.nbytes // 4, report + _FAULT, report + _NEEDS)

    def _place(self, words: bytes) -> tuple[Memory, int]:
        """Copy words to where a kernel finds them; that place is free again once all work is done."""
        size = -(-max(len(words), 8) // _ALIGNMENT) * _ALIGNMENT
        if self._words is None or self._used + size > self._words.nbytes:
            if self._words is not None:
                self.synchronize()
            if self._words is None or size > self._words.nbytes:
                if self._words is not None:
                    self.metal.live.discard(self._words)
                    self.metal.driver.free(self._words)
                self._words = self.metal.reserve(max(WORDS_NBYTES, size))
        offset, self._used = self._used, self._used + size
        ctypes.memmove(self._words.host + offset, words, len(words))
        return self._words, offset

    # -- copies -------------------------------------------------------------------------------------------------------
    def _host(self, ref: BufferRef, nbytes: int) -> int:
        """Host address of ``ref``, once nothing runs any more."""
        if nbytes > ref.nbytes:
            raise DeviceFault(f"{nbytes} bytes do not fit a place of {ref.nbytes} bytes")
        memory = self.metal.memory_of(ref)
        self.synchronize()
        return memory.host + ref.offset

    def copy_in(self, dst: BufferRef, src: HostSpan) -> None:
        """Copy host memory to a buffer."""
        ctypes.memmove(self._host(dst, src.nbytes), src.address, src.nbytes)

    def copy_out(self, dst: HostSpan, src: BufferRef) -> None:
        """Copy a buffer to host memory."""
        ctypes.memmove(dst.address, self._host(src, dst.nbytes), dst.nbytes)

    def copy(self, dst: BufferRef, src: BufferRef) -> None:
        """Copy between buffers, which may overlap."""
        ctypes.memmove(self._host(dst, src.nbytes), self._host(src, src.nbytes), src.nbytes)

    def fill(self, dst: BufferRef, pattern: bytes) -> None:
        """Repeat a pattern over a buffer."""
        at = self._host(dst, dst.nbytes)
        if len(set(pattern)) == 1:
            ctypes.memset(at, pattern[0], dst.nbytes)
            return
        whole = pattern * (dst.nbytes // len(pattern) + 1)
        ctypes.memmove(at, whole, dst.nbytes)

    # -- order --------------------------------------------------------------------------------------------------------
    def record(self) -> Event:
        """Mark the present end of the queue."""
        return _Mark(self, self._count)

    def flush(self) -> None:
        """Commit what is queued."""
        if self._queued:
            queued, self._queued = self._queued, []
            self._running.append(self.metal.driver.commit(queued))

    def synchronize(self) -> None:
        """Wait until all work is done; `DeviceFault` names the kernels since the last time and the argument."""
        self.flush()
        running, self._running = self._running, []
        launched, self._launched = self._launched, []
        failure: DriverError | None = None
        for commands in running:
            try:
                self.metal.driver.wait(commands)
            except DriverError as error:
                failure = failure or error
        self.finished, self._used = self._count, 0
        for memory in self._freed:
            self.metal.driver.free(memory)
        self._freed.clear()
        needed = self._take_report()
        if failure is not None:
            raise DeviceFault(_explain(failure, launched, self.metal.info.name)) from failure
        if needed:
            raise DeviceFault(
                f"an iteration needs {4 * needed} bytes of private memory, more than its part of the pool; kernels: "
                + _names(launched),
                hint="raise QD_METAL_POOL_NBYTES",
            )

    def _take_report(self) -> int:
        if self._report is None:
            return 0
        needed = int.from_bytes(ctypes.string_at(self._report.host + _FAULT, 8), "little")
        ctypes.memset(self._report.host, 0, _REPORT_NBYTES)
        return needed

    def release(self, memory: Memory) -> None:
        """Free memory once the work so far is done."""
        if self._queued or self._running:
            self._freed.append(memory)
        else:
            self.metal.driver.free(memory)


def _names(launched: Sequence[_Launched]) -> str:
    return ", ".join(dict.fromkeys(x.name or "?" for x in launched))


def _explain(error: DriverError, launched: Sequence[_Launched], device: str) -> str:
    """Say what failed: the kernels that ran, and the argument in which an address lies."""
    text = f"{device}: {error}; kernels since the last synchronisation: {_names(launched)}"
    if not error.address:
        return text
    where = f"address {error.address:#x} lies in no argument of them"
    for launch in launched:
        for use in launch.uses:
            memory: Memory = use.ref.buffer.handle
            if memory.address <= error.address < memory.address + memory.nbytes:
                argument = f"argument {use.path!r} ({use.role.value}) of {launch.name!r}"
                where = f"{argument} is not declared for {error.symbol!r}"
    return f"{text}; {where}"
