"""Launches under a tape that the native entry makes: what they save, need and bind; gradients lost between kernels."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import NotDifferentiableError

A = qd.types.ndarray(dtype=qd.f32, ndim=1)
A2 = qd.types.ndarray(dtype=qd.f32, ndim=2)
N = 4


def array(*values: float) -> qd.ndarray:
    result = qd.ndarray(qd.f32, len(values), needs_grad=True)
    result.from_numpy(np.array(values, np.float32))
    return result


@qd.kernel
def row(x: A2, t: qd.i32, factor: qd.f32):
    for i in range(x.shape[1]):
        x[t + 1, i] = x[t, i] * x[t, i] * factor


@qd.kernel
def total(x: A2, t: qd.i32, loss: A):
    for i in range(x.shape[1]):
        loss[0] += x[t, i]


def test_rows_again_and_again(device):
    """Scalars differ from launch to launch and from tape to tape; nothing is saved, as rows do not meet."""
    x, loss = qd.ndarray(qd.f32, (7, N), needs_grad=True), array(0)
    for factor in (1.0, 0.5, 2, 0.5):
        start = np.array([0.5, 1.0, 1.25, 0.75], np.float32)
        x.fill(0.0)
        x.from_numpy(np.concatenate([start[None], np.zeros((6, N), np.float32)]))
        x.grad.fill(0.0)
        with qd.ad.Tape(loss, overwrite="error"):
            for t in range(5):
                row(x, t, factor)
            total(x, 5, loss)
        expected, value = np.ones(N), start.astype(float)
        for _ in range(5):
            expected, value = expected * 2 * value * factor, value * value * factor
        np.testing.assert_allclose(x.grad.to_numpy()[0], expected, rtol=1e-4)
        assert not x.grad.to_numpy()[6].any()


def test_a_row_that_is_needed_is_saved_or_refused(device):
    """A launch like earlier ones in all but a scalar can be the one that overwrites."""
    x, loss = qd.ndarray(qd.f32, (7, 1), needs_grad=True), array(0)

    def steps(overwrite: str, order: tuple[int, ...]) -> float:
        x.from_numpy(np.arange(2, 9, dtype=np.float32)[:, None])
        x.grad.fill(0.0)
        with qd.ad.Tape(loss, overwrite=overwrite):
            for t in order:
                row(x, t, 1.0)
            total(x, 3, loss)
        return x.grad[0, 0]

    for _ in range(3):
        assert steps("error", (0, 1, 2)) == 8 * 2.0**7
        # Row 1 again, from the same row 0: the first three launches have no part in the loss, the last three do.
        assert steps("save", (0, 1, 0, 1, 2)) == 8 * 2.0**7
        with pytest.raises(NotDifferentiableError, match="'row' overwrites values that the derivative of kernel 'row'"):
            steps("error", (0, 1, 2, 0))


@qd.kernel
def squared(a: A, b: A):
    for i in a:
        b[i] = a[i] * a[i]


@qd.kernel
def summed(a: A, loss: A):
    for i in a:
        loss[0] += a[i]


def test_arrays_that_come_and_go(device):
    for _ in range(3):
        x, loss = array(1.1, 0.9), array(0)
        with qd.ad.Tape(loss):
            a = x
            for _ in range(4):
                b = array(0, 0)
                squared(a, b)
                a = b
            summed(a, loss)
            del a, b
        np.testing.assert_allclose(x.grad.to_numpy(), 16 * x.to_numpy() ** 15, rtol=1e-4)


def test_other_types_and_wrong_arguments_in_between(device):
    x, loss = array(2.0, 3.0), array(0)
    host = np.array([1.0, 5.0], np.float32)
    with qd.ad.Tape(loss):
        for _ in range(4):
            summed(x, loss)
        summed(host, loss)
        summed(a=x, loss=loss)
        with pytest.raises((TypeError, ValueError)):
            summed([1.0], loss)
        summed(x, loss)
    np.testing.assert_array_equal(x.grad.to_numpy(), [6, 6])
    assert loss[0] == 36


@qd.data_oriented
class PingPong:
    """Two states whose names change places."""

    def __init__(self, needs_grad: bool = True) -> None:
        self.now, self.then = (qd.field(qd.f32, N, needs_grad=needs_grad) for _ in range(2))

    @qd.kernel
    def step(self, scale: qd.f32):
        for i in self.now:
            self.then[i] = self.now[i] * self.now[i] * scale


@qd.kernel
def field_sum(x: qd.template(), loss: qd.template()):
    for i in x:
        loss[None] += x[i]


def test_members_that_change_places(device):
    """A launch is differentiated with the arrays that it had, whatever the members hold in the end."""
    world, loss = PingPong(), qd.field(qd.f32, (), needs_grad=True)
    first = world.now
    for steps in (1, 5, 6, 5):
        if world.now is not first:
            world.now, world.then = world.then, world.now
        world.now.from_numpy(np.linspace(0.8, 1.2, N).astype(np.float32))
        start = world.now.to_numpy().astype(float)
        with qd.ad.Tape(loss):
            for _ in range(steps):
                world.step(1.5)
                world.now, world.then = world.then, world.now
            field_sum(world.now, loss)
        expected, value = np.ones(N), start
        for _ in range(steps):
            expected, value = expected * 2 * value * 1.5, value * value * 1.5
        np.testing.assert_allclose(first.grad.to_numpy(), expected, rtol=1e-4)


@qd.kernel
def store(x: A, plain: A):
    for i in x:
        plain[i] = x[i] * x[i]


@qd.kernel
def copied(a: A, b: A):
    for i in a:
        b[i] = a[i]


@qd.kernel
def weighted(x: A, plain: A, loss: A):
    for i in x:
        loss[0] += x[i] * plain[i]


@qd.kernel
def weighted_constant(x: A, plain: A, loss: A):
    for i in x:
        qd.stop_grad(plain)
        if plain[i] > 0.0:
            loss[0] += x[i] * plain[i]


def test_a_gradient_lost_between_kernels_is_refused_by_name(device):
    x, loss = array(2.0, 3.0), array(0)
    plain, other = qd.ndarray(qd.f32, 2), qd.ndarray(qd.f32, 2)
    for _ in range(3):
        with pytest.raises(NotDifferentiableError, match=r"`plain`.*'store' stores it .*line \d+.*'weighted' reads it"):
            with qd.ad.Tape(loss):
                weighted(x, other, loss)  # not yet lost
                weighted(x, plain, loss)
                store(x, plain)
                weighted(x, plain, loss)
    with pytest.raises(NotDifferentiableError, match="'store' stores it"):
        with qd.ad.Tape(loss):
            store(x, other)
            copied(other, plain)
            weighted(x, plain, loss)
    x.grad.fill(0.0)
    with qd.ad.Tape(loss):
        store(x, plain)
        weighted_constant(x, plain, loss)
        store(x, other)
        other.fill(2.0)  # nothing of what was stored is left
        weighted(x, other, loss)
    np.testing.assert_array_equal(x.grad.to_numpy(), [6, 11])


def test_a_component_without_gradient_is_not_its_neighbour(device):
    x, loss = qd.field(qd.f32, N, needs_grad=True), qd.field(qd.f32, (), needs_grad=True)
    mass, energy = qd.field(qd.f32), qd.field(qd.f32)
    qd.root.dense(qd.i, N).place(mass, energy)

    @qd.kernel
    def observe():
        for i in x:
            energy[i] = x[i] * x[i]

    @qd.kernel
    def measure():
        for i in x:
            loss[None] += mass[i] * x[i]

    mass.fill(3.0)
    with qd.ad.Tape(loss):
        observe()
        measure()
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full(N, 3.0))


@qd.kernel
def euler(x: A, v: A, dt: qd.f32):
    for i in x:
        v[i] -= qd.sin(x[i]) * dt
        x[i] += v[i] * dt


def test_a_launch_that_overwrites_what_its_derivative_needs(device):
    """The tape puts arrays back to what the launch found; elsewhere it is refused."""
    x, v, loss = array(0.4, 1.3), array(0.0, 0.0), array(0)
    with qd.ad.Tape(loss):
        for _ in range(100):
            euler(x, v, 0.05)
        summed(x, loss)
    y, w, jx, jw = np.array([0.4, 1.3]), np.zeros(2), np.ones(2), np.zeros(2)
    for _ in range(100):
        w, jw = w - np.sin(y) * 0.05, jw - np.cos(y) * jx * 0.05
        y, jx = y + w * 0.05, jx + jw * 0.05
    np.testing.assert_allclose(x.grad.to_numpy(), jx, rtol=2e-4)
    np.testing.assert_allclose(x.to_numpy(), y, rtol=1e-4)
    for refused in (lambda: euler.grad(x, v, 0.05), lambda: euler.grad(x, v, 0.05), lambda: tape_of_errors(x, v, loss)):
        with pytest.raises(NotDifferentiableError, match="overwritten later"):
            refused()


def test_what_was_found_is_freed_when_the_block_raises(device):
    """No buffer that the tape had saved arrays in may be left."""
    x, v, loss = array(0.4, 1.3), array(0.0, 0.0), array(0)
    with qd.ad.Tape(loss):  # the log and what else a first launch makes
        euler(x, v, 0.05)
    lived = len(device.balance.live)
    with pytest.raises(ZeroDivisionError), qd.ad.Tape(loss):
        for _ in range(3):
            euler(x, v, 0.05)
        raise ZeroDivisionError
    assert len(device.balance.live) == lived


def tape_of_errors(x, v, loss) -> None:
    with qd.ad.Tape(loss, overwrite="error"):
        euler(x, v, 0.05)
