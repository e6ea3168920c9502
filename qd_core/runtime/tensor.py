"""`qd.Tensor`: one surface over arrays and fields, with a chosen order of axes in memory.

A tensor wraps what kernels get: an ndarray, or a field. Indices and shapes are those of the tensor; ``layout`` says in
which order its axes lie in
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.errors import ArgumentValueError, QuadrantsRuntimeTypeError
from qd_core.frontend.annotations import PYTHON_SCOPE
from qd_core.frontend.signature import ArrayArg
from qd_core.runtime.array import HEADER_KEY, MatrixNdarray, Ndarray, ScalarNdarray, VectorNdarray, checked_shape
from qd_core.runtime.export import Exportable
from qd_core.runtime.field import Field, MatrixField, ScalarField, place_with_shape

__all__ = ["Backend", "MatrixTensor", "PermutedNdarray", "Tensor", "VectorTensor", "make_tensor", "wrap"]


class Backend(Enum):
    """What a tensor is made of: NDARRAY takes any shape without compiling anew, FIELD has its shape compiled in."""

    NDARRAY = 1
    FIELD = 2


class PermutedNdarray(Ndarray):
    """An ndarray whose storage axis k holds index axis ``order[k]``; its own shape is that of the storage."""

    __slots__ = ("order",)

    def __init__(
        self,
        dtype: DType,
        shape: Sequence[int],
        element_shape: tuple[int, ...],
        needs_grad: bool,
        order: tuple[int, ...],
    ) -> None:
        self.order = order
        super().__init__(dtype, shape, element_shape)
        if needs_grad and dtype.is_real:
            self.grad = PermutedNdarray(dtype, shape, element_shape, False, order)
            self._fill_header()

    def __qd_capture__(self) -> ArrayArg:
        """Type of the array in kernels."""
        return replace(super().__qd_capture__(), order=self.order)

    def _fill_header(self) -> None:
        super()._fill_header()
        self._header[HEADER_KEY] = self._runtime.class_key(self.__qd_capture__())

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensor._unwrap, (wrap(self),)

    def make_dual(self) -> Ndarray:
        """Allocate ``dual``, unless there is one."""
        if self.dual is None:
            self._check()
            self.dual = PermutedNdarray(self.dtype, self.shape, self.element_shape, False, self.order)
            self._fill_header()
        return self.dual


_NDARRAYS: tuple[type[Ndarray], ...] = (ScalarNdarray, VectorNdarray, MatrixNdarray)


class Tensor(Exportable):
    """An array of scalars; kernels take it where the annotation is `qd.Tensor`, an array or a template.

    Parameters
    ----------
    impl : Ndarray or Field
        What it wraps.
    """

    __slots__ = ("__dict__", "__weakref__", "_grad", "_header", "_impl")
    __qd_annotation__ = True

    def __init__(self, impl: Any) -> None:
        self._impl: Any = impl
        if isinstance(impl, Field):
            impl.allocate()  # plans know it by the header of its memory
        self._header: np.ndarray[Any, Any] = impl._header
        self._grad: Tensor | None = None

    def _unwrap(self) -> Any:
        """Return the ndarray or field."""
        return self._impl

    # -- what it is ---------------------------------------------------------------------------------------------------
    @property
    def order(self) -> tuple[int, ...]:
        """Index axis of each storage axis."""
        if isinstance(self._impl, Field):
            return self._impl.layout.axes
        return self._impl.order if isinstance(self._impl, PermutedNdarray) else tuple(range(len(self._impl.shape)))

    layout = order

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the index axes."""
        if not isinstance(self._impl, PermutedNdarray):
            return self._impl.shape
        return tuple(self._impl.shape[self.order.index(a)] for a in range(len(self.order)))

    @property
    def dtype(self) -> DType:
        """Scalar type."""
        return self._impl.dtype

    @property
    def element_shape(self) -> tuple[int, ...]:
        """Shape of an element."""
        return self._impl.element_shape

    @property
    def backend(self) -> Backend:
        """What it is made of."""
        return Backend.FIELD if isinstance(self._impl, Field) else Backend.NDARRAY

    @property
    def grad(self) -> Tensor | None:
        """Tensor of the gradients, in the same layout; None where there is none."""
        there = self._impl.has_grad() if isinstance(self._impl, Field) else self._impl.grad is not None
        if not there:
            return None
        if self._grad is None:
            self._grad = wrap(self._impl.grad)
        return self._grad

    @property
    def dual(self) -> Tensor | None:
        """Tensor of the tangents; None where there is none."""
        there = self._impl.has_dual() if isinstance(self._impl, Field) else self._impl.dual is not None
        return wrap(self._impl.dual) if there else None

    def make_dual(self) -> Tensor:
        """Have a dual, and return it."""
        return wrap(self._impl.make_dual())

    @property
    def n(self) -> int:
        """Rows of an element."""
        return self.element_shape[0]

    @property
    def m(self) -> int:
        """Columns of an element; 1 for a vector."""
        return self.element_shape[1] if len(self.element_shape) == 2 else 1

    def __qd_capture__(self) -> ArrayArg:
        """Type of the array in kernels."""
        return self._impl.__qd_capture__()

    # -- contents -----------------------------------------------------------------------------------------------------
    def _copied(self) -> np.ndarray[Any, Any]:
        return np.array(self._in_order(self._impl._copied()), order="C")

    def _in_place(self) -> np.ndarray[Any, Any] | None:
        shared = self._impl._in_place()
        return None if shared is None else self._in_order(shared)

    def _in_order(self, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Contents in index order, from those of what is wrapped."""
        if not isinstance(self._impl, PermutedNdarray):
            return data
        back = [self.order.index(a) for a in range(len(self.order))]
        return data.transpose(*back, *range(len(back), data.ndim))

    def from_numpy(self, array: Any) -> None:
        """Overwrite with ``array``, of shape ``shape + element_shape``."""
        array = np.asarray(array)
        wanted = self.shape + self.element_shape
        if array.shape != wanted:
            raise ArgumentValueError(f"expected an array of shape {wanted}, got {array.shape}")
        if isinstance(self._impl, PermutedNdarray):
            array = array.transpose(*self.order, *range(len(self.order), array.ndim))
        self._impl.from_numpy(array)

    def fill(self, val: Any) -> None:
        """Set every element."""
        self._impl.fill(val)

    def copy_from(self, other: Any) -> None:
        """Copy the contents of an array of the same shape."""
        if tuple(other.shape) != self.shape:
            raise ArgumentValueError(f"cannot copy {other!r} into {self!r}: shapes must agree")
        self.from_numpy(other.to_numpy())

    def _key(self, key: Any) -> Any:
        if not isinstance(self._impl, PermutedNdarray):
            return key
        index = () if key is None else key if isinstance(key, tuple) else (key,)
        return tuple(index[a] for a in self.order) if len(index) == len(self.order) else index

    def __getitem__(self, key: Any) -> Any:
        value = self._impl[self._key(key)]
        if isinstance(value, np.ndarray):
            return PYTHON_SCOPE["element"](value, self.dtype, partial(self.__setitem__, key))
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._impl[self._key(key)] = value

    def __reduce__(self) -> tuple[Any, ...]:
        layout = self.order if self.order != tuple(range(len(self.order))) else None
        grad = self.grad
        what = (self.dtype.name, self.shape, self.element_shape, self.backend.name, layout, grad is not None)
        return _restore, (*what, self.to_numpy(), None if grad is None else grad.to_numpy())

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.dtype} shape={self.shape} {self.backend.name.lower()} layout={self.order}>"
        )


class VectorTensor(Tensor):
    """An array of vectors."""

    __slots__ = ()


class MatrixTensor(Tensor):
    """An array of matrices."""

    __slots__ = ()


_TENSORS = (Tensor, VectorTensor, MatrixTensor)


def wrap(impl: Any) -> Tensor:
    """Return a tensor over an ndarray or field."""
    if isinstance(impl, Tensor):
        return impl
    if not isinstance(impl, (Ndarray, Field)):
        raise QuadrantsRuntimeTypeError(f"only arrays and fields can be wrapped, got {type(impl).__name__}")
    return _TENSORS[len(impl.element_shape)](impl)


def make_tensor(
    dtype: DType,
    shape: Any,
    element_shape: tuple[int, ...] = (),
    backend: Backend = Backend.NDARRAY,
    layout: Sequence[int] | None = None,
    needs_grad: bool = False,
) -> Tensor:
    """Return a zero-filled tensor.

    Raises
    ------
    ArgumentValueError
        ``layout`` is no permutation of the axes.
    """
    extents = checked_shape(shape)
    order = tuple(range(len(extents))) if layout is None else tuple(int(a) for a in layout)
    if sorted(order) != list(range(len(extents))):
        raise ArgumentValueError(f"layout={layout!r} is no permutation of the {len(extents)} axes")
    if backend is Backend.FIELD:
        return wrap(_field(dtype, extents, element_shape, order, needs_grad))
    if order == tuple(range(len(extents))):
        return wrap(_NDARRAYS[len(element_shape)](dtype, extents, element_shape, needs_grad))
    return wrap(PermutedNdarray(dtype, tuple(extents[a] for a in order), element_shape, needs_grad, order))


def _field(
    dtype: DType, shape: tuple[int, ...], element_shape: tuple[int, ...], order: tuple[int, ...], needs_grad: bool
) -> Field:
    made = MatrixField(dtype, element_shape) if element_shape else ScalarField(dtype)
    if needs_grad and dtype.is_real:
        made.want("grad")
    place_with_shape([made], shape, "".join("ijklmnopqrst"[a] for a in order), None)
    return made


def _restore(
    dtype: str,
    shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    backend: str,
    layout: tuple[int, ...] | None,
    needs_grad: bool,
    data: np.ndarray[Any, Any],
    gradient: np.ndarray[Any, Any] | None,
) -> Tensor:
    """Make a pickled tensor again, on the device that is active now."""
    made = make_tensor(dt.by_name(dtype), shape, element_shape, Backend[backend], layout, needs_grad)
    made.from_numpy(data)
    if gradient is not None and made.grad is not None:
        made.grad.from_numpy(gradient)
    return made
