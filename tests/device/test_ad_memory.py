"""Derivatives through arrays: atomics, elements, aliases, shared gradients, casts, shapes without elements."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import LaunchError, NotDifferentiableError

A = qd.types.ndarray(ndim=1)
A0 = qd.types.ndarray(dtype=qd.f32, ndim=0)
A2 = qd.types.ndarray(dtype=qd.f32, ndim=2)
V3 = qd.types.ndarray(dtype=qd.f32, ndim=1, element_shape=(3,))
M2 = qd.types.ndarray(dtype=qd.f32, ndim=1, element_shape=(2, 2))
I = qd.types.ndarray(dtype=qd.i32, ndim=1)  # noqa: E741
N = 5


def reals(*shape: int) -> np.ndarray:
    shape = shape or (N,)
    return np.linspace(0.2, 1.3, int(np.prod(shape))).reshape(shape).astype(np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape or N, np.float32)


def resident(*values: np.ndarray) -> list:
    arrays = [qd.ndarray(qd.f32, v.shape, needs_grad=True) for v in values]
    for a, v in zip(arrays, values, strict=True):
        a.from_numpy(v)
    return arrays


@qd.kernel
def scatter(x: A, at: I, y: A):
    for i in range(x.shape[0]):
        y[at[i]] += x[i] * x[i]
        qd.atomic_add(y[0], qd.sin(x[i]))
        qd.atomic_sub(y[at[(i + 1) % at.shape[0]]], x[i] * 3.0)


def test_atomic_add_and_sub(device):
    assert qd.ad.gradcheck(scatter, [reals(), np.array([1, 0, 2, 1, 0], np.int32), zeros(3)])


@qd.kernel
def total(x: A2, loss: A0):
    for i, j in x:
        loss[None] += x[i, j] ** 2


def test_a_zero_dimensional_loss(device):
    x, loss = resident(reals(3, 4), zeros()[0:1].reshape(()))
    loss.grad.fill(2.0)
    total(x, loss)
    total.grad(x, loss)
    np.testing.assert_allclose(x.grad.to_numpy(), 4 * x.to_numpy(), rtol=1e-6)
    assert qd.ad.gradcheck(total, [x, loss])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_arrays_without_elements(device, shape):
    x, loss = resident(np.zeros(shape, np.float32), np.zeros((), np.float32))
    loss.grad.fill(2.0)
    total(x, loss)
    total.grad(x, loss)
    assert x.grad.to_numpy().shape == shape
    assert loss.grad[None] == 2.0


@qd.kernel
def products(v: V3, m: M2, y: V3, d: A):
    for i in range(v.shape[0]):
        w = v[i].cross(v[(i + 1) % v.shape[0]])
        y[i] = w * m[i].determinant() + v[i].normalized()
        d[i] = (m[i].inverse() @ qd.Vector([v[i][0], v[i][2]])).norm() + m[i].trace()


def test_vector_and_matrix_elements(device):
    m = (reals(4, 2, 2) + np.array([[2.0, 0.0], [0.3, 1.0]])).astype(np.float32)
    assert qd.ad.gradcheck(products, [reals(4, 3)[::-1].copy(), m, zeros(4, 3), zeros(4)])


@qd.kernel
def components(v: V3, y: V3):
    for i in range(v.shape[0]):
        for c in qd.static(range(3)):
            y[i][c] += v[i][(c + 1) % 3] * v[i][c]
        y[i].x *= v[i].z


def test_components_of_elements(device):
    with pytest.raises(NotDifferentiableError, match="overwritten later"):
        qd.ad.gradcheck(components, [reals(4, 3), zeros(4, 3)])


@qd.kernel
def add_three_times(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] += 3.0 * x[i]


def test_one_array_for_two_parameters(device):
    (x,) = resident(reals())
    x.grad.fill(1.0)
    add_three_times(x, x)
    add_three_times.grad(x, x)
    np.testing.assert_allclose(x.to_numpy(), 4 * reals(), rtol=1e-6)
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full(N, 4.0))


@qd.kernel
def product_sum(a: A, b: A, y: A):
    for i in range(a.shape[0]):
        y[i] = a[i] * b[i] + a[(i + 1) % a.shape[0]]


def test_one_array_read_through_two_parameters(device):
    x, y = resident(reals(), zeros())
    y.grad.fill(1.0)
    product_sum(x, x, y)
    product_sum.grad(x, x, y)
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * reals() + 1, rtol=1e-6)


def test_one_gradient_for_two_parameters(device):
    a, b, g = reals(), reals()[::-1].copy(), zeros()
    y = qd.with_grad(zeros(), np.ones(N, np.float32))
    product_sum(qd.with_grad(a, g), qd.with_grad(b, g), y)
    product_sum.grad(qd.with_grad(a, g), qd.with_grad(b, g), y)
    np.testing.assert_allclose(g, a + b + 1, rtol=1e-6)


@qd.kernel
def square_into(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]


def test_overwriting_through_an_alias_is_refused(device):
    (x,) = resident(reals())
    square_into(x, x)
    with pytest.raises(NotDifferentiableError, match="overwritten"):
        square_into.grad(x, x)


def test_partial_overlap_is_refused(device):
    data, grad = reals(8), zeros(8)
    x, y = qd.with_grad(data[:N], grad[:N]), qd.with_grad(data[2 : N + 2], grad[2 : N + 2])
    with pytest.raises(LaunchError, match="share memory"):
        square_into.grad(x, y)


@qd.kernel
def cast_away(x: A, y: A, at: I):
    for i in range(x.shape[0]):
        k = qd.cast(x[i] * 3.1, qd.i32)
        at[i] = k
        y[i] = x[i] * k + qd.floor(x[i] * 2.3) * x[0] + float(int(x[i] * 7.1))


def test_casts_to_integers_stop_gradients(device):
    assert qd.ad.gradcheck(cast_away, [reals() + np.float32(0.03), zeros(), np.zeros(N, np.int32)])


F32 = qd.types.ndarray(dtype=qd.f32, ndim=1)
F64 = qd.types.ndarray(dtype=qd.f64, ndim=1)


@qd.kernel
def mixed(x: F32, w: F64, y: F64):
    for i in range(x.shape[0]):
        y[i] = w[i] * x[i] + qd.cast(w[i], qd.f32) * x[i]


def test_casts_between_reals_pass_gradients(device):
    assert qd.ad.gradcheck(mixed, [reals(), reals().astype(np.float64), np.zeros(N)])


@qd.kernel
def constant_weight(x: A, w: A, y: A):
    for i in range(x.shape[0]):
        y[i] += w[i] * x[i]


def test_arrays_without_gradients_are_constants(device):
    x, y = resident(reals(), zeros())
    w = qd.ndarray(qd.f32, N)
    w.from_numpy(reals())
    y.grad.fill(1.0)
    constant_weight(x, w, y)
    constant_weight.grad(x, w, y)
    np.testing.assert_array_equal(x.grad.to_numpy(), w.to_numpy())
    assert w.grad is None


@qd.kernel
def tell(x: A, y: A):
    for i in range(x.shape[0]):
        if i == 2:
            print("element", i)
        y[i] = x[i] * x[i]


def test_messages_appear_once(device, capfd):
    x, y = resident(reals(), zeros())
    tell(x, y)
    qd.sync()
    assert capfd.readouterr().out.count("element 2") == 1
    y.grad.fill(1.0)
    tell.grad(x, y)
    qd.sync()
    assert "element" not in capfd.readouterr().out
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * reals(), rtol=1e-6)


@qd.kernel
def asserting(x: A, y: A):
    for i in range(x.shape[0]):
        assert x[i] < 9.0, "too large"
        y[i] = x[i] * x[i]


@pytest.mark.qd_options(debug=True)
def test_assertions_are_not_repeated(device):
    x, y = resident(reals(), zeros())
    asserting(x, y)
    x.fill(10.0)
    y.grad.fill(1.0)
    asserting.grad(x, y)
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full(N, 20.0))


@qd.kernel
def _old_value(x: A, y: A):
    for i in range(x.shape[0]):
        before = qd.atomic_add(y[0], x[i])
        y[i + 1] = before * x[i]


def test_old_values_of_atomics_are_refused_with_the_line(device):
    x, y = resident(reals(), zeros(N + 1))
    with pytest.raises(NotDifferentiableError, match=r"qd\.atomic_add\(y\[0\], x\[i\]\)"):
        _old_value.grad(x, y)


@qd.kernel
def counting(x: A, y: A, n: I):
    for i in range(x.shape[0]):
        qd.atomic_add(n[0], 1)
        qd.atomic_or(n[1], 2)
        qd.atomic_max(n[2], i)
        y[i] = x[i] * x[i]


def test_atomics_on_integers_have_no_part(device):
    assert qd.ad.gradcheck(counting, [reals(), zeros(), np.zeros(3, np.int32)])


def test_a_launch_without_any_gradient_is_an_error(device):
    x = qd.ndarray(qd.f32, N)
    with pytest.raises(LaunchError, match="no argument of 'square_into' has a gradient"):
        square_into.grad(x, x)
