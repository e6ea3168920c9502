"""The expansions against correctly rounded values, as NumPy evaluates their IR."""

from __future__ import annotations

import math

import numpy as np
import pytest
from math_evaluation import evaluate_function
from math_samples import BINARY, NUMPY, UNARY, error_in_ulp, samples

from qd_core.elementary import BOUNDS

FUNCTIONS = (*UNARY, *BINARY)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_is_within_the_stated_bound(name: str, dtype: str) -> None:
    arguments = samples(name, dtype)
    error = error_in_ulp(name, arguments, evaluate_function(name, *arguments))
    worst = int(np.argmax(error))
    assert error[worst] <= BOUNDS[name][dtype], [float(a[worst]) for a in arguments]


@pytest.mark.parametrize("name", UNARY)
def test_every_f16_argument(name: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        meaning = {"asin": np.arcsin, "acos": np.arccos}.get(name) or getattr(np, name)
        exact = meaning(x.astype(np.float64))
        rounded = exact.astype(np.float16)
        got = evaluate_function(name, x)
    assert got.dtype == np.float16
    special = ~np.isfinite(rounded) | (rounded == 0)
    np.testing.assert_array_equal(got[special], rounded[special])
    with np.errstate(all="ignore"):
        spacing = np.spacing(np.abs(np.where(special, 1, rounded))).astype(np.float64)
        # Below a power of two the spacing of the rounded value is twice that of the exact one.
        spacing = np.where(
            np.abs(exact) < np.abs(rounded),
            np.minimum(spacing, np.spacing(np.nextafter(np.abs(rounded), np.float16(0)))),
            spacing,
        )
        error = np.where(special, 0, np.abs(got.astype(np.float64) - exact) / spacing)
    assert error.max() <= BOUNDS[name]["f16"]


@pytest.mark.parametrize("name", BINARY)
def test_f16_pairs(name: str) -> None:
    arguments = samples(name, "f16")
    error = error_in_ulp(name, arguments, evaluate_function(name, *arguments))
    assert error.max() <= BOUNDS[name]["f16"]


INF, NAN = math.inf, math.nan
C99 = [
    # ISO/IEC 9899:1999 F.9.4.4
    ("pow", (0.0, -3.0), INF), ("pow", (-0.0, -3.0), -INF), ("pow", (-0.0, -2.0), INF), ("pow", (0.0, 3.0), 0.0),
    ("pow", (-0.0, 3.0), -0.0), ("pow", (-0.0, 0.5), 0.0), ("pow", (-1.0, INF), 1.0), ("pow", (-1.0, -INF), 1.0),
    ("pow", (1.0, NAN), 1.0), ("pow", (NAN, 0.0), 1.0), ("pow", (NAN, -0.0), 1.0), ("pow", (-2.0, 0.5), NAN),
    ("pow", (0.5, -INF), INF), ("pow", (2.0, -INF), 0.0), ("pow", (-0.5, INF), 0.0), ("pow", (-2.0, INF), INF),
    ("pow", (-INF, -3.0), -0.0), ("pow", (-INF, -2.0), 0.0), ("pow", (-INF, 3.0), -INF), ("pow", (-INF, 2.5), INF),
    ("pow", (INF, -0.5), 0.0), ("pow", (INF, 0.5), INF), ("pow", (NAN, 1.0), NAN), ("pow", (2.0, NAN), NAN),
    ("pow", (-8.0, 3.0), -512.0),
    # F.9.1.4
    ("atan2", (0.0, -0.0), math.pi), ("atan2", (-0.0, -0.0), -math.pi), ("atan2", (0.0, 0.0), 0.0),
    ("atan2", (-0.0, 0.0), -0.0), ("atan2", (-0.0, -1.0), -math.pi), ("atan2", (-1.0, 0.0), -math.pi / 2),
    ("atan2", (1.0, -INF), math.pi), ("atan2", (-1.0, INF), -0.0), ("atan2", (INF, 1.0), math.pi / 2),
    ("atan2", (INF, -INF), 3 * math.pi / 4), ("atan2", (-INF, INF), -math.pi / 4), ("atan2", (NAN, 1.0), NAN),
    ("atan2", (1.0, NAN), NAN),
    # F.9.1, F.9.3
    ("sin", (-0.0,), -0.0), ("sin", (INF,), NAN), ("cos", (-INF,), NAN), ("tan", (-0.0,), -0.0), ("tan", (INF,), NAN),
    ("asin", (-0.0,), -0.0), ("asin", (1.5,), NAN), ("acos", (1.0,), 0.0), ("acos", (-1.5,), NAN),
    ("tanh", (-INF,), -1.0), ("tanh", (-0.0,), -0.0), ("exp", (-INF,), 0.0), ("exp", (INF,), INF),
    ("exp", (0.0,), 1.0), ("exp", (NAN,), NAN), ("log", (-0.0,), -INF), ("log", (-1.0,), NAN), ("log", (INF,), INF),
    ("log", (1.0,), 0.0), ("log", (NAN,), NAN),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
@pytest.mark.parametrize(("name", "arguments", "value"), C99)
def test_special_values(name: str, arguments: tuple[float, ...], value: float, dtype: str) -> None:
    kind = NUMPY[dtype]
    got = evaluate_function(name, *(np.array([a], kind) for a in arguments))[0]
    want = kind(value)
    assert np.isnan(got) == np.isnan(want)
    assert np.isnan(want) or (got == want and np.signbit(got) == np.signbit(want)), got


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_arguments_closest_to_a_multiple_of_half_pi(dtype: str) -> None:
    # The hardest cases: 16367173 * 2**72 (f32), 6381956970095103 * 2**797 (f64): Muller, Elementary Functions, chapter
    # on range reduction.
    x = np.array([16367173 * 2.0**72 if dtype == "f32" else 6381956970095103 * 2.0**797], NUMPY[dtype])
    for name in ("sin", "cos", "tan"):
        assert error_in_ulp(name, (x,), evaluate_function(name, x)).max() <= BOUNDS[name][dtype]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.float16, np.float32, np.float64])
def test_powi_equals_the_table(kind: type) -> None:
    from qd_core.ir.ops import OPS

    base, exponent = (
        v.ravel()
        for v in np.meshgrid(
            np.array([0, 1, 2, 3, 7, 255, -1, -2]).astype(kind), [0, 1, -1, 5, 31, -3, 100, 2**31 - 1, -(2**31)]
        )
    )
    exponent = exponent.astype(np.int32)
    meaning = OPS["powi"].numpy
    assert meaning is not None
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate_function("powi", base, exponent), meaning(base, exponent))
