"""Where the interpreter's arrays are: packed words to NumPy views.

:class:`Memory` knows the layout of the words; a subclass says what an array's first word means: an ordinal of the
launch's buffers here, an address of its own space for a device that has one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.backend.contract import BufferUse
from qd_core.backend.host import buffer_bytes
from qd_core.errors import DeviceFault, Span
from qd_core.ir.nodes import ArrayType, Param

__all__ = ["InterpreterError", "Memory", "OrdinalMemory", "check_indices", "word_offsets"]

Array = np.ndarray[Any, Any]


class InterpreterError(DeviceFault, IndexError):
    """The interpreted program touched memory outside an array, which the reference never does silently."""


def word_offsets(params: Sequence[Param]) -> dict[Param, int]:
    """Return the position of each leaf's first word: one word a scalar, ``1 + 2 * ndim`` words an array."""
    offsets: dict[Param, int] = {}
    position = 0
    for param in params:
        offsets[param] = position
        position += 1 + 2 * param.type.ndim if isinstance(param.type, ArrayType) else 1
    return offsets


class Memory(ABC):
    """Arguments of one launch.

    Parameters
    ----------
    words : buffer
        Packed arguments, 64-bit words (`Launch.words`).
    """

    def __init__(self, words: Any) -> None:
        self.words: Array = np.frombuffer(words, np.int64) if len(words) else np.zeros(0, np.int64)
        self._views: dict[Param, Array] = {}

    @abstractmethod
    def locate(self, param: Param, word: int) -> Array:
        """Return the bytes (1-D uint8, writable, sharing memory) from an array's first element to the end of its
        buffer.

        ``word`` is the leaf's first word, as a signed number. Not called for an array without elements.
        """

    def scalar(self, param: Param, offset: int) -> Array:
        """Return the scalar in word ``offset`` as 0-D data of the parameter's type."""
        bits = self.words[offset : offset + 1].view(np.uint8)[: param.type.nbytes]
        return np.asarray(bits[0] != 0) if param.type is dt.u1 else bits.view(param.type.numpy).reshape(())

    def array(self, param: Param, offset: int) -> Array:
        """Return the view of an array leaf whose words start at ``offset``; made once a launch."""
        view = self._views.get(param)
        if view is None:
            self._views[param] = view = self.resolve(param, self.words[offset : offset + 1 + 2 * param.type.ndim])
        return view

    def resolve(self, param: Param, words: Array) -> Array:
        """Return the view of full rank of an array leaf from its own words (address, extents, strides in scalars).

        Element axes are innermost and contiguous. Truth values are bytes. `InterpreterError` when it leaves its buffer.
        """
        kind: ArrayType = param.type
        extents, strides = words[1 : 1 + kind.ndim], words[1 + kind.ndim :]
        shape = (*map(int, extents), *kind.element_shape)
        dtype = np.dtype(np.uint8) if kind.dtype is dt.u1 else kind.dtype.numpy
        if 0 in shape:
            return np.empty(shape, dtype)
        steps = (*map(int, strides), *_contiguous(kind.element_shape))
        data = self.locate(param, int(words[0]))
        lowest, last = _reach(shape, steps)
        if lowest < 0 or (last + 1) * dtype.itemsize > data.size:
            raise InterpreterError(
                f"array {param.path!r} of shape {shape} and strides {steps} leaves its buffer of {data.size} bytes"
            )
        return np.ndarray(shape, dtype, data, 0, tuple(s * dtype.itemsize for s in steps))


class OrdinalMemory(Memory):
    """Memory of a device without addresses: an array's first word is the index into the launch's ``uses``."""

    def __init__(self, words: Any, uses: Sequence[BufferUse]) -> None:
        super().__init__(words)
        self.uses = uses

    def locate(self, param: Param, word: int) -> Array:
        """Return the bytes of use number ``word``."""
        if not 0 <= word < len(self.uses):
            raise InterpreterError(
                f"array {param.path!r}: ordinal {word} names none of the launch's {len(self.uses)} buffers"
            )
        return buffer_bytes(self.uses[word].ref)


def check_indices(param: Param, view: Array, indices: Sequence[Array], span: Span | None) -> None:
    """Raise `InterpreterError` naming array, index, shape and line unless all ``indices`` are within ``view``.

    ``indices``: one equally long 1-D int64 array an axis.
    """
    for axis, index in enumerate(indices):
        bad = (index < 0) | (index >= view.shape[axis])
        if bad.any():
            first = int(np.argmax(bad))
            where = tuple(int(i[first]) for i in indices)
            raise InterpreterError(f"index {where} is outside array {param.path!r} of shape {view.shape}", span=span)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    steps: list[int] = []
    size = 1
    for n in reversed(shape):
        steps.append(size)
        size *= n
    return tuple(reversed(steps))


def _reach(shape: Sequence[int], steps: Sequence[int]) -> tuple[int, int]:
    """Lowest and highest scalar offset that a view touches."""
    ends = [(n - 1) * s for n, s in zip(shape, steps, strict=True)]
    return sum(e for e in ends if e < 0), sum(e for e in ends if e > 0)
