"""What a C-like language and its device look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from qd_core import dtypes as dt
from qd_core.codegen.cstyle.arithmetic import Rule, constant
from qd_core.codegen.cstyle.prelude import HOST_PRELUDE
from qd_core.dtypes import DType

__all__ = ["HOST_C", "Dialect", "serial_atomic"]

_C_TYPES: Mapping[DType, str] = {
    dt.i8: "int8_t",
    dt.i16: "int16_t",
    dt.i32: "int32_t",
    dt.i64: "int64_t",
    dt.u1: "bool",
    dt.u8: "uint8_t",
    dt.u16: "uint16_t",
    dt.u32: "uint32_t",
    dt.u64: "uint64_t",
    dt.f32: "float",
    dt.f64: "double",
}


def direct_pointer(word: str, ctype: str) -> str:
    """Return the pointer for a packed word that is a host address."""
    return f"({ctype} *)(uintptr_t){word}"


def serial_atomic(place: str, old: str, ctype: str, new: str, kind: str) -> str:
    """Return the statements of an atomic where one thread runs: read ``old``, write ``new``."""
    return f"{ctype} {old} = {place}; {place} = {new};"


def named_bitcast(source: DType, to: DType, value: str, ctype: str) -> str:
    """Return the call of the prelude's function that keeps the bits."""
    return f"qd_{source.name}_as_{to.name}({value})"


@dataclass(frozen=True, slots=True)
class Dialect:
    """A language and a device.

    Attributes
    ----------
    backend : str
        Named in errors.
    types : mapping of DType to str
        Names of the types that there are.
    pointer : callable
        ``pointer(word, ctype)``: the expression of a ``ctype *`` from the expression of an array's first word.
    atomic : callable
        ``atomic(place, old, ctype, new, kind)``: statements that declare ``old`` and store ``new``, an expression of
        ``old``, in one step.
    prelude : str
        Head of a file: includes, and the helpers that `qd_core.codegen.cstyle.prelude` describes.
    entry : str
        Signature of the function that runs all tasks; it has ``words`` and ``extents``.
    arguments : str
        What that function passes on to the tasks besides them, with types; empty for nothing.
    rules : mapping of str to Rule
        Operations that are written otherwise than in C99.
    literal : callable
        ``literal(dtype, value, ctype)``: a constant.
    bitcast : callable
        ``bitcast(source, to, value, ctype)``: the same bits as another type.
    deduced : str
        The type of a copy of the variable ``{name}``.
    """

    backend: str = "C"
    types: Mapping[DType, str] = field(default_factory=lambda: _C_TYPES)
    pointer: Callable[[str, str], str] = direct_pointer
    atomic: Callable[[str, str, str, str, str], str] = serial_atomic
    prelude: str = HOST_PRELUDE
    entry: str = "int32_t qd_kernel(const int64_t *words, const int64_t *extents)"
    arguments: str = ""
    rules: Mapping[str, Rule] = field(default_factory=dict[str, Rule])
    literal: Callable[[DType, float | int | bool, str], str] = constant
    bitcast: Callable[[DType, DType, str, str], str] = named_bitcast
    deduced: str = "__typeof__({name})"


HOST_C = Dialect()
"""C99 on the host, one thread, host addresses."""
