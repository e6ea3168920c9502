"""A kernel that does not compile leaves everything usable."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import QuadrantsNameError, QuadrantsTypeError

A = qd.types.ndarray(dtype=qd.f32, ndim=1)


@qd.kernel
def good(x: A):
    for i in range(x.shape[0]):
        x[i] += 1.0


@qd.kernel
def unknown_name(x: A):
    for i in range(x.shape[0]):
        x[i] = nowhere  # noqa: F821


@qd.kernel
def wrong_type(x: A):
    for i in range(x.shape[0]):
        x[i] = x[i] and 1.0


def test_errors_in_the_middle_of_compilation_leave_the_device_usable(device):
    x = qd.ndarray(qd.f32, 5)
    good(x)
    for _ in range(2):
        with pytest.raises(QuadrantsNameError, match="nowhere"):
            unknown_name(x)
        with pytest.raises(QuadrantsTypeError):
            wrong_type(x)
        good(x)
    np.testing.assert_array_equal(x.to_numpy(), np.full(5, 3.0))
