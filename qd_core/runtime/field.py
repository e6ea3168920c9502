"""Fields: arrays with an index space, placed in a tree of dense nodes.

A field's elements lie in a `FieldStorage`, an array of the device like any other, alone or interleaved with the fields
placed beside it. Its gradient
and dual are fields over the storage's own gradient and dual.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from qd_core.backend.contract import BufferRef, HostSpan
from qd_core.dtypes import DType
from qd_core.errors import (
    ArgumentValueError,
    ClosedError,
    QuadrantsAssertionError,
    QuadrantsRuntimeError,
    QuadrantsRuntimeTypeError,
    QuadrantsTypeError,
)
from qd_core.frontend.annotations import PYTHON_SCOPE
from qd_core.frontend.signature import ArrayArg
from qd_core.runtime.array import HEADER_DUAL, HEADER_GRAD, HEADER_KEY, HEADER_SHAPE, Ndarray, checked_shape
from qd_core.runtime.context import current
from qd_core.runtime.export import Exportable
from qd_core.runtime.tree import Layout, SNode, default_tree

if TYPE_CHECKING:
    from qd_core.runtime.component import ComponentField

__all__ = ["Field", "FieldStorage", "MatrixField", "ScalarField", "allocate", "place_with_shape"]

_UNPLACED = np.zeros(HEADER_SHAPE, np.uint64)
"""Header of a field without memory: its class key 0 fits no launch plan, and it leads to no gradient."""


class FieldStorage(Ndarray):
    """Memory of one field, or of several that share elements."""

    __slots__ = ("users",)
    is_field = True

    def __init__(self, dtype: DType, shape: Sequence[int], element_shape: tuple[int, ...] = ()) -> None:
        self.users: weakref.WeakSet[Field] = weakref.WeakSet()
        super().__init__(dtype, shape, element_shape)

    def _check(self) -> None:
        self._runtime.check_open("this field")
        if self._buffer.freed:
            raise ClosedError("this field belongs to a tree that was destroyed", hint="make it anew in another tree")

    def attach(self, hop: str) -> None:
        """Allocate the gradient (``hop`` is ``"grad"``) or dual, unless it exists."""
        if getattr(self, hop) is not None:
            return
        shadow = FieldStorage(self.dtype, self.shape, self.element_shape)
        setattr(self, hop, shadow)
        self._header[{"grad": HEADER_GRAD, "dual": HEADER_DUAL}[hop]] = shadow._header.ctypes.data
        for field in list(self.users):
            field.set_keys()
        self._runtime.forget_plans()

    def release(self) -> None:
        """Free the memory with that of gradient and dual."""
        for storage in (self, self.grad, self.dual):
            if storage is not None:
                storage._invalidate()


def allocate(fields: Sequence[Field]) -> None:
    """Give fields of one node, scalar type and kind of gradients their memory."""
    sizes = [math.prod(f.element_shape) for f in fields]
    element = fields[0].element_shape if len(fields) == 1 else (sum(sizes),)
    shape = fields[0].layout.storage
    if fields[0].split:
        shape, element = element + shape, ()
    storage = FieldStorage(fields[0].dtype, shape, element)
    for k, field in enumerate(fields):
        field.settle(storage, sum(sizes[:k]) if len(fields) > 1 else None)
    for hop in ("grad", "dual"):
        if fields[0].wants(hop):
            storage.attach(hop)


class Field(Exportable):
    """What fields of scalars, vectors and matrices have in common.

    Parameters
    ----------
    dtype : DType
        Scalar type.
    element_shape : tuple of int
        ``()``, ``(n,)`` for vectors, ``(n, m)`` for matrices.
    name : str
        For messages.
    split : bool
        Store each component in an array of its own, one after the other.
    """

    __slots__ = (
        "__dict__", "__weakref__", "_first", "_header", "_hop", "_node", "_offset", "_primal", "_shadows", "_storage",
        "_wanted", "dtype", "element_shape", "name", "split",
    )  # fmt: skip

    def __init__(
        self, dtype: DType, element_shape: tuple[int, ...] = (), name: str = "", *, split: bool = False
    ) -> None:
        self.dtype, self.element_shape, self.name = dtype, element_shape, name
        self.split = split and bool(element_shape)
        self._node: SNode | None = None
        self._offset: tuple[int, ...] | None = None
        self._storage: FieldStorage | None = None
        self._first: int | None = None
        self._primal: Field | None = None
        self._hop = ""
        self._wanted: set[str] = set()
        self._shadows: dict[str, weakref.ref[Field]] = {}
        self._header: np.ndarray[Any, Any] = _UNPLACED

    def __copy__(self) -> Field:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is part of its runtime's memory and can be neither pickled nor copied deeply; keep to_numpy() "
            "of it, or use a qd.ndarray or qd.tensor"
        )

    # -- placement ----------------------------------------------------------------------------------------------------
    def place_in(self, node: SNode, offset: tuple[int, ...] | None) -> None:
        """Become part of the cells of ``node``; a gradient or dual says that its field has one."""
        if self._primal is not None:
            self._check_beside(node)
            self._primal.want(self._hop)
            return
        if self._node is not None:
            raise QuadrantsRuntimeError(f"{self!r} is already placed", hint="a field is placed once")
        if self._offset is None:
            self._offset = offset
        self._node = node
        node.add(self)

    def _check_beside(self, node: SNode) -> None:
        home = self._primal._node if self._primal is not None else None
        if home is not None and node.shape != home.shape:
            raise ArgumentValueError(
                f"a gradient has the shape of its field, {home.shape}, but is placed in a node of shape {node.shape}"
            )

    def want(self, hop: str) -> None:
        """Have a gradient (``"grad"``) or dual from now on."""
        if not self.dtype.is_real:
            raise QuadrantsRuntimeTypeError(f"a field of {self.dtype} has no derivative")
        self._wanted.add(hop)
        if self._storage is not None:
            self._storage.attach(hop)

    def wants(self, hop: str) -> bool:
        """Whether it has, or will have, a gradient or dual."""
        return hop in self._wanted or (self._storage is not None and getattr(self._storage, hop) is not None)

    def settle(self, storage: FieldStorage, first: int | None) -> None:
        """Take ``storage`` as memory, where the field's scalars start at scalar ``first`` of an element (None: it is
        alone).
        """
        self._storage, self._first = storage, first
        storage.users.add(self)
        if first is None:
            self._header = storage._header
        else:
            storage._header[HEADER_KEY] = 0
        self.set_keys()

    def set_keys(self) -> None:
        """Let launch plans recognise the field and its shadows by everything that decides their code."""
        storage = self._storage
        if storage is None or self._first is not None:
            return  # what shares elements with others is passed by Python
        kind = self.__qd_capture__()
        self._header[HEADER_KEY] = storage._runtime.class_key(kind)
        for hop in ("grad", "dual"):
            shadow = getattr(storage, hop)
            if shadow is not None:
                plain = replace(kind, needs_grad=False, needs_dual=False)
                shadow._header[HEADER_KEY] = storage._runtime.class_key(plain)
                known = self._shadows.get(hop)
                field = known() if known is not None else None
                if field is not None:
                    field._header = shadow._header

    def release(self) -> None:
        """Free the memory."""
        if self._storage is not None:
            self._storage.release()

    def allocate(self) -> None:
        """Have memory now."""
        assert self.home is not None

    @property
    def home(self) -> FieldStorage:
        """The array that holds the elements, allocated at the first use."""
        if self._primal is not None:
            shadow = getattr(self._primal.home, self._hop)
            if shadow is None:
                what = "gradient" if self._hop == "grad" else "dual"
                raise QuadrantsRuntimeError(
                    f"{self._primal!r} has no {what}", hint=f"create it with needs_{self._hop}=True"
                )
            return shadow
        if self._storage is None:
            self.snode.materialize()
        assert self._storage is not None
        return self._storage

    @property
    def snode(self) -> SNode:
        """The node it is placed in."""
        if self._primal is not None:
            return self._primal.snode
        if self._node is None:
            raise QuadrantsRuntimeError(
                f"{self!r} is not placed", hint="pass shape=..., or place it: qd.root.dense(qd.i, n).place(x)"
            )
        return self._node

    def parent(self, n: int = 1) -> SNode | None:
        """Return the node that it is placed in, or the n-th above."""
        return self.snode.parent(n - 1)

    @property
    def layout(self) -> Layout:
        """How its index space lies in memory."""
        return self.snode.layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the index space."""
        return self.layout.shape

    @property
    def offset(self) -> tuple[int, ...] | None:
        """Index of the first element."""
        return self._primal.offset if self._primal is not None else self._offset

    def __qd_capture__(self) -> ArrayArg:
        """Type of the field in kernels."""
        storage, layout = self.home, self.layout
        owner = self if self._primal is None else self._primal
        first = owner._first
        return ArrayArg(
            self.dtype,
            len(storage.shape),
            storage.element_shape,
            storage.grad is not None,
            layout.order,
            self.offset,
            layout.shape,
            layout.blocks,
            first,
            self.element_shape if first is not None or self.split else (),
            storage.dual is not None,
            split=self.split,
        )

    # -- derivatives --------------------------------------------------------------------------------------------------
    def _shadow(self, hop: str) -> Field | None:
        if self._primal is not None or not self.dtype.is_real:
            return None
        known = self._shadows.get(hop)
        shadow = known() if known is not None else None
        if shadow is None:
            name = f"{self.name}.{hop}" if self.name else ""
            shadow = type(self)(self.dtype, self.element_shape, name, split=self.split)
            shadow._primal, shadow._hop = self, hop
            self._shadows[hop] = weakref.ref(shadow)
            self.set_keys()
        return shadow

    @property
    def grad(self) -> Any:
        """The field of gradients; None for integers."""
        return self._shadow("grad")

    @property
    def dual(self) -> Any:
        """The field of tangents; None for integers."""
        return self._shadow("dual")

    def has_grad(self) -> bool:
        """Whether there is memory for gradients."""
        return self.wants("grad")

    def has_dual(self) -> bool:
        """Whether there is memory for tangents."""
        return self.wants("dual")

    def make_dual(self) -> Any:
        """Have a dual, and return it."""
        self.want("dual")
        return self.dual

    # -- whole contents -----------------------------------------------------------------------------------------------
    def _copied(self) -> np.ndarray[Any, Any]:
        return np.array(self._view(self.home._copied()), order="C")

    def _in_place(self) -> np.ndarray[Any, Any] | None:
        shared = self.home._in_place()
        view = None if shared is None else self._view(shared)
        return view if view is not None and (np.may_share_memory(view, shared) or not view.nbytes) else None

    def from_numpy(self, array: Any) -> None:
        """Overwrite with ``array``, of shape ``shape + element_shape``; values are converted to the dtype."""
        storage, array = self.home, np.asarray(array)
        wanted = self.shape + self.element_shape
        if array.shape != wanted:
            raise ArgumentValueError(f"expected an array of shape {wanted}, got {array.shape}")
        turned = self.layout.to_storage(array.astype(self.dtype.numpy, copy=False))
        if self.split:
            turned = np.moveaxis(turned, self._tail, range(len(self.element_shape)))
        if self._owner._first is None:
            storage.from_numpy(turned)
            return
        self._announce(None)
        whole = storage.to_numpy()
        whole[..., self._columns] = turned.reshape((*turned.shape[: len(self.layout.storage)], -1))
        with storage._runtime.unrecorded():
            storage.from_numpy(whole)

    def fill(self, val: Any) -> None:
        """Set every element to ``val`` (a scalar, or one element)."""
        value = np.asarray(val)
        if self.dtype.is_integral and value.dtype.kind == "f":
            raise QuadrantsTypeError(
                f"cannot fill a field of {self.dtype} with the real {val!r}", hint="convert it with int()"
            )
        if self._owner._first is None and (not self.split or value.ndim == 0):
            self.home.fill(value)
        else:
            self.from_numpy(np.broadcast_to(value, self.shape + self.element_shape))

    def copy_from(self, other: Any) -> None:
        """Copy the contents of another field or array of the same shape."""
        if not hasattr(other, "to_numpy"):
            raise QuadrantsRuntimeTypeError(
                f"cannot copy {type(other).__name__} into {self!r}", hint="use from_numpy or from_torch"
            )
        if tuple(other.shape) != self.shape:
            raise ArgumentValueError(f"cannot copy {other!r} into {self!r}: shapes must agree")
        self.from_numpy(other.to_numpy())

    @property
    def _owner(self) -> Field:
        return self._primal if self._primal is not None else self

    @property
    def _columns(self) -> slice:
        """The field's scalars in an element of a shared storage."""
        first = self._owner._first or 0
        return slice(first, first + math.prod(self.element_shape))

    @property
    def _tail(self) -> range:
        """Axes of components, counted from the end."""
        return range(-len(self.element_shape), 0)

    def _view(self, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Contents in index order from those of the storage."""
        if self._owner._first is not None:
            data = data[..., self._columns].reshape(data.shape[:-1] + self.element_shape)
        elif self.split:
            data = np.moveaxis(data, range(len(self.element_shape)), self._tail)
        return self.layout.to_index(data)

    # -- elements -----------------------------------------------------------------------------------------------------
    def _index(self, key: Any) -> tuple[int, ...]:
        """Index from what stands in brackets, counted from 0 along each axis."""
        index = (
            ()
            if key is None
            else tuple(key)
            if isinstance(key, (tuple, list)) or hasattr(key, "__qd_matrix__")
            else (key,)
        )
        shape, offset = self.shape, self.offset or (0,) * len(self.shape)
        if len(index) != len(shape) or any(isinstance(i, slice) or i is None for i in index):
            raise QuadrantsAssertionError(
                f"Slicing is not supported on qd.field: expected {len(shape)} integer indices, got {key!r}"
            )
        found = tuple(int(i) - o for i, o in zip(index, offset, strict=True))
        for axis, (i, n, o) in enumerate(zip(found, shape, offset, strict=True)):
            if not 0 <= i < n:
                raise QuadrantsAssertionError(f"index {i + o} is out of range for axis {axis}, {o} to {n + o - 1}")
        return found

    def _bytes(self, index: tuple[int, ...]) -> list[BufferRef]:
        """Memory of an element: one piece, or one a component."""
        storage, at = self.home, self.layout.locate(index)
        nbytes, size = self.dtype.nbytes, math.prod(self.element_shape)
        if self.split:
            places = [(*part, *at) for part in np.ndindex(*self.element_shape)]
            size = 1
        else:
            places = [at]
        starts = [sum(i * s for i, s in zip(p, storage._view.strides, strict=True)) for p in places]
        first = self._owner._first or 0
        return [BufferRef(storage._buffer, (start + first) * nbytes, size * nbytes) for start in starts]

    def _load(self, index: tuple[int, ...]) -> np.ndarray[Any, Any]:
        storage = self.home
        storage._check()
        stream = storage._runtime.device.default_stream
        out = np.empty(self.element_shape, self.dtype.numpy)
        for k, ref in enumerate(self._bytes(index)):
            stream.copy_out(HostSpan(out.ctypes.data + k * ref.nbytes, ref.nbytes, out), ref)
        return out

    def _store(self, index: tuple[int, ...], value: Any) -> None:
        storage = self.home
        storage._check()
        if self.dtype.is_integral and np.asarray(value).dtype.kind == "f":
            raise QuadrantsTypeError(
                f"cannot store the real {value!r} in a field of {self.dtype}", hint="convert it with int()"
            )
        data = np.ascontiguousarray(np.broadcast_to(np.asarray(value).astype(self.dtype.numpy), self.element_shape))
        self._announce(index)
        stream = storage._runtime.device.default_stream
        for k, ref in enumerate(self._bytes(index)):
            stream.copy_in(ref, HostSpan(data.ctypes.data + k * ref.nbytes, ref.nbytes, data))

    def _announce(self, index: tuple[int, ...] | None) -> None:
        """Tell an active tape that the host overwrites the field, or one element."""
        recorder = self.home._runtime.recorder
        if recorder is not None:
            at = None if index is None or self.split else self.layout.locate(index)
            recorder.host_write(self.home, at, lambda: self._clear_gradient(index))

    def _clear_gradient(self, index: tuple[int, ...] | None) -> None:
        if self.home.grad is None:
            return
        if index is None:
            self.grad.fill(0)
        else:
            self.grad._store(index, 0)

    def __getitem__(self, key: Any) -> Any:
        index = self._index(key)
        value = self._load(index)
        if not self.element_shape:
            number = value.item()
            return int(number) if isinstance(number, bool) else number
        return PYTHON_SCOPE["element"](value, self.dtype, partial(self._store, index))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._store(self._index(key), value)

    def __iter__(self) -> Any:
        raise NotImplementedError(
            "Struct for is only available in Quadrants scope; in Python, loop over x.to_numpy() or np.ndindex(x.shape)"
        )

    def __repr__(self) -> str:
        where = f"shape={self.layout.shape}" if self._owner._node is not None else "not placed"
        element = f", element_shape={self.element_shape}" if self.element_shape else ""
        return f"<{type(self).__name__} {self.name}{' ' * bool(self.name)}{self.dtype} {where}{element}>"


class ScalarField(Field):
    """Field of scalars."""

    __slots__ = ()


class MatrixField(Field):
    """Field of vectors or matrices."""

    __slots__ = ()

    @property
    def n(self) -> int:
        """Rows, or components of a vector."""
        return self.element_shape[0]

    @property
    def m(self) -> int:
        """Columns; 1 for a vector."""
        return self.element_shape[1] if len(self.element_shape) == 2 else 1

    @property
    def ndim(self) -> int:
        """Axes of an element: 1 for vectors, 2 for matrices."""
        return len(self.element_shape)

    def get_scalar_field(self, *indices: int) -> ComponentField:
        """Return the component ``indices`` of every element: read and written as a field in Python scope."""
        from qd_core.runtime.component import ComponentField

        return ComponentField(self, indices)


def place_with_shape(fields: Sequence[Field], shape: Any, order: str | None, offset: Any) -> None:
    """Place fields together in a node of their own below ``qd.root``.

    Parameters
    ----------
    shape : int or sequence of int
        Extents.
    order : str or None
        Letters of the axes from the slowest to the fastest, such as ``"ji"``.
    offset : int or sequence of int, or None
        Index of the first element.
    """
    extents = checked_shape(shape)
    letters = "ijklmnopqrst"[: len(extents)]
    if order is not None and sorted(order) != list(letters):
        raise ArgumentValueError(f"order={order!r} is no permutation of {letters!r}, the axes of shape {extents}")
    node = default_tree(current()).root
    for letter in order or letters:
        axis = letters.index(letter)
        node = node.dense(axis, extents[axis])
    node.place(*fields, offset=offset)
