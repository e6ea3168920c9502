"""Decompositions of small matrices against NumPy."""

from __future__ import annotations

import time

import numpy as np
import pytest
from frontend_run import lowered, qd, run

from qd_core.api import linalg
from qd_core.ir.rewrite import walk


def matrices(n: int, dtype=qd.f64) -> np.ndarray:
    """Matrices of full and of every lower rank, with repeated and with very different singular values."""
    rng = np.random.default_rng(n)
    found = [rng.normal(size=(n, n)) for _ in range(4)]
    found += [np.zeros((n, n)), np.eye(n), -np.eye(n), np.diag(np.arange(n) - 1.0)]
    found += [rng.normal(size=(n, rank)) @ rng.normal(size=(rank, n)) for rank in range(1, n)]
    found.append(rng.normal(size=(n, n)) @ np.diag(10.0 ** -np.arange(0, 2 * n, 2)))
    return np.array(found, dtype.numpy)


def arrays_of(n: int, dtype=qd.f64):
    """Types of arrays of n x n matrices and of vectors."""
    matrix, vector = qd.types.matrix(n, n, dtype), qd.types.vector(n, dtype)
    return qd.types.ndarray(matrix, 1), qd.types.ndarray(vector, 1)


def close(got: np.ndarray, wanted: np.ndarray, scale: np.ndarray | float, tolerance: float) -> None:
    """Every matrix agrees to ``tolerance`` relative to its own scale."""
    error = np.abs(np.asarray(got, np.float64) - wanted).reshape(len(got), -1).max(1)
    assert (error <= tolerance * scale).all(), error


@pytest.mark.parametrize(("dtype", "tolerance"), [(qd.f32, 1e-5), (qd.f64, 1e-13)])
@pytest.mark.parametrize("n", [2, 3])
def test_svd(n: int, dtype, tolerance: float) -> None:
    M, _ = arrays_of(n, dtype)

    def k(a: M, u: M, s: M, v: M):
        for i in a:
            u[i], s[i], v[i] = linalg.svd(a[i])

    a = matrices(n, dtype)
    u, s, v = (np.zeros_like(a) for _ in range(3))
    run(k, a, u, s, v)
    scale = np.abs(a).max((1, 2)) + 1e-30
    close(u @ s @ v.transpose(0, 2, 1), a, scale, tolerance)
    for q in (u, v):
        close(q.transpose(0, 2, 1) @ q, np.eye(n), 1, tolerance)
        close(np.linalg.det(q), 1, 1, tolerance)
    sigma = np.diagonal(s, axis1=1, axis2=2)
    close(np.abs(sigma), np.linalg.svd(a.astype(np.float64))[1], scale, tolerance)
    assert (sigma[:, :-1] >= 0).all()


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_sym_eig_and_make_spd(n: int) -> None:
    M, V = arrays_of(n)

    def k(a: M, w: V, v: M, spd: M):
        for i in a:
            w[i], v[i] = linalg.sym_eig(a[i])
            spd[i] = linalg.make_spd(a[i])

    a = matrices(n)
    a = a + a.transpose(0, 2, 1)
    v, spd, w = np.zeros_like(a), np.zeros_like(a), np.zeros(a.shape[:2])
    run(k, a, w, v, spd)
    scale = np.abs(a).max((1, 2)) + 1e-30
    turned = v.transpose(0, 2, 1)
    close(w, np.linalg.eigvalsh(a)[:, ::-1], scale, 1e-13)
    close(v * w[:, None] @ turned, a, scale, 1e-13)
    close(turned @ v, np.eye(n), 1, 1e-13)
    close(spd, v * np.maximum(w, 0)[:, None] @ turned, scale, 1e-13)


@pytest.mark.parametrize("n", [2, 3])
def test_polar_decompose(n: int) -> None:
    M, _ = arrays_of(n)

    def k(a: M, rotation: M, stretch: M):
        for i in a:
            rotation[i], stretch[i] = linalg.polar_decompose(a[i])

    a = matrices(n)
    rotation, stretch = np.zeros_like(a), np.zeros_like(a)
    run(k, a, rotation, stretch)
    scale = np.abs(a).max((1, 2)) + 1e-30
    close(rotation @ stretch, a, scale, 1e-13)
    close(stretch, stretch.transpose(0, 2, 1), scale, 1e-13)
    close(np.linalg.det(rotation), 1, 1, 1e-13)
    assert (np.linalg.eigvalsh(stretch[np.linalg.det(a) > 1e-12]) > 0).all()


@pytest.mark.parametrize("n", [2, 3, 4])
def test_solve(n: int) -> None:
    M, V = arrays_of(n)

    def k(a: M, b: V, x: V):
        for i in a:
            x[i] = linalg.solve(a[i], b[i])

    rng = np.random.default_rng(n)
    a = np.array([rng.normal(size=(n, n)), np.eye(n)[::-1] * 2.0, rng.normal(size=(n, n)) * 1e6])
    b, x = rng.normal(size=(3, n)), np.zeros((3, n))
    run(k, a, b, x)
    np.testing.assert_allclose(x, np.linalg.solve(a, b[..., None])[..., 0], rtol=1e-10)


def test_decompositions_at_the_root_of_a_kernel_are_serial() -> None:
    matrix = qd.types.matrix(2, 2, qd.f64)

    def k(a: matrix) -> qd.f64:
        w, _ = linalg.sym_eig(a)
        return w[0] + linalg.svd(a, qd.f32)[1][0, 0]

    a = np.array([[2.0, 1.0], [1.0, 2.0]])
    assert run(k, a).result == pytest.approx(6, rel=1e-6)


def test_the_size_of_the_code_is_linear_in_the_number_of_uses() -> None:
    matrix = qd.types.matrix(3, 3, qd.f32)

    def once(a: matrix) -> matrix:
        u, s, v = linalg.svd(a)
        return u @ s @ v

    def often(a: matrix) -> matrix:
        b = a
        for _ in qd.static(range(30)):
            u, s, v = linalg.svd(b)
            b = u @ s @ v
        return b

    def count(f) -> int:
        return sum(1 for _ in walk(lowered(f, np.eye(3))[0].function.body))

    start = time.perf_counter()
    assert count(often) <= 31 * count(once)
    assert time.perf_counter() - start < 20
