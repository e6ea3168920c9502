"""`qd.init`, `qd.reset`, `qd.sync`: opening and closing the device that kernels run on."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from qd_core import _logging
from qd_core.api.arch import Arch, gpu, host_alias
from qd_core.backend.capabilities import EXTENSIONS, enabled_extensions
from qd_core.backend.contract import Backend, DeviceInfo
from qd_core.backend.registry import registry
from qd_core.codegen.jit import process_jit
from qd_core.dtypes import DType
from qd_core.errors import BackendLoadError, BackendUnavailableError, LaunchError, OptionError, QuadrantsRuntimeError
from qd_core.runtime.cache import ArtifactCache, ObjectCache, default_folder
from qd_core.runtime.context import Runtime, active, current, set_active
from qd_core.runtime.log import Log
from qd_core.runtime.options import Options, read_options

__all__ = ["LANGUAGE", "extension", "init", "is_extension_enabled", "is_extension_supported", "reset", "sync"]

LANGUAGE = (1, 3, 3)
"""Version of Quadrants whose language and surface this release offers: what `require_version` is compared with."""

extension: Any = Enum("extension", {name: name for name in EXTENSIONS})
"""Parts of the language that not every device runs: ``qd.extension.data64`` and the like."""


def init(
    arch: Any = None,
    default_fp: DType | None = None,
    default_ip: DType | None = None,
    enable_fallback: bool = True,
    require_version: Any = None,
    **options: Any,
) -> None:
    """Open a device and make it the one that kernels run on; everything of an earlier `init` is closed.

    Parameters
    ----------
    arch : Arch or sequence of Arch, optional
        Where to run; of several, the first available. The environment variable ``QD_ARCH`` (a name) overrides it.
        Default: the CPU.
    default_fp, default_ip : DType, optional
        Types of real and integer literals and annotations (f32 and i32).
    enable_fallback : bool
        Run on the CPU, with a warning that gives reason and remedy, when no wanted backend is available; otherwise
        raise.
    require_version : str or tuple of int, optional
        Version of the language that the program needs; this release speaks `LANGUAGE`.
    **options
        Rows of `runtime.options`: `debug`, `fast_math`, `cpu_max_num_threads`, `random_seed`, ...; each can be set by
        ``QD_<NAME>`` too, with the keyword winning. Those without effect are accepted.

    Raises
    ------
    OptionError
        An option does not exist or cannot have its value, or a later version is required. The device of an earlier
        `init` stays open.
    QuadrantsRuntimeError
        No wanted backend is available and ``enable_fallback`` is False.
    """
    _check_version(require_version)
    types = {"default_fp": default_fp, "default_ip": default_ip}
    chosen, others = read_options({**{k: v for k, v in types.items() if v is not None}, **options})
    backend = _choose(_wanted(arch), enable_fallback)
    set_active(None)
    _logging.set_logging_level(chosen.log_level)
    runtime = open_runtime(backend, chosen, chosen.device)
    runtime.ignored = others
    set_active(runtime)
    _logging.info(f"Starting on arch={host_alias() if backend.name == 'cpu' else backend.name}")


def _check_version(wanted: Any) -> None:
    if wanted is None:
        return
    try:
        version = tuple(map(int, wanted.split(".") if isinstance(wanted, str) else wanted))
    except (TypeError, ValueError) as error:
        raise OptionError(f"require_version must be a version such as '1.3.0', got {wanted!r}") from error
    if version > LANGUAGE:
        spoken = ".".join(map(str, LANGUAGE))
        raise OptionError(f"the program requires version {wanted} of the language, and this release speaks {spoken}")


def _device(backend: Backend, wanted: int | str) -> DeviceInfo:
    infos = backend.devices()
    if isinstance(wanted, str):
        named = [info for info in infos if wanted.lower() in info.name.lower()]
        if named:
            return named[0]
    elif 0 <= wanted < len(infos):
        return infos[wanted]
    names = ", ".join(f"{n}: {info.name}" for n, info in enumerate(infos)) or "none"
    raise LaunchError(
        f"backend {backend.name!r} has no device {wanted!r}: it has {names}", hint="see python -m qd_core doctor"
    )


def open_runtime(backend: Backend, options: Options, device: int | str = 0) -> Runtime:
    """Open a device of ``backend``, chosen by its number or by a part of its name."""
    info = _device(backend, device)
    mapping = {f.name: getattr(options, f.name) for f in fields(options)}
    opened = backend.open(info, mapping)
    runtime = Runtime(backend, info, opened, backend.compiler(info.target), options)
    runtime.log = Log(opened)
    if options.offline_cache:
        folder = Path(options.offline_cache_file_path) if options.offline_cache_file_path else default_folder()
        runtime.cache = ArtifactCache(
            folder,
            options.offline_cache_max_size_of_files,
            options.offline_cache_cleaning_policy,
            options.offline_cache_cleaning_factor,
        )
    process_jit().store = ObjectCache(runtime.cache) if runtime.cache is not None else None
    return runtime


def reset() -> None:
    """Close the active device; arrays of it raise `ClosedError` when used again."""
    set_active(None)


def sync() -> None:
    """Wait for the device; deliver pending messages."""
    if active() is not None:
        current().device.default_stream.synchronize()


def is_extension_supported(arch: Any, ext: Any) -> bool:
    """Whether the devices of ``arch`` run a part of the language (``qd.extension.*`` or its name)."""
    name = _extension_name(ext)
    try:
        backend = _choose(_wanted(arch), fallback=False)
    except QuadrantsRuntimeError:
        return False
    return any(name in enabled_extensions(info.target.capabilities) for info in backend.devices()[:1])


def is_extension_enabled(ext: Any) -> bool:
    """Whether the open device runs a part of the language; `LaunchError` before `qd.init`."""
    return _extension_name(ext) in enabled_extensions(current().device.capabilities)


def _extension_name(ext: Any) -> str:
    name = ext.value if isinstance(ext, Enum) else ext
    if name not in EXTENSIONS:
        raise OptionError(f"unknown extension {ext!r}", hint=f"there are: {', '.join(EXTENSIONS)}")
    return name


def _wanted(arch: Any) -> list[str]:
    override = os.environ.get("QD_ARCH")
    if override:
        arch = [name.strip() for name in override.split(",")]
    if arch is None:
        return ["cpu"]
    names: list[str] = []
    for one in arch if isinstance(arch, (list, tuple)) else [arch]:
        if one == "gpu":
            names += [a.name for a in gpu()]
        elif isinstance(one, (list, tuple)):
            names += _wanted(one)
        elif isinstance(one, Arch):
            names.append(one.name)
        elif isinstance(one, str):
            names.append(one)
        else:
            raise OptionError(f"arch must be qd.cpu, its name or a list of these, got {one!r}")
    return names


def _choose(names: Sequence[str], fallback: bool) -> Backend:
    failures: list[BackendLoadError] = []
    for name in names:
        try:
            return registry().available("cpu" if name in ("x64", "x86_64", "arm64") else name)
        except (BackendUnavailableError, BackendLoadError) as error:
            if type(error).__name__ == "UnknownBackendError":
                raise
            failures.append(error)
    reasons = "\n".join(str(f) for f in failures) or "no accelerator is installed: python -m qd_core doctor"
    if not fallback:
        cause = failures[0] if failures else None
        raise QuadrantsRuntimeError(f"Arch={names} is not supported\n{reasons}") from cause
    warnings.warn(f"none of {names} is available, running on the CPU\n{reasons}", RuntimeWarning, stacklevel=3)
    return registry().available("cpu")
