"""A backend's device as tests see it."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qd_core.backend.capabilities import CapabilitySet
    from qd_core.backend.contract import Artifact, Buffer, CompileOptions, Device
    from qd_core.ir.program import Program
    from qd_core.runtime.context import Runtime

__all__ = ["Balance", "DeviceUnderTest", "LeakError", "open_device", "untested"]


class LeakError(AssertionError):
    """Buffers were allocated and not freed, or freed without having been allocated."""


class Balance:
    """Counts what a device allocates and frees; put around the device's own methods.

    Parameters
    ----------
    device : Device
        Watched from now on.
    """

    def __init__(self, device: Device) -> None:
        self.live: dict[int, Buffer] = {}
        allocate, free = device.allocate, device.free

        def watched_allocate(nbytes: int, **options: Any) -> Buffer:
            buffer = allocate(nbytes, **options)
            self.live[id(buffer)] = buffer
            return buffer

        def watched_free(buffer: Buffer, **options: Any) -> None:
            free(buffer, **options)
            self.live.pop(id(buffer), None)

        device.allocate, device.free = watched_allocate, watched_free

    def check(self) -> None:
        """Raise `LeakError` unless everything was freed."""
        if self.live:
            sizes = ", ".join(str(b.nbytes) for b in self.live.values())
            raise LeakError(f"{len(self.live)} buffers were never freed, of {sizes} bytes")


@dataclass(slots=True)
class DeviceUnderTest:
    """What the fixture ``device`` gives.

    Attributes
    ----------
    name : str
        Of the backend, for messages alone: no test branches on it.
    runtime : Runtime
        The active runtime.
    balance : Balance
        Its allocations.
    compiled : int
        Kernels that were compiled: what a run of the kit costs is this, more than anything else.
    """

    name: str
    runtime: Runtime
    balance: Balance
    compiled: int = 0

    def count_kernels(self) -> None:
        """Count what is compiled from now on."""
        compiler = self.runtime.compiler
        compile_ = compiler.compile

        def counted(program: Program, options: CompileOptions) -> Artifact:
            self.compiled += 1
            return compile_(program, options)

        compiler.compile = counted

    @property
    def capabilities(self) -> CapabilitySet:
        """What the device claims."""
        return self.runtime.device.capabilities

    def has(self, *names: str) -> bool:
        """Whether all these capabilities are claimed."""
        return not self.capabilities.missing(names)

    def close(self) -> None:
        """Close the device; `LeakError` when allocations do not balance."""
        import qd_core as qd

        qd.reset()
        if self.balance.live:
            gc.collect()
        self.balance.check()


def untested(name: str, needs: Sequence[str]) -> str:
    """Why a backend cannot run a test with these needs; an empty string where it can.

    Raises
    ------
    AssertionError
        Probing raised: that is a defect, and not a way to say that nothing is there.
    """
    from qd_core.backend.registry import registry

    answer = registry().probe(name)
    if not answer.available:
        _check_probe(name)
    if not answer.available:
        return f"unavailable: {answer.reason}"
    infos = registry().load(name).devices()
    if not infos:
        return "unavailable: it has no device"
    missing = infos[0].target.capabilities.missing(needs)
    return f"lacks {', '.join(missing)}" if missing else ""


def _check_probe(name: str) -> None:
    """Tell a backend that cannot run here from one whose `probe` raises."""
    from qd_core.backend.registry import registry
    from qd_core.errors import BackendLoadError

    try:
        backend = registry().load(name)
    except BackendLoadError:
        return
    try:
        backend.probe()
    except Exception as error:
        text = f"probe() of {name!r} raised {type(error).__name__}: {error}; it must never raise"
        raise AssertionError(text) from error


def open_device(name: str, options: Mapping[str, Any] | None = None) -> DeviceUnderTest:
    """Open a backend's first device and make it the active one.

    Nothing is taken from the disk cache unless ``options`` ask for it: what is tested is the compiler of today.
    """
    import qd_core as qd
    from qd_core.runtime.context import current

    chosen: dict[str, Any] = {"offline_cache": False, **(options or {})}
    qd.init(name, enable_fallback=False, **chosen)
    runtime = current()
    opened = DeviceUnderTest(name, runtime, Balance(runtime.device))
    opened.count_kernels()
    return opened
