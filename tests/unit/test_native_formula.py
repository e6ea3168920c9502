"""Extents that native launches compute agree with what the host evaluates from the same IR."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.ir.build import Builder
from qd_core.ir.hostexpr import evaluate_host
from qd_core.ir.nodes import ArrayType, Param, Region, Value
from qd_core.runtime import native
from qd_core.runtime.native import LaunchPlan, NativeLauncher, NumpyArgument, ScalarArgument
from qd_core.runtime.native_check import Capture
from qd_core.runtime.native_formula import formula_of

A, B, C = Param(dt.i32, "a"), Param(dt.i64, "b"), Param(dt.u8, "c")
X = Param(ArrayType(dt.f32, 2), "x")
WORDS = {A: 0, B: 1, C: 2, X: 3}

Make = Callable[[Builder], Value]

EXPRESSIONS: dict[str, Make] = {
    "scalar": lambda b: A,
    "wide scalar": lambda b: B,
    "unsigned scalar": lambda b: b.cast(C, dt.i64),
    "extent": lambda b: b.extent(X, 1),
    "range": lambda b: b.emit("sub", b.cast(A, dt.i64), B),
    "wrapping i32": lambda b: b.emit("mul", A, b.const(dt.i32, 65537)),
    "wrapping u8": lambda b: b.emit("add", C, b.const(dt.u8, 200)),
    "narrowing": lambda b: b.cast(B, dt.i32),
    "product of extents": lambda b: b.emit("mul", b.extent(X, 0), b.extent(X, 1)),
    "halves": lambda b: b.emit("floordiv", A, b.const(dt.i32, 2)),
    "by a negative": lambda b: b.emit("floordiv", b.emit("neg", A), b.const(dt.i32, -3)),
    "division by a value": lambda b: b.emit("floordiv", b.cast(A, dt.i64), B),
    "clamped": lambda b: b.emit("min", b.emit("max", A, b.const(dt.i32, 3)), b.extent(X, 0)),
}


def region_of(make: Make) -> Region:
    region = Region()
    builder = Builder(region)
    builder.yield_(builder.cast(make(builder), dt.i64))
    return region


@pytest.mark.skipif(
    native.unavailable_reason() is not None, reason=f"native launches are off: {native.unavailable_reason()}"
)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_formulas_agree_with_the_host(name: str) -> None:
    region = region_of(EXPRESSIONS[name])
    formula = formula_of(region.yields[0], lambda p, axis: WORDS[p] + (0 if axis is None else 1 + axis))
    assert formula is not None
    kernel = Capture(native.load_runtime().capture, 8, 1)
    launcher = NativeLauncher(lambda *args: "slow")
    leaves = (
        ScalarArgument(0, 0, dt.i32, (int,)),
        ScalarArgument(1, 1, dt.i64, (int,)),
        ScalarArgument(2, 2, dt.u8, (int,)),
        NumpyArgument(3, 3, dt.f32, 2),
    )
    launcher.install(LaunchPlan(4, leaves, [0] * 8, ((formula,),), (kernel.variant(),)))
    x = np.zeros((7, 11), np.float32)
    for a in (-(2**31), -65537, -5, 0, 1, 9, 32768, 2**31 - 1):
        for b in (-(2**40), -3, 0, 2, 2**31 + 5, 2**62):
            for c in (0, 55, 56, 255):
                scalars = {A: a, B: b, C: c}
                wanted = evaluate_host(region, scalars.__getitem__, lambda p, axis: x.shape[axis])
                assert launcher.entry(a, b, c, x) is None
                assert kernel.extents == [max(wanted, 0)], (a, b, c)


UNSUPPORTED: dict[str, Make] = {
    "real": lambda b: b.cast(b.cast(A, dt.f32), dt.i64),
    "u64": lambda b: b.cast(b.emit("floordiv", b.cast(A, dt.u64), b.const(dt.u64, 3)), dt.i64),
    "select": lambda b: b.select(b.emit("lt", A, b.const(dt.i32, 3)), A, b.extent(X, 0)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_other_extents_stay_with_the_host(name: str) -> None:
    assert formula_of(region_of(UNSUPPORTED[name]).yields[0], lambda p, axis: 0) is None


def test_an_expression_that_explodes_stays_with_the_host() -> None:
    def make(builder: Builder) -> Value:
        value: Value = builder.cast(A, dt.i64)
        for _ in range(12):
            value = builder.emit("mul", value, value)
        return value

    assert formula_of(region_of(make).yields[0], lambda p, axis: 0) is None
