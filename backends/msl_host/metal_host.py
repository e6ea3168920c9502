"""A Metal device that is not there: memory with addresses of its own, kernels compiled by clang and run on the host.

It implements the protocol of `qd_metal.driver`. Work is committed at once and done when somebody waits; an access to
memory that a dispatch did not declare stops the kernel.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msl_host
from qd_metal.driver import Dispatch, DriverError, Memory
from qd_metal.facts import COMMON

__all__ = ["FakeMetal", "driver"]

FIRST_ADDRESS = 0x1100_0000_0000
"""Beyond what a host process maps at random, below what the host cannot name."""

_GUARD = 1 << 16
_FOLDER = Path(tempfile.gettempdir()) / f"qd_metal_host_{os.getuid()}"


@dataclass(frozen=True, slots=True)
class _Pipeline:
    library: msl_host.Library
    symbol: str


class FakeMetal:
    """The device."""

    def __init__(self) -> None:
        self._next = FIRST_ADDRESS
        self.live: dict[int, Memory] = {}
        self.committed: list[tuple[Dispatch, ...]] = []
        self._numbers = itertools.count()

    def name(self) -> str:
        """Return a name."""
        return "fake Metal device"

    def facts(self) -> tuple[str, ...]:
        """Return what the header set executes."""
        return (*COMMON, "native.add.f32", "group.256")

    def memory_nbytes(self) -> int:
        """Return a size that no test uses up."""
        return 1 << 34

    def allocate(self, nbytes: int) -> Memory:
        """Reserve addresses, far from every other buffer's; contents are all ones, so that relying on zeros shows."""
        size = -(-nbytes // 16) * 16
        if nbytes > self.memory_nbytes():
            raise DriverError(f"the device has {self.memory_nbytes()} bytes")
        try:
            raw = ctypes.create_string_buffer(size + 256)
        except (MemoryError, OverflowError) as error:
            raise DriverError(str(error)) from error
        host = -(-ctypes.addressof(raw) // 256) * 256
        ctypes.memset(host, 0xFF, size)
        address = self._next
        self._next += -(-size // _GUARD) * _GUARD + _GUARD
        memory = Memory((next(self._numbers), _Kept(raw)), address, host, size)
        self.live[address] = memory
        return memory

    def free(self, memory: Memory) -> None:
        """Release a buffer."""
        del self.live[memory.address]

    def library(self, text: str, symbols: Sequence[str]) -> list[Any]:
        """Compile for the host."""
        try:
            library = msl_host.compile_library(text, symbols, _FOLDER, optimize=len(text) < 60_000)
        except msl_host.MslError as error:
            raise DriverError(str(error)) from error
        return [_Pipeline(library, symbol) for symbol in symbols]

    def commit(self, dispatches: Sequence[Dispatch]) -> Any:
        """Keep kernels until somebody waits."""
        commands = tuple(dispatches)
        self.committed.append(commands)
        return commands

    def wait(self, commands: Any) -> None:
        """Run all command buffers up to this one."""
        while self.committed:
            first = self.committed.pop(0)
            for dispatch in first:
                self._run(dispatch)
            if first is commands:
                return

    def _run(self, dispatch: Dispatch) -> None:
        ranges = sorted((m.address, m.address + m.nbytes, m.host) for m in dispatch.resident)
        for memory in dispatch.resident:
            if self.live.get(memory.address) is not memory:
                raise DriverError("freed memory is declared resident", memory.address)
        table = (msl_host.Resident.Range * max(len(ranges), 1))(*ranges)
        resident = msl_host.Resident(len(ranges), table)
        pipeline: _Pipeline = dispatch.pipeline
        words = dispatch.words.host + dispatch.offset
        bad = pipeline.library.run(pipeline.symbol, words, resident, dispatch.groups, dispatch.threads)
        if bad:
            text = f"kernel {pipeline.symbol!r} touched {bad:#x}, which is not resident"
            raise DriverError(text, bad, pipeline.symbol)


class _Kept:
    """Memory by identity."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw


def driver() -> FakeMetal | str:
    """Return the device, or what the machine lacks."""
    return FakeMetal() if msl_host.clang() else "clang++ 16 or later is not installed"
