"""`qd.BufferView`: part of a one-dimensional array, as an array of its own."""

from __future__ import annotations

from typing import Any

from qd_core.backend.contract import BufferRef
from qd_core.errors import ArgumentValueError
from qd_core.frontend.annotations import NdarrayType
from qd_core.runtime.arguments import ArrayView
from qd_core.runtime.array import Ndarray, ScalarNdarray

__all__ = ["BufferView", "part"]


class BufferView(ScalarNdarray):
    """Elements ``start`` to ``stop`` of an array, in the same memory: ``x[start:stop]``.

    It keeps the array alive and has no gradient. In annotations, ``BufferView[qd.f32]`` takes views and arrays.
    """

    __slots__ = ("base", "start")

    def __init__(self, base: Ndarray, start: int, stop: int) -> None:
        base._check()
        size = base.dtype.nbytes
        self._runtime, self.base, self.start = base._runtime, base, start
        self.dtype, self.element_shape, self.shape = base.dtype, (), (stop - start,)
        self.grad = self.dual = None
        self._buffer = base._buffer
        ref = BufferRef(base._buffer, base._view.ref.offset + start * size, (stop - start) * size)
        self._view = ArrayView(ref, self.shape, (1,))
        self._host = base._host[start:stop] if base._host is not None else None
        self._runtime.arrays.add(self)
        self._fill_header()

    def __class_getitem__(cls, dtype: Any) -> NdarrayType:
        """``BufferView[dtype]`` in annotations."""
        return NdarrayType(dtype, 1)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.shape[0]

    def _invalidate(self) -> None:
        self._forget()

    def __del__(self) -> None:
        pass  # the memory is the array's

    def __reduce__(self) -> tuple[Any, ...]:
        kind, arguments = super().__reduce__()
        return kind, (ScalarNdarray, *arguments[1:])


def part(array: Ndarray, key: slice) -> BufferView:
    """Return ``array[key]``.

    Raises
    ------
    ArgumentValueError
        The array is no one-dimensional one of scalars, has a gradient, or the step is not 1.
    """
    if len(array.shape) != 1 or array.element_shape:
        raise ArgumentValueError(f"only one-dimensional arrays of scalars have parts, not {array!r}")
    if array.grad is not None or array.dual is not None:
        raise ArgumentValueError(
            f"{array!r} has a gradient, which a part of it would not have",
            hint="pass the array and the first and last index",
        )
    start, stop, step = key.indices(array.shape[0])
    if step != 1:
        raise ArgumentValueError(f"a part of an array has step 1, not {step}")
    return BufferView(array, start, max(start, stop))
