"""Gravity of n bodies on each other, 20 operations a pair, float32: array of structures and structure of arrays."""

import functools

import numpy as np

from benchmarks.harness import LANGUAGE, Step, language

SOFTENING = 1e-3


def positions(n):
    return np.random.default_rng(3).uniform(-1, 1, (n, 3)).astype(np.float32)


def aos_language(name, n):
    ti = language(name)
    vec3 = ti.types.vector(3, ti.f32)
    Vectors = ti.types.ndarray(dtype=vec3, ndim=1)

    @ti.kernel
    def gravity(p: Vectors, a: Vectors):
        for i in range(p.shape[0]):
            here = p[i]
            total = vec3(0.0, 0.0, 0.0)
            for j in range(p.shape[0]):
                d = p[j] - here
                inverse = ti.rsqrt(d.dot(d) + 1e-3)
                total += d * (inverse * inverse * inverse)
            a[i] = total

    p, a = ti.ndarray(vec3, n), ti.ndarray(vec3, n)
    p.from_numpy(positions(n))
    return Step(lambda: gravity(p, a), a.to_numpy, ti.sync)


def soa_language(name, n):
    ti = language(name)
    Array = ti.types.ndarray(dtype=ti.f32, ndim=1)

    @ti.kernel
    def gravity(x: Array, y: Array, z: Array, ax: Array, ay: Array, az: Array):
        for i in range(x.shape[0]):
            xi, yi, zi = x[i], y[i], z[i]
            sx, sy, sz = 0.0, 0.0, 0.0
            for j in range(x.shape[0]):
                dx, dy, dz = x[j] - xi, y[j] - yi, z[j] - zi
                inverse = ti.rsqrt(dx * dx + dy * dy + dz * dz + 1e-3)
                weight = inverse * inverse * inverse
                sx += dx * weight
                sy += dy * weight
                sz += dz * weight
            ax[i] = sx
            ay[i] = sy
            az[i] = sz

    arrays = [ti.ndarray(ti.f32, n) for _ in range(6)]
    for array, values in zip(arrays[:3], positions(n).T, strict=True):
        array.from_numpy(np.ascontiguousarray(values))
    return Step(lambda: gravity(*arrays), lambda: np.stack([a.to_numpy() for a in arrays[3:]], 1), ti.sync)


def numba(n, soa):
    import numba as nb

    eps, one = np.float32(SOFTENING), np.float32(1)

    @nb.njit(parallel=True, fastmath=True)
    def gravity(x, y, z, a):
        for i in nb.prange(x.shape[0]):
            sx = sy = sz = np.float32(0)
            for j in range(x.shape[0]):
                dx, dy, dz = x[j] - x[i], y[j] - y[i], z[j] - z[i]
                inverse = one / np.sqrt(dx * dx + dy * dy + dz * dz + eps)
                weight = inverse * inverse * inverse
                sx += dx * weight
                sy += dy * weight
                sz += dz * weight
            a[i, 0], a[i, 1], a[i, 2] = sx, sy, sz

    p = positions(n)
    columns = [np.ascontiguousarray(c) for c in p.T] if soa else list(p.T)
    a = np.zeros((n, 3), np.float32)
    return Step(lambda: gravity(*columns, a), lambda: a)


def jax(n):
    import jax
    import jax.numpy as jnp

    @jax.jit
    def gravity(p):
        d = p[None, :, :] - p[:, None, :]
        inverse = jax.lax.rsqrt((d * d).sum(-1) + np.float32(SOFTENING))
        return (d * (inverse**3)[..., None]).sum(1)

    p, held = jnp.asarray(positions(n)), [None]

    def run():
        held[0] = gravity(p)

    return Step(run, lambda: held[0], lambda: held[0].block_until_ready())


AOS = {name: functools.partial(aos_language, name) for name in LANGUAGE}
AOS |= {"numba": lambda n: numba(n, False), "jax": jax}
SOA = {name: functools.partial(soa_language, name) for name in LANGUAGE}
SOA |= {"numba": lambda n: numba(n, True)}
