"""Chains of 20 rigid links in n environments: orientation, position, angular velocity and bias moment (float32).

A link takes about 300 operations on quaternions and 3 x 3 matrices; links of a chain depend on each other, chains do
not.
"""

import functools

import numpy as np

from benchmarks.harness import LANGUAGE, Step, language

LINKS = 20


def chains(n):
    rng = np.random.default_rng(5)
    angle, rate = rng.uniform(-1, 1, (2, n, LINKS))
    axis = rng.normal(size=(LINKS, 3))
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    offset, inertia = 0.1 * rng.normal(size=(LINKS, 3)), rng.uniform(0.5, 1.5, (LINKS, 3))
    return [v.astype(np.float32) for v in (angle, rate, axis, offset, inertia)]


def of_language(name, n):
    ti = language(name)
    vec3 = ti.types.vector(3, ti.f32)
    Angles = ti.types.ndarray(dtype=ti.f32, ndim=2)
    Table = ti.types.ndarray(dtype=vec3, ndim=1)
    Vectors = ti.types.ndarray(dtype=vec3, ndim=2)

    @ti.func
    def product(a, b):
        return ti.Vector(
            [
                a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
                a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
                a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
                a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
            ]
        )

    @ti.func
    def rotation(q):
        w, x, y, z = q[0], q[1], q[2], q[3]
        return ti.Matrix(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )

    @ti.kernel
    def forward(angle: Angles, rate: Angles, axis: Table, offset: Table, inertia: Table, p: Vectors, m: Vectors):
        for e in range(angle.shape[0]):
            q = ti.Vector([1.0, 0.0, 0.0, 0.0])
            R = ti.Matrix([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
            here = ti.Vector([0.0, 0.0, 0.0])
            spin = ti.Vector([0.0, 0.0, 0.0])
            for k in range(LINKS):
                half = 0.5 * angle[e, k]
                s = ti.sin(half)
                u = axis[k]
                here = here + R @ offset[k]
                q = product(q, ti.Vector([ti.cos(half), s * u[0], s * u[1], s * u[2]]))
                q = q * (1.0 / ti.sqrt(q.dot(q)))
                R = rotation(q)
                spin = spin + (R @ u) * rate[e, k]
                d = inertia[k]
                D = ti.Matrix([[d[0], 0.0, 0.0], [0.0, d[1], 0.0], [0.0, 0.0, d[2]]])
                p[e, k] = here
                m[e, k] = spin.cross((R @ D @ R.transpose()) @ spin)

    tables = [ti.ndarray(ti.f32, (n, LINKS)) for _ in range(2)] + [ti.ndarray(vec3, LINKS) for _ in range(3)]
    for array, values in zip(tables, chains(n), strict=True):
        array.from_numpy(values)
    p, m = ti.ndarray(vec3, (n, LINKS)), ti.ndarray(vec3, (n, LINKS))
    return Step(lambda: forward(*tables, p, m), lambda: np.stack([p.to_numpy(), m.to_numpy()]), ti.sync)


def numba(n):
    import numba as nb

    one, two, half_ = np.float32(1), np.float32(2), np.float32(0.5)

    @nb.njit(inline="always")
    def apply(R, v):
        return (
            R[0] * v[0] + R[1] * v[1] + R[2] * v[2],
            R[3] * v[0] + R[4] * v[1] + R[5] * v[2],
            R[6] * v[0] + R[7] * v[1] + R[8] * v[2],
        )

    @nb.njit(inline="always")
    def transposed(R, v):
        return (
            R[0] * v[0] + R[3] * v[1] + R[6] * v[2],
            R[1] * v[0] + R[4] * v[1] + R[7] * v[2],
            R[2] * v[0] + R[5] * v[1] + R[8] * v[2],
        )

    @nb.njit(parallel=True, fastmath=True)
    def forward(angle, rate, axis, offset, inertia, p, m):
        for e in nb.prange(angle.shape[0]):
            w, x, y, z = one, one - one, one - one, one - one
            zero = one - one
            R = (one, zero, zero, zero, one, zero, zero, zero, one)
            h0, h1, h2, s0, s1, s2 = zero, zero, zero, zero, zero, zero
            for k in range(LINKS):
                half = half_ * angle[e, k]
                s, c = np.sin(half), np.cos(half)
                u0, u1, u2 = axis[k, 0], axis[k, 1], axis[k, 2]
                o = apply(R, (offset[k, 0], offset[k, 1], offset[k, 2]))
                h0, h1, h2 = h0 + o[0], h1 + o[1], h2 + o[2]
                b1, b2, b3 = s * u0, s * u1, s * u2
                w, x, y, z = (
                    w * c - x * b1 - y * b2 - z * b3,
                    w * b1 + x * c + y * b3 - z * b2,
                    w * b2 - x * b3 + y * c + z * b1,
                    w * b3 + x * b2 - y * b1 + z * c,
                )
                r = one / np.sqrt(w * w + x * x + y * y + z * z)
                w, x, y, z = w * r, x * r, y * r, z * r
                R = (
                    one - two * (y * y + z * z), two * (x * y - w * z), two * (x * z + w * y),
                    two * (x * y + w * z), one - two * (x * x + z * z), two * (y * z - w * x),
                    two * (x * z - w * y), two * (y * z + w * x), one - two * (x * x + y * y),
                )  # fmt: skip
                t = apply(R, (u0, u1, u2))
                s0, s1, s2 = s0 + t[0] * rate[e, k], s1 + t[1] * rate[e, k], s2 + t[2] * rate[e, k]
                g = transposed(R, (s0, s1, s2))
                g = apply(R, (inertia[k, 0] * g[0], inertia[k, 1] * g[1], inertia[k, 2] * g[2]))
                p[e, k, 0], p[e, k, 1], p[e, k, 2] = h0, h1, h2
                m[e, k, 0] = s1 * g[2] - s2 * g[1]
                m[e, k, 1] = s2 * g[0] - s0 * g[2]
                m[e, k, 2] = s0 * g[1] - s1 * g[0]

    tables = chains(n)
    p, m = np.zeros((2, n, LINKS, 3), np.float32)
    return Step(lambda: forward(*tables, p, m), lambda: np.stack([p, m]))


RIGID = {name: functools.partial(of_language, name) for name in LANGUAGE}
RIGID |= {"numba": numba}
