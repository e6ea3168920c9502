"""The expansions as machine code of the built-in backend: bounds under fast math, the same bits without it."""

from __future__ import annotations

import numpy as np
import pytest
from math_evaluation import evaluate_function
from math_machine import run_machine
from math_samples import BINARY, UNARY, error_in_ulp, samples

from qd_core.elementary import BOUNDS


@pytest.mark.parametrize("lanes", [0, 1])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_machine_code(name: str, dtype: str, lanes: int) -> None:
    arguments = samples(name, dtype, 150, seed=1)
    fused = run_machine(name, *arguments, fast_math=True, lanes=lanes)
    assert error_in_ulp(name, arguments, fused).max() <= BOUNDS[name][dtype]
    exact = run_machine(name, *arguments, fast_math=False, lanes=lanes)
    np.testing.assert_array_equal(exact, evaluate_function(name, *arguments), strict=True)


@pytest.mark.parametrize("kind", [np.int32, np.uint32, np.int64, np.float32, np.float64])
def test_powi_in_lanes(kind: type) -> None:
    rng = np.random.default_rng(2)
    base, exponent = rng.integers(-3, 4, 1000).astype(kind), rng.integers(-40, 40, 1000).astype(np.int32)
    np.testing.assert_array_equal(run_machine("powi", base, exponent), evaluate_function("powi", base, exponent))
