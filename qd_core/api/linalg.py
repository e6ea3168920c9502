"""Decompositions of small matrices, written in the kernel language: `qd.svd`, `qd.sym_eig`, `qd.polar_decompose`, ...

Jacobi rotations (Golub and Van Loan, Matrix Computations, sections 8.5 and 8.6.3) in a run-time loop over sweeps: code
size grows with the
square of the matrix's size, not with the number of rotations.
"""

from __future__ import annotations

from qd_core import dtypes as dt
from qd_core.api import ops as qd
from qd_core.api.matrix import Matrix, Vector
from qd_core.frontend.annotations import Template

__all__ = ["make_spd", "polar_decompose", "solve", "svd", "sym_eig"]

_SWEEPS = {dt.f16: 4, dt.f32: 6, dt.f64: 9}
"""Sweeps after which rotations of matrices of at most 6 x 6 change nothing any more (convergence is quadratic)."""


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(p, q) for p in range(n) for q in range(p + 1, n)]


def _sweeps(dtype: dt.DType) -> int:
    return _SWEEPS[dtype]


@qd.func
def _rotation(app, aqq, apq):
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
def _turn_columns(m: Template, p: Template, q: Template, c, s):
    """Rotate columns ``p`` and ``q`` of ``m``."""
    for k in qd.static(range(m.n)):
        a, b = m[k, p], m[k, q]
        m[k, p] = c * a - s * b
        m[k, q] = s * a + c * b


@qd.func
def _turn_rows(m: Template, p: Template, q: Template, c, s):
    """Rotate rows ``p`` and ``q`` of ``m``."""
    for k in qd.static(range(m.m)):
        a, b = m[p, k], m[q, k]
        m[p, k] = c * a - s * b
        m[q, k] = s * a + c * b


@qd.func
def sym_eig(A, dt: Template = None):
    """Eigenvalues (descending) and eigenvectors (columns) of a symmetric matrix of at most 6 x 6.

    Parameters
    ----------
    A : matrix of reals, (n, n)
        Its lower triangle is taken to mirror the upper one.
    dt : DType, optional
        Type to compute in.

    Returns
    -------
    (vector, matrix)
        Eigenvalues ``(n,)`` and orthonormal eigenvectors ``(n, n)``; a product of rotations.
    """
    a = A if qd.static(dt is None) else qd.cast(A, dt)
    v = Matrix.identity(a.dtype, a.n)
    qd.loop_config(serialize=True)
    for _ in range(_sweeps(a.dtype)):
        for p, q in qd.static(_pairs(a.n)):
            c, s = _rotation(a[p, p], a[q, q], a[p, q])
            _turn_columns(a, p, q, c, s)
            _turn_rows(a, p, q, c, s)
            _turn_columns(v, p, q, c, s)
    w = Vector([a[i, i] for i in qd.static(range(a.n))])
    for p, q in qd.static(_pairs(a.n)):
        if w[p] < w[q]:
            larger = w[q]
            w[q] = w[p]
            w[p] = larger
            _exchange_columns(v, p, q)
    return w, v


@qd.func
def _exchange_columns(m: Template, p: Template, q: Template):
    """Exchange two columns and negate one, which is a rotation."""
    for k in qd.static(range(m.n)):
        a = m[k, p]
        m[k, p] = m[k, q]
        m[k, q] = -a


@qd.func
def _column(m: Template, j: Template):
    return Vector([m[k, j] for k in qd.static(range(m.n))])


@qd.func
def _unit_or(v, otherwise):
    """``v`` at length one; ``otherwise`` where it is zero."""
    length = v.norm()
    u = otherwise
    if length > 0:
        u = v / length
    return u


@qd.func
def _orthogonal(u):
    """A unit vector orthogonal to the unit 3-vector ``u``."""
    other = u.cross(Vector([1, 0, 0]))
    if abs(u[0]) > 0.7:
        other = u.cross(Vector([0, 1, 0]))
    return other.normalized()


@qd.func
def svd(A, dt: Template = None):
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
        U, S, V with ``A = U @ S @ V.transpose()``. U and V are rotations; S is diagonal with entries in descending
        order of magnitude, of
        which the last is negative where the determinant is.
    """
    b = A if qd.static(dt is None) else qd.cast(A, dt)
    v = Matrix.identity(b.dtype, b.n)
    qd.loop_config(serialize=True)
    for _ in range(_sweeps(b.dtype)):
        for p, q in qd.static(_pairs(b.n)):
            x, y = _column(b, p), _column(b, q)
            c, s = _rotation(x.norm_sqr(), y.norm_sqr(), x.dot(y))
            _turn_columns(b, p, q, c, s)
            _turn_columns(v, p, q, c, s)
    for p, q in qd.static(_pairs(b.n)):
        if _column(b, p).norm_sqr() < _column(b, q).norm_sqr():
            _exchange_columns(b, p, q)
            _exchange_columns(v, p, q)
    u, sigma = _left_factor(b)
    return u, sigma, v


@qd.func
def _left_factor(b):
    """U and S of a matrix with orthogonal columns in descending order of length."""
    u, sigma = Matrix.zero(b.dtype, b.n, b.n), Matrix.zero(b.dtype, b.n, b.n)
    first = _unit_or(_column(b, 0), qd.cast(Vector.unit(b.n, 0), b.dtype))
    sigma[0, 0] = _column(b, 0).norm()
    if qd.static(b.n == 2):
        second = Vector([-first[1], first[0]])
        u = Matrix.cols([first, second])
        sigma[1, 1] = _column(b, 1).dot(second)
    else:
        across = _column(b, 1) - first * first.dot(_column(b, 1))
        second = _unit_or(across, _orthogonal(first))
        third = first.cross(second)
        u = Matrix.cols([first, second, third])
        sigma[1, 1] = _column(b, 1).dot(second)
        sigma[2, 2] = _column(b, 2).dot(third)
    return u, sigma


@qd.func
def polar_decompose(A, dt: Template = None):
    """Rotation U and symmetric matrix P with ``A = U @ P``, of a 2 x 2 or 3 x 3 matrix.

    P is positive semidefinite where the determinant of A is not negative; U is always a rotation.
    """
    u, sigma, v = svd(A, dt)
    return u @ v.transpose(), v @ sigma @ v.transpose()


@qd.func
def make_spd(A, dt: Template = None):
    """Nearest positive semidefinite matrix of a symmetric matrix of at most 6 x 6: negative eigenvalues become zero."""
    w, v = sym_eig(A, dt)
    scaled = v
    for j in qd.static(range(v.n)):
        kept = qd.max(w[j], 0)
        for i in qd.static(range(v.n)):
            scaled[i, j] = v[i, j] * kept
    return scaled @ v.transpose()


@qd.func
def solve(A, b, dt: Template = None):
    """Solution x of ``A @ x = b`` for a small matrix, by Gaussian elimination with partial pivoting."""
    m = A if qd.static(dt is None) else qd.cast(A, dt)
    x = b if qd.static(dt is None) else qd.cast(b, dt)
    for k in qd.static(range(m.n)):
        for i in qd.static(range(k + 1, m.n)):
            if abs(m[i, k]) > abs(m[k, k]):
                _exchange_rows(m, x, k, i)
        for i in qd.static(range(k + 1, m.n)):
            factor = m[i, k] / m[k, k]
            x[i] -= factor * x[k]
            for j in qd.static(range(k + 1, m.n)):
                m[i, j] -= factor * m[k, j]
    for i in qd.static(range(m.n - 1, -1, -1)):
        for j in qd.static(range(i + 1, m.n)):
            x[i] -= m[i, j] * x[j]
        x[i] /= m[i, i]
    return x


@qd.func
def _exchange_rows(m: Template, x: Template, k: Template, i: Template):
    for j in qd.static(range(m.m)):
        a = m[k, j]
        m[k, j] = m[i, j]
        m[i, j] = a
    t = x[k]
    x[k] = x[i]
    x[i] = t
