"""Reverse mode through a loop with a run-time bound: x <- a sin(x) + b, 64 times, for n chains; loss = sum of the x.

One run is the forward and the reverse pass, gradients zeroed. The note is the largest error of the gradient relative to
its largest element, against the analytic gradient in float64.
"""

import functools

import numpy as np

from benchmarks.harness import LANGUAGE, Step, language

TRIPS = 64
SHIFT = np.float32(0.1)


def starts(n):
    rng = np.random.default_rng(4)
    return rng.uniform(-1, 1, n).astype(np.float32), rng.uniform(1, 1.5, n).astype(np.float32)


def exact(n):
    x, a = (values.astype(np.float64) for values in starts(n))
    dx, da = np.ones(n), np.zeros(n)
    for _ in range(TRIPS):
        s, c = np.sin(x), np.cos(x)
        da, dx, x = s + a * c * da, a * c * dx, a * s + np.float64(SHIFT)
    return np.stack([dx, da])


def noted(run, gradients, wait=lambda: None):
    """Return a step whose note is the gradient's error."""

    def error():
        wanted, got = exact(len(gradients()[0])), np.asarray(gradients(), np.float64)
        errors = [np.abs(g - w).max() / np.abs(w).max() for g, w in zip(got, wanted, strict=True)]
        return f"gradient error {max(errors):.1e}"

    return Step(run, gradients, wait, error)


def of_language(name, n):
    ti = language(name, **({"ad_stack_experimental_enabled": True} if name == "quadrants" else {"ad_stack_size": 72}))
    Array = ti.types.ndarray(dtype=ti.f32, ndim=1)

    @ti.kernel
    def chain(x: Array, a: Array, loss: Array, trips: Array):
        for i in range(x.shape[0]):
            v = x[i]
            for _ in range(trips.shape[0]):
                v = a[i] * ti.sin(v) + 0.1
            loss[0] += v

    x, a, loss = (ti.ndarray(ti.f32, m, needs_grad=True) for m in (n, n, 1))
    trips = ti.ndarray(ti.f32, TRIPS)
    for array, values in zip((x, a), starts(n), strict=True):
        array.from_numpy(values)

    def run():
        loss.fill(0.0)
        chain(x, a, loss, trips)
        x.grad.fill(0.0)
        a.grad.fill(0.0)
        loss.grad.fill(1.0)
        chain.grad(x, a, loss, trips)

    return noted(run, lambda: np.stack([x.grad.to_numpy(), a.grad.to_numpy()]), ti.sync)


def jax(n):
    import jax
    import jax.numpy as jnp

    def loss(x, a):
        return jax.lax.scan(lambda v, _: (a * jnp.sin(v) + SHIFT, None), x, None, length=TRIPS)[0].sum()

    step, held = jax.jit(jax.value_and_grad(loss, (0, 1))), [None]
    x, a = map(jnp.asarray, starts(n))

    def run():
        held[0] = step(x, a)

    return noted(run, lambda: np.stack(held[0][1]), lambda: jax.block_until_ready(held[0]))


def numba_by_hand(n):
    import numba as nb

    @nb.njit(parallel=True, fastmath=True)
    def adjoint(x, a, dx, da):
        for i in nb.prange(x.shape[0]):
            history = np.empty(TRIPS, np.float32)
            v = x[i]
            for t in range(TRIPS):
                history[t] = v
                v = a[i] * np.sin(v) + SHIFT
            g, total = np.float32(1), np.float32(0)
            for t in range(TRIPS - 1, -1, -1):
                total += g * np.sin(history[t])
                g *= a[i] * np.cos(history[t])
            dx[i], da[i] = g, total

    x, a = starts(n)
    dx, da = np.zeros_like(x), np.zeros_like(x)
    return noted(lambda: adjoint(x, a, dx, da), lambda: np.stack([dx, da]))


LOOP = {name: functools.partial(of_language, name) for name in LANGUAGE}
LOOP |= {"jax": jax, "numba (adjoint by hand)": numba_by_hand}
