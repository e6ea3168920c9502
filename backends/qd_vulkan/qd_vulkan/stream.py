"""The queue as a stream: launches and copies, batched into command buffers."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qd_core.backend.contract import BufferRef, Event, HostSpan, Launch, Module, Stream
from qd_core.codegen.dispatch import argument_block
from qd_core.errors import DeviceFault, LaunchError
from qd_vulkan import binding as vk
from qd_vulkan.hazards import Hazards, Touch
from qd_vulkan.loader import VulkanError
from qd_vulkan.module import BATCH, LIMITS
from qd_vulkan.native import StreamTable

if TYPE_CHECKING:
    from qd_vulkan.device import VulkanDevice
    from qd_vulkan.module import VulkanModule

__all__ = ["VulkanEvent", "VulkanStream"]

_UPDATE_NBYTES = 65536
_NATIVE_NBYTES = 65536
"""Part of the ring of arguments that native launches fill by themselves."""

_NAMES = 64


class VulkanEvent(Event):
    """A value of the stream's timeline."""

    def __init__(self, stream: VulkanStream, value: int) -> None:
        self.stream, self.value = stream, value

    def synchronize(self) -> None:
        """Wait until the value is reached."""
        self.stream.reach(self.value)


class VulkanStream(Stream):
    """One queue. Commands run in order as far as their memory demands.

    Parameters
    ----------
    device : VulkanDevice
        An open device.
    """

    def __init__(self, device: VulkanDevice) -> None:
        self.device = self.vulkan = device
        self.commands, self.hazards = device.commands, Hazards()
        self.names: list[str] = []
        self.table: StreamTable | None = None
        self.deferred: Exception | None = None
        self._recorded = 0
        self._touched: set[int] = set()
        self._any_touched = False
        self._unordered = False  # the last launch was recorded without knowing what it touches

    # -- launches
    # -------------------------------------------------------------------------------------------------------
    def run(self, module: Module, launch: Launch) -> None:
        """Record all tasks of a kernel."""
        with self.vulkan.guard("a launch", launch.name):
            self._run(module, launch)  # type: ignore[arg-type]

    def _run(self, module: VulkanModule, launch: Launch) -> None:
        touches = module.touches(launch)
        if any(t.pooled for t in module.code.tasks):
            touches.append((0, 0, 1, True))
        self._order(touches)
        module.name = launch.name
        self._remember(launch.name)
        self._record(module, launch.words.tobytes(), launch.extents)
        self._done(touches)

    def _record(self, module: VulkanModule, words: bytes, extents: Sequence[int]) -> None:
        """Record the commands of a launch, barriers between its tasks included."""
        code = module.code
        block = argument_block(words, code.words, extents, code.extents, self.vulkan.pool.words(code))
        if not module.code.inline:
            block = self._indirect(block)
        f, commands, device = self.vulkan.f, self.commands.recording(), self.vulkan
        if block:
            f.CmdPushConstants(commands, device.layout, vk.STAGE_COMPUTE, 0, len(block), block)
        if module.code.sized:
            device.pool.clear_needs(commands, len(module.artifact.tasks))
            self.commands.barrier()
        first = True
        for pipeline, groups in zip(module.pipelines, LIMITS.grids(module.artifact, code.tasks, extents), strict=True):
            if groups == 0:
                continue
            if not first:
                self.commands.barrier()
            first = False
            f.CmdBindPipeline(commands, vk.BIND_COMPUTE, pipeline)
            f.CmdDispatch(commands, groups, 1, 1)

    # -- native launches
    def native_table(self) -> StreamTable:
        """Return the words that native launches use, made at the first call."""
        if self.table is None:
            self.table = self.commands.table = StreamTable(self)
        return self.table

    def record_from_native(self, context: int, words: int, extents: int) -> int:
        """Record a launch that the native entry could not, and open a command buffer for the next.

        Returns 0, or 1 for an error, which the next call that comes from Python raises.
        """
        assert self.table is not None
        module = self.table.kernels[context]
        code = module.code
        try:
            with self.vulkan.guard("a launch", module.name):
                self._remember(module.name)
                counts = [ctypes.c_int64.from_address(extents + 8 * n).value for n in range(code.extents)]
                self._order_all()
                self._record(module, ctypes.string_at(words, 8 * code.words), counts)
                self._unordered = True
                self._recorded += 1
                if self._recorded >= BATCH:
                    self._flush()
                self._offer(inline=code.inline)
        except Exception as error:
            self.deferred = error
            return 1
        return 0

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep native launches out while Python uses the queue, and raise what one of them could not."""
        table, error = self.table, self.deferred
        self.deferred = None
        if error is not None:
            raise error
        if table is None:
            yield
            return
        outer, table["busy"] = table["busy"], 1
        try:
            if not outer:
                self.absorb()
            yield
        finally:
            table["busy"] = outer

    def _offer(self, inline: bool) -> None:
        """Open a command buffer for native launches, with room for arguments where they need it."""
        assert self.table is not None
        head = 0 if inline else self.vulkan.arguments.take(_NATIVE_NBYTES)
        end = 0 if inline else head + _NATIVE_NBYTES
        self.table.open(self.commands.recording(), self._recorded, head, end)

    def absorb(self) -> None:
        """Account for native launches: what follows comes after a barrier, and any buffer may be in use."""
        if self.table is None:
            return
        count = self.table.take_launches()
        if count or self._unordered:
            self._recorded += count
            self._order_all()

    def _order_all(self) -> None:
        """Record a barrier, and take any buffer for one that is in use."""
        self.commands.barrier()
        self.hazards.clear()
        self._any_touched, self._unordered = True, False

    def _indirect(self, words: bytes) -> bytes:
        ring = self.vulkan.arguments
        if len(words) > ring.memory.nbytes // 2:
            raise LaunchError(
                f"the launch has {len(words)} bytes of arguments", why=f"at most {ring.memory.nbytes // 2} fit"
            )
        offset = ring.take(len(words))
        ctypes.memmove(ring.memory.mapped + offset, words, len(words))
        return struct.pack("<Q", ring.memory.address + offset)

    # -- order
    # ------------------------------------------------------------------------------------------------------------
    def _order(self, touches: Sequence[Touch]) -> None:
        """Record a barrier if what comes next needs one."""
        if self.hazards.conflict(touches):
            self.commands.barrier()
            self.hazards.clear()

    def _done(self, touches: Sequence[Touch]) -> None:
        """Account for what was recorded; submit a full batch."""
        self.hazards.add(touches)
        self._touched.update(t[0] for t in touches)
        self._recorded += 1
        if self._recorded >= BATCH:
            self._flush()

    def _is_touched(self, ref: BufferRef) -> bool:
        """Whether commands since the last wait may use a buffer."""
        return self._any_touched or id(ref.buffer.handle) in self._touched

    def _remember(self, name: str) -> None:
        if not self.names or self.names[-1] != name:
            self.names.append(name)
            del self.names[:-_NAMES]

    def _flush(self) -> None:
        self.commands.flush()
        self.hazards.clear()
        self._recorded, self._unordered = 0, False

    # -- copies
    # -----------------------------------------------------------------------------------------------------------
    def copy_in(self, dst: BufferRef, src: HostSpan) -> None:
        """Copy host memory to a buffer."""
        if src.nbytes == 0:
            return
        with self.vulkan.guard("a copy to the device"):
            place = self.vulkan.place(dst)
            if place.mapped and not self._is_touched(dst):
                ctypes.memmove(place.mapped + dst.offset, src.address, src.nbytes)
            elif src.nbytes <= _UPDATE_NBYTES and dst.offset % 4 == 0 and src.nbytes % 4 == 0:
                touch = _touch(dst, src.nbytes, True)
                self._order([touch])
                self.vulkan.f.CmdUpdateBuffer(
                    self.commands.recording(), place.block.buffer, place.offset + dst.offset, src.nbytes, src.address
                )
                self._done([touch])
            else:
                self._upload(dst, src)

    def _upload(self, dst: BufferRef, src: HostSpan) -> None:
        ring, place = self.vulkan.staging, self.vulkan.place(dst)
        part = ring.memory.nbytes // 4
        for at in range(0, src.nbytes, part):
            nbytes = min(part, src.nbytes - at)
            offset = ring.take(nbytes)
            ctypes.memmove(ring.memory.mapped + offset, src.address + at, nbytes)
            touch = (id(dst.buffer.handle), dst.offset + at, dst.offset + at + nbytes, True)
            self._order([touch])
            self._copy(
                ring.memory.block.buffer,
                ring.memory.offset + offset,
                place.block.buffer,
                place.offset + dst.offset + at,
                nbytes,
            )
            self._done([touch])

    def copy_out(self, dst: HostSpan, src: BufferRef) -> None:
        """Copy a buffer to host memory, after all work before."""
        if dst.nbytes == 0:
            return
        with self.vulkan.guard("a copy to the host"):
            place = self.vulkan.place(src)
            if place.mapped:
                self._synchronize()
                ctypes.memmove(dst.address, place.mapped + src.offset, dst.nbytes)
            else:
                self._download(dst, src)

    def _download(self, dst: HostSpan, src: BufferRef) -> None:
        ring, place = self.vulkan.staging, self.vulkan.place(src)
        part = ring.memory.nbytes // 4
        for at in range(0, dst.nbytes, part):
            nbytes = min(part, dst.nbytes - at)
            offset = ring.take(nbytes)
            touch = (id(src.buffer.handle), src.offset + at, src.offset + at + nbytes, False)
            self._order([touch])
            self._copy(
                place.block.buffer,
                place.offset + src.offset + at,
                ring.memory.block.buffer,
                ring.memory.offset + offset,
                nbytes,
            )
            self._done([touch])
            self._synchronize()
            ctypes.memmove(dst.address + at, ring.memory.mapped + offset, nbytes)

    def copy(self, dst: BufferRef, src: BufferRef) -> None:
        """Copy between buffers; the ranges may overlap."""
        if src.nbytes == 0:
            return
        with self.vulkan.guard("a copy on the device"):
            a, b = self.vulkan.place(src), self.vulkan.place(dst)
            touches = [_touch(src, src.nbytes, False), _touch(dst, src.nbytes, True)]
            if src.buffer is dst.buffer and abs(src.offset - dst.offset) < src.nbytes:
                self._copy_through_host(dst, src)
                return
            self._order(touches)
            self._copy(a.block.buffer, a.offset + src.offset, b.block.buffer, b.offset + dst.offset, src.nbytes)
            self._done(touches)

    def _copy_through_host(self, dst: BufferRef, src: BufferRef) -> None:
        raw = ctypes.create_string_buffer(src.nbytes)
        span = HostSpan(ctypes.addressof(raw), src.nbytes, raw)
        self.copy_out(span, src)
        self.copy_in(dst, span)

    def _copy(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int) -> None:
        region = vk.BufferCopy(source_offset, target_offset, nbytes)
        self.vulkan.f.CmdCopyBuffer(self.commands.recording(), source, target, 1, ctypes.byref(region))

    def fill(self, dst: BufferRef, pattern: bytes) -> None:
        """Repeat a pattern over a buffer."""
        if dst.nbytes == 0:
            return
        unit = (pattern * 4)[:4] if len(pattern) < 4 else pattern[:4]
        whole = (
            dst.offset + dst.nbytes == dst.buffer.nbytes
        )  # what follows the buffer's last byte up to a word is nobody's
        if pattern in (unit * 2, unit, unit[: len(pattern)]) and dst.offset % 4 == 0 and (dst.nbytes % 4 == 0 or whole):
            self._fill(dst, unit)
            return
        raw = ctypes.create_string_buffer((pattern * (dst.nbytes // len(pattern) + 1))[: dst.nbytes], dst.nbytes)
        self.copy_in(dst, HostSpan(ctypes.addressof(raw), dst.nbytes, raw))

    def _fill(self, dst: BufferRef, unit: bytes) -> None:
        with self.vulkan.guard("a fill"):
            place, touch = self.vulkan.place(dst), _touch(dst, dst.nbytes, True)
            nbytes = -(-dst.nbytes // 4) * 4
            if place.mapped and not self._is_touched(dst):
                self._fill_mapped(place.mapped + dst.offset, nbytes, unit)
                return
            self._order([touch])
            value = int.from_bytes(unit, "little")
            self.vulkan.f.CmdFillBuffer(
                self.commands.recording(), place.block.buffer, place.offset + dst.offset, nbytes, value
            )
            self._done([touch])

    def _fill_mapped(self, address: int, nbytes: int, unit: bytes) -> None:
        if unit == unit[:1] * 4:
            ctypes.memset(address, unit[0], nbytes)
        else:
            ctypes.memmove(address, unit * (nbytes // 4), nbytes)

    # -- waiting
    # ----------------------------------------------------------------------------------------------------------
    def record(self) -> Event:
        """Mark the present end of the queue."""
        return VulkanEvent(self, self.commands.pending)

    def wait(self, event: Event) -> None:
        """Let later work start after an event: of this stream it does anyway."""
        if not (isinstance(event, VulkanEvent) and event.stream is self):
            event.synchronize()

    def flush(self) -> None:
        """Submit what is recorded."""
        with self.vulkan.guard("a submission"):
            self._flush()

    def synchronize(self) -> None:
        """Wait until all work is done."""
        with self.vulkan.guard("waiting for the device"):
            self._synchronize()

    def reach(self, value: int) -> None:
        """Wait until a value of the timeline is reached."""
        with self.vulkan.guard("waiting for an event"):
            if value > self.commands.submitted:
                self._flush()
            self.commands.wait(value)

    def _synchronize(self) -> None:
        self._flush()
        self.commands.wait(self.commands.submitted)
        self._touched.clear()
        self._any_touched = False
        names, self.names = self._launched(), []
        self.vulkan.reclaim()
        self.vulkan.pool.check(names)

    def _launched(self) -> list[str]:
        """Names of kernels since the last wait."""
        return self.names + (self.table.launched() if self.table is not None else [])

    def fault(self, what: str, error: VulkanError) -> DeviceFault:
        """Return the error for a failed call, with the kernels that may have caused it."""
        names = ", ".join(dict.fromkeys(n for n in self._launched() if n)) or "none"
        return DeviceFault(
            f"{what} failed: {error}", why=f"kernels launched since the device was last seen well: {names}"
        )


def _touch(ref: BufferRef, nbytes: int, written: bool) -> Touch:
    return (id(ref.buffer.handle), ref.offset, ref.offset + nbytes, written)
