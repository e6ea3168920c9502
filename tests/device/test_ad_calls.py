"""Derivatives through functions, static loops, and what kernels say about gradients themselves."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import NotDifferentiableError, QuadrantsTypeError

A = qd.types.ndarray(ndim=1)
A2 = qd.types.ndarray(dtype=qd.f32, ndim=2)
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


@qd.func
def horner(c: qd.template(), x):
    total = c[c.shape[0] - 1] * 1.0
    for k in range(1, c.shape[0]):
        total = total * x + c[c.shape[0] - 1 - k]
    return total


@qd.func
def spring(a, b, rest):
    d = b - a
    length = d.norm(1e-6)
    return d * ((length - rest) / length), length


@qd.kernel
def polynomial(c: A, x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = horner(c, x[i]) * horner(c, qd.sin(x[i]))


def test_functions_with_loops_over_arrays(device):
    assert qd.ad.gradcheck(polynomial, [reals(4), reals(), zeros()])


@qd.kernel
def springs(p: A2, rest: A, f: A2):
    for i in range(p.shape[0] - 1):
        a, b = qd.Vector([p[i, 0], p[i, 1]]), qd.Vector([p[i + 1, 0], p[i + 1, 1]])
        force, length = spring(a, b, rest[i])
        for c in qd.static(range(2)):
            f[i, c] += force[c] * length
            f[i + 1, c] -= force[c]


def test_functions_that_return_several_values(device):
    assert qd.ad.gradcheck(springs, [reals(N, 2)[::-1] ** 2, reals(N), zeros(N, 2)])


@qd.kernel
def unrolled(x: A, y: A):
    for i in range(x.shape[0]):
        a = x[i]
        for k in qd.static(range(5)):
            if qd.static(k % 2 == 0):
                a = a * x[i]
            else:
                a = qd.sin(a) + k
        y[i] = a


def test_static_loops(device):
    assert qd.ad.gradcheck(unrolled, [reals(), zeros()])


@qd.kernel
def with_template(x: A, y: A, power: qd.template()):
    for i in range(x.shape[0]):
        y[i] = x[i] ** power


@pytest.mark.parametrize("power", [0, 1, 3, 2.5, -1])
def test_template_arguments(device, power):
    assert qd.ad.gradcheck(with_template, [reals(), zeros(), power])


@qd.kernel
def several_tasks(x: A, y: A, z: A):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]
    scale = y[0] + y[1]
    for i in range(x.shape[0]):
        z[i] += y[i] * y[(i + 1) % x.shape[0]] * scale
    for i in range(x.shape[0]):
        z[i] += qd.sin(y[i])


def test_chains_through_memory_across_parallel_loops(device):
    assert qd.ad.gradcheck(several_tasks, [reals(), zeros(), zeros()])


# -- gradients in kernels ---------------------------------------------------------------------------------------------
@qd.kernel
def descend(x: A, rate: qd.f32):
    for i in range(x.shape[0]):
        x[i] -= rate * x.grad[i]
        x.grad[i] = 0.0


@qd.kernel
def square_sum(x: A, loss: A):
    for i in range(x.shape[0]):
        loss[0] += x[i] * x[i]


def test_gradients_are_read_and_written_in_kernels(device):
    x, loss = resident(reals(), zeros(1))
    with qd.ad.Tape(loss):
        square_sum(x, loss)
    descend(x, 0.25)
    np.testing.assert_allclose(x.to_numpy(), 0.5 * reals(), rtol=1e-6)
    np.testing.assert_array_equal(x.grad.to_numpy(), zeros())


def test_a_kernel_on_gradients_has_no_derivative(device):
    (x,) = resident(reals())
    with pytest.raises(NotDifferentiableError, match=r"x\.grad"):
        descend.grad(x, 0.25)


def test_an_array_without_gradient_has_none_in_kernels(device):
    with pytest.raises(QuadrantsTypeError, match="needs_grad"):
        descend(qd.ndarray(qd.f32, N), 0.25)


@qd.kernel
def half_stopped(x: A, y: A):
    for i in range(x.shape[0]):
        a = x[i] * qd.stop_grad(qd.sin(x[i]) * x[i])
        if i % 2 == 0:
            qd.stop_grad(x)
            a += x[i] * x[i]
        y[i] = a + 3.0 * x[i]


def test_stop_grad_of_values_and_arrays(device):
    x, y = resident(reals(), zeros())
    y.grad.fill(1.0)
    half_stopped(x, y)
    half_stopped.grad(x, y)
    v = reals().astype(float)
    np.testing.assert_allclose(
        y.to_numpy(), v * v * np.sin(v) + 3 * v + np.where(np.arange(N) % 2, 0, v * v), rtol=1e-5
    )
    np.testing.assert_allclose(x.grad.to_numpy(), np.sin(v) * v + 3, rtol=1e-5)
    with qd.ad.FwdMode(loss=y, param=x, seed=[1.0] * N):
        half_stopped(x, y)
    np.testing.assert_allclose(y.dual.to_numpy(), np.sin(v) * v + 3, rtol=1e-5)


def test_stop_grad_outside_kernels_is_the_value():
    assert qd.stop_grad(2.5) == 2.5


# -- gradcheck itself -------------------------------------------------------------------------------------------------
def test_gradcheck_reports_a_wrong_derivative(device):
    x, y = resident(reals(), zeros())
    found = qd.ad.gradcheck(half_stopped, [x, y], raise_exception=False)
    assert not found
    assert "central differences" in found.problems[0]
    with pytest.raises(AssertionError, match="half_stopped"):
        qd.ad.gradcheck(half_stopped, [x, y])


def test_gradcheck_leaves_its_arguments_alone(device):
    x, y = resident(reals(), zeros() + 7)
    x.grad.fill(3.0)
    assert qd.ad.gradcheck(unrolled, [x, y])
    np.testing.assert_array_equal(x.to_numpy(), reals())
    np.testing.assert_array_equal(y.to_numpy(), zeros() + 7)
    np.testing.assert_array_equal(x.grad.to_numpy(), zeros() + 3)


@qd.kernel
def long_static(x: A, y: A):
    for i in range(x.shape[0]):
        a = x[i]
        for _ in qd.static(range(600)):
            a = a + x[i]
        y[i] = a


def test_a_long_static_loop_warns(device):
    x, y = resident(reals(), zeros())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        long_static(x, y)
    assert any("unroll" in str(w.message) for w in caught)
