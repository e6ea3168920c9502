"""Elements that all iterations combine into, in groups of an odd size, and where no iteration has anything for them."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd

F = qd.types.ndarray(dtype=qd.f32, ndim=1)
I = qd.types.ndarray(dtype=qd.i32, ndim=1)  # noqa: E741


@pytest.mark.parametrize("n", [1, 99, 5001])
def test_totals_of_each_kind(device, n):
    @qd.kernel
    def k(x: F, s: F, m: I):
        qd.loop_config(block_dim=100)
        for i in range(x.shape[0]):
            s[0] += x[i]
            qd.atomic_min(s[1], x[i])
            qd.atomic_max(m[0], i % 997)
            qd.atomic_xor(m[1], i * 7)
            if i % 3 == 0:
                m[2] += i

    given, i = (np.arange(n) % 64 - 20).astype(np.float32), np.arange(n)
    x, s, m = qd.ndarray(qd.f32, n), qd.ndarray(qd.f32, 2), qd.ndarray(qd.i32, 3)
    x.from_numpy(given)
    k(x, s, m)
    assert s.to_numpy().tolist() == [given.sum(), min(given.min(), 0)]
    assert m.to_numpy().tolist() == [(i % 997).max(), np.bitwise_xor.reduce(i * 7), i[i % 3 == 0].sum()]


def test_a_total_that_nothing_is_added_to_is_not_touched(device):
    """Its index may name no element."""

    @qd.kernel
    def k(x: F, s: F, at: qd.i32):
        for i in range(x.shape[0]):
            if x[i] > 0:
                s[at] += x[i]

    x, s = qd.ndarray(qd.f32, 1000), qd.ndarray(qd.f32, 1)
    s.fill(-0.0)
    k(x, s, 1 << 30)
    assert np.signbit(s.to_numpy()[0])
