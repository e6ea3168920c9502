"""The smart builder: every transform emits through it.

It types, folds constants, applies exact simplifications and numbers values while constructing, so no separate pass has
to. What it
returns need not be a new node. Simplifications are exact under IEEE arithmetic; fast math is up to code generators.

Scopes: values created in a region can be reused in the regions inside it and nowhere else. Loads are reused until
memory may have
changed: every write, and every region that contains one, starts a new epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.errors import Span
from qd_core.ir.convert import convert
from qd_core.ir.fold import fold_constant, simplify
from qd_core.ir.nodes import Arg, ArrayType, Node, Region, Result, ScratchType, Value
from qd_core.ir.ops import OPS

__all__ = ["Builder", "constant_of"]

_CONST, _CAST, _SELECT = OPS["const"], OPS["cast"], OPS["select"]
_NO_ATTRS: dict[str, Any] = {}


def constant_of(value: Value) -> Any:
    """Return the Python value of a constant node, or None for any other value."""
    return value.attrs["value"] if isinstance(value, Node) and value.op is _CONST else None


def normalize_constant(dtype: DType, value: Any) -> int | float | bool:
    """Wrap, round or truncate ``value`` to what a ``dtype`` can hold, as a Python scalar."""
    if dtype.is_real:
        if dtype is dt.f64:
            return float(value)
        with np.errstate(over="ignore"):  # a value beyond the type's range becomes an infinity
            return float(np.asarray(value, np.float64).astype(dtype.numpy))
    if dtype is dt.u1:
        return bool(value)
    value = int(value) & ((1 << dtype.bits) - 1)
    return value - (1 << dtype.bits) if dtype.kind == "i" and value >> (dtype.bits - 1) else value


def _cast_constant(source: DType, to: DType, value: Any) -> Any:
    """Value of `cast` of a constant, up to what `normalize_constant` does."""
    direct = to.is_real if source.is_real else to.is_integral or abs(value) <= 2**53
    return value if direct else convert(source.scalar(value), to).item()


def _key_of(dtype: DType, value: Any) -> Any:
    """Hashable identity of a constant: zeros of both signs and NaN are kept apart by their text."""
    return (dtype, repr(value)) if isinstance(value, float) else (dtype, value)


class Builder:
    """Emits nodes at the end of the current region.

    Parameters
    ----------
    region : Region
        Where the first nodes go: usually the body of a new function.

    Attributes
    ----------
    span : Span or None
        Source position given to new nodes.
    exact : str or None
        What fast math may do to new real arithmetic (attribute ``exact``, see `ir.ops`); None leaves it to the user's
        setting.
    """

    __slots__ = ("_epoch", "_known", "_undo", "count", "exact", "region", "span")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.span: Span | None = None
        self.exact: str | None = None
        self.count = 0
        self._known: dict[Any, Any] = {}
        self._undo: list[list[Any]] = [[]]
        self._epoch = 0

    # -- elementwise --------------------------------------------------------------------------------------------
    def const(self, dtype: DType, value: Any) -> Node:
        """Return the constant ``value`` wrapped or rounded to ``dtype``."""
        value = normalize_constant(dtype, value)
        key = _key_of(dtype, value)
        node = self._known.get(key)
        return node if node is not None else self._new(_CONST, dtype, (), {"value": value}, key)

    def emit(self, name: str, *operands: Value) -> Value:
        """Emit the elementwise operation ``name`` on operands of one type."""
        op = OPS[name]
        folded = fold_constant(op, operands)
        if folded is not None:
            return self.const(*folded)
        same = simplify(self, name, operands)
        if same is not None:
            return same
        if op.commutative and constant_of(operands[0]) is not None:
            operands = (operands[1], operands[0])
        result = (
            operands[1].type
            if op is _SELECT
            else dt.u1
            if op.result == "u1"
            else dt.i32
            if op.result == "i32"
            else operands[0].type
        )
        exact = self.exact if result.is_real else None
        key = (op, *map(id, operands)) if exact is None else (op, exact, *map(id, operands))
        node = self._known.get(key)
        return (
            node
            if node is not None
            else self._new(op, result, operands, _NO_ATTRS if exact is None else {"exact": exact}, key)
        )

    def cast(self, value: Value, to: DType) -> Value:
        """Convert ``value`` to ``to``; the value itself when it has that type."""
        if value.type is to:
            return value
        const = constant_of(value)
        if const is not None:
            return self.const(to, _cast_constant(value.type, to, const))
        return self._keyed("cast", to, (value,), {"to": to})

    def bitcast(self, value: Value, to: DType) -> Value:
        """Reinterpret the bits of ``value`` as ``to`` of the same width."""
        return value if value.type is to else self._keyed("bitcast", to, (value,), {"to": to})

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """Return ``a`` where ``condition`` holds, else ``b``."""
        return self.emit("select", condition, a, b)

    def memo(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what ``make()`` built for ``key`` in this scope or an outer one: numbering of expansions."""
        known = self._known.get(key)
        if known is None:
            known = make()
            self._remember(key, known)
        return known

    # -- memory -------------------------------------------------------------------------------------------------
    def extent(self, array: Value, axis: int) -> Value:
        """Extent (i32) of axis ``axis`` of ``array``; element axes and fixed shapes fold to constants."""
        kind: ArrayType = array.type
        shape = (kind.fixed_shape if kind.fixed_shape is not None else (None,) * kind.ndim) + kind.element_shape
        known = shape[axis]
        return (
            self.const(dt.i32, known) if known is not None else self._keyed("extent", dt.i32, (array,), {"axis": axis})
        )

    def load(self, array: Value, indices: Sequence[Value]) -> Value:
        """Read the scalar of ``array`` at one index per axis of its full rank."""
        op = OPS["load"]
        key = (op, self._epoch, id(array), *map(id, indices))
        node = self._known.get(key)
        return node if node is not None else self._new(op, array.type.dtype, (array, *indices), _NO_ATTRS, key)

    def store(self, array: Value, indices: Sequence[Value], value: Value) -> None:
        """Write ``value`` (of the array's dtype) to ``array``; a later load there in this region is ``value``."""
        self._effect("store", None, (array, *indices, value), _NO_ATTRS)
        self._remember((OPS["load"], self._epoch, id(array), *map(id, indices)), value)

    def atomic(self, kind: str, array: Value, indices: Sequence[Value], *values: Value) -> Node:
        """Combine a value into ``array`` by ``kind`` (``"cas"``: an expected and a new one); return the old value."""
        return self._effect("atomic", array.type.dtype, (array, *indices, *values), {"kind": kind})

    def random(self, dtype: DType, key: Value) -> Node:
        """Return a new random number of the stream ``key`` (u64)."""
        return self._append(Node(OPS["random"], dtype, (key,), {"to": dtype}, self.span))

    def stop_grad(self, value: Value) -> Value:
        """Return ``value`` as a constant to derivatives."""
        return self._keyed("stop_grad", value.type, (value,), {}) if value.type.is_real else value

    def scratch(self, dtype: DType, length: Value) -> Node:
        """Reserve private memory for ``length`` (any integer type) scalars of ``dtype``."""
        return self._effect("scratch", ScratchType(dtype), (length,), {"to": dtype})

    def scratch_load(self, scratch: Value, index: Value) -> Node:
        """Read element ``index`` of private memory."""
        return self._append(Node(OPS["scratch_load"], scratch.type.dtype, (scratch, index), _NO_ATTRS, self.span))

    def scratch_store(self, scratch: Value, index: Value, value: Value) -> None:
        """Write element ``index`` of private memory."""
        self._append(Node(OPS["scratch_store"], None, (scratch, index, value), _NO_ATTRS, self.span))

    def check(self, kind: str, ok: Value, values: Sequence[Value] = (), **attrs: Any) -> None:
        """Record a failure of ``kind`` at this site unless ``ok`` holds."""
        if constant_of(ok) is not True:
            self._append(Node(OPS["check"], None, (ok, *values), {"kind": kind, **attrs}, self.span))

    def print(self, parts: tuple[Any, ...], values: Sequence[Value], **attrs: Any) -> None:
        """Append a print record; ``parts`` mixes text and ``(operand number, format)`` pairs. With ``once`` only the
        first record of a launch is shown, and how many there were.
        """
        self._append(Node(OPS["print"], None, tuple(values), {"parts": parts, **attrs}, self.span))

    # -- control ------------------------------------------------------------------------------------------------
    @contextmanager
    def inside(self, args: Sequence[tuple[Any, str]] = (), *, loop: bool = False) -> Generator[Region, None, None]:
        """Build a detached region: nodes emitted in the ``with`` block go there. ``loop`` when it can run again."""
        outer, region = self.region, Region(tuple(Arg(t, n) for t, n in args))
        self.region = region
        self._undo.append([])
        self._epoch += loop
        try:
            yield region
        finally:
            for key, old in reversed(self._undo.pop()):
                if old is None:
                    del self._known[key]
                else:
                    self._known[key] = old
            self.region = outer
            if any(n.op.writes for n in region.nodes):
                self._epoch += 1

    def yield_(self, *values: Value) -> None:
        """End the current region with ``values``."""
        self._append(Node(OPS["yield"], None, values, _NO_ATTRS, self.span))

    def if_(self, condition: Value, then: Region, otherwise: Region) -> tuple[Value, ...]:
        """Append an ``if`` whose results are what the chosen region yields; a constant condition leaves its region."""
        known = constant_of(condition)
        if known is not None:
            chosen = then if known else otherwise
            self.region.nodes.extend(chosen.nodes[:-1])
            return chosen.yields
        return self._region_op("if", (condition,), (then, otherwise), then.yields, _NO_ATTRS)

    def for_(
        self,
        start: Value,
        stop: Value,
        inits: Sequence[Value],
        body: Region,
        *,
        reverse: bool = False,
        breaks: bool = False,
    ) -> tuple[Value, ...]:
        """Append a serial loop over [start, stop); ``body`` has the arguments (index, carried...)."""
        return self._region_op("for", (start, stop, *inits), (body,), inits, {"reverse": reverse, "breaks": breaks})

    def while_(self, inits: Sequence[Value], condition: Region, body: Region) -> tuple[Value, ...]:
        """Append a ``while`` whose regions both take the carried values."""
        return self._region_op("while", tuple(inits), (condition, body), inits, _NO_ATTRS)

    def parallel_for(self, bounds: Sequence[tuple[Value, Value]], body: Region, **attrs: Any) -> Node:
        """Append independent iterations over the box ``bounds`` (start, stop per axis)."""
        node = Node(OPS["parallel_for"], None, tuple(v for pair in bounds for v in pair), attrs, self.span, (body,))
        self._epoch += 1
        return self._append(node)

    # -- construction -------------------------------------------------------------------------------------------
    def generic(
        self, name: str, type: Any, operands: tuple[Value, ...], attrs: dict[str, Any], regions: tuple[Region, ...] = ()
    ) -> Node:
        """Append a node as given, without folding: for readers of text and for copying effects."""
        node = Node(OPS[name], type, operands, attrs, self.span, regions)
        if node.op.writes or regions:
            self._epoch += 1
        return self._append(node)

    def _region_op(
        self,
        name: str,
        operands: tuple[Value, ...],
        regions: tuple[Region, ...],
        likes: Sequence[Value],
        attrs: dict[str, Any],
    ) -> tuple[Value, ...]:
        node = Node(OPS[name], None, operands, attrs, self.span, regions)
        node.results = tuple(Result(v.type, node, i) for i, v in enumerate(likes))
        self._append(node)
        return node.results

    def _effect(self, name: str, type: Any, operands: tuple[Value, ...], attrs: dict[str, Any]) -> Node:
        self._epoch += 1
        return self._append(Node(OPS[name], type, operands, attrs, self.span))

    def _keyed(self, name: str, type: Any, operands: tuple[Value, ...], attrs: dict[str, Any]) -> Node:
        op = OPS[name]
        key = (op, *map(id, operands), *attrs.values())
        node = self._known.get(key)
        return node if node is not None else self._new(op, type, operands, attrs, key)

    def _new(self, op: Any, type: Any, operands: tuple[Value, ...], attrs: dict[str, Any], key: Any) -> Node:
        node = Node(op, type, operands, attrs, self.span)
        self._remember(key, node)
        return self._append(node)

    def _remember(self, key: Any, value: Any) -> None:
        self._undo[-1].append((key, self._known.get(key)))
        self._known[key] = value

    def _append(self, node: Node) -> Node:
        self.count += 1
        self.region.nodes.append(node)
        return node
