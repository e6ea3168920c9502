"""Tapes and forward mode: exact gradients across launches, through arrays that are overwritten."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import LaunchError, NotDifferentiableError

F = qd.types.ndarray(dtype=qd.f32, ndim=1)
F2 = qd.types.ndarray(dtype=qd.f32, ndim=2)
N = 5


@qd.kernel
def kick(x: F, v: F, dt: qd.f32):
    for i in range(x.shape[0]):
        v[i] -= qd.sin(x[i]) * dt


@qd.kernel
def drift(x: F, v: F, dt: qd.f32):
    for i in range(x.shape[0]):
        x[i] += v[i] * dt


@qd.kernel
def square_sum(x: F, loss: F):
    for i in range(x.shape[0]):
        loss[0] += x[i] ** 2


@qd.kernel
def fields_square_sum(x: qd.template(), loss: qd.template()):
    for i in x:
        loss[0] += x[i] ** 2


@qd.kernel
def advance(path: F2, t: qd.i32):
    for i in range(path.shape[1]):
        path[t + 1, i] = path[t, i] * path[t, i]


@qd.kernel
def last(path: F2, t: qd.i32, loss: F):
    for i in range(path.shape[1]):
        loss[0] += path[t, i]


def arrays(count: int, shape=N):
    return [qd.ndarray(qd.f32, shape, needs_grad=True) for _ in range(count)]


def pendulum_gradient(x0: np.ndarray, v0: np.ndarray, steps: int, dt: float) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of the final sum of squares by hand, in f64."""
    x, v, xs = x0.astype(float), v0.astype(float), []
    for _ in range(steps):
        xs.append(x)
        v = v - np.sin(x) * dt
        x = x + v * dt
    gx, gv = 2 * x, np.zeros(len(x))
    for old in reversed(xs):
        gv = gv + gx * dt
        gx = gx - gv * np.cos(old) * dt
    return gx, gv


def test_in_place_time_stepping_is_exact(device):
    x, v = arrays(2)
    (loss,) = arrays(1, 1)
    x0, v0 = np.linspace(0.1, 2, N).astype(np.float32), np.linspace(-1, 1, N).astype(np.float32)
    x.from_numpy(x0)
    v.from_numpy(v0)
    with qd.ad.Tape(loss):
        for _ in range(100):
            kick(x, v, 0.05)
            drift(x, v, 0.05)
        square_sum(x, loss)
    final = x.to_numpy()
    gx, gv = pendulum_gradient(x0, v0, 100, float(np.float32(0.05)))
    np.testing.assert_allclose(x.grad.to_numpy(), gx, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(v.grad.to_numpy(), gv, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(loss[0], np.sum(final.astype(float) ** 2), rtol=1e-5)


def test_overwriting_is_refused_on_demand_naming_both_kernels(device):
    x, v = arrays(2)
    (loss,) = arrays(1, 1)
    with qd.ad.Tape(loss, overwrite="error"):
        kick(x, v, 0.05)
        with pytest.raises(NotDifferentiableError, match=r"'drift'.*'kick'"):
            drift(x, v, 0.05)


def test_rows_of_one_array_are_no_overwriting(device):
    path = qd.ndarray(qd.f32, (5, 3), needs_grad=True)
    (loss,) = arrays(1, 1)
    start = np.array([0.5, 0.9, 1.1], np.float32)
    path.from_numpy(np.concatenate([start[None], np.zeros((4, 3), np.float32)]))
    with qd.ad.Tape(loss, overwrite="error"):
        for t in range(4):
            advance(path, t)
        last(path, 4, loss)
    np.testing.assert_allclose(path.grad.to_numpy()[0], 16 * start.astype(float) ** 15, rtol=1e-5)


def test_a_host_write_ends_the_derivative_of_what_was_there(device):
    (x,) = arrays(1)
    (loss,) = arrays(1, 1)
    x.fill(2.0)
    with qd.ad.Tape(loss):
        square_sum(x, loss)
        x.fill(3.0)
        square_sum(x, loss)
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full(N, 4.0))
    np.testing.assert_array_equal(x.to_numpy(), np.full(N, 3.0))


@pytest.mark.parametrize("kind", ["field", "ndarray"])
def test_what_the_host_writes_before_any_launch_has_a_gradient(device, kind):
    """Inputs may be set inside the block: the gradient is that of what the first launch saw, not of what was there."""
    if kind == "field":
        x, loss = (qd.field(qd.f32, shape=n, needs_grad=True) for n in (N, 1))
    else:
        (x,), (loss,) = arrays(1), arrays(1, 1)
    for times in range(3):  # later tapes record by sites
        if kind == "ndarray":
            x.grad.fill(0)
        with qd.ad.Tape(loss):
            for k in range(N):
                x[k] = k + times
            (fields_square_sum if kind == "field" else square_sum)(x, loss)
        np.testing.assert_array_equal(x.grad.to_numpy(), 2.0 * (np.arange(N) + times))


def test_gradients_of_ndarrays_accumulate_across_tapes(device):
    (x,) = arrays(1)
    (loss,) = arrays(1, 1)
    x.fill(2.0)
    for _ in range(2):
        loss.grad.fill(0)
        with qd.ad.Tape(loss):
            square_sum(x, loss)
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full(N, 8.0))
    qd.ad.clear_all_gradients([x])
    np.testing.assert_array_equal(x.grad.to_numpy(), np.zeros(N))


def test_kernels_are_not_recorded_after_the_tape(device):
    (x,) = arrays(1)
    (loss,) = arrays(1, 1)
    x.fill(1.0)
    square_sum(x, loss)
    with qd.ad.Tape(loss) as tape:
        square_sum(x, loss)
    square_sum(x, loss)
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full(N, 2.0))
    with pytest.raises(LaunchError, match="entered once"):
        tape.__enter__()


def test_an_exception_in_the_block_runs_no_derivative(device):
    (x,) = arrays(1)
    (loss,) = arrays(1, 1)
    x.fill(1.0)

    def interrupted():
        with qd.ad.Tape(loss):
            square_sum(x, loss)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    np.testing.assert_array_equal(x.grad.to_numpy(), np.zeros(N))
    with qd.ad.Tape(loss):
        square_sum(x, loss)
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full(N, 2.0))


def test_a_loss_must_have_one_element_and_a_gradient(device):
    with pytest.raises(LaunchError, match="one element"):
        qd.ad.Tape(arrays(1)[0])
    with pytest.raises(LaunchError, match="needs_grad"):
        qd.ad.Tape(qd.ndarray(qd.f32, 1))


def test_a_replaced_function_is_differentiated_by_its_replacement(device):
    (x,) = arrays(1)
    (loss,) = arrays(1, 1)
    x.fill(2.0)

    @qd.ad.grad_replaced
    def twice():
        square_sum(x, loss)
        square_sum(x, loss)

    @qd.ad.grad_for(twice)
    def _(*args):
        square_sum.grad(x, loss)

    @qd.ad.no_grad
    def silent():
        square_sum(x, loss)

    with qd.ad.Tape(loss):
        twice()
        silent()
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full(N, 4.0))
    assert loss[0] == 3 * 4 * N


def test_forward_mode_follows_its_seed(device):
    x, y = arrays(2)
    (loss,) = arrays(1, 1)
    x.fill(2.0)
    y.fill(3.0)
    with qd.ad.FwdMode(loss=loss, param=[x, y], seed=[[1, 0, 0, 0, 2], [0, 1, 0, 0, 0]]):
        square_sum(x, loss)
        square_sum(y, loss)
    assert loss.dual[0] == 4 + 8 + 6
    with pytest.raises(ValueError, match="seed"):
        qd.ad.FwdMode(loss=loss, param=x, seed=[1.0]).__enter__()


def test_torch_tensors_under_a_tape(device):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.linspace(0.5, 1.5, N, requires_grad=True)
    loss = torch.zeros(1, requires_grad=True)
    with qd.ad.Tape(loss):
        square_sum(x, loss)
    torch.testing.assert_close(x.grad, 2 * x.detach())
