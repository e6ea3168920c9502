"""Points without a derivative: a documented sub-gradient, finite where the function is, no NaN from an untaken side."""

from __future__ import annotations

import math

import numpy as np
import pytest

import qd_core as qd

A = qd.types.ndarray(ndim=1)
V3 = qd.types.ndarray(dtype=qd.f32, ndim=1, element_shape=(3,))
INF = math.inf


def derivative(kernel, *points: list[float], real=np.float64) -> list[np.ndarray]:
    """Gradients of the sum of the results with respect to each argument; forward mode must give their sum."""
    arrays = [np.array(p, real) for p in points]
    inputs = [qd.ndarray(_type(real), len(a), needs_grad=True) for a in arrays]
    for x, a in zip(inputs, arrays, strict=True):
        x.from_numpy(a)
    y = qd.ndarray(_type(real), len(arrays[0]), needs_grad=True)
    y.grad.fill(1.0)
    kernel(*inputs, y)
    kernel.grad(*inputs, y)
    gradients = [x.grad.to_numpy() for x in inputs]
    with qd.ad.FwdMode(loss=y, param=inputs, seed=[[1.0] * len(a) for a in arrays]):
        kernel(*inputs, y)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(y.dual.to_numpy(), np.sum(gradients, axis=0), rtol=1e-6)
    return gradients


def _type(real):
    return qd.f64 if real is np.float64 else qd.f32


@qd.kernel
def roots(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = qd.sqrt(x[i]) + abs(x[i])


def test_square_root_and_magnitude_at_zero(device):
    (g,) = derivative(roots, [0.0, 4.0])
    np.testing.assert_allclose(g, [0.0, 1.25])


@qd.kernel
def lengths(v: V3, y: A):
    for i in range(v.shape[0]):
        y[i] = v[i].norm() + 2.0 * v[i].norm_sqr()


def test_norm_of_the_zero_vector(device):
    v = qd.Vector.ndarray(3, qd.f32, 2, needs_grad=True) if hasattr(qd.Vector, "ndarray") else None
    x, gx = np.array([[0, 0, 0], [0, 3, 4]], np.float32), np.zeros((2, 3), np.float32)
    y = qd.with_grad(np.zeros(2, np.float32), np.ones(2, np.float32))
    assert v is None or v.shape == (2,)
    lengths(qd.with_grad(x, gx), y)
    lengths.grad(qd.with_grad(x, gx), y)
    np.testing.assert_allclose(gx, [[0, 0, 0], [0, 12.6, 16.8]], rtol=1e-6)


@qd.kernel
def ties(x: A, w: A, y: A):
    for i in range(x.shape[0]):
        y[i] = qd.min(x[i], w[i]) + 10.0 * qd.max(x[i], w[i])


def test_ties_of_min_and_max_go_to_the_second(device):
    gx, gw = derivative(ties, [1.0, 2.0, 3.0], [1.0, 3.0, 2.0])
    np.testing.assert_array_equal(gx, [0.0, 1.0, 10.0])
    np.testing.assert_array_equal(gw, [11.0, 10.0, 1.0])


@qd.kernel
def clamped(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = qd.min(qd.max(x[i], 0.0), 1.0) * 3.0


def test_clamp_outside_inside_and_at_its_ends(device):
    (g,) = derivative(clamped, [-1.0, 0.0, 0.5, 1.0, 2.0])
    np.testing.assert_array_equal(g, [0.0, 0.0, 3.0, 0.0, 0.0])


@qd.kernel
def powers(x: A, e: A, y: A):
    for i in range(x.shape[0]):
        y[i] = x[i] ** e[i]


def test_power_at_its_borders(device):
    gx, ge = derivative(powers, [0.0, 0.0, 0.0, 0.0, -2.0, 2.0], [0.0, 0.5, 1.0, 2.0, 2.0, 3.0])
    np.testing.assert_allclose(gx, [0.0, 0.0, 1.0, 0.0, -4.0, 12.0])
    np.testing.assert_allclose(ge, [0.0, 0.0, 0.0, 0.0, 0.0, 8 * math.log(2)])


@qd.kernel
def integer_powers(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = x[i] ** 0 + x[i] ** 1 + x[i] ** 2 + x[i] ** 3


def test_integer_powers_at_zero(device):
    (g,) = derivative(integer_powers, [0.0, -1.0])
    np.testing.assert_array_equal(g, [1.0, 2.0])


@qd.kernel
def angles(a: A, b: A, y: A):
    for i in range(a.shape[0]):
        y[i] = qd.atan2(a[i], b[i])


def test_angle_at_the_origin_and_on_the_axes(device):
    ga, gb = derivative(angles, [0.0, 0.0, 2.0, 0.0], [0.0, 2.0, 0.0, -2.0])
    np.testing.assert_allclose(ga, [0.0, 0.5, 0.0, -0.5])
    np.testing.assert_allclose(gb, [0.0, 0.0, -0.5, 0.0], atol=1e-30)


@qd.kernel
def arcs(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = qd.asin(x[i]) + 3.0 * qd.acos(x[i])


def test_arcs_at_the_ends(device):
    (g,) = derivative(arcs, [-1.0, 0.0, 1.0])
    np.testing.assert_allclose(g, [0.0, -2.0, 0.0])


@qd.kernel
def poles(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = qd.log(x[i]) + 1.0 / x[i]


def test_poles_are_honest(device):
    (g,) = derivative(poles, [4.0, 1.0])
    np.testing.assert_allclose(g, [0.25 - 1 / 16, 0.0])


@qd.kernel
def rounded(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = qd.floor(x[i]) + qd.ceil(x[i]) + qd.round(x[i]) + x[i] % 1.5 + x[i] // 2.0


def test_rounding_has_slope_zero_and_remainder_one(device):
    (g,) = derivative(rounded, [0.3, 2.0, -1.7])
    np.testing.assert_array_equal(g, [1.0, 1.0, 1.0])


@qd.kernel
def guarded(x: A, y: A):
    for i in range(x.shape[0]):
        safe = qd.sqrt(x[i]) / x[i] if x[i] > 0.0 else x[i] * 2.0
        chosen = qd.select(x[i] > 0.0, qd.log(x[i]) + 1.0 / x[i] + qd.sqrt(x[i]), 5.0 * x[i])
        branch = x[i]
        if x[i] > 0.0:
            branch = qd.log(x[i]) + x[i] ** 0.3
        y[i] = safe + chosen + branch


@pytest.mark.parametrize("real", [np.float32, np.float64], ids=["f32", "f64"])
def test_untaken_sides_give_no_nan(device, real):
    (g,) = derivative(guarded, [0.0, -3.0, 4.0], real=real)
    x = 4.0
    inside = -0.5 * x**-1.5 + 1 / x - 1 / x**2 + 0.5 / math.sqrt(x) + 1 / x + 0.3 * x**-0.7
    np.testing.assert_allclose(g, [8.0, 8.0, inside], rtol=1e-6)


@qd.kernel
def minimum_of_a_pole(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = qd.min(1.0 / (x[i] * x[i]), 7.0) + qd.max(qd.log(abs(x[i])), -3.0)


def test_a_pole_discarded_by_min_or_max(device):
    (g,) = derivative(minimum_of_a_pole, [0.0, 2.0])
    np.testing.assert_allclose(g, [0.0, 0.25])


@qd.kernel
def every_function(x: A, y: A):
    for i in range(x.shape[0]):
        a = x[i]
        y[i] = (
            qd.sin(a) * qd.cos(a) + qd.tan(a) * qd.tanh(a) + qd.exp(-a) * qd.log(a + 1.0)
            + qd.sqrt(a) * qd.rsqrt(a + 2.0) + qd.asin(a * 0.5) * qd.acos(a * 0.3) + qd.atan2(a, a + 1.5)
            + a ** 1.7 + 2.0 ** a + a % 0.7 + abs(a - 0.5) + qd.max(a, 0.44) * qd.min(a * a, 0.9)
        )  # fmt: skip


@pytest.mark.parametrize("real", [np.float32, np.float64], ids=["f32", "f64"])
def test_every_function_inside_its_domain(device, real):
    x = np.array([0.13, 0.37, 0.61, 0.88, 1.21], real)
    assert qd.ad.gradcheck(every_function, [x, np.zeros(5, real)])
