"""Derivatives through structs, objects and loops over fields."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import QuadrantsCompilationError

A = qd.types.ndarray(ndim=1)
N = 5


def reals(count: int = N) -> np.ndarray:
    return np.linspace(0.2, 1.3, count).astype(np.float32)


def zeros(count: int = N) -> np.ndarray:
    return np.zeros(count, np.float32)


@qd.dataclass
class Particle:
    x: qd.f32
    v: qd.f32

    @qd.func
    def moved(self, dt):
        return Particle(x=self.x + self.v * dt, v=self.v - qd.sin(self.x) * dt)


@qd.kernel
def swing(x: A, v: A, y: A, n: qd.i32):
    for i in range(x.shape[0]):
        p = Particle(x=x[i], v=v[i])
        for _ in range(n):
            p = p.moved(0.1)
        y[i] = p.x * p.x + p.v


def test_structs_carried_by_loops(device):
    assert qd.ad.gradcheck(swing, [reals(), reals()[::-1].copy(), zeros(), 6])


@dataclasses.dataclass
class State:
    x: A
    y: A
    gain: qd.f32


@qd.kernel
def amplify(state: State):
    for i in range(state.x.shape[0]):
        state.y[i] = state.x[i] ** 2 * state.gain


def test_dataclass_arguments(device):
    x, y = (qd.ndarray(qd.f32, N, needs_grad=True) for _ in range(2))
    x.from_numpy(reals())
    y.grad.fill(1.0)
    state = State(x, y, 3.0)
    amplify(state)
    amplify.grad(state)
    np.testing.assert_allclose(x.grad.to_numpy(), 6 * reals(), rtol=1e-6)


def test_loops_over_a_field_inside(device):
    weights, out = qd.field(qd.f32, 4, needs_grad=True), qd.field(qd.f32, 3, needs_grad=True)
    x = qd.field(qd.f32, 3, needs_grad=True)
    weights.from_numpy(reals(4))
    x.from_numpy(reals(3))

    @qd.kernel
    def polynomial():
        for i in x:
            total = 0.0
            for k in weights:
                total = total * x[i] + weights[k]
            out[i] = total

    assert qd.ad.gradcheck(polynomial, [])
    out.grad.fill(1.0)
    polynomial()
    polynomial.grad()
    powers = reals(3).astype(float)[:, None] ** np.arange(3, -1, -1)
    np.testing.assert_allclose(weights.grad.to_numpy(), powers.sum(0), rtol=1e-5)


def test_struct_fields(device):
    points = qd.Struct.field({"a": qd.f32, "b": qd.f32}, shape=N, needs_grad=True)
    loss = qd.field(qd.f32, (), needs_grad=True)
    for i in range(N):
        points[i].a, points[i].b = float(i), 2.0

    @qd.kernel
    def measure():
        for i in points:
            loss[None] += points[i].a ** 2 * points[i].b

    with qd.ad.Tape(loss):
        measure()
    grad = points.grad.to_numpy()
    np.testing.assert_allclose(grad["a"], 4.0 * np.arange(N))
    np.testing.assert_allclose(grad["b"], np.arange(N) ** 2.0)


@qd.func
def endless(x):
    return endless(x) * x


@qd.kernel
def recursive(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = endless(x[i])


def test_recursion_is_refused_by_name(device):
    with pytest.raises(QuadrantsCompilationError, match="endless"):
        recursive(reals(), zeros())
