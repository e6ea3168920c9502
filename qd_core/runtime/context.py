"""The active device and options: what `qd.init` opens and `qd.reset` closes."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qd_core.errors import ClosedError, LaunchError
from qd_core.runtime.options import Options

if TYPE_CHECKING:
    from qd_core.backend.contract import Backend, Compiler, Device, DeviceInfo
    from qd_core.runtime.cache import ArtifactCache
    from qd_core.runtime.log import Log
    from qd_core.runtime.tape import Recorder
    from qd_core.runtime.tree import FieldTree

__all__ = ["Options", "Runtime", "active", "current", "set_active"]


_generations = itertools.count(1)


@dataclass(slots=True, eq=False)
class Runtime:
    """One open device with its compiler, log and everything allocated on it.

    ``tree`` is that of ``qd.root``; ``plans`` counts how often launch plans were forgotten. ``recorder`` is the active
    tape's; ``tangents`` counts active forward-mode contexts; ``drawing`` numbers kernels that draw random numbers.
    ``generation`` is unique per `qd.init`; array class keys contain it, so code of an earlier runtime never accepts a
    later array. ``surroundings`` is a digest of options, compiler and versions, ``compiler_digest`` one of the
    compiler; both are made when they are first needed.
    """

    backend: Backend
    info: DeviceInfo
    device: Device
    compiler: Compiler
    options: Options
    generation: int = field(default_factory=lambda: next(_generations))
    closed: bool = False
    ignored: dict[str, Any] = field(default_factory=dict[str, Any])
    log: Log | None = None
    recorder: Recorder | None = None
    tangents: int = 0
    interpreted: int = 0
    cache: ArtifactCache | None = None
    tree: FieldTree | None = None
    plans: int = 0
    drawing: Iterator[int] = field(default_factory=itertools.count)
    launchers: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet[Any])
    arrays: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet[Any])
    shared: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet[Any])
    class_keys: dict[Any, int] = field(default_factory=dict[Any, int])
    surroundings: str = ""
    compiler_digest: str = ""

    @contextmanager
    def interpreted_launches(self) -> Generator[None, None, None]:
        """Send every launch through Python for a while: a tape or forward mode wants to see it."""
        self.interpreted += 1
        for launcher in list(self.launchers):
            self.adopt(launcher)
        try:
            yield
        finally:
            self.interpreted -= 1
            for launcher in list(self.launchers):
                if not self.interpreted:
                    launcher.resume()

    def adopt(self, launcher: Any) -> None:
        """Keep a native launcher, which forgets its plans when this closes; it waits while launches go through
        Python.
        """
        self.launchers.add(launcher)
        if self.interpreted and not launcher.derivative:
            launcher.suspend()

    @contextmanager
    def unrecorded(self) -> Generator[None, None, None]:
        """Hide host writes from an active tape for a while."""
        recorder, self.recorder = self.recorder, None
        try:
            yield
        finally:
            self.recorder = recorder

    def forget_plans(self) -> None:
        """Send every kernel through Python once more: memory or types that launch plans rely on changed."""
        self.plans += 1
        for launcher in list(self.launchers):
            launcher.clear()

    def class_key(self, kind: Any) -> int:
        """Return a process-wide number for (``kind``, this runtime): what packers compare instead of types."""
        key = self.class_keys.get(kind)
        if key is None:
            key = self.class_keys[kind] = next(_class_keys)
        return key

    def close(self) -> None:
        """Free everything; arrays of this runtime become unusable, with a clear error."""
        if self.closed:
            return
        self.closed = True
        for array in list(self.arrays):
            array._invalidate()
        for launcher in list(self.launchers):
            launcher.clear()
        if self.log is not None:
            self.log.close()
        if not self.shared:
            self.device.close()

    def is_shared(self, buffer: object) -> bool:
        """Whether another library looks at the memory of ``buffer``."""
        return any(owner.holds(buffer) for owner in list(self.shared))

    def release_shared(self, buffer: Any) -> None:
        """Free what another library looked at after this runtime was closed, and the device after the last."""
        if not buffer.freed and not self.is_shared(buffer):
            self.device.free(buffer, after=self.device.default_stream)
        if not self.shared:
            self.device.close()

    def check_open(self, what: str) -> None:
        """Raise `ClosedError` when this runtime was closed."""
        if self.closed:
            raise ClosedError(
                f"{what} belongs to a device that qd.reset() or a later qd.init() closed",
                hint="create it again after qd.init()",
            )


_class_keys = itertools.count(1)
_active: Runtime | None = None


def active() -> Runtime | None:
    """Return the active runtime, or None before `qd.init`."""
    return _active


def current() -> Runtime:
    """Return the active runtime; `LaunchError` before `qd.init`."""
    if _active is None:
        raise LaunchError("no device is open", hint="call qd.init() first")
    return _active


def set_active(runtime: Runtime | None) -> None:
    """Close the active runtime, if any, and make ``runtime`` the active one."""
    global _active
    previous, _active = _active, None
    if previous is not None:
        previous.close()
    _active = runtime
