"""Trees of fields: `qd.root.dense(...).place(...)` and `qd.FieldsBuilder`.

A node is a dense array of cells; what is placed in one node lies interleaved, cell by cell, where it has one scalar
type. Memory is allocated when a
field of the node is first used, so a node can be placed into at any time.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qd_core.errors import (
    ArgumentValueError,
    ClosedError,
    QuadrantsRuntimeError,
    QuadrantsRuntimeTypeError,
    Span,
    UnsupportedError,
)
from qd_core.frontend.signature import ArrayArg
from qd_core.runtime.context import Runtime, current

if TYPE_CHECKING:
    from qd_core.runtime.field import Field

__all__ = ["AXES", "Axis", "FieldTree", "FieldsBuilder", "Layout", "SNode", "axes", "axis_set", "default_tree"]

AXES = "ijkl"
MAX_AXES = 12


def axes(*numbers: int) -> list[Axis]:
    """Return axes by their numbers: ``qd.axes(0, 1)`` is ``qd.ij``."""
    return [Axis(n) for n in numbers]


@dataclass(frozen=True, slots=True, order=True)
class Axis:
    """One index axis: ``qd.i`` is the first index of an element."""

    number: int

    def __repr__(self) -> str:
        return f"axis({self.number})"


def axis_set(name: str) -> list[Axis] | None:
    """Return the axes that ``name`` (``"i"``, ``"ij"``, ...) means: letters of `AXES`, each at most once."""
    if not 1 <= len(name) <= len(AXES) or any(c not in AXES for c in name) or len(set(name)) < len(name):
        return None
    return [Axis(AXES.index(c)) for c in name]


def axes_of(axes: Any) -> tuple[Axis, ...]:
    """Return axes from one axis, or a sequence of axes or of their numbers."""
    found = (axes,) if isinstance(axes, (Axis, int)) else tuple(axes)
    result = tuple(a if isinstance(a, Axis) else Axis(int(a)) for a in found)
    if not result or any(not 0 <= a.number < MAX_AXES for a in result) or len(set(result)) < len(result):
        raise ArgumentValueError(f"axes must be different ones of qd.i, qd.j, ..., got {axes!r}")
    return result


@dataclass(frozen=True, slots=True)
class Layout:
    """How the index space of a node lies in memory; see `ArrayArg` for the meaning of ``order`` and ``blocks``."""

    shape: tuple[int, ...]
    storage: tuple[int, ...]
    order: tuple[int, ...] | None
    blocks: tuple[tuple[int, int], ...] | None

    @staticmethod
    def of(levels: Sequence[tuple[int, int]]) -> Layout:
        """Layout of (axis number, count) levels, outermost first; neighbours of one axis are one level."""
        merged: list[tuple[int, int]] = []
        for axis, count in levels:
            if merged and merged[-1][0] == axis:
                merged[-1] = axis, merged[-1][1] * count
            else:
                merged.append((axis, count))
        numbers = sorted({axis for axis, _ in merged})
        order = tuple(numbers.index(axis) for axis, _ in merged)
        shape = tuple(math.prod(c for axis, c in merged if axis == n) for n in numbers)
        storage = tuple(count for _, count in merged)
        if len(numbers) == len(merged):
            return Layout(shape, storage, None if order == tuple(range(len(order))) else order, None)
        steps = [math.prod(c for axis, c in merged[k + 1 :] if axis == a) for k, (a, _) in enumerate(merged)]
        return Layout(shape, storage, order, tuple(zip(steps, storage, strict=True)))

    @property
    def axes(self) -> tuple[int, ...]:
        """Index axis of each storage axis."""
        return self.order if self.order is not None else tuple(range(len(self.shape)))

    def locate(self, index: Sequence[int]) -> tuple[int, ...]:
        """Return the storage index of an index in range."""
        if self.blocks is None:
            return tuple(index[a] for a in self.axes)
        return tuple(index[a] // step % count for a, (step, count) in zip(self.axes, self.blocks, strict=True))

    def to_index(self, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Rearrange an array in storage order (further axes behind) into index order; a view where that is possible."""
        turned = data.transpose(*self._permutation(), *range(len(self.storage), data.ndim))
        return turned.reshape(self.shape + data.shape[len(self.storage) :])

    def to_storage(self, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Rearrange an array in index order (further axes behind) into storage order."""
        permutation = self._permutation()
        rest = data.shape[len(self.shape) :]
        split = data.reshape(tuple(self.storage[k] for k in permutation) + rest)
        back = [permutation.index(k) for k in range(len(permutation))]
        return split.transpose(*back, *range(len(back), split.ndim))

    def _permutation(self) -> list[int]:
        """Storage axes in index order, the parts of an axis from coarse to fine."""
        return sorted(range(len(self.storage)), key=lambda k: (self.axes[k], k))


class FieldTree:
    """Fields that are allocated, given gradients and destroyed together."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.fields: weakref.WeakSet[Field] = weakref.WeakSet()
        self.root = SNode(self, None, (), ())
        self.finalized = False
        self.destroyed = False

    def destroy(self) -> None:
        """Free the memory of all fields; using one of them is a `ClosedError` afterwards."""
        self.destroyed = True
        for field in list(self.fields):
            field.release()
        self.runtime.forget_plans()

    def check(self) -> None:
        """Raise when the tree can take no more fields."""
        self.runtime.check_open("this tree of fields")
        if self.destroyed:
            raise ClosedError("this tree of fields was destroyed")
        if self.finalized:
            raise QuadrantsRuntimeError(
                "this FieldsBuilder was finalized", hint="make another FieldsBuilder for more fields"
            )


def default_tree(runtime: Runtime) -> FieldTree:
    """Return the tree of ``qd.root``."""
    if runtime.tree is None:
        runtime.tree = FieldTree(runtime)
    return runtime.tree


class SNode:
    """A node of a tree: ``axes[k]`` is divided into ``counts[k]`` cells."""

    def __init__(self, tree: FieldTree, parent: SNode | None, axes: tuple[Axis, ...], counts: tuple[int, ...]) -> None:
        self._tree, self._parent, self.axes, self.counts = tree, parent, axes, counts
        self._pending: list[Field] = []
        self._layout: Layout | None = None

    # -- building ---------------------------------------------------------------------------------------------------
    def dense(self, axes: Any, dimensions: Any) -> SNode:
        """Divide each cell along ``axes`` into ``dimensions`` cells.

        Parameters
        ----------
        axes : Axis or sequence of Axis
            ``qd.i``, ``qd.ij``, ...
        dimensions : int or sequence of int
            Positive counts, one an axis; one number for all.
        """
        self._tree.check()
        found = axes_of(axes)
        one = isinstance(dimensions, (int, np.integer))
        counts = (int(dimensions),) * len(found) if one else tuple(int(n) for n in dimensions)
        if len(counts) != len(found) or any(n < 1 for n in counts):
            raise ArgumentValueError(
                f"dense() needs one positive count an axis, got {dimensions!r} for {len(found)} axes",
                why="Every dimension of a Quadrants field should be positive",
            )
        return SNode(self._tree, self, found, counts)

    def pointer(self, axes: Any, dimensions: Any) -> SNode:
        """Refuse: sparse nodes are not part of the library yet."""
        raise _sparse("pointer")

    def bitmasked(self, axes: Any, dimensions: Any) -> SNode:
        """Refuse: sparse nodes are not part of the library yet."""
        raise _sparse("bitmasked")

    def hash(self, axes: Any, dimensions: Any) -> SNode:
        """Refuse: sparse nodes are not part of the library yet."""
        raise _sparse("hash")

    def dynamic(self, axis: Any, dimension: Any, chunk_size: Any = None) -> SNode:
        """Refuse: nodes of changing length are not part of the library yet."""
        raise _sparse("dynamic")

    def quant_array(self, axes: Any, dimensions: Any, max_num_bits: Any) -> SNode:
        """Refuse: quantised types are not part of the library yet."""
        raise _sparse("quant_array")

    def place(self, *fields: Any, offset: Any = None) -> SNode:
        """Put fields (or gradients, as in ``place(x.grad)``) into each cell.

        Parameters
        ----------
        *fields : Field, or sequence of Field
            Made without ``shape``, not yet placed.
        offset : int or sequence of int, optional
            Index of the first element along each axis.
        """
        self._tree.check()
        for field in fields:
            if isinstance(field, (list, tuple)):
                self.place(*field, offset=offset)
            elif hasattr(field, "place_in"):
                field.place_in(self, self._checked_offset(offset))
            else:
                raise QuadrantsRuntimeTypeError(f"only fields can be placed, got {type(field).__name__}")
        return self

    def _checked_offset(self, offset: Any) -> tuple[int, ...] | None:
        if offset is None:
            return None
        result = (int(offset),) if isinstance(offset, (int, np.integer)) else tuple(int(o) for o in offset)
        if len(result) != len(self.layout.shape):
            raise ArgumentValueError(
                f"the offset {offset!r} must have one number for each of {len(self.layout.shape)} axes"
            )
        return result

    def add(self, field: Field) -> None:
        """Take a field in; its memory comes when it is used."""
        self._tree.fields.add(field)
        self._pending.append(field)

    def lazy_grad(self) -> None:
        """Give every real field below this node a gradient."""
        self._shadows("grad")

    def lazy_dual(self) -> None:
        """Give every real field below this node a dual."""
        self._shadows("dual")

    def _shadows(self, hop: str) -> None:
        for field in list(self._tree.fields):
            if field.dtype.is_real and self in field.snode.path:
                field.want(hop)

    def materialize(self) -> None:
        """Allocate the fields placed here since the last time."""
        from qd_core.runtime.field import allocate

        self._tree.runtime.check_open("this field")
        pending, self._pending = self._pending, []
        if not self.axes:
            for field in pending:
                allocate([field])
            return
        groups: dict[Any, list[Field]] = {}
        for field in pending:
            alone = id(field) if field.split else None
            groups.setdefault((field.dtype, field.wants("grad"), field.wants("dual"), alone), []).append(field)
        for group in groups.values():
            allocate(group)

    # -- what it is -------------------------------------------------------------------------------------------------
    @property
    def tree(self) -> FieldTree:
        """The tree that it belongs to."""
        return self._tree

    @property
    def path(self) -> list[SNode]:
        """Nodes from the root to this one."""
        return [*(self._parent.path if self._parent is not None else ()), self]

    @property
    def layout(self) -> Layout:
        """Memory order of the elements placed here."""
        if self._layout is None:
            self._layout = Layout.of(
                [(a.number, n) for node in self.path for a, n in zip(node.axes, node.counts, strict=True)]
            )
        return self._layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the index space."""
        return self.layout.shape

    def parent(self, n: int = 1) -> SNode | None:
        """Return the n-th node above this one, or None above the root."""
        node: SNode | None = self
        for _ in range(n):
            node = node._parent if node is not None else None
        return node

    def __qd_domain__(self) -> ArrayArg:
        """Index space, for loops over the node."""
        from qd_core import dtypes as dt

        layout = self.layout
        return ArrayArg(dt.i32, len(layout.storage), order=layout.order, shape=layout.shape, blocks=layout.blocks)

    def __repr__(self) -> str:
        parts = [f"dense({node.axes}, {node.counts})" for node in self.path if node.axes]
        return ".".join(["root", *parts])


def _sparse(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"SNode.{name}",
        current().backend.name,
        span=_user_span(),
        why="fields are dense: every element of every node has its own memory",
        hint="use dense(...), and keep a list of the active elements in a field",
    )


def _user_span() -> Span:
    """Place of the caller outside of the library."""
    frame = sys._getframe(1)
    package = __name__.partition(".")[0] + "."
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(package):
        frame = frame.f_back
    return Span(frame.f_code.co_filename, frame.f_lineno, function=frame.f_code.co_name)


class FieldsBuilder:
    """A tree of its own, whose memory can be freed: ``finalize()`` allocates, ``destroy()`` of its result frees.

    Examples
    --------
    ::

        builder = qd.FieldsBuilder()
        builder.dense(qd.i, 8).place(x)
        tree = builder.finalize()
    """

    def __init__(self) -> None:
        self._tree = FieldTree(current())

    @property
    def root(self) -> SNode:
        """Root of the tree."""
        return self._tree.root

    @property
    def finalized(self) -> bool:
        """Whether `finalize` was called."""
        return self._tree.finalized

    @property
    def empty(self) -> bool:
        """Whether nothing was placed."""
        return not len(self._tree.fields)

    def dense(self, axes: Any, dimensions: Any) -> SNode:
        """See `SNode.dense`."""
        return self.root.dense(axes, dimensions)

    def pointer(self, axes: Any, dimensions: Any) -> SNode:
        """See `SNode.pointer`."""
        return self.root.pointer(axes, dimensions)

    def bitmasked(self, axes: Any, dimensions: Any) -> SNode:
        """See `SNode.bitmasked`."""
        return self.root.bitmasked(axes, dimensions)

    def dynamic(self, axis: Any, dimension: Any, chunk_size: Any = None) -> SNode:
        """See `SNode.dynamic`."""
        return self.root.dynamic(axis, dimension, chunk_size)

    def place(self, *fields: Any, offset: Any = None) -> SNode:
        """See `SNode.place`."""
        return self.root.place(*fields, offset=offset)

    def lazy_grad(self) -> None:
        """Give every real field of the tree a gradient."""
        self.root.lazy_grad()

    def lazy_dual(self) -> None:
        """Give every real field of the tree a dual."""
        self.root.lazy_dual()

    def finalize(self) -> FieldTree:
        """Allocate the fields; nothing can be placed afterwards."""
        self._tree.check()
        nodes: Iterable[SNode] = {id(f.snode): f.snode for f in list(self._tree.fields)}.values()
        for node in nodes:
            node.materialize()
        self._tree.finalized = True
        return self._tree
