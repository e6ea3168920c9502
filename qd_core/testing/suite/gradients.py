"""Reverse mode on any device: loops, branches, vectors and atomics, against the reference and against formulas."""
# pyright: basic, reportGeneralTypeIssues=false, reportInvalidTypeForm=false, reportOptionalMemberAccess=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qd_core as qd
from qd_core.testing.compare import run_kernel
from qd_core.testing.device import DeviceUnderTest
from qd_core.testing.plugin import in_slice, requires

__all__ = [
    "test_gradients_of_arithmetic",
    "test_gradients_of_many_iterations",
    "test_gradients_of_scatter_and_gather",
    "test_gradients_through_branches",
    "test_gradients_through_loops",
    "test_gradients_through_loops_that_end_early",
    "test_gradients_through_vectors",
    "test_gradients_with_respect_to_one_argument",
]

F1 = qd.types.ndarray(dtype=qd.f32, ndim=1)
D1 = qd.types.ndarray(dtype=qd.f64, ndim=1)
I1 = qd.types.ndarray(dtype=qd.i32, ndim=1)
VEC2 = qd.types.vector(2, qd.f32)
V1 = qd.types.ndarray(dtype=VEC2, ndim=1)


@qd.kernel
def formula(x: F1, y: F1):
    """Elementary functions and arithmetic."""
    for i in range(x.shape[0]):
        y[i] = qd.sin(x[i]) * qd.exp(-x[i] * x[i]) + qd.sqrt(x[i] + 3) / (1 + qd.abs(x[i])) - x[i] ** 3


@qd.kernel
def polynomial(x: D1, loss: D1):
    """A carried scalar in a loop with run-time bounds, added atomically."""
    for i in range(x.shape[0]):
        p = x[i]
        for k in range(i % 7):
            p = p * x[i] + k
        loss[0] += p


@qd.kernel
def choose(x: F1, y: F1):
    """Branches, nested, and the ternary."""
    for i in range(x.shape[0]):
        v = x[i]
        if v > 0:
            v = v * v if i % 2 == 0 else v * 3.0
            if v > 1:
                v = qd.log(v)
        else:
            v = qd.cos(v)
        y[i] = v * x[i]


@qd.kernel
def until(x: F1, y: F1):
    """A loop that each iteration leaves at its own time."""
    for i in range(x.shape[0]):
        v = x[i]
        for _ in range(20):
            v = v * 1.5
            if v > 10.0:
                break
        y[i] = v


@qd.kernel
def scatter(x: F1, where: I1, y: F1):
    """Several iterations add to one place and read others."""
    for i in range(x.shape[0]):
        y[where[i]] += x[i] * x[where[i]]


@qd.kernel
def springs(x: V1, energy: F1):
    """Vectors and neighbours."""
    for i in range(x.shape[0] - 1):
        d = x[i + 1] - x[i]
        energy[0] += 0.5 * (d.norm() - 1.0) ** 2 + 0.1 * d.dot(x[i])


def data(count: int, dtype: Any = np.float32) -> Any:
    """Return values in (-1.5, 1.5), none near 0."""
    generator = np.random.default_rng(count)
    return (generator.uniform(0.1, 1.5, count) * np.where(generator.random(count) < 0.5, -1, 1)).astype(dtype)


def pair(values: Any, seed: float = 0.0) -> Any:
    """Return an array with a constant gradient."""
    return qd.with_grad(values, np.full_like(values, seed))


def both_ways(kernel: Any, *args: Any) -> None:
    """Run forward, then reverse, each against the reference."""
    run_kernel(kernel, *args)
    run_kernel(kernel.grad, *args)


@in_slice("smoke")
def test_gradients_of_arithmetic(device: DeviceUnderTest) -> None:
    """The chain rule, on an odd number of iterations; and the formula itself."""
    x, y = pair(data(101)), pair(np.zeros(101, np.float32), 1.0)
    both_ways(formula, x, y)
    v = x.data.astype(np.float64)
    gauss, root, below = np.exp(-v * v), np.sqrt(v + 3), 1 + np.abs(v)
    wanted = gauss * (np.cos(v) - 2 * v * np.sin(v)) + 0.5 / root / below - root * np.sign(v) / below**2 - 3 * v**2
    np.testing.assert_allclose(x.grad, wanted, rtol=2e-4, atol=2e-5)


@requires("type.f64", "atomic.add.f64")
def test_gradients_through_loops(device: DeviceUnderTest) -> None:
    """Values carried through inner loops, in f64; and differences."""
    x = pair(data(40, np.float64))
    both_ways(polynomial, x, pair(np.zeros(1), 1.0))
    step = 1e-6
    for i in (0, 5, 6, 39):
        ends: list[float] = []
        for sign in (1, -1):
            moved, loss = x.data.copy(), np.zeros(1)
            moved[i] += sign * step
            polynomial(moved, loss)
            ends.append(float(loss[0]))
        assert x.grad[i] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-7)


def test_gradients_through_branches(device: DeviceUnderTest) -> None:
    """Only the side that was taken contributes."""
    both_ways(choose, pair(data(67)), pair(np.zeros(67, np.float32), 0.5))


def test_gradients_through_loops_that_end_early(device: DeviceUnderTest) -> None:
    """The reverse loop repeats as many iterations as were made."""
    both_ways(until, pair(np.abs(data(35))), pair(np.zeros(35, np.float32), 1.0))


@requires("atomic.add.f32")
def test_gradients_of_scatter_and_gather(device: DeviceUnderTest) -> None:
    """Gradients of places that several iterations read are summed."""
    where = (np.arange(50) * 7 % 11).astype(np.int32)
    both_ways(scatter, pair(data(50)), where, pair(np.zeros(50, np.float32), 1.0))


@requires("atomic.add.f32")
def test_gradients_through_vectors(device: DeviceUnderTest) -> None:
    """Vector elements, as arrays of the device and of the host."""
    values = data(64).reshape(-1, 2)
    both_ways(springs, pair(values), pair(np.zeros(1, np.float32), 1.0))
    x, energy = qd.ndarray(VEC2, 32, needs_grad=True), qd.ndarray(qd.f32, 1, needs_grad=True)
    x.from_numpy(values)
    energy.grad.fill(1.0)
    both_ways(springs, x, energy)


def test_gradients_with_respect_to_one_argument(device: DeviceUnderTest) -> None:
    """An argument without a gradient is a constant."""
    y = pair(np.zeros(20, np.float32), 1.0)
    run_kernel(choose, data(20), y)
    run_kernel(choose.grad, data(20), y)
    assert (y.grad == 0).all(), "the gradient of what was overwritten stays"


@requires("atomic.add.f64", "type.f64")
def test_gradients_of_many_iterations(device: DeviceUnderTest) -> None:
    """More iterations than fit one chunk, block or vector."""
    both_ways(polynomial, pair(data(70_001, np.float64) * 0.5), pair(np.zeros(1), 1.0))
