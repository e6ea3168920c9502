"""What the backend asks of Metal: the protocol that the layer over pyobjc and the tests' fake device implement.

Nothing here decides anything: each method is one call of Metal, or a few in a row.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Dispatch", "Driver", "DriverError", "Memory", "find_driver"]


class DriverError(Exception):
    """Metal said no.

    Attributes
    ----------
    address : int
        Device address that was touched and not resident, where the driver knows it; else 0.
    symbol : str
        Kernel that failed, where the driver knows it.
    """

    def __init__(self, message: str, address: int = 0, symbol: str = "") -> None:
        super().__init__(message)
        self.address, self.symbol = address, symbol


@dataclass(frozen=True, slots=True)
class Memory:
    """A shared buffer: the driver's handle, its address on the device and on the host, and its size in bytes."""

    handle: Any
    address: int
    host: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel: its pipeline, the words at slot 0 (memory and offset in bytes), what it touches, and its grid."""

    pipeline: Any
    words: Memory
    offset: int
    resident: Sequence[Memory]
    groups: int
    threads: int


class Driver(Protocol):
    """One Metal device with one queue."""

    def facts(self) -> tuple[str, ...]:
        """Return the features of the device (`qd_metal.facts`), as it was asked for them."""
        ...

    def name(self) -> str:
        """Return the device's name."""
        ...

    def memory_nbytes(self) -> int:
        """Return the working set that the device recommends."""
        ...

    def allocate(self, nbytes: int) -> Memory:
        """Make a shared buffer; `DriverError` where there is no memory."""
        ...

    def free(self, memory: Memory) -> None:
        """Release a buffer."""
        ...

    def library(self, text: str, symbols: Sequence[str]) -> list[Any]:
        """Compile a source text; return a pipeline a kernel."""
        ...

    def commit(self, dispatches: Sequence[Dispatch]) -> Any:
        """Start kernels, one after the other; return the command buffer."""
        ...

    def wait(self, commands: Any) -> None:
        """Wait until a command buffer is done; `DriverError` where it failed."""
        ...


def find_driver() -> Driver | str:
    """Return the driver of this machine's device, or why there is none.

    ``QD_METAL_DRIVER=module:function`` names another one: a function without parameters.
    """
    named = os.environ.get("QD_METAL_DRIVER")
    if named:
        module, _, function = named.partition(":")
        return getattr(importlib.import_module(module), function)()
    if sys.platform != "darwin":
        return "Metal is a part of macOS"
    from qd_metal.objc import ObjcDriver

    return ObjcDriver.open()
