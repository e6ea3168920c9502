"""Where CPython and NumPy keep what the native launch entry reads, measured in the running interpreter.

Nothing is assumed: every offset is found by looking for a known value inside a live object, or checked on several. An
interpreter that lays objects out in another way (debug and free-threaded builds, a future version) makes a probe fail,
and launches then take the Python path.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from collections.abc import Sequence
from typing import Any

import numpy as np

WORD = 8

C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x0001, 0x0100, 0x0400
"""NumPy's array flags (public C API)."""

_NUMPY_FIELDS = {"object.data": 16, "object.nd": 24, "object.dims": 32, "object.dtype": 56, "object.flags": 64}
"""Offsets in the public C structure `PyArrayObject_fields`, the same in NumPy 1 and 2; `_check_numpy` tests them."""


class LayoutError(RuntimeError):
    """A probe did not find what it expected; the message says which."""


def read_word(address: int) -> int:
    """Return the unsigned 64-bit word at `address`."""
    return ctypes.c_uint64.from_address(address).value


def disabled_reason() -> str | None:
    """Return why native launches are off whatever the probes say, or None."""
    if os.environ.get("QD_NATIVE_LAUNCH", "1") == "0":
        return "QD_NATIVE_LAUNCH=0"
    if sys.implementation.name != "cpython":
        return f"the interpreter is {sys.implementation.name}, not CPython"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this is a free-threaded build of Python"
    if hasattr(sys, "gettotalrefcount") or sysconfig.get_config_var("Py_TRACE_REFS"):
        return "this is a debug build of Python"
    if ctypes.sizeof(ctypes.c_void_p) != WORD or sys.byteorder != "little":
        return "pointers are not 64-bit little-endian"
    return None


def probe_layout() -> dict[str, int]:
    """Return the byte offsets that `native_ir.launch_ir` needs.

    Raises
    ------
    LayoutError
        An object is not laid out as expected.
    """
    offsets = {"object.type": _type_offset(), "self.data": _memory_offset(), "names.size": _tuple_size_offset()}
    _check_numpy()
    return offsets | _NUMPY_FIELDS


def slot_offset(cls: type, slot: str) -> int:
    """Return the offset in instances of `cls` at which the `__slots__` member `slot` is kept.

    `cls` must be creatable by `object.__new__`, and its instances must let `slot` be set. The offset is the same in
    subclasses, with or without `__dict__` and weak references.

    Raises
    ------
    LayoutError
        The member was not found at one place.
    """
    found = {_slot_in(cls, slot, make_header(n)) for n in (5, 40)}
    if len(found) != 1:
        raise LayoutError(f"member {slot!r} of {cls.__name__} moves")
    return found.pop()


def make_memory(words: int) -> ctypes.Array[ctypes.c_uint64]:
    """Return zeroed memory of `words` 64-bit words that never moves."""
    return (ctypes.c_uint64 * words)()


def make_header(words: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return a zeroed header of an array; native code finds its words through the NumPy object."""
    return np.zeros(words, np.uint64)


def _slot_in(cls: type, slot: str, marker: object) -> int:
    instance: object = object.__new__(cls)
    setattr(instance, slot, marker)
    return _only(instance, id(marker), cls.__basicsize__, f"member {slot!r} of {cls.__name__}")


def _only(holder: object, value: int, nbytes: int, what: str) -> int:
    """Return the one offset at which the word `value` is found in `holder`."""
    places = [at for at in range(0, nbytes, WORD) if read_word(id(holder) + at) == value]
    if len(places) != 1:
        raise LayoutError(f"{what} was found at {places}")
    return places[0]


def _type_offset() -> int:
    samples: Sequence[object] = (1 << 40, 1.5, "text", np.zeros(3, np.float32), make_memory(2), True)
    found = {_only(s, id(type(s)), min(type(s).__basicsize__, 2 * WORD), "the type pointer") for s in samples}
    if len(found) != 1:
        raise LayoutError(f"the type pointer is at {sorted(found)}")
    return found.pop()


def _memory_offset() -> int:
    found: set[int] = set()
    for words in (1, 3, 60):
        memory = make_memory(words)
        # An inline buffer behind the fields may hold anything: the first place is the pointer.
        size = type(memory).__basicsize__
        places = [at for at in range(0, size, WORD) if read_word(id(memory) + at) == ctypes.addressof(memory)]
        if not places:
            raise LayoutError("a ctypes array does not keep its address")
        found.add(places[0])
    if len(found) != 1:
        raise LayoutError(f"a ctypes array keeps its address at {sorted(found)}")
    return found.pop()


def _tuple_size_offset() -> int:
    at = tuple.__basicsize__ - WORD
    if any(read_word(id(t) + at) != len(t) for t in ((1, 2, 3), ("a",), tuple(range(77)))):
        at = 2 * WORD  # newer versions keep a hash between size and items
        if any(read_word(id(t) + at) != len(t) for t in ((1, 2, 3), ("a",), tuple(range(77)))):
            raise LayoutError("a tuple does not keep its length where expected")
    return at


def _check_numpy() -> None:
    plain = np.zeros((3, 5, 7), np.float32)
    swapped = plain.astype(plain.dtype.newbyteorder())
    frozen = np.ones((2, 4), np.int64)
    frozen.flags.writeable = False
    shifted = np.zeros(41, np.uint8)[1:].view(np.float64)
    for array in (
        plain,
        plain.T,
        plain[:, 1:, ::2],
        swapped,
        frozen,
        shifted,
        np.array(2.0),
        np.zeros((0, 3), np.bool_),
    ):
        _check_array(array)


def _check_array(array: np.ndarray[Any, Any]) -> None:
    base = id(array)
    dims = read_word(base + _NUMPY_FIELDS["object.dims"])
    seen = (
        read_word(base + _NUMPY_FIELDS["object.data"]),
        ctypes.c_int32.from_address(base + _NUMPY_FIELDS["object.nd"]).value,
        read_word(base + _NUMPY_FIELDS["object.dtype"]),
        ctypes.c_int32.from_address(base + _NUMPY_FIELDS["object.flags"]).value & (C_CONTIGUOUS | ALIGNED | WRITEABLE),
    )
    if seen != (array.ctypes.data, array.ndim, id(array.dtype), _flags(array)):
        raise LayoutError("a NumPy array's fields are not where its C interface says")
    if tuple(read_word(dims + WORD * d) for d in range(array.ndim)) != array.shape:
        raise LayoutError("a NumPy array's shape is not where its C interface says")


def _flags(array: np.ndarray[Any, Any]) -> int:
    flags = array.flags
    return C_CONTIGUOUS * flags.c_contiguous | ALIGNED * flags.aligned | WRITEABLE * flags.writeable
