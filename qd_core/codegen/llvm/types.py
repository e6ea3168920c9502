"""LLVM's names for scalar types, literals, and the symbol that every host object has."""

from __future__ import annotations

import struct
from typing import Any

from qd_core import dtypes as dt
from qd_core.dtypes import DType

__all__ = ["KERNEL", "LLVM", "MEMORY", "SUFFIX", "literal"]

KERNEL = "qd_kernel"
"""Symbol of the function that runs all tasks of a kernel, where the host calls it."""

LLVM: dict[DType, str] = {d: f"i{d.bits}" for d in dt.ALL if not d.is_real} | {
    dt.f16: "half",
    dt.f32: "float",
    dt.f64: "double",
}
"""Type of a value in registers."""

MEMORY: dict[DType, str] = LLVM | {dt.u1: "i8"}
"""Type of a value in memory: a truth value takes a byte."""

SUFFIX: dict[DType, str] = {d: f"f{d.bits}" if d.is_real else f"i{d.bits}" for d in dt.ALL}
"""Type as intrinsic names spell it."""


def literal(dtype: DType, value: Any) -> str:
    """Return ``value`` as LLVM writes it: reals by their bits, so that every value has exactly one text."""
    if dtype is dt.f16:
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if dtype.is_real:
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if dtype is dt.u1:
        return "true" if value else "false"
    return str(int(value))
