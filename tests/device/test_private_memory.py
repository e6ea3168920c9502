"""Large local vectors and matrices that are indexed at run time: memory of the iteration, copied when read whole."""

from __future__ import annotations

import numpy as np

import qd_core as qd
from qd_core.frontend import private

A1 = qd.types.ndarray(dtype=qd.f32, ndim=1)
A2 = qd.types.ndarray(dtype=qd.f32, ndim=2)


@qd.kernel
def sort_rows(x: A2):
    for r in range(x.shape[0]):
        v = qd.Vector.zero(qd.f32, 24)
        n = 24
        if r % 3 == 0:
            n = 21
        for k in range(n):
            v[k] = x[r, k]
        for a in range(n):
            for b in range(n - 1 - a):
                if v[b] > v[b + 1]:
                    v[b], v[b + 1] = v[b + 1], v[b]
        for k in range(n):
            x[r, k] = v[k]


@qd.func
def bump(v: qd.template(), k):
    v[k] += 1.0


@qd.func
def weighted(v):
    s = 0.0
    for k in range(20):
        s += v[k] * k
    return s


@qd.kernel
def mixed(o: A2):
    for r in range(o.shape[0]):
        p = r % 5
        a = qd.Matrix.zero(qd.f32, 5, 5)
        for i in range(5):
            for j in range(5):
                a[i, j] = (i * 7 + j * j + r) % 11
        b = a
        a[p, 0] = 9.0
        a[p, p + 3] += 1.0  # outside for most: left alone
        row = a[(p + 1) % 5]
        a[2] = row
        o[r, 0] = a[p, 0] + b[p, 0] * 100.0
        o[r, 1] = a.sum() + row.sum() * 1000.0
        o[r, 2] = (a @ b)[1, 2] + a[p][2]
        while a[p, 0] > 1.0:
            a[p, 0] *= 0.5
            if a[p, 0] < 3.0:
                break
        a *= 2.0
        o[r, 3] = a[p, 0] + qd.atomic_add(a[p, 1], 4.0) + a[p, 1]
        v = qd.Vector.zero(qd.f32, 20)
        for k in range(25):
            v[k] = k * 1.0
        v[r - 2 * r - 1] = 1000.0
        bump(v, r % 20)
        if r % 2:
            u = v
            u[3 + 0 * p] = 100.0
            v[5] += u[3]
        else:
            v = v * 2.0
        v[3:6] = qd.Vector([1.0, 2.0, 3.0])
        o[r, 4] = weighted(v) + v[r % 20]


def test_rows_are_sorted(device):
    x = np.random.default_rng(0).random((19, 24)).astype(np.float32)
    want = x.copy()
    want[0::3, :21] = np.sort(x[0::3, :21])
    want[1::3], want[2::3] = np.sort(x[1::3]), np.sort(x[2::3])
    sort_rows(x)
    np.testing.assert_array_equal(x, want)


def expected(r: int) -> list[float]:
    p = r % 5
    a = np.array([[(i * 7 + j * j + r) % 11 for j in range(5)] for i in range(5)], np.float64)
    b = a.copy()
    a[p, 0] = 9
    if p + 3 < 5:
        a[p, p + 3] += 1
    row = a[(p + 1) % 5].copy()
    a[2] = row
    out = [a[p, 0] + b[p, 0] * 100, a.sum() + row.sum() * 1000, (a @ b)[1, 2] + a[p, 2]]
    while a[p, 0] > 1:
        a[p, 0] *= 0.5
        if a[p, 0] < 3:
            break
    a *= 2
    out.append(a[p, 0] + a[p, 1] + a[p, 1] + 4)
    v = np.arange(20, dtype=np.float64)
    v[r % 20] += 1
    if r % 2:
        v[5] += 100
    else:
        v *= 2
    v[3:6] = [1, 2, 3]
    return [*out, (v * np.arange(20)).sum() + v[r % 20]]


def test_variables_in_memory_behave_as_values(device):
    o = np.zeros((23, 5), np.float32)
    mixed(o)
    np.testing.assert_allclose(o, [expected(r) for r in range(23)], rtol=1e-6)


@qd.kernel
def chosen(x: A1, y: A1):
    for i in range(y.shape[0]):
        v = qd.Vector.zero(qd.f32, private.LARGEST_IN_REGISTERS + 4)
        for k in range(20):
            v[k] = x[k] * x[k]
        for k in range(19):
            v[k + 1] = v[k + 1] + v[k] * 0.5
        y[i] = v[i % 20]


def test_gradients_through_them(device):
    x, y = qd.ndarray(qd.f32, 20, needs_grad=True), qd.ndarray(qd.f32, 3, needs_grad=True)
    values = np.linspace(0.5, 2, 20).astype(np.float32)
    x.from_numpy(values)
    y.grad.fill(1.0)
    chosen(x, y)
    chosen.grad(x, y)
    np.testing.assert_allclose(y.to_numpy()[2], (values[:3] ** 2 * [0.25, 0.5, 1]).sum(), rtol=1e-6)
    want = np.zeros(20)
    want[:3] = 2 * values[:3] * [1.75, 1.5, 1]
    np.testing.assert_allclose(x.grad.to_numpy(), want, rtol=1e-6)
