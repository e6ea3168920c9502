"""Derivatives of variables of the kernel's root that parallel loops accumulate into."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import NotDifferentiableError

A = qd.types.ndarray(ndim=1)
V3 = qd.types.ndarray(dtype=qd.f32, ndim=1, element_shape=(3,))
N = 7


def reals(count: int = N, low: float = 0.2, high: float = 1.3) -> np.ndarray:
    return np.linspace(low, high, count).astype(np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape or 1, np.float32)


@qd.kernel
def sum_of_squares(x: A, loss: A):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i] ** 2
    loss[0] = s


def test_a_sum_by_hand(device):
    x, gx, loss, gloss = reals(), zeros(N), zeros(), np.full(1, 3, np.float32)
    sum_of_squares(qd.with_grad(x, gx), qd.with_grad(loss, gloss))
    sum_of_squares.grad(qd.with_grad(x, gx), qd.with_grad(loss, gloss))
    np.testing.assert_allclose(gx, 6 * x, rtol=1e-6)
    sum_of_squares.grad(qd.with_grad(x, gx), qd.with_grad(loss, np.ones(1, np.float32)))
    np.testing.assert_allclose(gx, 8 * x, rtol=1e-6)


@qd.kernel
def used_nonlinearly(x: A, loss: A):
    s = x[0] * x[1]
    for i in range(x.shape[0]):
        s -= qd.sin(x[i]) * x[(i + 1) % x.shape[0]]
    loss[0] = s * s + qd.exp(s)


@qd.kernel
def normalized(x: A, y: A):
    mean = 0.0
    for i in x:
        mean += x[i]
    mean /= x.shape[0]
    variance = 0.0
    for i in x:
        variance += (x[i] - mean) ** 2
    for i in x:
        y[i] = (x[i] - mean) / qd.sqrt(variance + 0.1)


@qd.kernel
def softmax(x: A, y: A):
    top = x[0]
    for i in x:
        qd.atomic_max(top, x[i])
    total = 0.0
    for i in x:
        total += qd.exp(x[i] - top)
    for i in x:
        y[i] = qd.exp(x[i] - top) / total * top


@qd.kernel
def nested(x: A, loss: A, n: qd.i32):
    s = 0.0
    for i in range(x.shape[0]):
        a = x[i]
        for k in range(n):
            if a > 0.9:
                a *= 0.5
                continue
            s += a * x[k]
            a = a * a + 0.3
    t = 0.0
    for i, j in qd.ndrange(x.shape[0], n):
        if i != j:
            t += s * x[i] * x[j]
    loss[0] = s * t


def test_against_differences(device):
    assert qd.ad.gradcheck(sum_of_squares, [reals(), zeros()])
    assert qd.ad.gradcheck(used_nonlinearly, [reals(), zeros()])
    assert qd.ad.gradcheck(normalized, [reals(), zeros(N)])
    assert qd.ad.gradcheck(softmax, [reals(), zeros(N)])
    assert qd.ad.gradcheck(nested, [reals(), zeros(), 3])


@qd.kernel
def vectors(x: V3, loss: A):
    centre = qd.Vector([0.0, 0.0, 0.0])
    for i in x:
        centre += x[i]
    centre /= x.shape[0]
    inertia = qd.Matrix.zero(qd.f32, 3, 3)
    for i in x:
        d = x[i] - centre
        inertia += d.outer_product(d)
    loss[0] = inertia.determinant() + centre.norm()


def test_vectors_and_matrices(device):
    x = np.random.default_rng(3).uniform(0.2, 1.2, (5, 3)).astype(np.float32)
    assert qd.ad.gradcheck(vectors, [x, zeros()])


@qd.kernel
def counted(x: A, y: A):
    count, weight = 0, 0.0
    for i in x:
        if x[i] > 0.5:
            count += 1
            weight += 1.0 + i
    for i in x:
        y[i] = x[i] * x[i] * count / weight
        for _ in range(count):
            y[i] += x[i]


def test_counts_are_formed_again(device):
    x, gx, y, gy = reals(), zeros(N), zeros(N), np.ones(N, np.float32)
    counted(qd.with_grad(x, gx), qd.with_grad(y, gy))
    counted.grad(qd.with_grad(x, gx), qd.with_grad(y, gy))
    above = x > 0.5
    count, weight = above.sum(), (above * (1 + np.arange(N))).sum()
    np.testing.assert_allclose(gx, 2.0 * x * count / weight + count, rtol=1e-5)


@qd.kernel
def overwritten(x: A, y: A):
    s = 0.0
    for i in x:
        s += x[i]
    for i in x:
        x[i] = 2.0 * x[i]
    for i in y:
        y[i] = s * s


def test_what_is_summed_must_last(device):
    arguments = [qd.with_grad(reals(), zeros(N)), qd.with_grad(zeros(N), zeros(N))]
    with pytest.raises(NotDifferentiableError, match="overwritten later"):
        overwritten.grad(*arguments)


@qd.kernel
def scaled(x: A):
    s = 0.0
    for i in x:
        s += x[i] * x[i]
    for i in x:
        x[i] += 0.1 * s


def test_in_place_under_a_tape(device):
    def run(start: np.ndarray) -> float:
        a = start.astype(float)
        for _ in range(3):
            a = a + 0.1 * (a * a).sum()
        return float((a * a).sum())

    x, loss = qd.ndarray(qd.f32, N, needs_grad=True), qd.ndarray(qd.f32, 1, needs_grad=True)
    x.from_numpy(reals(N, 0.1, 0.3))
    start = x.to_numpy()
    h = 1e-5
    wanted = [(run(start + h * e) - run(start - h * e)) / (2 * h) for e in np.eye(N)]
    with pytest.raises(NotDifferentiableError, match="overwritten later"), qd.ad.Tape(loss, overwrite="error"):
        scaled(x)
    with qd.ad.Tape(loss):
        for _ in range(3):
            scaled(x)
        sum_of_squares(x, loss)
    np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=1e-4)
    x.grad.fill(0.0)
    x.from_numpy(start)
    with qd.ad.Tape(loss):
        for _ in range(3):
            y = qd.ndarray(qd.f32, N, needs_grad=True)
            moved(x, y)
            copied(y, x)
        sum_of_squares(x, loss)
    np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=1e-4)


@qd.kernel
def moved(x: A, y: A):
    s = 0.0
    for i in x:
        s += x[i] * x[i]
    for i in x:
        y[i] = x[i] + 0.1 * s


@qd.kernel
def copied(x: A, y: A):
    for i in x:
        y[i] = x[i]
