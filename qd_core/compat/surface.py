"""What the submodules of Quadrants that programs import hold, beyond the public names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

import qd_core
from qd_core import dtypes, errors
from qd_core.backend.registry import registry
from qd_core.errors import BackendLoadError, QuadrantsRuntimeError, QuadrantsTypeError
from qd_core.runtime.context import active

__all__ = ["LANG", "PUBLIC", "VERSION", "Program", "RuntimeState"]

VERSION = (1, 3, 3)
"""Version of Quadrants whose surface this is."""

PUBLIC = ("_logging", "ad", "algorithms", "errors", "experimental", "math", "profiler", "simt", "tools", "types")
"""Submodules that are the package's own."""


class Program:
    """The open device, as ``get_runtime().prog``."""

    def config(self) -> Any:
        """Return the options in force, ``arch`` among them."""
        return qd_core.cfg

    def get_device_caps(self) -> dict[str, Any]:
        """Return what the device claims, by name."""
        runtime = active()
        assert runtime is not None
        return {**dict.fromkeys(runtime.device.capabilities.names(), 1), **runtime.device.capabilities.limits}

    def synchronize(self) -> None:
        """Wait for the device."""
        qd_core.sync()


class RuntimeState:
    """What ``get_runtime()`` gives."""

    @property
    def prog(self) -> Program:
        """The open device; `QuadrantsRuntimeError` before `qd.init`."""
        if active() is None:
            raise QuadrantsRuntimeError("no device is open", hint="call qd.init() first")
        return Program()

    @property
    def default_fp(self) -> Any:
        """Type of real literals."""
        return self._option("default_fp", dtypes.f32)

    @property
    def default_ip(self) -> Any:
        """Type of integer literals."""
        return self._option("default_ip", dtypes.i32)

    @property
    def default_up(self) -> Any:
        """Its unsigned type."""
        return dtypes.u64 if self.default_ip is dtypes.i64 else dtypes.u32

    def _option(self, name: str, default: Any) -> Any:
        runtime = active()
        return getattr(runtime.options, name) if runtime is not None else default

    def sync(self) -> None:
        """Wait for the device."""
        qd_core.sync()


_state = RuntimeState()


def get_runtime() -> RuntimeState:
    """Return the state of the library."""
    return _state


def current_cfg() -> Any:
    """Return the options in force; `QuadrantsRuntimeError` before `qd.init`."""
    return _state.prog.config()


def to_numpy_type(dt: Any) -> type:
    """Return the NumPy type of a scalar type."""
    return _scalar(dt).numpy.type


def to_pytorch_type(dt: Any) -> Any:
    """Return the torch type of a scalar type."""
    import torch

    name = _scalar(dt).numpy.name
    return getattr(torch, name)


def to_quadrants_type(dt: Any) -> Any:
    """Return the scalar type of a NumPy or torch type, or of a scalar type."""
    if isinstance(dt, dtypes.DType):
        return dt
    if "torch" in sys.modules and isinstance(dt, sys.modules["torch"].dtype):
        dt = str(dt).removeprefix("torch.")
    found = dtypes.from_numpy(np.dtype(dt))
    if found is None:
        raise QuadrantsTypeError(f"{dt!r} is no type of the language")
    return found


def cook_dtype(dt: Any) -> Any:
    """Return a scalar type from one, or from float, int and bool."""
    python = {float: _state.default_fp, int: _state.default_ip, bool: dtypes.u1}
    return python[dt] if dt in python else _scalar(dt)


def _scalar(dt: Any) -> Any:
    if not isinstance(dt, dtypes.DType):
        raise QuadrantsTypeError(f"{dt!r} is no scalar type")
    return dt


def is_arch_supported(arch: Any, use_gles: bool = False) -> bool:
    """Whether kernels can run there: the backend is installed and finds a device."""
    try:
        registry().available(getattr(arch, "name", arch))
    except BackendLoadError:
        return False
    return True


def get_host_arch_list() -> list[Any]:
    """Return the CPU as a list."""
    return [qd_core.cpu]


def is_data_oriented(obj: Any) -> bool:
    """Whether ``obj`` is an instance of a class that is `qd.data_oriented`."""
    return bool(getattr(type(obj), "__qd_data_oriented__", False))


class TemplateMapper:
    """Kernels look for compiled code themselves; kept as a name that programs import."""

    def __init__(self, *_: Any) -> None:
        raise QuadrantsRuntimeError(
            "TemplateMapper is how Quadrants finds compiled code, which works otherwise here",
            hint="call the kernel; it is compiled once for each combination of argument types",
        )


def _names(*functions: Any) -> dict[str, Any]:
    return {f.__name__: f for f in functions}


def _exceptions() -> dict[str, Any]:
    return {name: getattr(errors, name) for name in errors.__all__}


LANG: Mapping[str, Callable[[], dict[str, Any]]] = {
    "impl": partial(_names, get_runtime, current_cfg, Program),
    "misc": partial(_names, is_arch_supported, get_host_arch_list),
    "util": lambda: (
        _names(to_numpy_type, to_pytorch_type, to_quadrants_type, cook_dtype, is_data_oriented)
        | {"has_pytorch": lambda: find_spec("torch") is not None}
    ),
    "exception": _exceptions,
    "_template_mapper": lambda: {"TemplateMapper": TemplateMapper, "_primitive_types": set(dtypes.ALL)},
    **dict.fromkeys(
        ("_ndarray", "any_array", "enums", "expr", "field", "kernel_impl", "matrix", "matrix_ops", "mesh", "ops",
         "simt", "snode", "stream", "struct"), dict[str, Any]
    ),
}  # fmt: skip
"""Submodules of ``quadrants.lang`` and what each has of its own; all else there is a public name."""
