"""`qd.types`: types of arguments, variables and elements."""

from __future__ import annotations

from typing import Any

from qd_core.api import field, structs
from qd_core.api import matrix as matrices
from qd_core.dtypes import DType, f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64
from qd_core.frontend.annotations import MatrixType, NdarrayType, StructType, Template

__all__ = [
    "NDArray", "Template", "f16", "f32", "f64", "float16", "float32", "float64", "i8", "i16", "i32", "i64", "int8",
    "int16", "int32", "int64", "is_integral", "is_real", "is_signed", "matrix", "ndarray", "ref", "struct", "template",
    "u1", "u8", "u16", "u32", "u64", "uint1", "uint8", "uint16", "uint32", "uint64", "vector",
]  # fmt: skip

int8, int16, int32, int64 = i8, i16, i32, i64
uint1, uint8, uint16, uint32, uint64 = u1, u8, u16, u32, u64
float16, float32, float64 = f16, f32, f64

PYTHON_SCOPE = (field, matrices, structs)
"""The modules that say what type objects make in Python scope: importing this one makes them complete."""

ndarray = NDArray = NdarrayType
template = Template


def vector(n: int, dtype: Any = None, unpacked: bool = False) -> MatrixType:
    """Type of vectors of ``n`` components; calling it makes one.

    Examples
    --------
    >>> import qd_core as qd
    >>> vec3 = qd.types.vector(3, qd.f32)
    >>> vec3(1, 2, 3)
    [1.0, 2.0, 3.0]
    """
    return MatrixType((n,), dtype)


def matrix(n: int, m: int, dtype: Any = None) -> MatrixType:
    """Type of matrices of ``n`` rows and ``m`` columns; calling it makes one."""
    return MatrixType((n, m), dtype)


def struct(**members: Any) -> StructType:
    """Type of structs with the given members: scalar, vector, matrix or struct types. ``__struct_methods`` may hold
    `@qd.func` functions.
    """
    methods = members.pop("__struct_methods", {})
    return StructType(members, methods)


def ref(dtype: Any = None) -> Template:
    """Annotation of a function's argument that is passed by reference: what the function assigns, its caller sees."""
    return Template(dtype)


def __getattr__(name: str) -> Any:
    from qd_core.api.absent import reason

    raise AttributeError(f"module 'qd_core.types' has no attribute {name!r}{reason(f'types.{name}')}")


def is_real(dtype: DType) -> bool:
    """Whether ``dtype`` is a floating-point type."""
    return dtype.is_real


def is_integral(dtype: DType) -> bool:
    """Whether ``dtype`` is an integer type (`u1` included)."""
    return dtype.is_integral


def is_signed(dtype: DType) -> bool:
    """Whether ``dtype`` can hold negative numbers."""
    return dtype.is_signed
