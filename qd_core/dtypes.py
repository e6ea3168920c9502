"""Scalar data types and the promotion table of the kernel language.

A :class:`DType` is a singleton: compare with ``is`` or ``==``. In a kernel ``qd.f32(x)`` is a cast; in Python scope it
returns the NumPy scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "ALL",
    "DType",
    "by_name",
    "f16",
    "f32",
    "f64",
    "from_numpy",
    "i8",
    "i16",
    "i32",
    "i64",
    "promote",
    "u1",
    "u8",
    "u16",
    "u32",
    "u64",
]


class DType:
    """A scalar type of the kernel language.

    Attributes
    ----------
    name : str
        Short name, such as ``"f32"``.
    kind : str
        ``"f"`` real, ``"i"`` signed, ``"u"`` unsigned integer, ``"b"`` the one-bit truth value ``u1``.
    bits : int
        Width in bits (1 for ``u1``, which occupies one byte in memory).
    numpy : numpy.dtype
        The NumPy type of the same memory layout; NumPy itself is loaded when it is first asked for.
    scalar : type
        NumPy's scalar type.
    """

    __slots__ = ("bits", "is_integral", "is_real", "is_signed", "kind", "name", "nbytes", "numpy", "scalar")

    numpy: np.dtype[Any]
    scalar: Callable[[Any], Any]

    def __init__(self, name: str, kind: str, bits: int) -> None:
        self.name, self.kind, self.bits = name, kind, bits
        self.nbytes = max(bits // 8, 1)
        self.is_real = kind == "f"
        self.is_integral = kind != "f"
        self.is_signed = kind in "fi"

    def __getattr__(self, name: str) -> Any:
        """Fill the slots that need NumPy, whose import takes most of the time that a program's first line takes."""
        if name not in ("numpy", "scalar"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        import numpy as np

        letter = {"b": "?"}.get(self.kind, self.kind + str(self.nbytes))
        self.numpy = np.dtype(letter)
        self.scalar = self.numpy.type
        return getattr(self, name)

    def __call__(self, value: Any) -> Any:
        """Return ``value`` as a NumPy scalar of this type (Python scope); a cast inside kernels."""
        import numpy as np

        return np.asarray(value).astype(self.numpy)[()]

    def __or__(self, other: object) -> Any:
        """``qd.f32 | None``: an argument that may be left out."""
        return Optional[self] if other is None or other is type(None) else NotImplemented  # noqa: UP045

    __ror__ = __or__

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return by_name, (self.name,)

    def __deepcopy__(self, memo: object) -> DType:
        return self

    def __copy__(self) -> DType:
        return self

    @property
    def min(self) -> int | float:
        """Smallest finite value."""
        if self.is_real:
            return -self.max
        return -(1 << (self.bits - 1)) if self.kind == "i" else 0

    @property
    def max(self) -> int | float:
        """Largest finite value."""
        if self.is_real:
            digits, exponent = _REAL[self.bits]
            return (2.0 - 2.0 ** (1 - digits)) * 2.0**exponent
        return (1 << (self.bits - (self.kind == "i"))) - 1


_REAL = {16: (11, 15), 32: (24, 127), 64: (53, 1023)}
"""Digits of the significand and largest exponent by width (IEEE 754, table 3.5)."""

i8 = DType("i8", "i", 8)
i16 = DType("i16", "i", 16)
i32 = DType("i32", "i", 32)
i64 = DType("i64", "i", 64)
u1 = DType("u1", "b", 1)
u8 = DType("u8", "u", 8)
u16 = DType("u16", "u", 16)
u32 = DType("u32", "u", 32)
u64 = DType("u64", "u", 64)
f16 = DType("f16", "f", 16)
f32 = DType("f32", "f", 32)
f64 = DType("f64", "f", 64)

ALL = (i8, i16, i32, i64, u1, u8, u16, u32, u64, f16, f32, f64)
_BY_NAME = {d.name: d for d in ALL}


@cache
def _by_numpy() -> dict[np.dtype[Any], DType]:
    return {d.numpy: d for d in ALL}


def by_name(name: str) -> DType:
    """Return the type called ``name`` (``"f32"``); `KeyError` when there is none."""
    return _BY_NAME[name]


def from_numpy(dtype: Any) -> DType | None:
    """Return the type with the layout of the NumPy ``dtype``, or None when the language has none."""
    import numpy as np

    return _by_numpy().get(np.dtype(dtype))


def _promote(a: DType, b: DType) -> DType:
    if a.is_real != b.is_real:
        return a if a.is_real else b
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    return a if a.kind in "ub" else b


PROMOTION: dict[tuple[DType, DType], DType] = {(a, b): _promote(a, b) for a in ALL for b in ALL}
"""Result type of arithmetic: real over integral, then wider, then unsigned over signed."""


def promote(a: DType, b: DType) -> DType:
    """Return the type in which a binary operation on ``a`` and ``b`` is computed."""
    return PROMOTION[a, b]
