"""Decompositions of small matrices, written in the kernel language: `qd.svd`, `qd.sym_eig`, `qd.polar_decompose`, ...

Jacobi rotations (Golub and Van Loan, Matrix Computations, sections 8.5 and 8.6.3) in a run-time loop over sweeps: code
size grows with the
square of the matrix's size, not with the number of rotations.
"""

from __future__ import annotations

from typing import Any

from qd_core import dtypes as dt
from qd_core.api import ops as qd
from qd_core.api.matrix import Matrix, Vector

__all__ = ["eig", "make_spd", "polar_decompose", "solve", "svd", "sym_eig"]

_SWEEPS = {dt.f16: 4, dt.f32: 6, dt.f64: 9}
"""Sweeps after which rotations of matrices of at most 6 x 6 change nothing any more (convergence is quadratic)."""


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(p, q) for p in range(n) for q in range(p + 1, n)]


def _sweeps(dtype: dt.DType) -> int:
    return _SWEEPS[dtype]


@qd.func
def _rotation(app: Any, aqq: Any, apq: Any) -> Any:
    """Cosine and sine of the rotation that makes the off-diagonal element of a symmetric 2 x 2 matrix zero."""
    c, s = qd.one(app), qd.zero(app)
    if apq != 0:
        theta = (aqq - app) / (2 * apq)
        t = 1 / (abs(theta) + qd.sqrt(theta * theta + 1))
        t = -t if theta < 0 else t
        c = 1 / qd.sqrt(t * t + 1)
        s = t * c
    return c, s


@qd.func
def _columns(m: Any) -> Any:
    """Columns of a matrix as a list of vectors."""
    return [Vector([m[k, j] for k in range(m.n)]) for j in range(m.m)]


@qd.func
def _unit_vectors(m: Any) -> Any:
    """Columns of the unit matrix of the size and type of ``m``."""
    return _columns(Matrix.identity(m.dtype, m.n))


@qd.func
def sym_eig(A: Any, dt: Any = None) -> Any:
    """Eigenvalues (descending) and eigenvectors (columns) of a symmetric matrix of at most 6 x 6.

    Parameters
    ----------
    A : matrix of reals, (n, n)
        Symmetric.
    dt : DType, optional
        Type to compute in.

    Returns
    -------
    (vector, matrix)
        Eigenvalues ``(n,)`` and orthonormal eigenvectors ``(n, n)``; a product of rotations.
    """
    qd.static_assert(A.n == A.m and A.n <= 6, "sym_eig takes symmetric matrices of at most 6 x 6.")
    m = A if qd.static(dt is None) else qd.cast(A, dt)
    a, v = _columns(m), _unit_vectors(m)
    qd.loop_config(serialize=True)
    for _ in range(_sweeps(m.dtype)):
        for p, q in qd.static(_pairs(m.n)):
            c, s = _rotation(a[p][p], a[q][q], a[q][p])
            a[p], a[q] = c * a[p] - s * a[q], s * a[p] + c * a[q]
            v[p], v[q] = c * v[p] - s * v[q], s * v[p] + c * v[q]
            for k in qd.static(range(m.n)):
                a[k][p], a[k][q] = c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]
    w = Vector([a[i][i] for i in range(m.n)])
    for p, q in qd.static(_pairs(m.n)):
        if w[p] < w[q]:
            w[p], w[q] = w[q], w[p]
            v[p], v[q] = v[q], -v[p]  # an exchange with a change of sign is a rotation
    return w, Matrix.cols(v)


@qd.func
def _unit_or(v: Any, otherwise: Any) -> Any:
    """``v`` at length one; ``otherwise`` where it is zero."""
    length = v.norm()
    u = otherwise
    if length > 0:
        u = v / length
    return u


@qd.func
def _orthogonal(u: Any) -> Any:
    """A unit vector orthogonal to the unit 3-vector ``u``."""
    other = u.cross(Vector([1, 0, 0]))
    if abs(u[0]) > 0.7:
        other = u.cross(Vector([0, 1, 0]))
    return other.normalized()


@qd.func
def svd(A: Any, dt: Any = None) -> Any:
    """Singular value decomposition of a 2 x 2 or 3 x 3 matrix by one-sided Jacobi rotations.

    Parameters
    ----------
    A : matrix of reals, (2, 2) or (3, 3)
        Any rank.
    dt : DType, optional
        Type to compute in.

    Returns
    -------
    (matrix, matrix, matrix)
        U, S, V with ``A = U @ S @ V.transpose()``. U and V are rotations; S is diagonal, entries in descending order
        of magnitude, of which the last is negative where the determinant is.
    """
    qd.static_assert(A.n == A.m and 2 <= A.n <= 3, "SVD only supports 2D and 3D matrices.")
    m = A if qd.static(dt is None) else qd.cast(A, dt)
    b, v = _columns(m), _unit_vectors(m)
    qd.loop_config(serialize=True)
    for _ in range(_sweeps(m.dtype)):
        for p, q in qd.static(_pairs(m.n)):
            c, s = _rotation(b[p].norm_sqr(), b[q].norm_sqr(), b[p].dot(b[q]))
            b[p], b[q] = c * b[p] - s * b[q], s * b[p] + c * b[q]
            v[p], v[q] = c * v[p] - s * v[q], s * v[p] + c * v[q]
    for p, q in qd.static(_pairs(m.n)):
        if b[p].norm_sqr() < b[q].norm_sqr():
            b[p], b[q] = b[q], -b[p]
            v[p], v[q] = v[q], -v[p]
    u = _left_vectors(b)
    sigma = Matrix.zero(m.dtype, m.n, m.n)
    sigma[0, 0] = b[0].norm()
    for i in qd.static(range(1, m.n)):
        sigma[i, i] = b[i].dot(u[i])
    return Matrix.cols(u), sigma, Matrix.cols(v)


@qd.func
def _left_vectors(b: Any) -> Any:
    """Right-handed orthonormal vectors along orthogonal ones in descending order of length."""
    first = _unit_or(b[0], b[0] * 0 + Vector.unit(len(b), 0))
    return [first, Vector([-first[1], first[0]])] if qd.static(len(b) == 2) else _right_handed(first, b[1])


@qd.func
def _right_handed(first: Any, along: Any) -> Any:
    second = _unit_or(along - first * first.dot(along), _orthogonal(first))
    return [first, second, first.cross(second)]


@qd.func
def polar_decompose(A: Any, dt: Any = None) -> Any:
    """Rotation U and symmetric matrix P with ``A = U @ P``, of a 2 x 2 or 3 x 3 matrix.

    P is positive semidefinite where the determinant of A is not negative; U is always a rotation.
    """
    qd.static_assert(A.n == A.m and 2 <= A.n <= 3, "Polar decomposition only supports 2D and 3D matrices.")
    u, sigma, v = svd(A, dt)
    return u @ v.transpose(), v @ sigma @ v.transpose()


@qd.func
def make_spd(A: Any, dt: Any = None) -> Any:
    """Nearest positive semidefinite matrix of a symmetric matrix of at most 6 x 6: negative eigenvalues become zero."""
    w, v = sym_eig(A, dt)
    u = _columns(v)
    return Matrix.cols([u[i] * qd.max(w[i], 0) for i in range(v.n)]) @ v.transpose()


@qd.func
def solve(A: Any, b: Any, dt: Any = None) -> Any:
    """Solution x of ``A @ x = b`` for a small matrix, by Gaussian elimination with partial pivoting."""
    m = A if qd.static(dt is None) else qd.cast(A, dt)
    x = b if qd.static(dt is None) else qd.cast(b, dt)
    qd.static_assert(A.n == A.m and A.n == len(b), "solve takes a square matrix and a vector of as many components.")
    rows = _columns(m.transpose())
    for k in qd.static(range(m.n)):
        for i in qd.static(range(k + 1, m.n)):
            if abs(rows[i][k]) > abs(rows[k][k]):
                rows[i], rows[k] = rows[k], rows[i]
                x[i], x[k] = x[k], x[i]
        for i in qd.static(range(k + 1, m.n)):
            factor = rows[i][k] / rows[k][k]
            rows[i] -= factor * rows[k]
            x[i] -= factor * x[k]
    for i in qd.static(range(m.n - 1, -1, -1)):
        for j in qd.static(range(i + 1, m.n)):
            x[i] -= rows[i][j] * x[j]
        x[i] /= rows[i][i]
    return x


@qd.func
def eig(A: Any, dt: Any = None) -> Any:
    """Eigenvalues and right eigenvectors of a 2 x 2 matrix of reals, which may be complex.

    Parameters
    ----------
    A : matrix of reals, (2, 2)
        Any.
    dt : DType, optional
        Type to compute in.

    Returns
    -------
    (matrix, matrix)
        Eigenvalues (2, 2): one a row, real and imaginary part; the larger real one, or that above the real axis, first.
        Eigenvectors (4, 2): one a column of length one, real and imaginary part of each component in turn.
    """
    m = A if qd.static(dt is None) else qd.cast(A, dt)
    qd.static_assert(
        m.n == 2 and m.m == 2, "qd.eig takes 2 x 2 matrices; qd.sym_eig takes symmetric ones of up to 6 x 6"
    )
    middle, half = 0.5 * (m[0, 0] + m[1, 1]), 0.5 * (m[0, 0] - m[1, 1])
    square = half * half + m[0, 1] * m[1, 0]
    root = qd.sqrt(abs(square))
    re, im = root if square > 0 else qd.zero(root), root if square < 0 else qd.zero(root)
    first, second = _null_vector(m, half, re, im, 0), _null_vector(m, half, -re, -im, 1)
    return Matrix([[middle + re, im], [middle - re, -im]]), Matrix.cols([first, second])


@qd.func
def _null_vector(m: Any, half: Any, re: Any, im: Any, otherwise: Any) -> Any:
    """A unit vector that ``m`` minus the eigenvalue middle + re + im i maps to 0; a base vector where it maps all to 0.

    By Cayley and Hamilton, the columns of ``m`` minus the other eigenvalue, middle - re - im i, are such: the longer
    one.
    """
    a = Vector([half + re, im, m[1, 0], qd.zero(re)])
    b = Vector([m[0, 1], qd.zero(re), re - half, im])
    v = a if a.norm_sqr() >= b.norm_sqr() else b
    return _unit_or(v, 0 * v + Vector.unit(4, 2 * otherwise))
