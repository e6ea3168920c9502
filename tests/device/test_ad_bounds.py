"""Derivatives of loops whose bounds are only known at run time."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd

A = qd.types.ndarray(ndim=1)
I = qd.types.ndarray(dtype=qd.i32, ndim=1)  # noqa: E741
N = 5
REALS = [np.float32, np.float64]

pytestmark = pytest.mark.parametrize("real", REALS, ids=["f32", "f64"])


def reals(real, count: int = N, low: float = 0.2, high: float = 1.3) -> np.ndarray:
    return np.linspace(low, high, count).astype(real)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def zeros(real, count: int = N) -> np.ndarray:
    return np.zeros(count, real)


@qd.func
def step(a, b):
    return a * b + qd.sin(a)


@qd.kernel
def by_argument(x: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        a = x[i]
        for _ in range(n):
            a = step(a, x[i])
        y[i] = a


@pytest.mark.parametrize("n", [-2, 0, 1, 2, 9])
def test_an_argument(device, real, n):
    assert qd.ad.gradcheck(by_argument, [reals(real), zeros(real), n])


def test_by_hand(device, real):
    x, gx = reals(real), zeros(real)
    y, gy = zeros(real), np.ones(N, real)
    pair = qd.with_grad(x, gx), qd.with_grad(y, gy)
    by_argument(*pair, 3)
    by_argument.grad(*pair, 3)
    a, slope = x.astype(float), np.ones(N)
    for _ in range(3):
        a, slope = a * x + np.sin(a), slope * (x + np.cos(a)) + a
    np.testing.assert_allclose(gx, slope, rtol=2e-6 if real is np.float32 else 1e-13)


@qd.kernel
def by_shape(x: A, w: A, y: A):
    for i in range(x.shape[0]):
        a = x[i]
        for k in range(w.shape[0]):
            a = step(a, w[k])
        y[i] = a


@pytest.mark.parametrize("length", [0, 1, 4])
def test_an_array_shape(device, real, length):
    assert qd.ad.gradcheck(by_shape, [reals(real), reals(real, length), zeros(real)])


@qd.kernel
def by_element(x: A, n: I, y: A):
    for i in range(x.shape[0]):
        a = x[i]
        for _ in range(n[0]):
            a = step(a, x[i])
        for _ in range(n[i]):
            a = step(a, 0.5)
        for _ in range(n[(i * 2 + 1) % n.shape[0]]):
            a = step(x[i], a)
        y[i] = a


def test_an_element_at_a_constant_an_index_and_a_computed_place(device, real):
    assert qd.ad.gradcheck(by_element, [reals(real), ints(2, 0, 3, 1, 4), zeros(real)])


@qd.kernel
def by_indirect_element(x: A, n: I, at: I, y: A):
    for i in range(x.shape[0]):
        a = x[i]
        for k in range(n[at[i]]):
            a = step(a, x[at[k]])
        y[i] = a


def test_an_element_indexed_by_another(device, real):
    assert qd.ad.gradcheck(by_indirect_element, [reals(real), ints(2, 0, 3, 1, 4), ints(4, 2, 0, 0, 3), zeros(real)])


@qd.kernel
def by_arithmetic(x: A, n: I, y: A, m: qd.i32):
    for i in range(x.shape[0]):
        a = x[i]
        for _ in range(n[i] * 2 - m + i // 2):
            a = step(a, x[i])
        for _ in range(qd.cast(x[i] * 4.1, qd.i32)):
            a = step(a, 0.25)
        for _ in range(min(n[i], m)):
            a = step(x[i], a)
        y[i] = a


def test_arithmetic_and_float_to_int(device, real):
    assert qd.ad.gradcheck(by_arithmetic, [reals(real), ints(2, 0, 3, 1, 4), zeros(real), 1])


@qd.kernel
def by_start_and_stop(x: A, start: I, y: A, stop: qd.i32):
    for i in range(x.shape[0]):
        a = x[i]
        for k in range(start[i], stop + i):
            a = step(a, x[i]) + k * 0.1
        y[i] = a


@pytest.mark.parametrize("stop", [-9, 0, 3])
def test_start_and_stop(device, real, stop):
    assert qd.ad.gradcheck(by_start_and_stop, [reals(real), ints(0, -2, 3, 5, 1), zeros(real), stop])


@qd.kernel
def two_deep(x: A, n: I, y: A, m: qd.i32):
    for i in range(x.shape[0]):
        a = x[i]
        for p in range(m):
            b = a
            for _ in range(n[p]):
                b = step(b, a)
            a = b * 0.5 + x[i]
        y[i] = a


def test_two_deep(device, real):
    assert qd.ad.gradcheck(two_deep, [reals(real), ints(2, 0, 3, 1, 2), zeros(real), 4])


@qd.kernel
def triangular(x: A, y: A, m: qd.i32):
    for i in range(x.shape[0]):
        a = x[i]
        for p in range(m):
            for q in range(p + 1):
                a = step(a, x[q])
        y[i] = a


def test_inner_bound_by_the_outer_index(device, real):
    assert qd.ad.gradcheck(triangular, [reals(real), zeros(real), 4])


@qd.kernel
def three_deep(x: A, n: I, y: A):
    for i in range(x.shape[0]):
        total = x[i] * 0.0
        for p in range(n[0]):
            a = x[i]
            for q in range(n[1] + p):
                for r in range(q, n[2]):
                    a = step(a, x[r])
                a = a * x[p]
            total += a * a
        y[i] = qd.sqrt(total + 1.0)


def test_three_deep(device, real):
    assert qd.ad.gradcheck(three_deep, [reals(real), ints(2, 2, 3), zeros(real)])


@qd.kernel
def until_small(x: A, y: A, limit: qd.f64):
    for i in range(x.shape[0]):
        a = x[i] * 9.0
        while a > limit:
            a = a * (0.5 + 0.2 * x[i])
        y[i] = a * x[i]


def test_while_on_data(device, real):
    assert qd.ad.gradcheck(until_small, [reals(real), zeros(real), 0.37])


@qd.kernel
def newton(x: A, y: A):
    for i in range(x.shape[0]):
        r = x[i]
        trips = 0
        while abs(r * r - x[i]) > 1e-3 and trips < 50:
            r = 0.5 * (r + x[i] / r)
            trips += 1
        y[i] = r


def test_while_with_two_conditions(device, real):
    assert qd.ad.gradcheck(newton, [reals(real, low=2.0, high=9.0), zeros(real)])


@qd.kernel
def while_in_for_in_while(x: A, n: I, y: A):
    for i in range(x.shape[0]):
        a = x[i]
        k = 0
        while k < n[i]:
            for q in range(k + 1):
                b = a
                while b > 0.3:
                    b = b * 0.6
                a = a + b * x[q]
            k += 1
        y[i] = a


def test_while_in_for_in_while(device, real):
    assert qd.ad.gradcheck(while_in_for_in_while, [reals(real), ints(2, 0, 3, 1, 2), zeros(real)])


@qd.kernel
def over_an_array(x: A, w: A, y: A):
    for i in range(x.shape[0]):
        a = x[i]
        for k in w:
            a = step(a, w[k])
        y[i] = a


def test_a_loop_over_an_array_inside(device, real):
    assert qd.ad.gradcheck(over_an_array, [reals(real), reals(real, 3), zeros(real)])


@qd.kernel
def serial_before_parallel(x: A, y: A, n: qd.i32):
    total = x[0] * 0.0
    qd.loop_config(serialize=True)
    for k in range(n):
        total = step(total, x[k])
    for i in range(x.shape[0]):
        y[i] = total * x[i]


def test_a_serial_loop_before_a_parallel_one(device, real):
    assert qd.ad.gradcheck(serial_before_parallel, [reals(real), zeros(real), 3])


@qd.kernel
def empty_outer(x: A, y: A, n: qd.i32):
    for i in range(n):
        y[i] = x[i] * x[i]


def test_an_empty_outermost_loop(device, real):
    for n in (0, -3):
        assert qd.ad.gradcheck(empty_outer, [reals(real), zeros(real), n])
