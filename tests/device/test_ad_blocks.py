"""Loops that are too long for the memory budget are recorded in blocks, on every device."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd

A = qd.types.ndarray(ndim=1)
V3 = qd.types.ndarray(dtype=qd.f32, ndim=1, element_shape=(3,))
I = qd.types.ndarray(dtype=qd.i32, ndim=1)  # noqa: E741
N = 5

pytestmark = pytest.mark.qd_options(ad_residual_bytes=1)


def reals(count: int = N) -> np.ndarray:
    return np.linspace(0.2, 1.3, count).astype(np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape or N, np.float32)


@qd.kernel
def several(x: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        a, b, k = x[i], 1.0, i
        for t in range(-3, n):
            a, b = b * 0.9, a + 0.1 * qd.sin(b) * x[i]
            if k % 3 == 0:
                a = a * b
            k += 1 + t % 2
        y[i] = a * b


@pytest.mark.parametrize("n", [-3, -2, 12, 13, 14, 30, 60])
def test_blocks_of_sixteen(device, n):
    assert qd.ad.gradcheck(several, [reals(), zeros(), n])


@qd.kernel
def ragged(x: A, n: I, y: A):
    for i in range(x.shape[0]):
        a = x[i]
        for p in range(n[i]):
            b = a
            for _ in range(n[i] - p):
                b = qd.sin(b) + 0.2 * a
            a = b * x[i]
        y[i] = a


def test_nested_loops_of_different_lengths(device):
    assert qd.ad.gradcheck(ragged, [reals(), np.array([0, 3, 17, 33, 20], np.int32), zeros()])


@qd.kernel
def until(x: A, y: A):
    for i in range(x.shape[0]):
        a = x[i] + 3.0
        while a > 0.5:
            a = a * (0.93 + 0.01 * x[i])
        y[i] = a


def test_while_of_unknown_length(device):
    assert qd.ad.gradcheck(until, [reals(), zeros()])


@qd.kernel
def spin(x: V3, y: V3, n: qd.i32):
    for i in range(x.shape[0]):
        v = x[i]
        for _ in range(n):
            v = v + 0.05 * qd.Vector([v[1] * v[2], -v[0], v[2] - v[1]])
        y[i] = v


def test_vectors(device):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    assert qd.ad.gradcheck(spin, [x, zeros(4, 3), 40])


@qd.kernel
def serial(x: A, y: A, n: qd.i32):
    a = x[0]
    qd.loop_config(serialize=True)
    for k in range(n):
        a = a * 0.9 + qd.sin(x[k % x.shape[0]] * a)
    for i in range(x.shape[0]):
        y[i] = a * x[i]


def test_a_serial_loop_outside_parallel_ones(device):
    assert qd.ad.gradcheck(serial, [reals(), zeros(), 40])


@qd.kernel
def creep(x: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        a = x[i]
        for _ in range(n):
            a = a + 0.001 * qd.sin(a)
        y[i] = a


def test_three_thousand_trips(device):
    x, y = qd.with_grad(reals(3), zeros(3)), qd.with_grad(zeros(3), np.ones(3, np.float32))
    creep(x, y, 3000)
    creep.grad(x, y, 3000)
    a, slope = reals(3).astype(float), np.ones(3)
    for _ in range(3000):
        slope *= 1 + float(np.float32(0.001)) * np.cos(a)
        a = a + float(np.float32(0.001)) * np.sin(a)
    np.testing.assert_allclose(x.grad, slope, rtol=1e-3)
