"""Reading DLPack capsules: where another library's tensor lies, without importing that library.

Layout: DLPack 1.0, ``DLManagedTensor`` and ``DLManagedTensorVersioned`` (dlpack.h).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from qd_core import dtypes as dt
from qd_core.dtypes import DType

__all__ = ["CPU_KINDS", "Exchange", "device_of", "exchange"]

CPU_KINDS = frozenset({1, 3, 11})
"""Device types whose memory the host reads: plain, and pinned by two vendors."""

_DEFAULT_STREAM = {2: 1, 13: 1}
"""DLPack's number of the default stream by device type, where it has one: the consumer works there."""

_INT, _UINT, _FLOAT, _BOOL = 0, 1, 2, 6
_DTYPES: dict[tuple[int, int], DType] = {
    (_FLOAT if d.is_real else _INT if d.is_signed else _UINT, d.bits): d for d in dt.ALL if d is not dt.u1
} | {(_BOOL, 8): dt.u1}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """A tensor as its library exports it; the memory lives as long as this object.

    Attributes
    ----------
    tensor : object
        The library's own.
    kind, device : int
        DLPack's device type and number.
    dtype : DType or None
        None where kernels have no such type.
    shape, strides : tuple of int
        In elements.
    address : int
        Of the first element.
    """

    tensor: object
    capsule: object
    kind: int
    device: int
    dtype: DType | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        count = 1
        for n in self.shape:
            count *= n
        return count * (self.dtype.nbytes if self.dtype is not None else 0)

    @property
    def contiguous(self) -> bool:
        """Whether elements lie in C order without gaps."""
        step = 1
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n > 1 and stride != step:
                return False
            step *= n
        return True


def device_of(tensor: object) -> tuple[int, int] | None:
    """Return DLPack's (type, number) of a tensor's device; None for what exports nothing."""
    ask = getattr(tensor, "__dlpack_device__", None)
    if ask is None:
        return None
    try:
        kind, number = ask()
    except Exception:  # whatever a foreign library raises, it does not export this tensor
        return None
    return int(kind), int(number)


def exchange(tensor: Any) -> Exchange | None:
    """Export a tensor; None where its library does not.

    Work of the library that is under way comes before what its device's default stream is given next.
    """
    device = device_of(tensor)
    if device is None or not hasattr(tensor, "__dlpack__"):
        return None
    source = tensor.detach() if getattr(tensor, "requires_grad", False) else tensor
    stream = _DEFAULT_STREAM.get(device[0])
    try:
        capsule = source.__dlpack__() if stream is None else source.__dlpack__(stream=stream)
    except Exception:  # whatever a foreign library raises, it does not export this tensor
        return None
    return _read(tensor, capsule)


def _pointer(capsule: object, name: bytes) -> int | None:
    api = ctypes.pythonapi
    api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
    if not api.PyCapsule_IsValid(capsule, name):
        return None
    api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    return int(api.PyCapsule_GetPointer(capsule, name))


def _read(tensor: object, capsule: object) -> Exchange | None:
    at = _pointer(capsule, b"dltensor")
    if at is None:
        versioned = _pointer(capsule, b"dltensor_versioned")
        if versioned is None:
            return None
        at = versioned + 32  # version (8), manager context, deleter, flags
    t = _Tensor.from_address(at)
    shape = tuple(t.shape[n] for n in range(t.ndim))
    strides = tuple(t.strides[n] for n in range(t.ndim)) if t.strides else _contiguous(shape)
    address = (t.data or 0) + t.byte_offset
    return Exchange(tensor, capsule, t.device_type, t.device_id, _dtype(t), shape, strides, address)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _dtype(t: _Tensor) -> DType | None:
    return _DTYPES.get((t.code, t.bits)) if t.lanes == 1 else None
