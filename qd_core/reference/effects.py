"""Loads, stores, atomics and private memory of the interpreter.

Only active lanes touch memory. Where lanes collide, they take effect in order of their numbers: the last store wins,
and each atomic sees what the lanes before it left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.ir.fold import apply
from qd_core.ir.nodes import Node, indices_of
from qd_core.ir.ops import OPS, ORDERED_KINDS
from qd_core.reference.lanes import Array, Execute, Lanes, Mask
from qd_core.reference.memory import InterpreterError, check_indices

__all__ = ["EFFECTS", "Scratch"]


class Scratch:
    """Private memory of the lanes: ``data`` is ``(lanes, longest)``; a lane owns its first ``length`` scalars.

    It starts as a pattern that shows (NaN, -1, true): reading what was never written must not look like zero.
    """

    __slots__ = ("data", "length")

    def __init__(self, lanes: int, length: Array, dtype: DType) -> None:
        longest = int(max(length.max(initial=0), 0))
        self.length = length.astype(np.int64)
        pattern = True if dtype is dt.u1 else np.full(dtype.nbytes, 0xFF, np.uint8).view(dtype.numpy)[0]
        self.data = np.full((lanes, longest), pattern, dtype.numpy)

    def place(self, lanes: Array, index: Array, node: Node) -> tuple[Array, Array]:
        """Return the position of each lane's ``index``; `InterpreterError` outside its memory."""
        length = np.broadcast_to(self.length, (self.data.shape[0],))[lanes]
        bad = (index < 0) | (index >= length)
        if bad.any():
            n = int(np.argmax(bad))
            raise InterpreterError(f"index {index[n]} is outside private memory of {length[n]} scalars", span=node.span)
        return lanes, index


def _places(x: Lanes, node: Node, indices: Sequence[Any], lanes: Array) -> tuple[Array, tuple[Array, ...]]:
    """View of the node's array and one checked index array an axis, one entry a lane of ``lanes``."""
    param, view = x.array(node.operands[0])
    places = tuple(_signed(x.spread(x.env[i], lanes)) for i in indices)
    check_indices(param, view, places, node.span)
    return view, places


def _signed(index: Array) -> Array:
    """Any integer as i64; a u64 of 2**63 or more becomes negative, hence is outside every array."""
    return index.astype(np.int64)


def _from_memory(data: Array, dtype: DType) -> Array:
    return np.asarray(data != 0) if dtype is dt.u1 else data


def _scalar_place(x: Lanes, node: Node, indices: Sequence[Any]) -> tuple[Array, tuple[int, ...]]:
    """View of the array and the checked place that uniform indices name: quicker than `_places` for serial code."""
    param, view = x.array(node.operands[0])
    place = tuple([int(x.env[i]) for i in indices])
    for index, extent in zip(place, view.shape, strict=True):
        if not 0 <= index < extent:
            check_indices(param, view, [np.array([_signed(np.asarray(x.env[i]))]) for i in indices], node.span)
    return view, place


def _load(x: Lanes, node: Node, mask: Mask) -> None:
    indices = node.operands[1:]
    if all([x.env[i].ndim == 0 for i in indices]):
        view, place = _scalar_place(x, node, indices)
        x.env[node] = _from_memory(np.asarray(view[place]).copy(), node.type)
        return
    lanes = x.active(mask)
    view, places = _places(x, node, indices, lanes)
    x.env[node] = _fill_lanes(x, _from_memory(view[places], node.type), lanes, mask)


def _fill_lanes(x: Lanes, data: Array, lanes: Array, mask: Mask) -> Array:
    """Data of the active lanes among zeros for the others."""
    if mask is None:
        return data
    full = np.zeros(x.count, data.dtype)
    full[lanes] = data
    return full


def _store(x: Lanes, node: Node, mask: Mask) -> None:
    indices, value = node.operands[1:-1], x.env[node.operands[-1]]
    if all([x.env[i].ndim == 0 for i in indices]):
        view, place = _scalar_place(x, node, indices)
        view[place] = value if value.ndim == 0 else value[x.active(mask)[-1]]
        return
    lanes = x.active(mask)
    view, places = _places(x, node, indices, lanes)
    view[places] = x.spread(value, lanes)  # NumPy: of entries for one place, the last stays


# -- atomics --------------------------------------------------------------------------------------------------------
_COMBINE: dict[str, Callable[[Any, Any, DType], Any]] = {
    kind: (lambda old, value, dtype, op=OPS[kind]: apply(op, (old, value), dtype))
    for kind in ("add", "min", "max", "and", "or", "xor")
}


def _same_bits(a: Array, b: Array) -> Array:
    unsigned = f"u{a.dtype.itemsize}"
    return np.ascontiguousarray(a).view(unsigned) == np.ascontiguousarray(b).view(unsigned)


def _at(kind: str, dtype: DType) -> np.ufunc | None:
    """The ufunc whose unbuffered ``at`` is the atomic lane after lane, where old values are not wanted."""
    real = dtype.is_real
    return {
        "add": np.add, "min": np.fmin if real else np.minimum, "max": np.fmax if real else np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }.get(kind)  # fmt: skip


def _atomic(x: Lanes, node: Node, mask: Mask) -> None:
    lanes = x.active(mask)
    view, places = _places(x, node, indices_of(node), lanes)
    values = x.spread(x.env[node.operands[-1]], lanes)
    places = places or (np.zeros(lanes.size, np.int64),)
    view = view if view.ndim else view.reshape(1)
    kind, dtype = node.attrs["kind"], node.type
    at = _at(kind, dtype)
    if node not in x.prepared.used and at is not None:
        at.at(view, places, values.astype(view.dtype, copy=False))
        return
    expected = x.spread(x.env[node.operands[-2]], lanes) if kind == "cas" else None
    old = _combine(view, places, values, kind, dtype, expected)
    x.env[node] = old.reshape(()) if x.linear is None else _fill_lanes(x, old, lanes, mask)


def _combine(
    view: Array, places: tuple[Array, ...], values: Array, kind: str, dtype: DType, expected: Array | None
) -> Array:
    """Apply an atomic in lane order and return the old values; ``expected`` are those of a compare-and-swap.

    The n-th lanes of all places are done together, first ones before second ones: places are independent of each other.
    """
    flat = np.ravel_multi_index(places, view.shape) if values.size else np.zeros(0, np.int64)
    old = np.zeros(values.shape, dtype.numpy)
    for group in _rounds(flat):
        where = tuple(p[group] for p in places)
        before = _from_memory(view[where], dtype)
        old[group] = before
        new = values[group] if kind in ORDERED_KINDS else _COMBINE[kind](before, values[group], dtype)
        view[where] = new if expected is None else np.where(_same_bits(before, expected[group]), new, before)
    return old


def _rounds(flat: Array) -> list[Array]:
    """Lanes by how many lanes before them name the same place."""
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if flat.size else np.zeros(0, np.int64)
    lengths = np.diff(np.r_[starts, flat.size])
    rank = np.arange(flat.size) - np.repeat(starts, lengths)
    by_rank = order[np.argsort(rank, kind="stable")]
    counts = np.bincount(rank) if flat.size else np.zeros(0, np.int64)
    return np.split(by_rank, np.cumsum(counts)[:-1]) if flat.size else []


# -- private memory -------------------------------------------------------------------------------------------------
def _scratch(x: Lanes, node: Node, mask: Mask) -> None:
    length = x.env[node.operands[0]]
    if mask is not None and length.ndim:
        length = np.where(mask, length, length.dtype.type(0))
    x.env[node] = Scratch(x.count, length, node.type.dtype)


def _scratch_load(x: Lanes, node: Node, mask: Mask) -> None:
    scratch: Scratch = x.env[node.operands[0]]
    lanes = x.active(mask)
    data = scratch.data[scratch.place(lanes, _signed(x.spread(x.env[node.operands[1]], lanes)), node)]
    x.env[node] = data.reshape(()) if x.linear is None else _fill_lanes(x, data, lanes, mask)


def _scratch_store(x: Lanes, node: Node, mask: Mask) -> None:
    scratch: Scratch = x.env[node.operands[0]]
    lanes = x.active(mask)
    place = scratch.place(lanes, _signed(x.spread(x.env[node.operands[1]], lanes)), node)
    scratch.data[place] = x.spread(x.env[node.operands[2]], lanes)


EFFECTS: dict[str, Execute] = {
    "load": _load,
    "store": _store,
    "atomic": _atomic,
    "scratch": _scratch,
    "scratch_load": _scratch_load,
    "scratch_store": _scratch_store,
}
"""Execution of the operations of this module by name."""
