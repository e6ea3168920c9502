"""Extents computed by the host: exact, wrapping, and equal to what the interpreter computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.errors import InvalidIRError
from qd_core.ir.build import Builder
from qd_core.ir.hostexpr import evaluate_host
from qd_core.ir.nodes import ArrayType, Param, Region, Value
from qd_core.ir.ops import OpDef
from qd_core.reference.interpret import interpret
from qd_core.testing.kernels import array, result_type, serial
from qd_core.testing.samples import cases, operand_types, samples

X = Param(ArrayType(dt.f32, 2), "x")


def no_extent(param: Param, axis: int) -> int:
    raise AssertionError("no extent is used")


def region_of(write: Callable[[Builder], Value]) -> Region:
    region = Region()
    b = Builder(region)
    b.yield_(write(b))
    return region


def test_scalars_and_extents() -> None:
    n = Param(dt.i32, "n")
    region = region_of(lambda b: b.emit("sub", b.cast(b.extent(X, 1), dt.i64), b.cast(n, dt.i64)))
    assert evaluate_host(region, {n: 5}.__getitem__, lambda p, axis: {(X, 1): 3}[p, axis]) == -2


def test_a_parameter_alone() -> None:
    n = Param(dt.i64, "n")
    assert evaluate_host(region_of(lambda b: n), lambda p: 2**40, no_extent) == 2**40


@pytest.mark.parametrize(
    ("kind", "given", "held"),
    [
        (dt.u32, -1, 2**32 - 1),
        (dt.i32, 2**40 + 3, 3),
        (dt.i32, np.int64(7), 7),
        (dt.f32, 16777217.0, 16777216),
        (dt.f64, 2.9, 2),
        (dt.u1, 4, 1),
    ],
)
def test_scalars_are_what_the_word_holds(kind: DType, given: Any, held: int) -> None:
    n = Param(kind, "n")
    assert evaluate_host(region_of(lambda b: b.cast(n, dt.i64)), lambda p: given, no_extent) == held


@pytest.mark.parametrize(
    ("op", "kind"), [(o, k) for o, k in cases() if result_type(o, k) is not dt.u1], ids=lambda v: v.name
)
def test_every_operation_is_the_tables(op: OpDef, kind: DType) -> None:
    """Host and interpreter give the same i64 for the same scalars."""
    columns = [c[:: max(1, c.size // 20)] for c in samples(op, kind)]
    params = [Param(k, f"p{n}") for n, k in enumerate(operand_types(op, kind))]
    region = region_of(lambda b: b.cast(b.emit(op.name, *params), dt.i64))
    y = array(dt.i64, "y", 0)

    def write(b: Builder) -> None:
        b.store(y, [], b.cast(b.emit(op.name, *params), dt.i64))

    function = serial([*params, y], write)
    for row in zip(*(c.tolist() for c in columns), strict=True):
        values = dict(zip(params, row, strict=True))
        out = np.zeros((), np.int64)
        interpret(function, {**{p.path: v for p, v in values.items()}, "y": out})
        assert evaluate_host(region, values.__getitem__, no_extent) == out, row


@pytest.mark.parametrize("kind", [dt.i8, dt.i32, dt.u32, dt.i64, dt.u64], ids=repr)
def test_chains_wrap_at_every_step(kind: DType) -> None:
    a, c = Param(kind, "a"), Param(kind, "c")
    region = region_of(
        lambda b: b.cast(b.emit("floordiv", b.emit("mul", b.emit("add", a, c), c), b.const(kind, 3)), dt.i64)
    )
    top, mask = int(kind.max), (1 << kind.bits) - 1

    def wrap(v: int) -> int:
        v &= mask
        return v - mask - 1 if kind.kind == "i" and v > top else v

    for x, y in ((top, 5), (top - 1, top), (int(kind.min), 7)):
        want = wrap(wrap(wrap(x + y) * y) // 3)
        got = evaluate_host(region, {a: x, c: y}.__getitem__, no_extent)
        assert got == (want if kind is not dt.u64 or want < 2**63 else want - 2**64)


def test_the_function_is_made_once() -> None:
    from qd_core.ir import hostexpr

    n = Param(dt.i32, "n")
    region = region_of(lambda b: b.cast(n, dt.i64))
    before = hostexpr._compiled.cache_info().misses
    for value in range(5):
        assert evaluate_host(region, lambda p, v=value: v, no_extent) == value
    assert hostexpr._compiled.cache_info().misses == before + 1


def test_what_the_host_cannot_compute_is_refused() -> None:
    load = region_of(lambda b: b.cast(b.load(X, [b.const(dt.i32, 0)] * 2), dt.i64))
    with pytest.raises(InvalidIRError, match="cannot be computed by the host: load"):
        evaluate_host(load, lambda p: 0, no_extent)


def test_a_value_from_elsewhere_is_refused() -> None:
    stray = Builder(Region()).const(dt.i64, 1)
    with pytest.raises(InvalidIRError, match="from elsewhere"):
        evaluate_host(region_of(lambda b: stray), lambda p: 0, no_extent)
