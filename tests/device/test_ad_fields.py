"""Gradients of fields, of members of objects, and tapes that check themselves."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import ArgumentValueError, GradientCheckError, LaunchError

N = 4
D = qd.types.ndarray(dtype=qd.f64, ndim=1)


@qd.data_oriented
class Pendulums:
    """Uncoupled pendulums in fields, stepped in place."""

    def __init__(self, layout: str, real=qd.f32) -> None:
        self.x, self.v = qd.field(real), qd.field(real)
        self.loss = qd.field(real, (), needs_grad=True)
        node = qd.root.dense(qd.i, N)
        if layout == "aos":
            node.place(self.x, self.v)
        else:
            node.place(self.x)
            qd.root.dense(qd.i, N).place(self.v)
        qd.root.lazy_grad()

    @qd.kernel
    def kick(self, dt: qd.f32):
        for i in self.x:
            self.v[i] -= qd.sin(self.x[i]) * dt

    @qd.kernel
    def drift(self, dt: qd.f32):
        for i in self.x:
            self.x[i] += self.v[i] * dt

    @qd.kernel
    def measure(self):
        for i in self.x:
            self.loss[None] += self.x[i] ** 2

    def start(self) -> np.ndarray:
        x = np.linspace(0.2, 1.7, N)
        self.x.from_numpy(x.astype(self.x.dtype.numpy))
        self.v.fill(0.0)
        return x


def by_hand(x: np.ndarray, steps: int, dt: float) -> np.ndarray:
    """Gradient of the final sum of squares with respect to the initial angles."""
    v, jx, jv = np.zeros(N), np.ones(N), np.zeros(N)
    for _ in range(steps):
        v, jv = v - np.sin(x) * dt, jv - np.cos(x) * jx * dt
        x, jx = x + v * dt, jx + jv * dt
    return 2 * x * jx


@pytest.mark.parametrize("layout", ["soa", "aos"])
def test_time_stepping_in_fields(device, layout):
    world = Pendulums(layout)
    x0 = world.start()
    for _ in range(2):  # a tape clears the gradients of fields
        world.start()
        with qd.ad.Tape(world.loss):
            for _ in range(30):
                world.kick(0.05)
                world.drift(0.05)
            world.measure()
    expected = by_hand(x0, 30, float(np.float32(0.05)))
    np.testing.assert_allclose(world.x.grad.to_numpy(), expected, rtol=2e-5, atol=1e-6)
    assert world.loss.grad[None] == 1.0


def test_forward_mode_of_fields(device):
    world = Pendulums("soa")
    x0 = world.start()
    with qd.ad.FwdMode(loss=world.loss, param=[world.x, world.v], seed=[[1.0] * N, [0.0] * N]):
        for _ in range(30):
            world.kick(0.05)
            world.drift(0.05)
        world.measure()
    expected = by_hand(x0, 30, float(np.float32(0.05))).sum()
    np.testing.assert_allclose(world.loss.dual[None], expected, rtol=2e-5)


def test_clear_all_gradients_clears_fields(device):
    world = Pendulums("soa")
    world.x.grad.fill(3.0)
    qd.ad.clear_all_gradients()
    np.testing.assert_array_equal(world.x.grad.to_numpy(), np.zeros(N))


def test_a_kernel_on_fields_passes_gradcheck(device):
    world = Pendulums("soa")
    world.start()
    assert qd.ad.gradcheck(world.measure, [])


# -- tapes that check themselves --------------------------------------------------------------------------------------
@qd.kernel
def cubes(x: D, y: D, loss: D):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]
    for i in range(x.shape[0]):
        loss[0] += y[i] * x[i]


@qd.kernel
def hidden(x: D, loss: D):
    for i in range(x.shape[0]):
        loss[0] += x[i] * qd.stop_grad(x[i])


@qd.kernel
def double(x: D):
    for i in range(x.shape[0]):
        x[i] = x[i] * 2.0


def doubles():
    x, y, loss = (qd.ndarray(qd.f64, n, needs_grad=True) for n in (N, N, 1))
    x.from_numpy(np.linspace(0.3, 1.1, N))
    x.grad.fill(5.0)
    return x, y, loss


def test_right_gradients_pass_and_contents_stay(device):
    x, y, loss = doubles()
    with qd.ad.Tape(loss, grad_check=[x]):
        double(x)
        cubes(x, y, loss)
        double(x)
    start = np.linspace(0.3, 1.1, N)
    np.testing.assert_allclose(x.to_numpy(), 4 * start)
    np.testing.assert_allclose(loss[0], 8 * np.sum(start**3))
    assert y.grad is not None


def test_wrong_gradients_are_noticed(device):
    x, _, loss = doubles()
    with pytest.raises(GradientCheckError, match="central differences"), qd.ad.Tape(loss, grad_check=[x]):
        hidden(x, loss)


def test_what_cannot_be_checked_is_refused(device):
    x, _, loss = doubles()
    single = qd.ndarray(qd.f32, N, needs_grad=True)
    with pytest.raises(ArgumentValueError, match="f64"), qd.ad.Tape(loss, grad_check=[single]):
        pass
    with pytest.raises(LaunchError, match="host writes"), qd.ad.Tape(loss, grad_check=[x]):
        x.fill(1.0)
