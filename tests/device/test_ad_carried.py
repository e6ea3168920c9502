"""Derivatives of values that loops carry, of conditions, of `break` and `continue`."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd

A = qd.types.ndarray(ndim=1)
V3 = qd.types.ndarray(dtype=qd.f32, ndim=1, element_shape=(3,))
M2 = qd.types.ndarray(dtype=qd.f32, ndim=1, element_shape=(2, 2))
I = qd.types.ndarray(dtype=qd.i32, ndim=1)  # noqa: E741
N = 5


def reals(count: int = N, low: float = 0.2, high: float = 1.3, kind=np.float32) -> np.ndarray:
    return np.linspace(low, high, count).astype(kind)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape or N, np.float32)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(0.3, 1.2, shape).astype(np.float32)


@qd.kernel
def swapped(x: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        a, b, c = x[i], 1.0, x[i] * x[i]
        for _ in range(n):
            a, b, c = b * c, a + 0.1 * c, qd.sin(a)
        y[i] = a * b - c


def test_several_at_once_and_swapped(device):
    for n in (0, 1, 5):
        assert qd.ad.gradcheck(swapped, [reals(), zeros(), n])


@qd.kernel
def fibonacci(x: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        a, b = x[i], x[i] * x[i]
        for _ in range(n):
            a, b = b, a + b
        y[i] = a


def test_a_linear_recurrence_by_hand(device):
    x, gx = reals(), zeros()
    y, gy = zeros(), np.ones(N, np.float32)
    fibonacci(qd.with_grad(x, gx), qd.with_grad(y, gy), 10)
    fibonacci.grad(qd.with_grad(x, gx), qd.with_grad(y, gy), 10)
    np.testing.assert_allclose(gx, 34 + 55 * 2 * x.astype(float), rtol=1e-6)


@qd.kernel
def rotated(x: V3, y: V3, n: qd.i32):
    for i in range(x.shape[0]):
        v = x[i]
        for _ in range(n):
            v = qd.Vector([v[1] * v[2], v[2] + 0.3, v[0] - v[1]]) / (1.0 + v.norm())
        y[i] = v


def test_a_vector_rebuilt_from_its_components(device):
    assert qd.ad.gradcheck(rotated, [random(4, 3), zeros(4, 3), 4])


@qd.kernel
def matrix_power(m: M2, y: M2, n: qd.i32):
    for i in range(m.shape[0]):
        p = m[i]
        q = qd.Matrix([[1.0, 0.0], [0.0, 1.0]])
        for _ in range(n):
            q = q @ p
            p = qd.Matrix([[p[1, 1], p[0, 1] * 0.5], [p[1, 0], p[0, 0] + q[0, 1]]])
        y[i] = q + p.transpose()


def test_a_matrix_rebuilt_from_its_components(device):
    assert qd.ad.gradcheck(matrix_power, [random(3, 2, 2), zeros(3, 2, 2), 4])


@qd.kernel
def one_component(x: V3, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        v = x[i]
        for _ in range(n):
            v[1] += v[0] * v[2]
            v[0] = v[1] * 0.5
        y[i] = v.dot(v)


def test_components_updated_in_place(device):
    assert qd.ad.gradcheck(one_component, [random(4, 3), zeros(4), 3])


@qd.kernel
def indexed_local(x: V3, at: I, y: A):
    for i in range(x.shape[0]):
        v = x[i]
        for k in range(at.shape[0]):
            v[at[k]] = v[at[k]] * v[(at[k] + 1) % 3] + 0.1
        y[i] = v[at[0]] * v[0]


def test_a_local_array_indexed_dynamically(device):
    assert qd.ad.gradcheck(indexed_local, [random(4, 3), np.array([1, 0, 2, 2, 1], np.int32), zeros(4)])


@qd.kernel
def steered(x: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        a = x[i]
        odd = 1
        for k in range(n):
            if odd == 1:
                a = a * x[i]
            else:
                a = a + qd.sin(a)
            for _ in range(odd + k % 2):
                a = a * 0.9 + 0.1
            odd = 1 - odd
        y[i] = a


def test_integers_that_steer_branches_and_bounds(device):
    assert qd.ad.gradcheck(steered, [reals(), zeros(), 5])


@qd.kernel
def from_before(x: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        before = qd.sin(x[i])
        a = 0.0
        for _ in range(n):
            a += before * before
            before_inside = a * before
            a += before_inside
        y[i] = a * before + qd.exp(a)


def test_values_from_before_and_accumulators_used_nonlinearly(device):
    assert qd.ad.gradcheck(from_before, [reals(high=0.6), zeros(), 3])


@qd.kernel
def chosen(x: A, y: A):
    for i in range(x.shape[0]):
        a = x[i]
        if a > 0.9:
            a = a * a
        elif a > 0.5:
            if i % 2 == 0:
                a = qd.sin(a)
            a += x[i]
        b = a * 2.0 if x[i] < 0.7 else a / x[i]
        y[i] = qd.select(x[i] > 0.4, b, a) * x[i]


def test_if_else_ternary_and_select(device):
    assert qd.ad.gradcheck(chosen, [reals(7), zeros(7)])


@qd.kernel
def while_carried(x: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        a = x[i]
        for _ in range(n):
            if a > 1.0:
                a = a * 0.45
            else:
                a = a * 1.7 + x[i]
        y[i] = a


def test_conditions_on_carried_values(device):
    assert qd.ad.gradcheck(while_carried, [reals(), zeros(), 6])


@qd.kernel
def skipping(x: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        if x[i] > 1.2:
            continue
        a = x[i]
        for k in range(n):
            if k % 3 == 1:
                continue
            if a > 3.0:
                break
            a = a * (1.0 + x[i])
            if a < 0.5:
                continue
            a += 0.25 * a * a
        y[i] = a


def test_continue_and_break(device):
    assert qd.ad.gradcheck(skipping, [reals(), zeros(), 7])


@qd.kernel
def searching(x: A, y: A):
    for i in range(x.shape[0]):
        a = x[i]
        while True:
            a = a * 1.5
            if a > 4.0:
                break
            if a < 1.0:
                continue
            a = a + x[i] * x[i]
        y[i] = a


def test_endless_loop_with_break(device):
    assert qd.ad.gradcheck(searching, [reals(), zeros()])


@qd.func
def first_above(x: qd.template(), level):
    found = 0.0
    for k in range(x.shape[0]):
        if x[k] * x[k] > level:
            found = x[k] * level
            break
    return found


@qd.kernel
def through_function(x: A, y: A):
    for i in range(y.shape[0]):
        y[i] = first_above(x, x[i] * 0.5) ** 2


def test_break_inside_a_function(device):
    assert qd.ad.gradcheck(through_function, [reals(), zeros()])


@qd.kernel
def in_place(x: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        y[i] = x[i]
        for k in range(n):
            if k % 2 == 0:
                y[i] += x[i] * k
            else:
                y[i] = 0.5 * y[i]


def test_in_place_updates_under_conditions(device):
    assert qd.ad.gradcheck(in_place, [reals(), zeros(), 5])


@qd.kernel
def long_loop(x: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        a = x[i]
        for _ in range(n):
            a = a + 0.01 * qd.sin(a)
        y[i] = a


def test_five_hundred_trips(device):
    assert qd.ad.gradcheck(long_loop, [reals(2), zeros(2), 500])


@qd.kernel
def half(x: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        a = x[i]
        for _ in range(n):
            a = a * x[i] + a
        y[i] = a


@pytest.mark.qd_requires("type.f16")
def test_half_precision(device):
    assert qd.ad.gradcheck(half, [reals(kind=np.float16), np.zeros(N, np.float16), 2])
