"""Backends that break one promise each: the kit is tested by finding every one of them out.

Each is a fake device but for one lie, and says in its docstring what it does wrong. `BROKEN` has them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.backend.contract import (
    Address,
    Artifact,
    Availability,
    Buffer,
    BufferRef,
    CompileOptions,
    Compiler,
    ContractVersion,
    DeviceInfo,
    Event,
    HostSpan,
    Launch,
    Module,
    Stream,
    Target,
)
from qd_core.ir.nodes import Node
from qd_core.ir.program import Program
from qd_core.reference.backend import ReferenceModule
from qd_core.reference.interpreter import Interpreter, Prepared
from qd_core.reference.lanes import Execute, Lanes, Mask
from qd_core.testing.fake.device import FAKE_CAPABILITIES, FakeBackend, FakeCompiler, FakeDevice, FakeStream
from qd_core.testing.fake.execute import WATCHED
from qd_core.testing.fake.memory import Allocation, FakeMemory

__all__ = ["BROKEN"]

BROKEN: dict[str, type[FakeBackend]] = {}
"""Backends by name."""


def _broken(cls: type[FakeBackend]) -> type[FakeBackend]:
    """File a backend under its class's name, in words."""
    name = "".join("_" + c.lower() if c.isupper() else c for c in cls.__name__).lstrip("_")
    BROKEN[name] = cls
    return cls


class _Broken(FakeBackend):
    """A fake backend whose device and stream are of the classes named here."""

    device_type: type[FakeDevice] = FakeDevice
    waits = False

    def make(self, info: DeviceInfo) -> FakeDevice:
        """Make the broken device."""
        return self.device_type(info, self.waits, False)


def _with_stream(stream: type[FakeStream]) -> type[FakeDevice]:
    class StreamDevice(FakeDevice):
        """A device whose streams are broken."""

        def new_stream(self) -> FakeStream:
            return stream(self)

    return StreamDevice


def _with_operation(name: str, execute: Execute) -> type[FakeDevice]:
    class OperationDevice(FakeDevice):
        """A device that executes one operation wrongly."""

        def operations(self) -> Mapping[str, Execute]:
            return {**WATCHED, name: execute}

    return OperationDevice


# -- arguments ------------------------------------------------------------------------------------------------------
class _GradientStream(FakeStream):
    def run(self, module: Module, launch: Launch) -> None:
        """Give gradients memory of their own, which nobody sees."""
        words, uses = np.frombuffer(launch.words, np.int64).copy(), list(launch.uses)
        for n, use in enumerate(uses):
            if use.path.endswith(".grad"):
                lost = self.fake.allocate(use.ref.nbytes)
                self.fake.default_stream.fill(BufferRef(lost, 0, lost.nbytes), b"\0")
                words[words == self.fake.address(use.ref)] = self.fake.address(BufferRef(lost, 0, lost.nbytes))
                uses[n] = replace(use, ref=BufferRef(lost, 0, lost.nbytes))
        super().run(module, Launch(memoryview(words), launch.extents, uses, launch.name, launch.span))


@_broken
class DropsTheGradient(_Broken):
    """Runs kernels on other memory than the gradient's."""

    device_type = _with_stream(_GradientStream)


@_broken
class PassesAHostAddress(_Broken):
    """Takes the address of its own bookkeeping for the address of device memory."""

    class device_type(FakeDevice):
        """A device with a wrong `address`."""

        def address(self, ref: BufferRef) -> Address:
            """Return where the host keeps the buffer."""
            super().address(ref)
            return Address(id(ref.buffer))


# -- memory ---------------------------------------------------------------------------------------------------------
class _ShortStream(FakeStream):
    def copy_out(self, dst: HostSpan, src: BufferRef) -> None:
        """Copy whole words only."""
        whole = dst.nbytes // 8 * 8
        super().copy_out(HostSpan(dst.address, whole, dst.owner), BufferRef(src.buffer, src.offset, whole))


@_broken
class CopiesBackTooLittle(_Broken):
    """Copies whole words of 8 bytes and forgets the rest."""

    device_type = _with_stream(_ShortStream)


class _LongStream(FakeStream):
    def copy_out(self, dst: HostSpan, src: BufferRef) -> None:
        """Copy to the end of the buffer."""
        more = min(src.buffer.nbytes - src.offset, dst.nbytes + 8)
        super().copy_out(HostSpan(dst.address, more, dst.owner), BufferRef(src.buffer, src.offset, more))


@_broken
class CopiesBackTooMuch(_Broken):
    """Copies more than it was asked for."""

    device_type = _with_stream(_LongStream)


@_broken
class ClobbersWhatItDoesNotWrite(_Broken):
    """Clears what a kernel writes before it runs: places that the kernel leaves out are lost."""

    class device_type(FakeDevice):
        """A device that clears first."""

        def execute(self, module: ReferenceModule, memory: FakeMemory, extents: Sequence[int]) -> None:
            """Clear what is only written."""
            for use in memory.uses.values():
                if use.access.name == "WRITE":
                    use.ref.buffer.handle.data[use.ref.offset : use.ref.offset + use.ref.nbytes] = 0
            super().execute(module, memory, extents)


@_broken
class IgnoresAlignment(_Broken):
    """Allocates at any address."""

    class device_type(FakeDevice):
        """A device with odd addresses."""

        def allocate(self, nbytes: int, *, alignment: int = 256, stream: Stream | None = None) -> Buffer:
            """Ignore ``alignment``."""
            return super().allocate(nbytes, alignment=1)


@_broken
class Leaks(_Broken):
    """Frees nothing."""

    class device_type(FakeDevice):
        """A device that keeps everything."""

        def free(self, buffer: Buffer, *, after: Stream | None = None) -> None:
            """Do nothing."""


# -- execution ------------------------------------------------------------------------------------------------------
def _new_for_old(x: Lanes, node: Node, mask: Mask) -> None:
    WATCHED["atomic"](x, node, mask)
    if node in x.env:
        load = Node(node.op, node.type, node.operands[:-1], {}, node.span)
        WATCHED["load"](x, load, mask)
        x.env[node] = x.env[load]


@_broken
class LiesAboutAnAtomic(_Broken):
    """Returns a value that is there after the atomics instead of the old one."""

    device_type = _with_operation("atomic", _new_for_old)


def _unsynchronised(x: Lanes, node: Node, mask: Mask) -> None:
    load = Node(node.op, node.type, node.operands[:-1], {}, node.span)
    WATCHED["load"](x, load, mask)
    if node.attrs["kind"] != "add" or not node.type.is_real:
        return WATCHED["atomic"](x, node, mask)
    total = Node(node.op, None, node.operands, {}, node.span)
    key = node.operands[-1]
    value, x.env[key] = x.env[key], x.env[load] + x.env[key]
    WATCHED["store"](x, total, mask)
    x.env[key], x.env[node] = value, x.env[load]
    return None


@_broken
class LosesUpdates(_Broken):
    """Reads, adds and writes without being atomic."""

    device_type = _with_operation("atomic", _unsynchronised)


def _truncating(x: Lanes, node: Node, mask: Mask) -> None:
    key = node.operands[-1]
    value = x.env[key]
    if key.type is dt.f64:
        with np.errstate(all="ignore"):
            x.env[key] = value.astype(np.float32).astype(np.float64)
    WATCHED["store"](x, node, mask)
    x.env[key] = value


@_broken
class TruncatesADtype(_Broken):
    """Claims f64 and keeps f32."""

    device_type = _with_operation("store", _truncating)


class _TaskwiseDevice(FakeDevice):
    """A device that runs tasks one by one, in an order of its own."""

    def interpret(self, module: ReferenceModule, memory: FakeMemory, extents: Sequence[int]) -> None:
        """Run every task by itself."""
        runs: list[Callable[[], None]] = []
        first = 0
        for task in module.program.tasks:
            own = extents[first : first + len(task.extents)]
            first += len(task.extents)
            prepared = Prepared(replace(module.program, tasks=(task,)))
            runs.append(lambda p=prepared, e=own: Interpreter(p, memory, self.operations()).run(e))
        self.perform(runs, [use.ref.buffer.handle for use in memory.uses.values()])

    def perform(self, runs: Sequence[Callable[[], None]], memory: Sequence[Allocation]) -> None:
        """Run the tasks of a launch."""
        for run in runs:
            run()


@_broken
class RunsTasksInTheWrongOrder(_Broken):
    """Starts a kernel's last task first."""

    class device_type(_TaskwiseDevice):
        """A device that reverses."""

        def perform(self, runs: Sequence[Callable[[], None]], memory: Sequence[Allocation]) -> None:
            """Run backwards."""
            super().perform(runs[::-1], memory)


@_broken
class MissesABarrier(_Broken):
    """Lets a kernel's tasks run side by side: none sees what another wrote."""

    class device_type(_TaskwiseDevice):
        """A device without barriers."""

        def perform(self, runs: Sequence[Callable[[], None]], memory: Sequence[Allocation]) -> None:
            """Run each task on what was there before the launch; merge what they wrote."""
            before = [a.data.copy() for a in memory]
            merged = [b.copy() for b in before]
            for run in runs:
                for allocation, old in zip(memory, before, strict=True):
                    allocation.data[:] = old
                run()
                for allocation, old, new in zip(memory, before, merged, strict=True):
                    changed = allocation.data != old
                    new[changed] = allocation.data[changed]
            for allocation, new in zip(memory, merged, strict=True):
                allocation.data[:] = new


def _silent(x: Lanes, node: Node, mask: Mask) -> None:
    """Write no record."""


@_broken
class SwallowsMessages(_Broken):
    """Claims the log and drops failed checks."""

    device_type = _with_operation("check", _silent)


# -- streams --------------------------------------------------------------------------------------------------------
class _HastyStream(FakeStream):
    def copy_out(self, dst: HostSpan, src: BufferRef) -> None:
        """Copy what is there now."""
        queue, self._queue = self._queue, type(self._queue)()
        src.buffer.handle.defined[:] = 0xFF
        super().copy_out(dst, src)
        self._queue = queue


@_broken
class CopiesBeforeTheWorkIsDone(_Broken):
    """Copies to the host without waiting for its own queue."""

    device_type = _with_stream(_HastyStream)
    waits = True


class _BorrowingStream(FakeStream):
    def copy_in(self, dst: BufferRef, src: HostSpan) -> None:
        """Queue a copy from the caller's memory as it will be."""
        import ctypes

        data = np.ctypeslib.as_array((ctypes.c_uint8 * src.nbytes).from_address(src.address))
        self.submit(lambda owner=src.owner: self.fake.write(dst, data, staged=owner is not None), dst)


@_broken
class BorrowsTheHostsMemory(_Broken):
    """Reads the host's memory after `copy_in` has returned."""

    device_type = _with_stream(_BorrowingStream)
    waits = True


class _DeafStream(FakeStream):
    def wait(self, event: Event) -> None:
        """Wait for nothing."""


@_broken
class IgnoresEvents(_Broken):
    """Lets streams run without waiting for each other."""

    device_type = _with_stream(_DeafStream)
    waits = True


# -- code and identity ----------------------------------------------------------------------------------------------
class _StaleCompiler(FakeCompiler):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._known: dict[Any, Artifact] = {}

    def compile(self, program: Program, options: CompileOptions) -> Artifact:
        """Return what was compiled under this name and signature before."""
        key = (program.name, tuple((p.path, repr(p.type)) for p in program.params))
        if key not in self._known:
            self._known[key] = super().compile(program, options)
        return self._known[key]


@_broken
class ReturnsAStaleArtifact(_Broken):
    """Keeps code by the kernel's name."""

    def compiler(self, target: Target) -> Compiler:
        """Return the forgetful compiler."""
        return _StaleCompiler(target)


@_broken
class RaisesInProbe(_Broken):
    """Fails where it should say that it cannot run."""

    def probe(self) -> Availability:
        """Raise."""
        raise OSError("cannot open the driver")


@_broken
class BuiltForAnotherContract(_Broken):
    """Made for the next major version of the contract."""

    contract = ContractVersion(99, 0)


@_broken
class ClaimsTooLittle(_Broken):
    """Has an atomic that it does not claim."""

    def __init__(self, name: str = "fake") -> None:
        unclaimed = ("add", dt.f32, "global")
        super().__init__(name, capabilities=replace(FAKE_CAPABILITIES, atomics=FAKE_CAPABILITIES.atomics - {unclaimed}))


class _ClaimingCompiler(FakeCompiler):
    def compile(self, program: Program, options: CompileOptions) -> Artifact:
        """Fail at what was claimed."""
        from qd_core.ir.rewrite import walk

        for task in program.tasks:
            if any(n.op.name == "sin" for n in walk(task.body)):
                raise NotImplementedError("no such instruction")
        return super().compile(program, options)


@_broken
class CannotCompileAnOperation(_Broken):
    """Has no code for one operation of the table."""

    def compiler(self, target: Target) -> Compiler:
        """Return the compiler with a gap."""
        return _ClaimingCompiler(target)
