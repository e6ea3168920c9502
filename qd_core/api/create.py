"""Making arrays from the public interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qd_core.dtypes import DType
from qd_core.errors import QuadrantsTypeError
from qd_core.frontend.annotations import MatrixType, as_dtype
from qd_core.runtime.array import MatrixNdarray, Ndarray, ScalarNdarray, VectorNdarray
from qd_core.runtime.context import current
from qd_core.runtime.struct import member_type
from qd_core.runtime.tensor import Backend, Tensor, make_tensor

__all__ = ["ndarray", "tensor"]

_CLASSES: tuple[type[Ndarray], ...] = (ScalarNdarray, VectorNdarray, MatrixNdarray)


def ndarray(dtype: Any, shape: Any, needs_grad: bool = False) -> Ndarray:
    """Return a zero-filled array on the active device.

    Parameters
    ----------
    dtype : DType, MatrixType, int, float or bool
        Element type; ``float`` and ``int`` mean the default types.
    shape : int or tuple of int
        Extents; ``()`` is one element.
    needs_grad : bool
        Allocate ``.grad``; integers have none.

    Raises
    ------
    QuadrantsTypeError
        ``dtype`` is no element type.
    LaunchError
        Before `qd.init`.
    """
    options = current().options
    element: tuple[int, ...] = ()
    scalar = dtype
    if isinstance(dtype, MatrixType):
        element, scalar = dtype.shape, dtype.dtype if dtype.dtype is not None else float
    kind: DType | None = as_dtype(scalar, options.default_ip, options.default_fp)
    if kind is None:
        raise QuadrantsTypeError(
            f"{dtype!r} is no element type of an array", hint="use qd.f32 and the like, or qd.types.vector/matrix"
        )
    return _CLASSES[len(element)](kind, shape, element, needs_grad)


def tensor(
    dtype: Any,
    shape: Any,
    *,
    backend: Backend = Backend.NDARRAY,
    layout: Sequence[int] | None = None,
    needs_grad: bool = False,
) -> Tensor:
    """Return a zero-filled tensor: an ndarray or field behind one surface.

    Parameters
    ----------
    dtype : DType, MatrixType, int, float or bool
        Element type; ``float`` and ``int`` mean the default types.
    shape : int or tuple of int
        Extents.
    backend : Backend
        ``NDARRAY`` takes any shape without compiling anew, ``FIELD`` has its shape compiled in.
    layout : sequence of int, optional
        Axes from the slowest to the fastest in memory, ``(1, 0)`` for columns; indices stay the same.
    needs_grad : bool
        Allocate ``.grad``, in the same layout.

    Raises
    ------
    ArgumentValueError
        ``layout`` is no permutation of the axes.
    """
    kind = member_type(dtype)
    if isinstance(kind, MatrixType):
        return make_tensor(kind.dtype, shape, kind.shape, backend, layout, needs_grad)
    if not isinstance(kind, DType):
        raise QuadrantsTypeError(f"{dtype!r} is no element type of a tensor", hint="use qd.field for structs")
    return make_tensor(kind, shape, (), backend, layout, needs_grad)
