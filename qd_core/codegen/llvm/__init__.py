"""LLVM IR from a program, for any target of LLVM.

`emit_module` writes text. What differs between targets (triple, data layout, lanes, address spaces, the form of entry
points) is data and one strategy object in :class:`LlvmTarget`; nothing here knows a vendor. The writer is loaded when
it is first used: a program that finds all its code on disk never needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qd_core.codegen.llvm.module import emit_module
    from qd_core.codegen.llvm.target import LlvmTarget, TaskForm

__all__ = ["LlvmTarget", "TaskForm", "emit_module"]

_HOME = {"LlvmTarget": "target", "TaskForm": "target", "emit_module": "module"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
