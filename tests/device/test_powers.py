"""Powers with one exponent for all iterations have the edge cases of C99, as those with many."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd


@pytest.mark.parametrize("dtype", [qd.f32, qd.f64])
def test_the_power_of_one_half(device, dtype):
    array = qd.types.ndarray(dtype=dtype, ndim=1)

    @qd.kernel
    def constant(x: array, y: array):
        for i in x:
            y[i] = x[i] ** 0.5

    @qd.kernel
    def uniform(x: array, y: array, e: dtype):
        for i in x:
            y[i] = x[i] ** e

    x = np.array([-np.inf, -0.0, 0.0, 4.0, np.inf, np.nan, -1.0], dtype.numpy)
    wanted = [np.inf, 0.0, 0.0, 2.0, np.inf, np.nan, np.nan]
    for kernel, rest in ((constant, ()), (uniform, (0.5,))):
        for n in (1, len(x)):
            y = np.zeros(n, dtype.numpy)
            kernel(x[:n].copy(), y, *rest)
            np.testing.assert_array_equal(y, wanted[:n])
