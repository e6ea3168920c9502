"""One component of a field of vectors or matrices, in Python scope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qd_core.dtypes import DType
from qd_core.errors import ArgumentValueError

if TYPE_CHECKING:
    from qd_core.runtime.field import MatrixField

__all__ = ["ComponentField"]


class ComponentField:
    """One component of the elements of a field, in Python scope."""

    __slots__ = ("field", "indices")

    def __init__(self, field: MatrixField, indices: tuple[int, ...]) -> None:
        if len(indices) != field.ndim or any(not 0 <= i < n for i, n in zip(indices, field.element_shape, strict=True)):
            raise ArgumentValueError(f"{field!r} has no component {indices}")
        self.field, self.indices = field, indices

    @property
    def _at(self) -> Any:
        """Index of the component in an element; a vector's elements take no tuple."""
        first, *rest = self.indices
        return (first, *rest) if rest else first

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the index space."""
        return self.field.shape

    @property
    def dtype(self) -> DType:
        """Scalar type."""
        return self.field.dtype

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy as a NumPy array of `shape`."""
        return self.field.to_numpy()[(..., *self.indices)].copy()

    def from_numpy(self, array: np.ndarray[Any, Any]) -> None:
        """Set the component everywhere."""
        data = self.field.to_numpy()
        data[(..., *self.indices)] = array
        self.field.from_numpy(data)

    def fill(self, value: Any) -> None:
        """Set the component everywhere to one value."""
        self.from_numpy(np.full(self.shape, value, self.dtype.numpy))

    def __getitem__(self, key: Any) -> Any:
        return self.field[key][self._at]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.field[key][self._at] = value
