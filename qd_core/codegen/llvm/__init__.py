"""LLVM IR from a program, for any target of LLVM.

`emit_module` writes text. What differs between targets (triple, data layout, lanes, address spaces, the form of entry
points) is data and one strategy object in :class:`LlvmTarget`; nothing here knows a vendor.
"""

from qd_core.codegen.llvm.module import emit_module
from qd_core.codegen.llvm.target import LlvmTarget, TaskForm

__all__ = ["LlvmTarget", "TaskForm", "emit_module"]
