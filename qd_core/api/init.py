"""`qd.init`, `qd.reset`, `qd.sync`: opening and closing the device that kernels run on."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from qd_core import dtypes as dt
from qd_core.api.arch import Arch
from qd_core.backend.contract import Backend, DeviceInfo
from qd_core.backend.registry import ignored_options, registry
from qd_core.codegen.jit import process_jit
from qd_core.dtypes import DType
from qd_core.errors import BackendLoadError, BackendUnavailableError, LaunchError, OptionError, QuadrantsRuntimeError
from qd_core.runtime.cache import ArtifactCache, ObjectCache, default_folder
from qd_core.runtime.context import Options, Runtime, active, current, set_active
from qd_core.runtime.log import Log

__all__ = ["init", "reset", "sync"]

IGNORED = frozenset(
    """ad_stack_experimental_enabled ad_stack_size ad_stack_sparse_threshold_bytes advanced_optimization
    cache_loop_invariant_global_vars cfg_optimization constant_folding debug_dump_path default_cpu_block_dim
    default_gpu_block_dim demote_dense_struct_fors detect_read_only device_memory_GB device_memory_fraction
    external_optimization_level flatten_if force_scalarize_matrix gdb_trigger gpu_max_reg half2_vectorization
    kernel_profiler log_level make_block_local make_mesh_block_local make_thread_local max_block_dim
    mesh_localize_all_attr_mappings mesh_localize_from_end_mapping mesh_localize_to_end_mapping
    move_loop_invariant_outside_if num_compile_threads offline_cache_cleaning_factor
    offline_cache_cleaning_policy optimize_mesh_reordered_mapping print_full_traceback print_ir
    print_ir_dbg_info print_kernel_asm print_kernel_llvm_ir print_kernel_llvm_ir_optimized print_non_pure
    quant_opt_atomic_demotion quant_opt_store_fusion raise_on_templated_floats real_matrix_scalarize
    require_version saturating_grid_dim src_ll_cache timeline validate_autodiff verbose verbose_kernel_launches
    vk_api_version auto_mesh_local auto_mesh_local_default_occupacy print_accessor_ir print_struct_llvm_ir
    saturating_grid_dim use_llvm
    """.split()
)
"""Options of other implementations of the language that have no effect here: accepted, so that scripts run."""

_KNOWN = {f.name: f for f in fields(Options)}


def init(
    arch: Any = None,
    default_fp: DType | None = None,
    default_ip: DType | None = None,
    enable_fallback: bool = True,
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
    **options
        `debug`, `check_out_of_bound`, `fast_math`, `cpu_max_num_threads`, `random_seed`, ...; each can be set by
        ``QD_<NAME>`` too, with the
        keyword winning.

    Raises
    ------
    OptionError
        An option that does not exist.
    QuadrantsRuntimeError
        No wanted backend is available and ``enable_fallback`` is False.
    """
    chosen = _options(default_fp, default_ip, options)
    device_index = int(options.pop("device", 0))
    backend = _choose(_wanted(arch), enable_fallback)
    set_active(None)
    set_active(open_runtime(backend, chosen, device_index))
    if os.environ.get("QD_LOG_LEVEL", str(options.get("log_level", "info"))).lower() in ("info", "debug", "trace"):
        print(f"[Quadrants] Starting on arch={backend.name}")


def open_runtime(backend: Backend, options: Options, device_index: int = 0) -> Runtime:
    """Open device ``device_index`` of ``backend``."""
    infos = backend.devices()
    if not 0 <= device_index < len(infos):
        raise LaunchError(
            f"backend {backend.name!r} has no device {device_index}: it has {len(infos)}",
            hint="see python -m qd_core doctor",
        )
    info: DeviceInfo = infos[device_index]
    mapping = {f.name: getattr(options, f.name) for f in fields(options)}
    device = backend.open(info, mapping)
    runtime = Runtime(backend, info, device, backend.compiler(info.target), options)
    runtime.log = Log(device)
    if options.offline_cache:
        folder = Path(options.offline_cache_file_path) if options.offline_cache_file_path else default_folder()
        runtime.cache = ArtifactCache(folder, options.offline_cache_max_size_of_files)
    process_jit().store = ObjectCache(runtime.cache) if runtime.cache is not None else None
    return runtime


def reset() -> None:
    """Close the active device; arrays of it raise `ClosedError` when used again."""
    set_active(None)


def sync() -> None:
    """Wait for the device; deliver pending messages."""
    if active() is not None:
        current().device.default_stream.synchronize()


def _wanted(arch: Any) -> list[str]:
    override = os.environ.get("QD_ARCH")
    if override:
        return [override]
    if arch is None:
        return ["cpu"]
    archs: Sequence[Any] = arch if isinstance(arch, (list, tuple)) else [arch]
    names = [a.name if isinstance(a, Arch) else a for a in archs]
    for name in names:
        if not isinstance(name, str):
            raise LaunchError(f"arch must be qd.cpu or the like, got {name!r}")
    return names or ["cpu"]


def _choose(names: Sequence[str], fallback: bool) -> Backend:
    failures: list[BackendLoadError] = []
    for name in names:
        try:
            return registry().available("cpu" if name in ("x64", "x86_64", "arm64") else name)
        except (BackendUnavailableError, BackendLoadError) as error:
            if type(error).__name__ == "UnknownBackendError":
                raise
            failures.append(error)
    reasons = "\n".join(str(f) for f in failures)
    if not fallback:
        raise QuadrantsRuntimeError(f"Arch={names} is not supported\n{reasons}") from failures[0]
    warnings.warn(f"none of {names} is available, running on the CPU\n{reasons}", RuntimeWarning, stacklevel=3)
    return registry().available("cpu")


def _options(default_fp: DType | None, default_ip: DType | None, options: Mapping[str, Any]) -> Options:
    if "default_up" in options:
        raise OptionError("default_up cannot be set: it is the unsigned type of default_ip")
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name in _KNOWN:
            values[name] = value
        elif name not in IGNORED | ignored_options() and name != "device":
            import difflib

            near = difflib.get_close_matches(name, [*_KNOWN, *IGNORED, *ignored_options(), "arch", "device"], 1)
            raise OptionError(
                f"unknown option {name!r}",
                hint=f"did you mean {near[0]!r}?" if near else "see the documentation of qd.init",
            )
    for name in _KNOWN:
        text = os.environ.get(f"QD_{name.upper()}")
        if text is None:
            continue
        if name in values:
            warnings.warn(f"QD_{name.upper()} is ignored: the keyword {name}= was given", RuntimeWarning, stacklevel=3)
        else:
            values[name] = _from_text(name, text)
    fp, ip = default_fp or values.pop("default_fp", dt.f32), default_ip or values.pop("default_ip", dt.i32)
    if fp not in (dt.f32, dt.f64, dt.f16) or ip not in (dt.i32, dt.i64):
        raise OptionError(f"default_fp must be a real and default_ip i32 or i64, got {fp} and {ip}")
    values |= {"default_fp": fp, "default_ip": ip}
    return Options(**values)


def _from_text(name: str, text: str) -> Any:
    default = _KNOWN[name].default
    if isinstance(default, DType):
        return dt.by_name(default.kind + text if text.isdigit() else text)
    if isinstance(default, bool):
        return text.lower() in ("1", "true", "on", "yes")
    return int(text) if isinstance(default, int) else text
