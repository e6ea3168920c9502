"""The options of `qd.init`: one table of their names, types, defaults and meanings.

A row of `Options` has an effect; a row of `IGNORED` is accepted, because programs pass it, and says why it has none.
Every option is also an environment variable, ``QD_`` and its name in capitals.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from qd_core import _logging
from qd_core import dtypes as dt
from qd_core.backend.registry import ignored_options
from qd_core.dtypes import DType
from qd_core.errors import OptionError

__all__ = ["ENVIRONMENT", "IGNORED", "OptionRow", "Options", "option_rows", "read_options"]

T = TypeVar("T")


def _option(default: T, meaning: str, **limits: Any) -> T:
    """Row of the table; ``limits`` may give ``least`` or the allowed values as ``among``."""
    return field(default=default, metadata={"meaning": meaning, **limits})


@dataclass(frozen=True, slots=True)
class Options:
    """Options that have an effect. All of them are part of compile keys."""

    default_ip: DType = _option(dt.i32, "type of integer literals and of the annotation int", among=(dt.i32, dt.i64))
    default_fp: DType = _option(
        dt.f32, "type of real literals and of the annotation float", among=(dt.f32, dt.f64, dt.f16)
    )
    debug: bool = _option(False, "check asserts, bounds, divisions by zero and overflow")
    check_out_of_bound: bool = _option(False, "check indices; debug implies it")
    fast_math: bool = _option(True, "reassociate, contract, reciprocals, no signed zeros; never 'no NaN'")
    opt_level: int = _option(2, "effort of the code generator, 0 to 3", least=0, most=3)
    short_circuit_operators: bool = _option(True, "and, or evaluate the right operand only where it decides")
    unrolling_limit: int = _option(32, "trips of a qd.static loop above which a warning is given; 0: never", least=0)
    cpu_max_num_threads: int = _option(0, "threads that work on the CPU; 0: all that the process may use", least=0)
    random_seed: int = _option(0, "seed of qd.random")
    ad_residual_bytes: int = _option(32768, "bytes a worker keeps for reverse mode before checkpoints", least=0)
    offline_cache: bool = _option(True, "keep compiled kernels on disk")
    offline_cache_file_path: str = _option("", "folder of that cache; empty: QD_CACHE_DIR or the user's cache folder")
    offline_cache_max_size_of_files: int = _option(100 << 20, "bytes that the cache may take", least=0)
    offline_cache_cleaning_policy: str = _option(
        "lru",
        "which entries go when it is full: lru (unused longest), fifo (oldest), never; version is lru: an entry of "
        "another version is never used",
        among=("lru", "fifo", "never", "version"),
    )
    offline_cache_cleaning_factor: float = _option(
        0.25, "share of the cache's size that is freed when it is full, 0 to 1", least=0, most=1
    )
    print_ir: bool = _option(False, "print the IR after every stage")
    debug_dump_path: str = _option("qd_dump", "folder of the files that QD_DUMP_IR=1 writes; QD_DUMP_DIR wins")
    raise_on_templated_floats: bool = _option(False, "refuse floats as template arguments: each compiles anew")
    log_level: str = _option("info", "lowest level of messages that is shown", among=_logging.LEVELS)
    device: int | str = _option(0, "number of the device among the backend's, or a part of its name", least=0)
    device_options: tuple[tuple[str, Any], ...] = _option((), "pairs for the backend's own use")


_ON_DEMAND = "memory is allocated when it is asked for"
_ALWAYS = "always done where it pays"
_NO_STACKS = "reverse mode needs no stacks of a chosen size"
_GEOMETRY = "the code generator chooses blocks; qd.loop_config(block_dim=) sets one loop's"
_SEE = "QD_DUMP_IR=1 writes the IR; generated code is not shown"
_LATER = "quantised types are stored as written"
_MESH = "meshes keep their order"

IGNORED: Mapping[str, tuple[Any, str]] = {
    "ad_stack_experimental_enabled": (False, "reverse mode handles every loop without it"),
    "ad_stack_size": (0, _NO_STACKS),
    "ad_stack_sparse_threshold_bytes": (100 << 20, _NO_STACKS),
    "advanced_optimization": (True, _ALWAYS),
    "auto_mesh_local": (False, _MESH),
    "auto_mesh_local_default_occupacy": (4, _MESH),
    "cache_loop_invariant_global_vars": (True, _ALWAYS),
    "cfg_optimization": (True, _ALWAYS),
    "constant_folding": (True, _ALWAYS),
    "default_cpu_block_dim": (32, _GEOMETRY),
    "default_gpu_block_dim": (128, _GEOMETRY),
    "demote_dense_struct_fors": (True, _ALWAYS),
    "detect_read_only": (True, _ALWAYS),
    "device_memory_GB": (1.0, _ON_DEMAND),
    "device_memory_fraction": (0.0, _ON_DEMAND),
    "external_optimization_level": (3, "opt_level decides"),
    "flatten_if": (False, _ALWAYS),
    "force_scalarize_matrix": (False, _ALWAYS),
    "gdb_trigger": (False, "faults are reported as errors"),
    "gpu_max_reg": (0, "the device's compiler chooses"),
    "half2_vectorization": (False, _ALWAYS),
    "kernel_profiler": (False, "launches are not timed: time around qd.sync()"),
    "make_block_local": (True, _ALWAYS),
    "make_mesh_block_local": (True, _MESH),
    "make_thread_local": (True, _ALWAYS),
    "max_block_dim": (0, _GEOMETRY),
    "mesh_localize_all_attr_mappings": (False, _MESH),
    "mesh_localize_from_end_mapping": (False, _MESH),
    "mesh_localize_to_end_mapping": (True, _MESH),
    "move_loop_invariant_outside_if": (False, _ALWAYS),
    "num_compile_threads": (4, "tasks are compiled as they are needed"),
    "optimize_mesh_reordered_mapping": (True, _MESH),
    "print_accessor_ir": (False, _SEE),
    "print_full_traceback": (False, "errors show the user's line; causes are chained"),
    "print_ir_dbg_info": (False, "dumped IR has the places"),
    "print_kernel_asm": (False, _SEE),
    "print_kernel_llvm_ir": (False, _SEE),
    "print_kernel_llvm_ir_optimized": (False, _SEE),
    "print_non_pure": (False, "the cache follows what a kernel reads"),
    "print_struct_llvm_ir": (False, _SEE),
    "quant_opt_atomic_demotion": (True, _LATER),
    "quant_opt_store_fusion": (True, _LATER),
    "real_matrix_scalarize": (True, _ALWAYS),
    "saturating_grid_dim": (0, _GEOMETRY),
    "src_ll_cache": (True, "offline_cache decides"),
    "timeline": (False, "launches are not timed"),
    "use_llvm": (True, "the backend decides"),
    "validate_autodiff": (False, "what reverse mode needs is never overwritten unnoticed"),
    "verbose": (True, "log_level decides"),
    "verbose_kernel_launches": (False, "launches are not reported"),
    "vk_api_version": ("", "the device is asked"),
}
"""Options that existing programs pass and that have no effect: default there, and why there is none."""

ENVIRONMENT: Mapping[str, str] = {
    "QD_ARCH": "backends to try, separated by commas, whatever the program asks for",
    "QD_CACHE_DIR": "folder of the cache of compiled kernels",
    "QD_DUMP_IR": "1 writes the IR after every stage of every kernel, as text that can be read again",
    "QD_DUMP_DIR": "folder of these files",
    "QD_ENABLE_<BACKEND>": "0 treats an installed backend as absent",
    "QD_NATIVE_LAUNCH": "0 packs every launch in Python",
    "QD_VERIFY_IR": "1 checks the IR after every stage",
    "QD_VISIBLE_DEVICE": "positions or parts of names, separated by commas: the devices that backends list, in order",
}
"""Variables that are no options."""

_FIELDS = {f.name: f for f in fields(Options)}


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option, for documentation: ``ignored`` says that ``meaning`` is why it has no effect."""

    name: str
    default: Any
    meaning: str
    ignored: bool

    @property
    def variable(self) -> str:
        """Environment variable."""
        return f"QD_{self.name.upper()}"


def option_rows() -> list[OptionRow]:
    """Every option, those that have an effect first."""
    rows = [OptionRow(f.name, f.default, f.metadata["meaning"], False) for f in fields(Options)]
    rows += [OptionRow(name, default, why, True) for name, (default, why) in IGNORED.items()]
    return rows + [OptionRow(name, None, "no backend here needs it", True) for name in sorted(ignored_options())]


def read_options(given: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """Return the options that have an effect, and all others by name, from keywords and the environment.

    Raises
    ------
    OptionError
        An option does not exist, or cannot have the value.
    """
    if "default_up" in given:
        raise OptionError("default_up cannot be set: it is the unsigned type of default_ip")
    others = {name: default for name, (default, _) in IGNORED.items()} | dict.fromkeys(ignored_options())
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in _FIELDS:
            values[name] = _checked(name, value)
        elif name in others:
            others[name] = value
        else:
            raise _unknown(name, [*_FIELDS, *others, "arch", "enable_fallback", "require_version"])
    for name in _FIELDS:
        variable, text = _variable(name)
        if text is None:
            continue
        if name in values:
            warnings.warn(f"{variable} is ignored: the keyword {name}= was given", RuntimeWarning, stacklevel=4)
        else:
            values[name] = _from_text(variable, name, text)
    return Options(**values), others


def _variable(name: str) -> tuple[str, str | None]:
    variable = f"QD_{name.upper()}"
    return variable, os.environ.get(variable) or None


def _unknown(name: str, known: list[str]) -> OptionError:
    near = difflib.get_close_matches(name, known, 1)
    return OptionError(
        f"unknown option {name!r}", hint=f"did you mean {near[0]!r}?" if near else "see the documentation of qd.init"
    )


def _checked(name: str, value: Any) -> Any:
    """Return ``value`` in the option's type; `OptionError` where it is not of it or out of its range."""
    row = _FIELDS[name]
    limits = row.metadata
    if isinstance(value, str) and _is_named(row):
        return value
    made = _converted(row.default, value)
    if made is None or isinstance(made, type):
        raise OptionError(f"{name} must be {_kind(row.default)}, got {value!r}")
    if "among" in limits and made not in limits["among"]:
        raise OptionError(f"{name} must be one of {', '.join(map(str, limits['among']))}, got {value!r}")
    if "least" in limits and made < limits["least"]:
        raise OptionError(f"{name} must be at least {limits['least']}, got {value!r}")
    if "most" in limits and made > limits["most"]:
        raise OptionError(f"{name} must be at most {limits['most']}, got {value!r}")
    return made


def _is_named(row: Field[Any]) -> bool:
    """Whether a number may be given by a name instead."""
    return row.type == "int | str"


def _kind(default: Any) -> str:
    return {bool: "True or False", DType: "a type such as qd.f32", str: "a text", int: "an integer"}.get(
        type(default), "a number" if isinstance(default, float) else "a tuple of pairs"
    )


def _converted(default: Any, value: Any) -> Any:
    """Return ``value`` in the type of ``default``, or None."""
    if isinstance(default, DType):
        python = {float: dt.f32, int: dt.i32}
        return value if isinstance(value, DType) else python.get(value)
    if isinstance(default, bool):
        return bool(value) if isinstance(value, int) or type(value).__name__ in ("bool", "bool_") else None
    if isinstance(default, (int, float)):
        try:
            number = value.__index__() if isinstance(default, int) else float(value)
        except (AttributeError, TypeError, ValueError):
            return None
        return None if isinstance(value, (bool, str)) else number
    if isinstance(default, str):
        return str(value) if isinstance(value, (str, Path)) else None
    return tuple(value) if isinstance(value, (tuple, list)) else None


_TRUE, _FALSE = ("1", "true", "on", "yes"), ("0", "false", "off", "no")


def _from_text(variable: str, name: str, text: str) -> Any:
    default = _FIELDS[name].default
    if _is_named(_FIELDS[name]) and not text.isdigit():
        return text
    try:
        if isinstance(default, DType):
            return _checked(name, dt.by_name(default.kind + text if text.isdigit() else text))
        if isinstance(default, bool):
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[text.lower()]
        if isinstance(default, (int, float)):
            return _checked(name, type(default)(text))
        if not isinstance(default, str):
            raise KeyError(name)
    except (KeyError, ValueError) as error:
        raise OptionError(f"the environment variable {variable}={text!r} gives no value for {name}") from error
    return _checked(name, text.lower() if name == "log_level" else text)
