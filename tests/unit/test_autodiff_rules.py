"""Derivative rules: complete, right at sample points of every operation, and as documented at the edges."""

from __future__ import annotations

import numpy as np
import pytest
from autodiff_kernels import E, Kernel, gradient, tangent

from qd_core import dtypes as dt
from qd_core.autodiff.rules import (
    RULES,
    Choice,
    Linear,
    NotDifferentiable,
    Partials,
    Structural,
    Zero,
    check_table,
    uses,
)
from qd_core.ir.fold import evaluate
from qd_core.ir.nodes import Function
from qd_core.ir.ops import OPS, elementwise

POINTS = 64
STEP = 1e-6
UNARY = [o.name for o in elementwise() if o.arity == 1 and dt.f64 in o.types and o.result == "same"]
BINARY = [
    o.name for o in elementwise() if o.arity == 2 and dt.f64 in o.types and o.result == "same" and o.name != "powi"
]
JUMPS = ("floordiv", "mod", "raw_div", "raw_mod")


def unary(name: str) -> Function:
    k = Kernel(x="f64[1]", out="f64[1]")

    def body(i: E) -> None:
        k.out[i] = k.op(name, k.x[i])

    k.parallel(k.extent(k.x), body=body)
    return k.done()


def binary(name: str) -> Function:
    k = Kernel(x="f64[1]", y="f64[1]", out="f64[1]")

    def body(i: E) -> None:
        k.out[i] = k.op(name, k.x[i], k.y[i])

    k.parallel(k.extent(k.x), body=body)
    return k.done()


def slopes(name: str, *x: float | np.ndarray) -> list[np.ndarray]:
    """Reverse-mode partial derivatives at points; forward mode must give exactly the same."""
    arrays = [np.atleast_1d(np.asarray(v, np.float64)) for v in x]
    values = {**dict(zip("xy", arrays, strict=False)), "out": np.zeros_like(arrays[0])}
    make = (lambda: unary(name)) if len(arrays) == 1 else (lambda: binary(name))
    adjoints = gradient(make, values, {"out": np.ones_like(arrays[0])})
    result = [adjoints[p] for p in "xy"[: len(arrays)]]
    for k, p in enumerate("xy"[: len(arrays)]):
        duals = {q: np.full_like(values["out"], float(q == p)) for q in values}
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(tangent(make, values, duals)["out"], result[k], rtol=1e-15, equal_nan=True)
    return result


def samples(name: str, count: int) -> list[np.ndarray]:
    low, high = OPS[name].domain
    margin = 1e-3 * (high - low)
    random = np.random.default_rng(3)
    return [random.uniform(low + margin, high - margin, POINTS) for _ in range(count)]


def differences(name: str, x: list[np.ndarray]) -> list[np.ndarray]:
    result = []
    for k in range(len(x)):
        ends = [evaluate(OPS[name], tuple(v + s * STEP * (j == k) for j, v in enumerate(x)), dt.f64) for s in (1, -1)]
        result.append((ends[0] - ends[1]) / (2 * STEP))
    return result


# -- completeness ---------------------------------------------------------------------------------------------------
def test_one_rule_per_operation() -> None:
    assert set(RULES) == set(OPS)
    for name, rule in RULES.items():
        if isinstance(rule, Partials):
            assert len(rule.partials) == OPS[name].arity, name
        elif isinstance(rule, Linear):
            assert len(rule.signs) == OPS[name].arity, name
        else:
            assert isinstance(rule, (Choice, Zero, NotDifferentiable, Structural))


@pytest.mark.parametrize(
    ("rules", "operations"), [({"add": Zero()}, ["add", "mul"]), ({"add": Zero(), "gone": Zero()}, ["add"])]
)
def test_missing_or_stray_entry_stops_the_import(rules: dict[str, Zero], operations: list[str]) -> None:
    with pytest.raises(LookupError, match=r"mul|gone"):
        check_table(rules, operations)


def test_uses_are_traced() -> None:
    assert uses("mul", 0) == ((1,), False)
    assert uses("sin", 0) == ((0,), False)
    assert uses("exp", 0) == ((), True)
    assert uses("add", 1) == ((), False)
    assert uses("div", 1) == ((1,), True)
    assert uses("select", 1) == ((0,), False)
    assert uses("max", 0) == ((1,), True)
    assert uses("pow", 0) == ((0, 1), False)


# -- sample points --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", UNARY)
def test_unary_against_differences(name: str) -> None:
    x = samples(name, 1)
    np.testing.assert_allclose(slopes(name, *x), differences(name, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", BINARY)
def test_binary_against_differences(name: str) -> None:
    x = samples(name, 2)
    for got, want in zip(slopes(name, *x), differences(name, x), strict=True):
        smooth = (np.abs(want) < 1e4) | (name not in JUMPS)  # no jump of a quotient between the two ends
        assert smooth.sum() > POINTS - 4
        np.testing.assert_allclose(got[smooth], want[smooth], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("exponent", [-3, -1, 0, 1, 2, 5, 30])
def test_powi(exponent: int) -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", n="i32", out="f64[1]")

        def body(i: E) -> None:
            k.out[i] = E(k, k.b.emit("powi", k.x[i].v, k.n.v))

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    x = np.array([-1.5, -0.2, 0.7, 1.1] if exponent < 1 else [-1.5, -0.2, 0.0, 0.7, 1.1])
    got = gradient(make, {"x": x, "n": exponent, "out": np.zeros_like(x)}, {"out": np.ones_like(x)})["x"]
    want = exponent * x ** (exponent - 1.0) if exponent else np.zeros_like(x)
    np.testing.assert_allclose(got, want, rtol=1e-13)


# -- edges: what the module documents -------------------------------------------------------------------------------
def test_square_root() -> None:
    np.testing.assert_array_equal(slopes("sqrt", [0.0, 4.0, np.inf])[0], [0, 0.25, 0])
    assert slopes("sqrt", -1.0)[0] == 0
    assert np.isinf(slopes("rsqrt", 0.0)[0])


def test_absolute_value_and_sign() -> None:
    np.testing.assert_array_equal(slopes("abs", [-2.0, -0.0, 0.0, 3.0])[0], [-1, 0, 0, 1])
    np.testing.assert_array_equal(slopes("sgn", [-2.0, 0.0, 3.0])[0], 0)


@pytest.mark.parametrize("name", ["min", "max"])
def test_ties_go_to_the_second_and_nan_gets_nothing(name: str) -> None:
    x, y = slopes(name, [1.0, np.nan, 1.0], [1.0, 1.0, np.nan])
    np.testing.assert_array_equal(x, [0, 0, 1])
    np.testing.assert_array_equal(y, [1, 1, 0])


def test_logarithm_and_quotient_are_honest_at_zero() -> None:
    assert slopes("log", 0.0)[0] == np.inf
    x, y = slopes("div", 1.0, 0.0)
    assert x == np.inf
    assert y == -np.inf


def test_power_borders() -> None:
    base, exponent = slopes("pow", [0.0, 0.0, 0.0, 0.0, 0.0, -2.0, -2.0], [0.0, 0.5, 1.0, 2.0, 3.5, 3.0, 2.0])
    np.testing.assert_array_equal(base, [0, 0, 1, 0, 0, 12, -4])
    np.testing.assert_array_equal(exponent, 0)
    assert np.isinf(slopes("pow", 0.0, -1.0)[0])


def test_inverse_trigonometry_at_the_ends() -> None:
    np.testing.assert_array_equal(slopes("asin", [-1.0, 0.0, 1.0])[0], [0, 1, 0])
    np.testing.assert_array_equal(slopes("acos", [-1.0, 0.0, 1.0])[0], [0, -1, 0])


def test_angle_at_the_origin_and_the_axes() -> None:
    y, x = slopes("atan2", [0.0, 2.0, 0.0], [0.0, 0.0, -4.0])
    np.testing.assert_array_equal(y, [0, 0, -0.25])
    np.testing.assert_array_equal(x, [0, -0.5, 0])


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
def test_rounding_has_slope_zero_everywhere(name: str) -> None:
    np.testing.assert_array_equal(slopes(name, [-1.0, -0.5, 0.0, 0.3, 2.0])[0], 0)


@pytest.mark.parametrize("dtype", [dt.f16, dt.f32, dt.f64])
def test_every_real_type(dtype: dt.DType) -> None:
    """One kernel over all unary operations: gradients have the primal's type and agree with f64."""
    names = [n for n in UNARY if n not in ("floor", "ceil", "trunc", "round")]

    def make(which: dt.DType) -> Function:
        k = Kernel(x=f"{which.name}[1]", out=f"{which.name}[2]")

        def body(i: E) -> None:
            for row, name in enumerate(names):
                k.out[row, i] = k.op(name, k.x[i])

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    x = np.array([0.25, 0.5, 0.75])
    got, want = (
        gradient(
            lambda d=d: make(d),
            {"x": x.astype(d.numpy), "out": np.zeros((len(names), 3), d.numpy)},
            {"out": np.ones((len(names), 3), d.numpy)},
        )["x"]
        for d in (dtype, dt.f64)
    )
    assert got.dtype == dtype.numpy
    np.testing.assert_allclose(got.astype(np.float64), want, rtol={"f16": 2e-2, "f32": 1e-5, "f64": 0}[dtype.name])
