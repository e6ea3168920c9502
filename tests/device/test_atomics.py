"""Atomic functions on elements and variables: old values, every dtype, refusals."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd

DTYPES = (qd.i8, qd.u16, qd.i32, qd.u32, qd.i64, qd.u64, qd.f32, qd.f64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_exact_and_old_values_an_order_explains(device, dtype):
    if not device.has(f"type.{dtype.name}", f"atomic.cas.{dtype.name}"):
        pytest.skip(f"the device has no compare-and-swap of {dtype.name}")
    array = qd.types.ndarray(dtype=dtype, ndim=1)

    @qd.kernel
    def multiply(x: array, old: array):
        for i in range(6):
            old[i] = qd.atomic_mul(x[0], 2)
            qd.atomic_mul(x[1 + i % 2], i % 3 + 1)

    x, old = np.ones(3, dtype.numpy), np.zeros(6, dtype.numpy)
    multiply(x, old)
    assert x.tolist() == [64, 6, 6]
    assert sorted(old.tolist()) == [1, 2, 4, 8, 16, 32]


@qd.kernel
def count(total: qd.types.NDArray[qd.i32, 1], seen: qd.types.NDArray[qd.i32, 2], last: qd.types.NDArray[qd.f32, 1]):
    local = 0
    for i in range(128):
        seen[0, i] = qd.atomic_add(total[0], 42)
        seen[1, i] = qd.atomic_add(local, 42)
        seen[2, i] = i
        seen[3, i] = qd.atomic_add(seen[2, i], 7)
        last[1 + i] = qd.atomic_exchange(last[0], i + 1)
        done = 0
        while done == 0:
            before = total[1]
            if qd.atomic_cas(total[1], before, before + 2) == before:
                done = 1
        qd.atomic_max(total[2], i * 3)
        qd.atomic_min(total[3], -i)
        qd.atomic_sub(total[4], i)
        qd.atomic_or(total[5], 1 << (i % 31))
        qd.atomic_xor(total[6], i)
        qd.atomic_and(total[7], ~(1 << (i % 20)))
    total[8] = local


def test_old_values_and_totals(device):
    total, seen, last = np.zeros(9, np.int32), np.zeros((4, 128), np.int32), np.zeros(129, np.float32)
    total[7] = -1
    count(total, seen, last)
    steps = [42 * i for i in range(128)]
    assert sorted(seen[0].tolist()) == steps
    assert sorted(seen[1].tolist()) == steps
    assert seen[3].tolist() == list(range(128))
    assert sorted(last.tolist()) == list(range(129))
    xor = int(np.bitwise_xor.reduce(np.arange(128)))
    assert total.tolist() == [42 * 128, 256, 381, -127, -127 * 64, 2**31 - 1, xor, -(2**20), 42 * 128]


@qd.kernel
def variables() -> (int, int, int, qd.u16, qd.u8, float):
    a = 5
    first = qd.atomic_cas(a, 5, 7)
    second = qd.atomic_cas(a, 5, 9)
    x: qd.u16 = 1000
    y: qd.u8 = 255
    qd.atomic_sub(x, y)
    z: qd.u8 = 255
    w: qd.u16 = 100
    qd.atomic_sub(z, w)
    p = 1.0
    qd.loop_config(serialize=True)
    for i in range(1, 8):
        qd.atomic_mul(p, qd.f32(i))
    return a, first, second, x, z, p


def test_variables_are_updated_plainly(device):
    assert variables() == (7, 5, 7, 745, 155, 5040.0)


def test_vectors_are_updated_component_by_component(device):
    m = qd.Matrix.field(2, 3, qd.f32, shape=())

    @qd.kernel
    def add():
        for _ in range(50):
            qd.atomic_add(m[None], qd.Matrix([[1, 2, 3], [4, 5, 6]]))
            qd.atomic_max(m[None][0, 0], -7)
            qd.atomic_add(m[None], 1)

    add()
    np.testing.assert_array_equal(m[None].to_numpy(), np.array([[100, 150, 200], [250, 300, 350]]))


def test_what_cannot_be_updated_is_refused_at_the_line(device):
    reals, vectors = qd.field(qd.f32, shape=4), qd.Vector.field(3, qd.i32, shape=2)

    @qd.kernel
    def swap_real():
        qd.atomic_cas(reals[0], 1, 2)

    @qd.kernel
    def swap_vector():
        qd.atomic_cas(vectors[0], 1, 2)

    @qd.kernel
    def bits_of_real():
        qd.atomic_and(reals[0], 1)

    @qd.kernel
    def no_place():
        qd.atomic_min([3, 2, 1], qd.Vector([1, 2, 3]))

    refusals = [
        (swap_real, qd.QuadrantsTypeError, "needs an integer"),
        (swap_vector, qd.QuadrantsTypeError, "takes a scalar"),
        (bits_of_real, qd.QuadrantsTypeError, "bit operations need integers"),
        (no_place, qd.QuadrantsSyntaxError, "cannot use a non-writable target as the first operand"),
    ]
    for kernel, error, message in refusals:
        with pytest.raises(error, match=message) as caught:
            kernel()
        assert "^" in str(caught.value)
    with pytest.raises(qd.QuadrantsSyntaxError, match="only available in kernels"):
        qd.atomic_cas(reals[0], 1, 2)
