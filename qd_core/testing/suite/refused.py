"""Bad input is refused by a typed error that names the parameter, and leaves everything usable."""
# pyright: basic, reportGeneralTypeIssues=false, reportInvalidTypeForm=false, reportOptionalMemberAccess=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import ArgumentValueError, ClosedError, QuadrantsRuntimeTypeError, QuadrantsSyntaxError
from qd_core.testing.device import DeviceUnderTest, open_device

__all__ = [
    "test_arrays_do_not_outlive_their_device",
    "test_kernels_outlive_their_device",
    "test_places_outside_an_array_are_refused_on_the_host",
    "test_wrong_arguments_are_refused_by_name",
    "test_wrong_arrays_are_refused_by_name",
    "test_wrong_counts_and_names_are_refused",
]

F1 = qd.types.ndarray(dtype=qd.f32, ndim=1)


@qd.kernel
def scale(x: F1, by: qd.f32, n: qd.i32):
    """Multiply the first ``n``."""
    for i in range(n):
        x[i] = x[i] * by


def works(x: Any) -> None:
    """Assert that a right call still works."""
    x[:] = 2
    scale(x, 3.0, 4)
    assert x.tolist() == [6] * 4


def test_wrong_counts_and_names_are_refused(device: DeviceUnderTest) -> None:
    """Too few, too many, unknown, twice."""
    x = np.ones(4, np.float32)
    for args, named, message in (
        ((x, 1.0), {}, "Missing argument 'n'"),
        ((x, 1.0, 4, 5), {}, "Too many arguments"),
        ((x, 1.0, 4), {"m": 1}, "Unexpected argument 'm'"),
        ((x, 1.0, 4), {"x": x}, "'x'.*twice"),
    ):
        with pytest.raises(QuadrantsSyntaxError, match=message):
            scale(*args, **named)
        works(x)


def test_wrong_arguments_are_refused_by_name(device: DeviceUnderTest) -> None:
    """What cannot be an array or a number, and numbers outside the range."""
    x = np.ones(4, np.float32)
    for args, name in (
        (([1.0, 2.0], 1.0, 2), "'x'"),
        ((None, 1.0, 2), "'x'"),
        ((x, "2", 2), "'by'"),
        ((x, 1.0, 2.5), "'n'"),
        ((x, 1.0, 2**40), "'n'"),
        ((x, x, 2), "'by'"),
    ):
        with pytest.raises(QuadrantsRuntimeTypeError, match=name):
            scale(*args)
        works(x)


def test_wrong_arrays_are_refused_by_name(device: DeviceUnderTest) -> None:
    """Wrong dtype, rank, stride, writability: wanted and got are said, nothing is written."""
    x = np.ones(4, np.float32)
    fixed = np.ones(4, np.float32)
    fixed.flags.writeable = False
    for array, wanted in (
        (np.ones(4), "dtype=f32, got f64"),
        (np.ones(4, np.int32), "dtype=f32, got i32"),
        (np.ones((2, 2), np.float32), "ndim=1"),
        (np.ones(8, np.float32)[::2], "not contiguous"),
        (fixed, "read-only"),
        (np.ones(4, ">f4"), "float32|not supported"),
    ):
        before = array.copy()
        with pytest.raises(ArgumentValueError, match=f"x.*{wanted}|{wanted}"):
            scale(array, 2.0, 4)
        np.testing.assert_array_equal(array, before)
        works(x)


def test_places_outside_an_array_are_refused_on_the_host(device: DeviceUnderTest) -> None:
    """Reading and writing single elements from Python."""
    x = qd.ndarray(qd.f32, (2, 3))
    x[1, 2] = 5.0
    assert x[1, 2] == 5.0
    for index in ((2, 0), (0, -1), (0,), 0):
        with pytest.raises(AssertionError, match=r"index|indices"):
            x[index]
        with pytest.raises(AssertionError, match=r"index|indices"):
            x[index] = 1.0
    with pytest.raises(ArgumentValueError, match="shape"):
        x.from_numpy(np.zeros((3, 2), np.float32))


def test_arrays_do_not_outlive_their_device(device: DeviceUnderTest) -> None:
    """After `qd.reset()` an array says so, however it is used; a new device refuses it."""
    x = qd.ndarray(qd.f32, 4)
    scale(x, 1.0, 4)
    scale(x, 1.0, 4)
    qd.reset()
    for use in (x.to_numpy, lambda: x[0], lambda: x.fill(0), lambda: x.from_numpy(np.zeros(4, np.float32))):
        with pytest.raises(ClosedError, match=r"qd\.reset"):
            use()
    other = open_device(device.name)
    for _ in range(2):
        with pytest.raises(ClosedError, match=r"qd\.reset"):
            scale(x, 1.0, 4)
        works(np.ones(4, np.float32))
    other.close()


def test_kernels_outlive_their_device(device: DeviceUnderTest) -> None:
    """A kernel is compiled anew for the next device."""
    x = np.ones(4, np.float32)
    works(x)
    qd.reset()
    with pytest.raises(RuntimeError, match=r"qd\.init"):
        scale(x, 1.0, 4)
    for _ in range(2):
        other = open_device(device.name)
        works(x)
        works(x)
        other.close()
