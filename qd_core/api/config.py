"""`qd.cfg`: the options in force."""

from __future__ import annotations

from typing import Any

from qd_core.api.arch import Arch
from qd_core.runtime.context import Runtime, active

__all__ = ["Config", "config"]


class Config:
    """Options of the open device, read-only: ``qd.cfg.debug``, ``qd.cfg.arch``; those without effect too."""

    __slots__ = ("_runtime",)

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def arch(self) -> Arch:
        """Where kernels run."""
        return Arch(self._runtime.backend.name)

    def __getattr__(self, name: str) -> Any:
        runtime = self._runtime
        if name == "default_up":
            from qd_core import dtypes

            return {dtypes.i32: dtypes.u32, dtypes.i64: dtypes.u64}[runtime.options.default_ip]
        if name in runtime.ignored:
            return runtime.ignored[name]
        if name.startswith("_") or not hasattr(runtime.options, name):
            raise AttributeError(f"no option is called {name!r}")
        return getattr(runtime.options, name)


def config() -> Config | None:
    """Return the options of the open device, or None before `qd.init`."""
    runtime = active()
    return Config(runtime) if runtime is not None else None
