"""Atomics of every kind and dtype: final values, and old values that some order of the lanes explains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.errors import UnsupportedError
from qd_core.ir.build import Builder
from qd_core.ir.fold import apply
from qd_core.ir.nodes import Function, Region, Value
from qd_core.ir.ops import ATOMIC_KINDS, BITS, NUM, OPS, ORDERED_KINDS
from qd_core.testing.compare import agree, run
from qd_core.testing.device import DeviceUnderTest
from qd_core.testing.kernels import SPAN, array, parallel
from qd_core.testing.plugin import requires

__all__ = ["test_atomics", "test_atomics_without_their_old_value", "test_unclaimed_atomics_are_refused"]

Array = np.ndarray[Any, Any]

BINS = 5
"""Places that lanes collide on."""


def legal(kind: str, dtype: DType) -> bool:
    """Whether the language has this atomic."""
    return dtype in (
        NUM if kind in ("add", "min", "max", "cas") else BITS if kind in ("and", "or", "xor") else frozenset(dt.ALL)
    )


PAIRS = [(kind, dtype) for kind in ATOMIC_KINDS for dtype in dt.ALL if legal(kind, dtype)]


def cases(**marks: Any) -> list[Any]:
    """Return a parameter set for each legal pair; the capability is its mark."""
    return [
        pytest.param(k, d, marks=requires(f"atomic.{k}.{d.name}", f"type.{d.name}"), id=f"{k}-{d.name}")
        for k, d in PAIRS
    ]


def contributions(kind: str, dtype: DType) -> tuple[Array, Array, Array]:
    """Return start values of the bins, and each lane's value and bin; sums are exact, no value comes back by chance."""
    if dtype is dt.u1:
        values = np.array([0, 0, 1, 1, 0, 0, 0, 0], bool)  # one change a place: it cannot change back
        return np.full(BINS, kind == "and"), ~values if kind == "and" else values, np.arange(8) % 2
    if kind in ("and", "or", "xor"):
        lanes = np.arange(BINS * dtype.bits)
        bit = (
            np.left_shift(np.uint64(1), (lanes // BINS).astype(np.uint64)).astype(f"u{dtype.nbytes}").view(dtype.numpy)
        )
        start = np.full(BINS, -1 if kind == "and" else 0, np.int64).astype(dtype.numpy)
        return start, np.invert(bit) if kind == "and" else bit, lanes % BINS
    count = 60 if dtype.bits == 8 else 200
    lanes = np.arange(count)
    generator = np.random.default_rng(7)
    if kind == "add":
        return np.arange(BINS).astype(dtype.numpy), (lanes % 3 + 1).astype(dtype.numpy), lanes % BINS
    if kind == "cas":  # each lane takes a step of a counter; which of them find their turn is open
        return np.zeros(BINS, dtype.numpy), (lanes // BINS % 7 + 1).astype(dtype.numpy), lanes % BINS
    values = generator.permutation(count) if kind == "exchange" else generator.integers(0, 100, count)
    start = np.full(BINS, {"max": 0, "min": 120}.get(kind, count))
    return start.astype(dtype.numpy), values.astype(dtype.numpy), lanes % BINS


def kernel(kind: str, dtype: DType, *, old: bool) -> Function:
    """Return the kernel ``old[i] = atomic(x[place[i]], value[i])``; `cas` expects one less than the value."""
    x, value, place, out = array(dtype, "x"), array(dtype, "value"), array(dt.i32, "place"), array(dtype, "old")

    def write(b: Builder, i: Value) -> None:
        given = [b.load(value, [i])]
        if kind == "cas":
            given.insert(0, b.emit("sub", given[0], b.const(dtype, 1)))
        result = b.atomic(kind, x, [b.load(place, [i])], *given)
        if old:
            b.store(out, [i], result)

    return parallel([x, value, place, out] if old else [x, value, place], lambda b: b.extent(value, 0), write)


def side_by_side(kinds: Sequence[str], dtype: DType) -> Function:
    """Return `kernel` of several kinds as loops of one kernel; each has arrays of its own, as ``x_add``."""
    function = Function("k", [], Region())
    b = Builder(function.body)
    b.span = SPAN
    for kind in kinds:
        x, value, place = array(dtype, f"x_{kind}"), array(dtype, f"value_{kind}"), array(dt.i32, f"place_{kind}")
        function.params += [x, value, place]
        with b.inside([(dt.i32, "i")], loop=True) as body:
            i = body.args[0]
            b.atomic(kind, x, [b.load(place, [i])], b.load(value, [i]))
            b.yield_()
        b.parallel_for([(b.const(dt.i32, 0), b.extent(value, 0))], body)
    b.yield_()
    return function


def arguments(kind: str, dtype: DType) -> dict[str, Any]:
    """Return inputs of `kernel`."""
    start, value, place = contributions(kind, dtype)
    return {"x": start, "value": value, "place": place.astype(np.int32)}


def explain(kind: str, dtype: DType, start: Any, values: Array, olds: Array, final: Any) -> str:
    """Say why no order of the updates gives these old values; an empty string where one does."""
    if kind == "cas":
        results = np.where(olds == values - 1, values, olds)
    else:
        results = values if kind == "exchange" else apply(OPS[kind], (olds, values), dtype)
    waiting: dict[Any, list[Any]] = defaultdict(list)
    for old, new in zip(olds.tolist(), results.tolist(), strict=True):
        waiting[old].append(new)
    present, left = start.item(), len(values)
    while left:
        after = waiting[present]
        if not after:
            return f"after {len(values) - left} updates the value is {present!r}, and no remaining update saw that"
        # Updates that leave the value as it is come first: they could not come later.
        present = after.pop(after.index(present) if present in after else 0)
        left -= 1
    return "" if present == final.item() else f"the updates lead to {present!r}, and the array holds {final.item()!r}"


@pytest.mark.parametrize(("kind", "dtype"), cases())
def test_atomics(device: DeviceUnderTest, kind: str, dtype: DType) -> None:
    """Lanes collide; each old value is what some order of the lanes leaves."""
    given = arguments(kind, dtype)
    given["old"] = np.zeros(given["value"].size, dtype.numpy)
    after = run(device, kernel(kind, dtype, old=True), given)
    for place in range(BINS):
        mine = given["place"] == place
        values, olds = given["value"][mine], after["old"][mine]
        problem = explain(kind, dtype, given["x"][place], values, olds, after["x"][place])
        assert not problem, f"atomic {kind} of {dtype.name} at place {place}: {problem}"


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
def test_atomics_without_their_old_value(device: DeviceUnderTest, dtype: DType) -> None:
    """Final values are the reference's, whatever the order: one kernel a type, one loop a kind."""
    if not device.has(f"type.{dtype.name}"):
        pytest.skip(f"lacks type.{dtype.name}")
    kinds = [k for k, d in PAIRS if d is dtype and k not in ORDERED_KINDS and device.has(f"atomic.{k}.{d.name}")]
    if not kinds:
        pytest.skip(f"lacks atomics of {dtype.name}")
    given = {f"{path}_{kind}": array for kind in kinds for path, array in arguments(kind, dtype).items()}
    agree(device, side_by_side(kinds, dtype), given)


def test_unclaimed_atomics_are_refused(device: DeviceUnderTest) -> None:
    """An atomic that the device does not claim is refused by name, before anything runs."""
    for kind, dtype in PAIRS:
        if device.has(f"type.{dtype.name}") and not device.has(f"atomic.{kind}.{dtype.name}"):
            with pytest.raises(UnsupportedError, match=f"atomic {kind} of {dtype.name}"):
                run(device, kernel(kind, dtype, old=False), arguments(kind, dtype))
