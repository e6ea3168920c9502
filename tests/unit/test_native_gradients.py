"""Reverse launches through the native entry, which must not take arrays that share memory for others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import NotDifferentiableError
from qd_core.runtime.native import unavailable_reason

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))
A = qd.types.ndarray(dtype=qd.f32, ndim=1)
N = 8


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    qd.init(arch=qd.cpu, cpu_max_num_threads=1)
    yield
    qd.reset()


@qd.kernel
def square(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]


@qd.kernel
def add_twice(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] += 2.0 * x[i]


def arrays(count: int) -> list[qd.Ndarray]:
    made = [qd.ndarray(qd.f32, N, needs_grad=True) for _ in range(count)]
    for array in made:
        array.from_numpy(np.linspace(0.5, 2, N).astype(np.float32))
        array.grad.fill(1.0)
    return made


def python_launches(kernel: object) -> int:
    specs = [s for group in kernel._specs.values() for s in group]  # type: ignore[attr-defined]
    return sum(s.executable.launches for s in specs)


def test_reverse_launches_are_native() -> None:
    x, y = arrays(2)
    for _ in range(4):
        square.grad(x, y)
    before = python_launches(square.grad)
    for _ in range(10):
        square.grad(x, y)
    assert python_launches(square.grad) == before
    x.grad.fill(0.0)
    y.grad.fill(1.0)
    square.grad(x, y)
    np.testing.assert_array_equal(x.grad.to_numpy(), 2 * x.to_numpy())


def test_the_same_array_twice_is_noticed_after_native_launches() -> None:
    x, y = arrays(2)
    for _ in range(5):
        square.grad(x, y)
        add_twice.grad(x, y)
    with pytest.raises(NotDifferentiableError, match="overwritten"):
        square.grad(x, x)
    x.grad.fill(1.0)
    add_twice.grad(x, x)
    np.testing.assert_array_equal(x.grad.to_numpy(), np.full(N, 3.0))
