"""Type objects that annotate arguments and results: vectors, matrices, structs, arrays, templates.

They are plain descriptions. `qd_core.api.types` adds what they construct in Python scope.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.errors import ArgumentValueError

__all__ = ["PYTHON_SCOPE", "MatrixType", "NdarrayType", "StructType", "Template", "as_dtype", "scalar_annotation"]


PYTHON_SCOPE: dict[str, Callable[..., Any]] = {}
"""What calling a type object does in Python scope (``"matrix"``, ``"struct"``); filled by `qd_core.api`."""


def as_dtype(annotation: Any, default_ip: DType = dt.i32, default_fp: DType = dt.f32) -> DType | None:
    """Return the scalar type that ``annotation`` means (``int``, ``float``, ``bool``, a `DType`), or None."""
    if isinstance(annotation, DType):
        return annotation
    if annotation is int:
        return default_ip
    if annotation is float:
        return default_fp
    return dt.u1 if annotation is bool else None


def scalar_annotation(annotation: Any) -> bool:
    """Whether ``annotation`` names a scalar type."""
    return isinstance(annotation, DType) or annotation in (int, float, bool)


class Optionable:
    """An annotation of which ``annotation | None`` can be made."""

    __slots__ = ()

    def __or__(self, other: object) -> Any:
        return typing.Optional[self] if other is None or other is type(None) else NotImplemented  # noqa: UP045

    __ror__ = __or__


class MatrixType(Optionable):
    """A vector (shape ``(n,)``) or matrix (shape ``(n, m)``) of scalars.

    Parameters
    ----------
    shape : tuple of int
        One or two extents of at least 1.
    dtype : DType or None
        Scalar type; None where the value decides.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: Sequence[int], dtype: Any = None) -> None:
        self.shape = tuple(int(n) for n in shape)
        if any(n < 1 for n in self.shape):
            raise ArgumentValueError(f"a vector or matrix needs extents of at least 1, got {self.shape}")
        self.dtype: Any = dtype

    def __call__(self, *components: Any) -> Any:
        """Make a value in Python scope; in kernels the front end does."""
        return PYTHON_SCOPE["matrix"](self, *components)

    def field(self, shape: Any = None, **options: Any) -> Any:
        """Make a field of such elements; options as for ``qd.field``."""
        return PYTHON_SCOPE["matrix_field"](self, shape, **options)

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def m(self) -> int:
        """Number of columns; 1 for a vector."""
        return self.shape[1] if len(self.shape) == 2 else 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MatrixType) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        name = "vector" if len(self.shape) == 1 else "matrix"
        dtype = self.dtype.__name__ if isinstance(self.dtype, type) else self.dtype
        return f"{name}({', '.join(map(str, self.shape))}, {dtype!s})"


class StructType(Optionable):
    """Named members, each a scalar, matrix or struct type, with optional methods.

    Those written as `@qd.func` are for kernels, others for Python scope. Static ones are found in the type, too.
    """

    __slots__ = ("members", "methods", "name")

    def __init__(
        self, members: Mapping[str, Any], methods: Mapping[str, Any] | None = None, name: str = "struct"
    ) -> None:
        self.members: dict[str, Any] = dict(members)
        self.methods: dict[str, Any] = dict(methods or {})
        self.name = name

    def __call__(self, /, *members: Any, **named: Any) -> Any:
        """Make a value in Python scope; in kernels the front end does."""
        return PYTHON_SCOPE["struct"](self, *members, **named)

    def __getattr__(self, name: str) -> Any:
        function = None if name.startswith("__") else self.methods.get(name)
        if function is None:
            raise AttributeError(f"the struct type {self.name} has no attribute {name!r}")
        return function.__get__(None, type(self)) if isinstance(function, (staticmethod, classmethod)) else function

    def field(self, shape: Any = None, **options: Any) -> Any:
        """Make a field of such structs; options as for ``qd.field``, with ``layout`` for the place of members."""
        return PYTHON_SCOPE["struct_field"](self, shape, **options)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, StructType)
            and list(self.members.items()) == list(other.members.items())
            and self.methods == other.methods
        )

    def __hash__(self) -> int:
        return hash((tuple(self.members), self.name))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}: {v!r}' for k, v in self.members.items())})"


class NdarrayType(Optionable):
    """An argument that is an array in memory; what is None is taken from the value.

    Parameters
    ----------
    dtype : DType, MatrixType or None
        Element type.
    ndim : int or None
        Number of axes, without element axes.
    element_shape : tuple of int or None
        Element axes, where ``dtype`` is a scalar type.
    needs_grad : bool or None
        Wanted gradient storage.
    """

    __slots__ = ("boundary", "dtype", "element_shape", "ndim", "needs_grad")

    def __init__(
        self,
        dtype: Any = None,
        ndim: int | None = None,
        element_shape: Sequence[int] | None = None,
        needs_grad: bool | None = None,
        boundary: str = "unsafe",
    ) -> None:
        if isinstance(dtype, MatrixType):
            element_shape = dtype.shape
            dtype = dtype.dtype
        self.dtype: Any = dtype
        self.ndim = ndim
        self.element_shape = None if element_shape is None else tuple(int(n) for n in element_shape)
        self.needs_grad = needs_grad
        self.boundary = boundary

    def __class_getitem__(cls, key: Any) -> NdarrayType:
        """``NDArray[dtype, ndim]``."""
        return cls(*key) if isinstance(key, tuple) else cls(key)

    def __call__(self, *_: Any) -> Any:
        """Refuse a call: callable for Python 3.10, whose ``Optional[...]`` takes nothing else."""
        raise TypeError("an array type annotates arguments; qd.ndarray(dtype, shape) makes an array")

    def __repr__(self) -> str:
        return f"ndarray(dtype={self.dtype!r}, ndim={self.ndim!r}, element_shape={self.element_shape!r})"


class Template:
    """A value or field that is compiled in: `qd.template()`. Types given in brackets are documentation."""

    __slots__ = ()

    def __init__(self, *_types: Any) -> None:
        pass

    def __class_getitem__(cls, key: Any) -> Template:
        return cls()

    def __repr__(self) -> str:
        return "template()"
