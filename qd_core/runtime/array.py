"""N-dimensional arrays on the active device.

Every array owns a small C header of 64-bit words that the native packer reads (`HEADER_*`). Core alone writes it: the
address comes from
`Device.address` at allocation, and the class key is zeroed when the memory goes, which sends the native packer to the
slow path.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from qd_core.backend.contract import BufferRef, HostSpan
from qd_core.dtypes import DType, by_name
from qd_core.errors import ArgumentValueError, QuadrantsAssertionError, QuadrantsRuntimeTypeError, QuadrantsTypeError
from qd_core.frontend.annotations import PYTHON_SCOPE
from qd_core.frontend.signature import ArrayArg
from qd_core.ir.nodes import ArrayType
from qd_core.runtime.arguments import ArrayView
from qd_core.runtime.context import Runtime, current
from qd_core.runtime.export import Exportable, share

__all__ = [
    "HEADER_ADDRESS",
    "HEADER_DUAL",
    "HEADER_GRAD",
    "HEADER_KEY",
    "HEADER_NBYTES",
    "HEADER_SHAPE",
    "MatrixNdarray",
    "Ndarray",
    "ScalarNdarray",
    "VectorNdarray",
    "checked_shape",
]

HEADER_KEY, HEADER_ADDRESS, HEADER_NBYTES, HEADER_GRAD, HEADER_DUAL, HEADER_SHAPE = range(6)
"""Words of the header; extents start at HEADER_SHAPE, strides follow them."""


def contiguous_strides(shape: Sequence[int], element_size: int) -> tuple[int, ...]:
    """Strides, in scalar elements, of a C-ordered array of elements of ``element_size`` scalars."""
    strides: list[int] = []
    step = element_size
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


class Ndarray(Exportable):
    """An array of scalars, vectors or matrices on the active device, zero-filled.

    Parameters
    ----------
    dtype : DType
        Scalar type.
    shape : tuple of int
        Extents; ``()`` is one element.
    element_shape : tuple of int
        ``()``, ``(n,)`` for vectors, ``(n, m)`` for matrices.
    needs_grad : bool
        Allocate ``.grad``, an array of the same type; ignored for integers.

    Raises
    ------
    LaunchError
        No device is open.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_buffer",
        "_header",
        "_host",
        "_runtime",
        "_view",
        "dtype",
        "dual",
        "element_shape",
        "grad",
        "shape",
    )

    def __init__(
        self, dtype: DType, shape: Sequence[int], element_shape: tuple[int, ...] = (), needs_grad: bool = False
    ) -> None:
        self._runtime: Runtime = current()
        self.dtype, self.element_shape = dtype, element_shape
        self.shape = checked_shape(shape)
        self.grad: Ndarray | None = None
        self.dual: Ndarray | None = None
        self._allocate()
        if needs_grad and dtype.is_real:
            self.grad = type(self)(dtype, self.shape, element_shape)
        self._fill_header()

    def _allocate(self) -> None:
        runtime = self._runtime
        elements = math.prod(self.shape) * math.prod(self.element_shape)
        nbytes = elements * self.dtype.nbytes
        self._buffer = runtime.device.allocate(nbytes)
        ref = BufferRef(self._buffer, 0, nbytes)
        self._view = ArrayView(ref, self.shape, contiguous_strides(self.shape, math.prod(self.element_shape)))
        runtime.device.default_stream.fill(ref, b"\0")
        shared = runtime.device.host_view(ref)
        self._host: np.ndarray[Any, Any] | None = None
        if shared is not None:
            raw: Any = (ctypes.c_char * nbytes).from_address(shared.address) if nbytes else b""
            self._host = np.frombuffer(raw, self.dtype.numpy).reshape(self.shape + self.element_shape)
        runtime.arrays.add(self)

    def _fill_header(self) -> None:
        header = np.zeros(HEADER_SHAPE + 2 * len(self.shape), np.uint64)
        kind = (ArrayType(self.dtype, len(self.shape), self.element_shape), self.grad is not None)
        header[HEADER_KEY] = self._runtime.class_key(kind)
        header[HEADER_ADDRESS] = int(self._runtime.device.address(self._view.ref))
        header[HEADER_NBYTES] = self._view.ref.nbytes
        for slot, other in ((HEADER_GRAD, self.grad), (HEADER_DUAL, self.dual)):
            header[slot] = other._header.ctypes.data if other is not None else 0
        header[HEADER_SHAPE:] = self.shape + self._view.strides
        self._header: np.ndarray[Any, Any] = header

    def _invalidate(self) -> None:
        """Forget the memory: the device closes."""
        self._forget()
        if not self._buffer.freed and not self._runtime.is_shared(self._buffer):
            device = self._runtime.device
            device.free(self._buffer, after=device.default_stream)

    def _forget(self) -> None:
        self._header[HEADER_KEY] = 0
        self._header[HEADER_ADDRESS] = 0
        self._host = None

    def __del__(self) -> None:
        runtime: Runtime | None = getattr(self, "_runtime", None)
        if runtime is not None and not runtime.closed and hasattr(self, "_buffer") and not self._buffer.freed:
            runtime.device.free(self._buffer, after=runtime.device.default_stream)

    def has_grad(self) -> bool:
        """Whether there is memory for gradients."""
        return self.grad is not None

    def has_dual(self) -> bool:
        """Whether there is memory for tangents."""
        return self.dual is not None

    def make_dual(self) -> Ndarray:
        """Allocate ``dual``, where forward mode keeps the derivative of this array, unless there is one."""
        self._check()
        if not self.dtype.is_real:
            raise QuadrantsRuntimeTypeError(f"an array of {self.dtype} has no derivative")
        if self.dual is None:
            self.dual = type(self)(self.dtype, self.shape, self.element_shape)
            self._header[HEADER_DUAL] = self.dual._header.ctypes.data
        return self.dual

    # -- what kernels see -----------------------------------------------------------------------------------------
    @property
    def array_type(self) -> ArrayType:
        """Type of the array in kernels."""
        return ArrayType(self.dtype, len(self.shape), self.element_shape)

    def __qd_capture__(self) -> ArrayArg:
        """Type of the array in kernels that find it in an object or outside."""
        return ArrayArg(
            self.dtype, len(self.shape), self.element_shape, self.grad is not None, needs_dual=self.dual is not None
        )

    def view_on(self, runtime: Runtime) -> ArrayView:
        """Memory, extents and strides for a launch on ``runtime``; `ClosedError` after `qd.reset()`."""
        self._check()
        if runtime is not self._runtime:
            raise ArgumentValueError(
                "this array belongs to another device than the kernel runs on", hint="create it after qd.init()"
            )
        return self._view

    def _check(self) -> None:
        if self._runtime.closed:
            self._runtime.check_open(f"this {type(self).__name__}")

    def _announce_write(self, index: tuple[int, ...] | None = None) -> None:
        """Tell an active tape that the host overwrites the array, or the element at ``index``."""
        if self._runtime.recorder is not None:
            self._runtime.recorder.host_write(self, index)

    # -- host access ----------------------------------------------------------------------------------------------
    @property
    def ndim(self) -> int:
        """Number of axes, element axes excluded."""
        return len(self.shape)

    def _copied(self) -> np.ndarray[Any, Any]:
        self._check()
        out = np.empty(self.shape + self.element_shape, self.dtype.numpy)
        if self._host is not None:
            self._runtime.device.default_stream.synchronize()
            np.copyto(out, self._host)
        elif out.nbytes:
            self._runtime.device.default_stream.copy_out(HostSpan(out.ctypes.data, out.nbytes, out), self._view.ref)
        return out

    def _in_place(self) -> np.ndarray[Any, Any] | None:
        self._check()
        return share(self, self._runtime, self._view.ref, self.shape + self.element_shape, self.dtype)

    def from_numpy(self, array: np.ndarray[Any, Any]) -> None:
        """Overwrite with ``array``, of shape ``shape + element_shape``; values are converted to the dtype."""
        self._check()
        array = np.asarray(array)
        if array.shape != self.shape + self.element_shape:
            raise ArgumentValueError(f"expected an array of shape {self.shape + self.element_shape}, got {array.shape}")
        self._announce_write()
        source = np.ascontiguousarray(array, self.dtype.numpy)
        if source.nbytes:
            self._runtime.device.default_stream.copy_in(
                self._view.ref, HostSpan(source.ctypes.data, source.nbytes, source)
            )

    def fill(self, value: Any) -> None:
        """Set every element to ``value`` (a scalar, or one of ``element_shape``)."""
        self._check()
        element = np.broadcast_to(np.asarray(value).astype(self.dtype.numpy), self.element_shape)
        if self._view.ref.nbytes == 0:
            return
        if (element == element.flat[0]).all():
            self._announce_write()
            self._runtime.device.default_stream.fill(self._view.ref, element.flat[0].tobytes())
        else:
            self.from_numpy(np.broadcast_to(element, self.shape + self.element_shape))

    def copy_from(self, other: Ndarray) -> None:
        """Copy the contents of ``other``, of the same shape and dtype."""
        self._check()
        other._check()
        if (other.shape, other.element_shape, other.dtype) != (self.shape, self.element_shape, self.dtype):
            raise ArgumentValueError(f"cannot copy {other!r} into {self!r}: shape and dtype must agree")
        if other._runtime is self._runtime:
            self._announce_write()
            self._runtime.device.default_stream.copy(self._view.ref, other._view.ref)
        else:
            self.from_numpy(other.to_numpy())

    def _index(self, key: Any) -> tuple[int, ...]:
        index = () if key is None else key if isinstance(key, tuple) else (key,)
        if len(index) != len(self.shape) or any(isinstance(i, slice) for i in index):
            raise QuadrantsAssertionError(f"expected {len(self.shape)} integer indices, got {key!r}")
        for axis, (i, n) in enumerate(zip(index, self.shape, strict=True)):
            if not 0 <= i < n:
                raise QuadrantsAssertionError(f"index {i} is out of range for axis {axis} with extent {n}")
        return tuple(int(i) for i in index)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            from qd_core.runtime.buffer_view import part

            return part(self, key)
        index = self._index(key)
        self._check()
        data = self._host if self._host is not None else self.to_numpy()
        if self._host is not None:
            self._runtime.device.default_stream.synchronize()
        value = data[index]
        if self.element_shape:
            return PYTHON_SCOPE["element"](value.copy(), self.dtype, partial(self.__setitem__, key))
        return value.item()

    def __setitem__(self, key: Any, value: Any) -> None:
        index = self._index(key)
        self._check()
        if self.dtype.is_integral and not self.element_shape and isinstance(value, (float, np.floating)):
            raise QuadrantsTypeError(
                f"cannot store the float {value!r} in an array of {self.dtype}", hint="convert it with int()"
            )
        self._announce_write(index)
        if self._host is not None:
            self._runtime.device.default_stream.synchronize()
            self._host[index] = np.asarray(value).astype(self.dtype.numpy)
            return
        element = np.ascontiguousarray(np.broadcast_to(np.asarray(value).astype(self.dtype.numpy), self.element_shape))
        offset = sum(i * s for i, s in zip(index, self._view.strides, strict=True)) * self.dtype.nbytes
        ref = BufferRef(self._buffer, self._view.ref.offset + offset, element.nbytes)
        self._runtime.device.default_stream.copy_in(ref, HostSpan(element.ctypes.data, element.nbytes, element))

    def __reduce__(self) -> tuple[Any, ...]:
        gradient = None if self.grad is None else self.grad.to_numpy()
        return _restore, (type(self), self.dtype.name, self.shape, self.element_shape, self.to_numpy(), gradient)

    def __repr__(self) -> str:
        element = f", element_shape={self.element_shape}" if self.element_shape else ""
        gradient = ", needs_grad" if self.grad is not None else ""
        return f"<{type(self).__name__} {self.dtype} shape={self.shape}{element}{gradient}>"


class ScalarNdarray(Ndarray):
    """Array of scalars."""

    __slots__ = ()


class VectorNdarray(Ndarray):
    """Array of vectors."""

    __slots__ = ()

    @property
    def n(self) -> int:
        """Components of a vector."""
        return self.element_shape[0]


class MatrixNdarray(Ndarray):
    """Array of matrices."""

    __slots__ = ()

    @property
    def n(self) -> int:
        """Rows."""
        return self.element_shape[0]

    @property
    def m(self) -> int:
        """Columns."""
        return self.element_shape[1]


def checked_shape(shape: Any) -> tuple[int, ...]:
    """Return the extents that ``shape`` means, one integer or several, none negative."""
    extents = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    for n in extents:
        if not isinstance(n, (int, np.integer)) or n < 0:
            raise ArgumentValueError(f"a shape needs non-negative integers, got {shape!r}")
    return tuple(int(n) for n in extents)


def _restore(
    cls: type[Ndarray],
    dtype: str,
    shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    data: np.ndarray[Any, Any],
    gradient: np.ndarray[Any, Any] | None,
) -> Ndarray:
    """Make a pickled array again, on the device that is active now."""
    made = cls(by_name(dtype), shape, element_shape, gradient is not None)
    made.from_numpy(data)
    if gradient is not None and made.grad is not None:
        made.grad.from_numpy(gradient)
    return made
