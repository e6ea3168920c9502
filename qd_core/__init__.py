"""qd-core: parallel Python kernels with exact gradients, on pluggable backends.

`import qd_core as qd`, then `qd.init()`, `@qd.kernel`, `qd.ndarray`. Names are loaded when they are first used:
importing the package
loads neither a compiler nor a plugin.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from qd_core import errors
from qd_core.dtypes import f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64
from qd_core.errors import (
    QuadrantsAssertionError,
    QuadrantsCompilationError,
    QuadrantsIndexError,
    QuadrantsNameError,
    QuadrantsRuntimeError,
    QuadrantsRuntimeTypeError,
    QuadrantsSyntaxError,
    QuadrantsTypeError,
)

if TYPE_CHECKING:
    from qd_core.api import ad, types
    from qd_core.api.create import ndarray
    from qd_core.api.init import init, reset, sync
    from qd_core.api.kernel import kernel
    from qd_core.api.matrix import Matrix, Vector
    from qd_core.api.ops import *  # noqa: F403
    from qd_core.runtime.interop import with_grad

__version__ = "0.1.0"

int8, int16, int32, int64 = i8, i16, i32, i64
uint1, uint8, uint16, uint32, uint64 = u1, u8, u16, u32, u64
float16, float32, float64 = f16, f32, f64

_LAZY: dict[str, str] = {
    **dict.fromkeys(
        ("extension", "init", "is_extension_enabled", "is_extension_supported", "reset", "sync"), "qd_core.api.init"
    ),
    **dict.fromkeys(("CRITICAL", "DEBUG", "ERROR", "INFO", "TRACE", "WARN"), "qd_core._logging"),
    **dict.fromkeys(("is_logging_effective", "set_logging_level"), "qd_core._logging"),
    **dict.fromkeys(("kernel", "Kernel"), "qd_core.api.kernel"),
    **dict.fromkeys(("Matrix", "Vector"), "qd_core.api.matrix"),
    **dict.fromkeys(("eig", "make_spd", "polar_decompose", "solve", "svd", "sym_eig"), "qd_core.api.linalg"),
    **dict.fromkeys(("ndarray", "tensor"), "qd_core.api.create"),
    **dict.fromkeys(("Backend", "MatrixTensor", "Tensor", "VectorTensor", "wrap"), "qd_core.runtime.tensor"),
    "with_grad": "qd_core.runtime.interop",
    "BufferView": "qd_core.runtime.buffer_view",
    "compile": "qd_core.api.compile",
    **dict.fromkeys(("Ndarray", "ScalarNdarray", "VectorNdarray", "MatrixNdarray"), "qd_core.runtime.array"),
    **dict.fromkeys(("Template", "template"), "qd_core.api.types"),
    **dict.fromkeys(("field", "root", "FieldsBuilder", "Layout"), "qd_core.api.field"),
    **dict.fromkeys(("Field", "ScalarField", "MatrixField"), "qd_core.runtime.field"),
    "StructField": "qd_core.runtime.struct",
    **dict.fromkeys(("Struct", "dataclass", "data_oriented"), "qd_core.api.structs"),
    **dict.fromkeys(("SNode", "Axis", "axes"), "qd_core.runtime.tree"),
    "ref": "qd_core.api.types",
}
_OWN_ARCHS = ("cpu", "gpu", "x64", "arm64")
"""Names that can only be architectures: no need to load the operations of the language first."""
_SUBMODULES = ("ad", "experimental", "types", "math", "simt", "algorithms", "tools", "profiler")


class _Package(ModuleType):
    """The package: importing a subpackage does not replace the public name it shares (`qd.cpu`)."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in ("cpu", "reference")):
            super().__setattr__(name, value)


class _Submodules:
    """Finder and loader of public submodules: `from qd_core.math import vec3` takes it from `qd_core.api.math`."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Answer for the public names alone."""
        package, _, module = name.rpartition(".")
        return ModuleSpec(name, self) if package == __name__ and module in _SUBMODULES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Any module will do: it is replaced."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module that has the contents in its place."""
        package, _, name = module.__name__.rpartition(".")
        sys.modules[module.__name__] = import_module(f"{package}.api.{name}")


sys.modules[__name__].__class__ = _Package
sys.meta_path.append(_Submodules())


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "cfg":  # changes with every qd.init
        from qd_core.api.config import config

        return config()
    value = _find(name)
    globals()[name] = value
    return value


def _find(name: str) -> Any:
    module = _LAZY.get(name)
    if module is not None:
        return getattr(import_module(module), name)
    if name in ("_logging", "compat"):
        return import_module(f"qd_core.{name}")
    if name in _SUBMODULES and find_spec(f"qd_core.api.{name}") is not None:
        return import_module(f"qd_core.api.{name}")
    arch = _arch(name) if name in _OWN_ARCHS else None
    if arch is not None:
        return arch
    ops = import_module("qd_core.api.ops")
    if name in ops.__all__:
        return getattr(ops, name)
    arch = _arch(name)
    if arch is None and len(name) <= 4:
        from qd_core.runtime.tree import axis_set

        axes = axis_set(name)
        if axes is not None:
            return axes[0] if len(axes) == 1 else axes
    if arch is None:
        reason = import_module("qd_core.api.absent").reason(name)
        raise AttributeError(f"module 'qd_core' has no attribute {name!r}{reason}")
    return arch


def _arch(name: str) -> Any:
    from qd_core.api.arch import arch_named, gpu

    return gpu() if name == "gpu" else arch_named(name)


def __dir__() -> list[str]:
    ops = import_module("qd_core.api.ops")
    return sorted({*globals(), *_LAZY, *ops.__all__})


__all__ = [
    "Matrix",
    "QuadrantsAssertionError",
    "QuadrantsCompilationError",
    "QuadrantsIndexError",
    "QuadrantsNameError",
    "QuadrantsRuntimeError",
    "QuadrantsRuntimeTypeError",
    "QuadrantsSyntaxError",
    "QuadrantsTypeError",
    "Vector",
    "ad",
    "errors",
    "f16",
    "f32",
    "f64",
    "float16",
    "float32",
    "float64",
    "i8",
    "i16",
    "i32",
    "i64",
    "init",
    "int8",
    "int16",
    "int32",
    "int64",
    "kernel",
    "ndarray",
    "reset",
    "sync",
    "types",
    "u1",
    "u8",
    "u16",
    "u32",
    "u64",
    "uint1",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "with_grad",
]
