"""`qd.Vector` and `qd.Matrix`: small vectors and matrices.

In kernels they are values of the language. In Python scope they are objects over a NumPy array, with the same methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from qd_core.dtypes import DType, from_numpy
from qd_core.errors import QuadrantsTypeError
from qd_core.frontend.annotations import PYTHON_SCOPE, MatrixType, as_dtype
from qd_core.frontend.attributes import swizzle_of
from qd_core.frontend.lower import kernel_meaning

__all__ = ["Matrix", "Vector"]

_FUNCTIONS: tuple[str, ...] = ("zero", "one", "unit", "identity", "diag", "rows", "cols")


class Matrix:
    """A small matrix or vector.

    Parameters
    ----------
    data : nested sequence or numpy.ndarray
        Components: a list for a vector, a list of rows for a matrix.
    dt : DType, optional
        Scalar type. Without it, values become the default types where a kernel uses them.
    """

    __slots__ = ("_data", "_dtype")
    __array_priority__ = 100

    def __init__(self, data: Any, dt: Any = None, *, dtype: Any = None) -> None:
        kind = as_dtype(dt if dt is not None else dtype)
        array = np.array(data, dtype=None if kind is None else kind.numpy)
        if array.ndim not in (1, 2) or 0 in array.shape or array.dtype.kind not in "fiub":
            raise TypeError(f"a vector or matrix needs one or two axes of numbers, got {data!r}")
        object.__setattr__(self, "_data", array)
        object.__setattr__(self, "_dtype", kind)

    # -- what it is ---------------------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        """Extents: ``(n,)`` or ``(n, m)``."""
        return self._data.shape

    @property
    def n(self) -> int:
        """Rows."""
        return self._data.shape[0]

    @property
    def m(self) -> int:
        """Columns; 1 for a vector."""
        return self._data.shape[1] if self._data.ndim == 2 else 1

    @property
    def dtype(self) -> DType | None:
        """Scalar type of the NumPy data."""
        return self._dtype or from_numpy(self._data.dtype)

    @property
    def entries(self) -> np.ndarray[Any, Any]:
        """The components as a NumPy array of `shape`; changes of it are seen."""
        return self._data

    def get_shape(self) -> tuple[int, ...]:
        """Extents: `shape`."""
        return self.shape

    def __qd_matrix__(self) -> tuple[list[Any], DType | None]:
        """Components and explicit type, for kernels."""
        return self._data.tolist(), self._dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._data, dtype=dtype, copy=True if copy is None else copy)

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy as a NumPy array of `shape`."""
        return self._data.copy()

    def to_list(self) -> list[Any]:
        """Return the components as a list (of rows)."""
        return self._data.tolist()

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        return iter([self._wrap(x) for x in self._data])

    def __repr__(self) -> str:
        return repr(self._data.tolist())

    def __format__(self, spec: str) -> str:
        if not spec:
            return repr(self)
        return "[" + ", ".join(format(x, spec) for x in self) + "]"

    # -- parts --------------------------------------------------------------------------------------------------------
    def __getitem__(self, index: Any) -> Any:
        return self._wrap(self._data[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        self._data[index] = np.asarray(value)

    def __getattr__(self, name: str) -> Any:
        chosen = swizzle_of(self._data.shape, name) if not name.startswith("_") else None
        if chosen is None:
            raise AttributeError(f"a {type(self).__name__} of shape {self.shape} has no attribute {name!r}")
        return self._data[chosen[0]] if len(chosen) == 1 else self._wrap(self._data[list(chosen)])

    def __setattr__(self, name: str, value: Any) -> None:
        chosen = swizzle_of(self._data.shape, name)
        if chosen is None:
            raise AttributeError(f"a {type(self).__name__} of shape {self.shape} has no attribute {name!r}")
        self._data[list(chosen)] = np.asarray(value)

    def _wrap(self, x: Any) -> Any:
        return Matrix._of(x, self._dtype) if isinstance(x, np.ndarray) and x.ndim else x

    @staticmethod
    def _of(data: np.ndarray[Any, Any], kind: DType | None = None) -> Matrix:
        """Make a matrix from NumPy data; ``kind`` is kept where the data still has it."""
        kept = kind if kind is not None and data.dtype == kind.numpy else None
        made = object.__new__(Vector if data.ndim == 1 else Matrix)
        object.__setattr__(made, "_data", data)
        object.__setattr__(made, "_dtype", kept)
        return made

    # -- arithmetic ---------------------------------------------------------------------------------------------------
    def _binary(self, other: Any, f: Callable[..., Any], swapped: bool = False) -> Any:
        b = np.asarray(other) if isinstance(other, (Matrix, list, tuple)) else other
        if not isinstance(b, (int, float, np.generic, np.ndarray)):
            return NotImplemented
        if isinstance(b, np.ndarray) and b.ndim and b.shape != self._data.shape:
            raise TypeError(f"shapes do not match: {self.shape} and {b.shape}")
        return Matrix._of(np.asarray(f(b, self._data) if swapped else f(self._data, b)), self._dtype)

    def __add__(self, other: Any) -> Any:
        return self._binary(other, np.add)

    def __radd__(self, other: Any) -> Any:
        return self._binary(other, np.add, True)

    def __sub__(self, other: Any) -> Any:
        return self._binary(other, np.subtract)

    def __rsub__(self, other: Any) -> Any:
        return self._binary(other, np.subtract, True)

    def __mul__(self, other: Any) -> Any:
        return self._binary(other, np.multiply)

    def __rmul__(self, other: Any) -> Any:
        return self._binary(other, np.multiply, True)

    def __truediv__(self, other: Any) -> Any:
        return self._binary(other, np.divide)

    def __rtruediv__(self, other: Any) -> Any:
        return self._binary(other, np.divide, True)

    def __floordiv__(self, other: Any) -> Any:
        return self._binary(other, np.floor_divide)

    def __mod__(self, other: Any) -> Any:
        return self._binary(other, np.mod)

    def __pow__(self, other: Any) -> Any:
        return self._binary(other, np.power)

    def __lshift__(self, other: Any) -> Any:
        return self._binary(other, np.left_shift)

    def __rshift__(self, other: Any) -> Any:
        return self._binary(other, np.right_shift)

    def __and__(self, other: Any) -> Any:
        return self._binary(other, np.bitwise_and)

    def __or__(self, other: Any) -> Any:
        return self._binary(other, np.bitwise_or)

    def __xor__(self, other: Any) -> Any:
        return self._binary(other, np.bitwise_xor)

    def __rmatmul__(self, other: Any) -> Any:
        return self._wrap(np.asarray(other) @ self._data)

    def __neg__(self) -> Matrix:
        return Matrix._of(-self._data, self._dtype)

    def __abs__(self) -> Matrix:
        return Matrix._of(np.abs(self._data), self._dtype)

    def __eq__(self, other: Any) -> Any:
        return self._binary(other, np.equal)

    def __ne__(self, other: Any) -> Any:
        return self._binary(other, np.not_equal)

    def __lt__(self, other: Any) -> Any:
        return self._binary(other, np.less)

    def __le__(self, other: Any) -> Any:
        return self._binary(other, np.less_equal)

    def __gt__(self, other: Any) -> Any:
        return self._binary(other, np.greater)

    def __ge__(self, other: Any) -> Any:
        return self._binary(other, np.greater_equal)

    __hash__ = None  # type: ignore[assignment]

    def __matmul__(self, other: Any) -> Any:
        product: Any = self._data @ np.asarray(other)
        return self._wrap(product)

    # -- methods ------------------------------------------------------------------------------------------------------
    def dot(self, other: Any) -> Any:
        """Inner product of vectors."""
        return np.dot(self._data, np.asarray(other))

    def cross(self, other: Any) -> Any:
        """Cross product of 3-vectors; of 2-vectors its third component."""
        a, b = self._data, np.asarray(other)
        if self.n == 2:
            return a[0] * b[1] - a[1] * b[0]
        return self._wrap(np.cross(a, b))

    def outer_product(self, other: Any) -> Matrix:
        """Matrix of products of components."""
        return self._wrap(np.outer(self._data, np.asarray(other)))

    def norm_sqr(self) -> Any:
        """Sum of squares of the components."""
        return (self._data * self._data).sum()

    def norm(self, eps: float = 0) -> Any:
        """Square root of the sum of squares plus ``eps``."""
        return np.sqrt(self.norm_sqr() + eps)

    def norm_inv(self, eps: float = 0) -> Any:
        """Reciprocal of the norm."""
        return 1 / self.norm(eps)

    def normalized(self, eps: float = 0) -> Matrix:
        """Vector of length one in the same direction."""
        return self / (self.norm() + eps)

    def transpose(self) -> Matrix:
        """Transposed matrix; a vector becomes a matrix of one row."""
        return self._wrap(self._data.T.copy() if self._data.ndim == 2 else self._data[None, :].copy())

    def _square(self) -> np.ndarray[Any, Any]:
        if self._data.ndim != 2 or self.n != self.m:
            raise QuadrantsTypeError(f"expected a square matrix, got shape {self.shape}")
        return self._data

    def trace(self) -> Any:
        """Sum of the diagonal."""
        return np.trace(self._square())

    def determinant(self) -> Any:
        """Determinant."""
        return np.linalg.det(self._square())

    def inverse(self) -> Matrix:
        """Inverse."""
        return self._wrap(np.linalg.inv(self._square()))

    def frobenius_inner(self, other: Any) -> Any:
        """Sum of products of corresponding components."""
        return (self._data * np.asarray(other)).sum()

    def sum(self) -> Any:
        """Sum of the components."""
        return self._data.sum()

    def max(self) -> Any:
        """Largest component."""
        return self._data.max()

    def min(self) -> Any:
        """Smallest component."""
        return self._data.min()

    def any(self) -> bool:
        """Whether a component is not zero."""
        return bool(self._data.any())

    def all(self) -> bool:
        """Whether no component is zero."""
        return bool(self._data.all())

    def fill(self, val: Any) -> None:
        """Set every component."""
        self._data[...] = val

    def cast(self, dtype: Any) -> Matrix:
        """Components converted to a scalar type."""
        return type(self)(self._data, dtype)

    def copy(self) -> Matrix:
        """Independent copy."""
        return Matrix._of(self._data.copy(), self._dtype)

    # -- construction -------------------------------------------------------------------------------------------------
    @staticmethod
    def zero(dt: Any, *shape: int) -> Matrix:
        """Zeros of type ``dt``."""
        return Matrix(np.zeros(shape), dt)

    @staticmethod
    def one(dt: Any, *shape: int) -> Matrix:
        """Ones of type ``dt``."""
        return Matrix(np.ones(shape), dt)

    @staticmethod
    def unit(n: int, i: int, dt: Any = int) -> Matrix:
        """The ``i``-th unit vector of ``n`` components."""
        return Matrix._of(np.eye(n)[i].astype(_numpy(dt)), as_dtype(dt))

    @staticmethod
    def identity(dt: Any, n: int) -> Matrix:
        """Unit matrix."""
        return Matrix(np.eye(n), dt)

    @staticmethod
    def diag(dim: int, val: Any) -> Matrix:
        """Diagonal matrix of one value."""
        return Matrix(np.diag([val] * dim))

    @staticmethod
    def rows(rows: Sequence[Any]) -> Matrix:
        """Matrix from its rows."""
        return Matrix([np.asarray(r) for r in rows])

    @staticmethod
    def cols(cols: Sequence[Any]) -> Matrix:
        """Matrix from its columns."""
        return Matrix(np.stack([np.asarray(c) for c in cols], axis=1))

    @classmethod
    def ndarray(cls, n: int, m: int, dtype: Any, shape: Any, needs_grad: bool = False) -> Any:
        """Array of ``n`` x ``m`` matrices on the active device, zero-filled."""
        from qd_core.runtime.array import MatrixNdarray

        return MatrixNdarray(_scalar(dtype), shape, (n, m), needs_grad)

    @classmethod
    def field(cls, n: int, m: int, dtype: Any, shape: Any = None, **options: Any) -> Any:
        """Field of ``n`` x ``m`` matrices; options as for ``qd.field``."""
        from qd_core.api.field import field

        return field(MatrixType((n, m), dtype), shape, **options)

    @classmethod
    def tensor(cls, n: int, m: int, dtype: Any, shape: Any, **options: Any) -> Any:
        """Tensor of ``n`` x ``m`` matrices; options as for ``qd.tensor``."""
        from qd_core.api.create import tensor

        return tensor(MatrixType((n, m), dtype), shape, **options)


class Vector(Matrix):
    """A small vector; see `Matrix`."""

    __slots__ = ()

    @classmethod
    def ndarray(cls, n: int, dtype: Any, shape: Any, needs_grad: bool = False) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Array of vectors of ``n`` components on the active device, zero-filled."""
        from qd_core.runtime.array import VectorNdarray

        return VectorNdarray(_scalar(dtype), shape, (n,), needs_grad)

    @classmethod
    def field(cls, n: int, dtype: Any, shape: Any = None, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Field of vectors of ``n`` components; options as for ``qd.field``."""
        from qd_core.api.field import field

        return field(MatrixType((n,), dtype), shape, **options)

    @classmethod
    def tensor(cls, n: int, dtype: Any, shape: Any, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tensor of vectors of ``n`` components; options as for ``qd.tensor``."""
        from qd_core.api.create import tensor

        return tensor(MatrixType((n,), dtype), shape, **options)


class _Element(Matrix):
    """An element of a field: changing a component changes the field."""

    __slots__ = ("_store",)

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        self._store(self._data)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self._store(self._data)

    def fill(self, val: Any) -> None:
        """Set every component."""
        super().fill(val)
        self._store(self._data)


class _VectorElement(_Element, Vector):
    __slots__ = ()


def _element(data: np.ndarray[Any, Any], kind: DType, store: Callable[[np.ndarray[Any, Any]], None]) -> Matrix:
    """Element of a field in Python scope; ``store`` writes it back."""
    made = object.__new__(_VectorElement if data.ndim == 1 else _Element)
    for name, value in (("_data", data), ("_dtype", kind), ("_store", store)):
        object.__setattr__(made, name, value)
    return made


PYTHON_SCOPE["element"] = _element


def _scalar(dtype: Any) -> DType:
    """Scalar type of an annotation, with the active device's default types for ``int`` and ``float``."""
    from qd_core.runtime.context import active

    runtime = active()
    options = runtime.options if runtime is not None else None
    kind = as_dtype(dtype) if options is None else as_dtype(dtype, options.default_ip, options.default_fp)
    if kind is None:
        raise TypeError(f"expected a scalar type, got {dtype!r}")
    return kind


def _numpy(dt: Any) -> np.dtype[Any]:
    kind = as_dtype(dt)
    if kind is None:
        raise TypeError(f"expected a scalar type, got {dt!r}")
    return kind.numpy


def _construct(kind: MatrixType, *components: Any) -> Matrix:
    """Call of a matrix type in Python scope."""
    parts = [np.asarray(c).reshape(-1) for c in components]
    flat = np.concatenate(parts) if parts else np.zeros(0)
    size = math.prod(kind.shape)
    if len(flat) == 1:
        flat = np.repeat(flat, size)
    if len(flat) != size:
        raise TypeError(f"{kind!r} needs {size} components, got {len(flat)}")
    return (Vector if len(kind.shape) == 1 else Matrix)(flat.reshape(kind.shape), kind.dtype)


PYTHON_SCOPE["matrix"] = _construct
kernel_meaning("Vector")(Vector)
kernel_meaning("Matrix")(Matrix)
for _name in _FUNCTIONS:
    kernel_meaning(f"Matrix.{_name}")(getattr(Matrix, _name))
