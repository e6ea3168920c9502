"""What can be seen to be wrong from the source alone, in release builds too: bad indices, calls of host functions,
uses of arrays as values.
"""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd

A = qd.types.ndarray(dtype=qd.i32, ndim=1)


@qd.kernel
def one(a: A):
    a[0] = 1


@qd.kernel
def other_kernel(a: A):
    one(a)


@qd.kernel
def starts_again(a: A):
    qd.init()


@qd.kernel
def makes_field(a: A):
    x = qd.field(qd.i32, 3)  # noqa: F841


@qd.kernel
def counts_backwards(a: A):
    for i in range(3):
        a[-1] = i


@qd.kernel
def unreached(a: A):
    for i in a:
        for j in qd.static(range(-1, 3)):
            if j >= 0:
                a[i] += a[j] * 0 + 1


@pytest.mark.parametrize("kernel", [other_kernel, starts_again, makes_field])
def test_host_functions_are_refused(device, kernel):
    a = np.zeros(4, np.int32)
    with pytest.raises(qd.QuadrantsSyntaxError, match="call"):
        kernel(a)
    one(a)
    np.testing.assert_array_equal(a, [1, 0, 0, 0])


def test_constant_indices_out_of_range_touch_nothing(device):
    a = np.zeros(4, np.int32)
    with pytest.raises(qd.QuadrantsAssertionError, match=r"Out of bound access: a\[-1\]"):
        counts_backwards(a)
        qd.sync()
    np.testing.assert_array_equal(a, 0)
    unreached(a)
    np.testing.assert_array_equal(a, 3)


def test_constant_indices_of_fields(device):
    x, y = qd.field(qd.i32, 4), qd.field(qd.i32, 4, offset=-2)

    @qd.kernel
    def beyond():
        x[0] = x[4]

    @qd.kernel
    def shifted():
        y[-2] = 5

    with pytest.raises(qd.QuadrantsAssertionError, match=r"Out of bound access: x\[4\]"):
        beyond()
        qd.sync()
    shifted()
    assert y[-2] == 5


@qd.kernel
def compared_whole(a: A):
    if a == 0:
        a[0] = 1


@qd.kernel
def printed_whole(a: A):
    print("a is", a)


@qd.kernel
def compared_with_none(a: A):
    if qd.static(a != None):  # noqa: E711
        a[0] = 2
    if a is not None:
        a[1] = 3


@pytest.mark.parametrize("kernel", [compared_whole, printed_whole])
def test_arrays_are_no_values(device, kernel):
    with pytest.raises(qd.QuadrantsTypeError, match="the array 'a'"):
        kernel(np.zeros(2, np.int32))


def test_arrays_may_be_compared_with_none(device):
    a = np.zeros(2, np.int32)
    compared_with_none(a)
    np.testing.assert_array_equal(a, [2, 3])
