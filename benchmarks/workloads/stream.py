"""Kernels that memory bounds: y += a x, a five-point stencil, a sum, a histogram (float32, int32 keys)."""

import functools

import numpy as np

from benchmarks.harness import LANGUAGE, Step, language

FACTOR = 1e-6
BINS = 1024


def vectors(n):
    rng = np.random.default_rng(1)
    return rng.random(n, np.float32), rng.random(n, np.float32)


def keys(n):
    return np.random.default_rng(2).integers(0, BINS, n, np.int32)


# -- one language, three implementations -------------------------------------------------------------------------------
def saxpy_language(name, n):
    ti = language(name)
    Array = ti.types.ndarray(dtype=ti.f32, ndim=1)

    @ti.kernel
    def saxpy(a: ti.f32, x: Array, y: Array):
        for i in range(x.shape[0]):
            y[i] += a * x[i]

    x, y = ti.ndarray(ti.f32, n), ti.ndarray(ti.f32, n)
    for array, values in zip((x, y), vectors(n), strict=True):
        array.from_numpy(values)
    return Step(lambda: saxpy(FACTOR, x, y), y.to_numpy, ti.sync)


def stencil_language(name, n):
    ti = language(name)
    Array = ti.types.ndarray(dtype=ti.f32, ndim=2)

    @ti.kernel
    def stencil(x: Array, y: Array):
        for i, j in ti.ndrange((1, x.shape[0] - 1), (1, x.shape[1] - 1)):
            y[i, j] = 0.2 * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])

    x, y = ti.ndarray(ti.f32, (n, n)), ti.ndarray(ti.f32, (n, n))
    x.from_numpy(vectors(n * n)[0].reshape(n, n))
    y.fill(0.0)
    return Step(lambda: stencil(x, y), y.to_numpy, ti.sync)


def sum_language(name, n):
    ti = language(name)
    Array = ti.types.ndarray(dtype=ti.f32, ndim=1)

    @ti.kernel
    def total(x: Array, s: Array):
        s[0] = 0.0
        for i in range(x.shape[0]):
            s[0] += x[i]

    x, s = ti.ndarray(ti.f32, n), ti.ndarray(ti.f32, 1)
    x.from_numpy(vectors(n)[0])
    return Step(lambda: total(x, s), s.to_numpy, ti.sync)


def histogram_language(name, n):
    ti = language(name)
    Array = ti.types.ndarray(dtype=ti.i32, ndim=1)

    @ti.kernel
    def histogram(k: Array, h: Array):
        for i in range(h.shape[0]):
            h[i] = 0
        for i in range(k.shape[0]):
            h[k[i]] += 1

    k, h = ti.ndarray(ti.i32, n), ti.ndarray(ti.i32, BINS)
    k.from_numpy(keys(n))
    return Step(lambda: histogram(k, h), h.to_numpy, ti.sync)


# -- peers of other forms ----------------------------------------------------------------------------------------------
def saxpy_numba(n):
    import numba as nb

    @nb.njit(parallel=True)
    def saxpy(a, x, y):
        for i in nb.prange(x.shape[0]):
            y[i] += a * x[i]

    x, y = vectors(n)
    return Step(lambda: saxpy(np.float32(FACTOR), x, y), lambda: y)


def stencil_numba(n):
    import numba as nb

    @nb.njit(parallel=True)
    def stencil(c, x, y):
        for i in nb.prange(1, x.shape[0] - 1):
            for j in range(1, x.shape[1] - 1):
                y[i, j] = c * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])

    x = vectors(n * n)[0].reshape(n, n)
    y = np.zeros_like(x)
    return Step(lambda: stencil(np.float32(0.2), x, y), lambda: y)


def sum_numba(n):
    import numba as nb

    @nb.njit(parallel=True, fastmath=True)
    def total(x):
        s = np.float32(0)
        for i in nb.prange(x.shape[0]):
            s += x[i]
        return s

    x = vectors(n)[0]
    return Step(lambda: total(x), lambda: total(x))


def histogram_numba(n):
    import numba as nb

    @nb.njit(parallel=True)
    def histogram(k, parts):
        per = (k.shape[0] + parts.shape[0] - 1) // parts.shape[0]
        for t in nb.prange(parts.shape[0]):
            parts[t, :] = 0
            for i in range(t * per, min((t + 1) * per, k.shape[0])):
                parts[t, k[i]] += 1
        return parts.sum(axis=0)

    k, parts = keys(n), np.zeros((nb.get_num_threads(), BINS), np.int32)
    return Step(lambda: histogram(k, parts), lambda: histogram(k, parts))


def saxpy_jax(n):
    import jax

    step = jax.jit(lambda x, y: y + np.float32(FACTOR) * x, donate_argnums=1)
    x, y = map(jax.numpy.asarray, vectors(n))
    held = [y]

    def run():
        held[0] = step(x, held[0])

    return Step(run, lambda: held[0], lambda: held[0].block_until_ready())


def stencil_jax(n):
    import jax

    c = np.float32(0.2)

    @functools.partial(jax.jit, donate_argnums=1)
    def step(x, y):
        return y.at[1:-1, 1:-1].set(c * (x[1:-1, 1:-1] + x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]))

    x = jax.numpy.asarray(vectors(n * n)[0].reshape(n, n))
    held = [jax.numpy.zeros_like(x)]

    def run():
        held[0] = step(x, held[0])

    return Step(run, lambda: held[0], lambda: held[0].block_until_ready())


def reduction_jax(function, values):
    import jax

    step, x, held = jax.jit(function), jax.numpy.asarray(values), [None]

    def run():
        held[0] = step(x)

    return Step(run, lambda: held[0], lambda: held[0].block_until_ready())


def histogram_jax(n):
    import jax.numpy as jnp

    return reduction_jax(lambda k: jnp.zeros(BINS, jnp.int32).at[k].add(1), keys(n))


def saxpy_warp(n):
    import warp as wp

    @wp.kernel(enable_backward=False)
    def saxpy(a: wp.float32, x: wp.array(dtype=wp.float32), y: wp.array(dtype=wp.float32)):
        i = wp.tid()
        y[i] = y[i] + a * x[i]

    x, y = (wp.array(v, dtype=wp.float32, device="cpu") for v in vectors(n))
    return Step(lambda: wp.launch(saxpy, dim=n, inputs=[FACTOR, x, y], device="cpu"), y.numpy)


def sum_numpy(n):
    x = vectors(n)[0]
    return Step(lambda: x.sum(), lambda: x.sum())


def saxpy_numpy(n):
    x, y = vectors(n)
    product = np.empty_like(x)

    def run():
        np.multiply(x, np.float32(FACTOR), out=product)
        np.add(y, product, out=y)

    return Step(run, lambda: y)


def _with_language(function, **others):
    return {name: functools.partial(function, name) for name in LANGUAGE} | others


SAXPY = _with_language(saxpy_language, numba=saxpy_numba, jax=saxpy_jax, warp=saxpy_warp, numpy=saxpy_numpy)
STENCIL = _with_language(stencil_language, numba=stencil_numba, jax=stencil_jax)
SUM = _with_language(
    sum_language, numba=sum_numba, numpy=sum_numpy, jax=lambda n: reduction_jax(lambda x: x.sum(), vectors(n)[0])
)
HISTOGRAM = _with_language(histogram_language, numba=histogram_numba, jax=histogram_jax)
