"""Atomic minima and maxima: the sub-gradient goes to the element that achieves them, the initial value included."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import NotDifferentiableError

A = qd.types.ndarray(ndim=1)
I = qd.types.ndarray(dtype=qd.i32, ndim=1)  # noqa: E741
N = 9


def resident(*values: np.ndarray) -> list:
    kinds = {np.dtype(np.float32): qd.f32, np.dtype(np.float64): qd.f64}
    arrays = [qd.ndarray(kinds[v.dtype], v.shape, needs_grad=True) for v in values]
    for a, v in zip(arrays, values, strict=True):
        a.from_numpy(v)
    return arrays


def numbers(real=np.float32) -> np.ndarray:
    return np.random.default_rng(3).uniform(0.2, 1.5, N).astype(real)


@qd.kernel
def extremes(x: A, low: A, high: A):
    for i in range(x.shape[0]):
        v = qd.sin(x[i] * 3.0) * qd.exp(x[i]) + x[i] * x[i]
        qd.atomic_min(low[0], v)
        qd.atomic_max(high[0], v)


def value_and_slope(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = x.astype(float)
    s, c, e = np.sin(3 * x), np.cos(3 * x), np.exp(x)
    return s * e + x * x, 3 * c * e + s * e + 2 * x


@pytest.mark.parametrize("real", [np.float32, np.float64], ids=["f32", "f64"])
def test_gradients_go_to_the_achieving_elements(device, real):
    x, low, high = resident(numbers(real), np.array([9.0], real), np.array([-9.0], real))
    low.grad.fill(2.0)
    high.grad.fill(-3.0)
    extremes(x, low, high)
    extremes.grad(x, low, high)
    v, slope = value_and_slope(numbers(real))
    expected = np.zeros(N)
    expected[v.argmin()] += 2 * slope[v.argmin()]
    expected[v.argmax()] += -3 * slope[v.argmax()]
    np.testing.assert_allclose(low[0], v.min(), rtol=1e-5)
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-5)
    assert low.grad[0] == 0
    assert high.grad[0] == 0


def test_the_initial_value_keeps_the_gradient_when_nothing_beats_it(device):
    x, low, high = resident(numbers(), np.array([-9.0], np.float32), np.array([-9.0], np.float32))
    low.grad.fill(2.0)
    extremes(x, low, high)
    extremes.grad(x, low, high)
    assert low.grad[0] == 2.0
    np.testing.assert_array_equal(x.grad.to_numpy(), np.zeros(N))


def test_forward_mode_follows_the_achieving_elements(device):
    x, low, high = resident(numbers(), np.array([9.0], np.float32), np.array([99.0], np.float32))
    with qd.ad.FwdMode(loss=[low, high], param=x, seed=list(range(1, N + 1))):
        extremes(x, low, high)
    v, slope = value_and_slope(numbers())
    np.testing.assert_allclose(low.dual[0], slope[v.argmin()] * (1 + v.argmin()), rtol=1e-5)
    assert high.dual[0] == 0


@pytest.mark.qd_options(debug=True)
def test_forward_mode_with_bounds_checks(device):
    x, low, high = resident(numbers(), np.array([9.0], np.float32), np.array([-9.0], np.float32))
    with qd.ad.FwdMode(loss=[low, high], param=x, seed=list(range(1, N + 1))):
        extremes(x, low, high)
    v, slope = value_and_slope(numbers())
    np.testing.assert_allclose(low.dual[0], slope[v.argmin()] * (1 + v.argmin()), rtol=1e-5)
    np.testing.assert_allclose(high.dual[0], slope[v.argmax()] * (1 + v.argmax()), rtol=1e-5)


@qd.kernel
def ties(x: A, high: A):
    for i in range(x.shape[0]):
        qd.atomic_max(high[0], x[i] * x[i])


def test_a_tie_is_given_to_exactly_one(device):
    x, high = resident(np.array([1, -2, 2, 0, 2], np.float32), np.zeros(1, np.float32))
    high.grad.fill(1.0)
    ties(x, high)
    ties.grad(x, high)
    g = x.grad.to_numpy()
    assert np.count_nonzero(g) == 1
    assert abs(g.sum()) == 4.0


@qd.kernel
def binned(x: A, at: I, high: A, y: A):
    for i in range(x.shape[0]):
        for k in range(3):
            qd.atomic_max(high[at[i]], x[i] * k + qd.sqrt(x[i]))
    for b in range(high.shape[0]):
        y[b] = high[b] * high[b]


def test_bins_inner_loops_and_later_use(device):
    at = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2], np.int32)
    assert qd.ad.gradcheck(binned, [numbers(), at, np.array([-1, -1, 8, -1], np.float32), np.zeros(4, np.float32)])


@qd.kernel
def with_constant(x: A, high: A):
    for i in range(x.shape[0]):
        qd.atomic_max(high[i], x[i])
        qd.atomic_max(high[i], 0.7)


def test_a_constant_may_achieve_it(device):
    x, high = resident(np.array([0.5, 0.9], np.float32), np.zeros(2, np.float32))
    high.grad.fill(1.0)
    with_constant(x, high)
    with_constant.grad(x, high)
    np.testing.assert_array_equal(x.grad.to_numpy(), [0.0, 1.0])
    np.testing.assert_array_equal(high.grad.to_numpy(), [0.0, 0.0])


@qd.kernel
def pole(x: A, low: A):
    for i in range(x.shape[0]):
        qd.atomic_min(low[0], 1.0 / x[i])


def test_values_that_do_not_achieve_it_give_no_nan(device):
    x, low = resident(np.array([0.0, 2.0, 1.0], np.float32), np.full(1, 50, np.float32))
    low.grad.fill(1.0)
    pole(x, low)
    pole.grad(x, low)
    np.testing.assert_allclose(x.grad.to_numpy(), [0.0, -0.25, 0.0])


@qd.kernel
def running(x: A, high: A, y: A):
    for i in range(1):
        for k in range(x.shape[0]):
            qd.atomic_max(high[0], x[k])
            y[k] = high[0]


@qd.kernel
def reset(x: A, high: A):
    for i in range(x.shape[0]):
        qd.atomic_max(high[0], x[i])
    high[0] = 0.0


@qd.kernel
def both_ways(x: A, high: A):
    for i in range(x.shape[0]):
        qd.atomic_max(high[0], x[i])
        qd.atomic_min(high[0], 3.0)


def test_extrema_that_are_not_final_are_refused_with_both_lines(device):
    x, high, y = resident(numbers(), np.zeros(1, np.float32), np.zeros(N, np.float32))
    with pytest.raises(NotDifferentiableError, match="is used at line"):
        running.grad(x, high, y)
    with pytest.raises(NotDifferentiableError, match="is overwritten at line"):
        reset.grad(x, high)
    with pytest.raises(NotDifferentiableError, match="is overwritten at line"):
        both_ways.grad(x, high)


def test_under_a_tape(device):
    x, low, high = resident(numbers(), np.array([9.0], np.float32), np.array([-9.0], np.float32))
    with qd.ad.Tape(high):
        extremes(x, low, high)
    v, slope = value_and_slope(numbers())
    expected = np.zeros(N)
    if v.max() > 0:
        expected[v.argmax()] = slope[v.argmax()]
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-5)
