"""Reverse mode through time: a cloth of masses and springs, 100 steps, under a tape; the loss is the squared distance
of the mean position from a target, the result its gradient with respect to the initial velocities.

One run is the forward and the reverse pass. The note is the largest error of the gradient relative to its largest
element, against the same steps and their adjoint by hand in float64.
"""

import functools

import numpy as np

from benchmarks.harness import LANGUAGE, Step, language

STEPS, DT, STIFFNESS, DAMPING, PULL = 100, 2e-3, 800.0, 0.5, -0.98
TARGET = np.array([1.0, 0.5, 0.2])


def cloth(side):
    """Positions, velocities, pairs of masses and rest lengths: springs along rows, columns and both diagonals."""
    numbers = np.arange(side * side).reshape(side, side)
    gap = 1.0 / side
    kinds = (
        (numbers[:, :-1], numbers[:, 1:], gap),
        (numbers[:-1], numbers[1:], gap),
        (numbers[:-1, :-1], numbers[1:, 1:], gap * 2**0.5),
        (numbers[:-1, 1:], numbers[1:, :-1], gap * 2**0.5),
    )
    pairs = np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b, _ in kinds]).astype(np.int32)
    rest = np.concatenate([np.full(a.size, 0.95 * length) for a, _, length in kinds]).astype(np.float32)
    u, v = np.meshgrid(np.arange(side) * gap, np.arange(side) * gap, indexing="ij")
    x = np.stack([u, v, 0.05 * np.sin(7 * u)], -1).reshape(-1, 3).astype(np.float32)
    speed = np.zeros_like(x)
    speed[:, 0] = 0.5
    return x, speed, pairs, rest


@functools.cache
def exact(side):
    """The gradient in float64, by hand."""
    x, v, pairs, rest = cloth(side)
    x, v, rest, n = x.astype(float), v.astype(float), rest.astype(float), len(x)
    a, b = pairs.T
    states = []
    for _ in range(STEPS):
        d = x[b] - x[a]
        length = np.linalg.norm(d, axis=1, keepdims=True)
        pull = (STIFFNESS * (length - rest[:, None]) / length) * d
        force = np.tile([0.0, PULL, 0.0], (n, 1))
        np.add.at(force, a, pull)
        np.add.at(force, b, -pull)
        states.append((d, length))
        v = v * (1 - DT * DAMPING) + DT * force
        x = x + DT * v
    dx, dv = np.tile(2 * (x.mean(0) - TARGET) / n, (n, 1)), np.zeros_like(x)
    for d, length in reversed(states):
        dv = dv + DT * dx
        df = DT * dv
        g = df[a] - df[b]
        along = (g * d).sum(1, keepdims=True) * STIFFNESS * rest[:, None] / length**3
        dd = STIFFNESS * (length - rest[:, None]) / length * g + along * d
        np.add.at(dx, b, dd)
        np.add.at(dx, a, -dd)
        dv = dv * (1 - DT * DAMPING)
    return dv


def noted(side, run, gradient, wait=lambda: None):
    """Return a step whose note is the gradient's error."""

    def error():
        wanted, got = exact(side), np.asarray(gradient(), np.float64)
        return f"gradient error {np.abs(got - wanted).max() / np.abs(wanted).max():.1e}"

    return Step(run, gradient, wait, error)


def of_language(name, side):
    ti = language(name, **({"ad_stack_experimental_enabled": True} if name == "quadrants" else {}))
    x0, v0, pairs, rest = cloth(side)
    n, springs = len(x0), len(rest)
    x, v, f = (ti.Vector.field(3, ti.f32, (STEPS + 1, n), needs_grad=True) for _ in range(3))
    mean, loss = ti.Vector.field(3, ti.f32, (), needs_grad=True), ti.field(ti.f32, (), needs_grad=True)
    first, second, length0 = ti.field(ti.i32, springs), ti.field(ti.i32, springs), ti.field(ti.f32, springs)
    for field, values in ((first, pairs[:, 0]), (second, pairs[:, 1]), (length0, rest)):
        field.from_numpy(np.ascontiguousarray(values))
    for field, values in ((x, x0), (v, v0)):
        field.from_numpy(np.concatenate([values[None], np.zeros((STEPS, n, 3), np.float32)]))
    dt, stiffness, damping, pull = DT, STIFFNESS, DAMPING, PULL

    @ti.kernel
    def force(t: ti.i32):
        for s in first:
            a, b = first[s], second[s]
            d = x[t, b] - x[t, a]
            length = d.norm()
            along = (stiffness * (length - length0[s]) / length) * d
            f[t, a] += along
            f[t, b] -= along

    @ti.kernel
    def integrate(t: ti.i32):
        for i in range(n):
            speed = v[t, i] * (1.0 - dt * damping) + dt * (f[t, i] + ti.Vector([0.0, pull, 0.0]))
            v[t + 1, i] = speed
            x[t + 1, i] = x[t, i] + dt * speed

    @ti.kernel
    def average():
        for i in range(n):
            mean[None] += x[STEPS, i] / n

    @ti.kernel
    def measure():
        d = mean[None] - ti.Vector([1.0, 0.5, 0.2])
        loss[None] += d.dot(d)

    def run():
        f.fill(0)
        mean.fill(0)
        loss[None] = 0
        with ti.ad.Tape(loss=loss):
            for t in range(STEPS):
                force(t)
                integrate(t)
            average()
            measure()

    return noted(side, run, lambda: v.grad.to_numpy()[0], ti.sync)


def jax(side):
    import jax
    import jax.numpy as jnp

    x0, v0, pairs, rest = (jnp.asarray(values) for values in cloth(side))
    a, b = pairs.T
    real = np.float32

    def body(state, _):
        x, v = state
        d = x[b] - x[a]
        length = jnp.sqrt((d * d).sum(-1))
        along = (real(STIFFNESS) * (length - rest) / length)[:, None] * d
        force = jnp.zeros_like(x).at[a].add(along).at[b].add(-along)
        pull = jnp.array([0, PULL, 0], jnp.float32)
        v = v * real(1 - DT * DAMPING) + real(DT) * (force + pull)
        return (x + real(DT) * v, v), None

    def loss(v0):
        (x, _), _ = jax.lax.scan(body, (x0, v0), None, length=STEPS)
        d = x.mean(0) - jnp.asarray(TARGET, jnp.float32)
        return (d * d).sum()

    step, held = jax.jit(jax.value_and_grad(loss)), [None]

    def run():
        held[0] = step(v0)

    return noted(side, run, lambda: np.asarray(held[0][1]), lambda: jax.block_until_ready(held[0]))


def warp(side):
    import warp as wp

    wp.config.quiet = True
    wp.init()
    wp.set_device("cpu")
    x0, v0, pairs, rest = cloth(side)
    n, springs = len(x0), len(rest)
    Points = wp.array(dtype=wp.vec3)
    dt, stiffness, damping, share = (wp.constant(float(value)) for value in (DT, STIFFNESS, DAMPING, 1 / n))

    @wp.kernel
    def force(
        x: Points, f: Points, first: wp.array(dtype=int), second: wp.array(dtype=int), length0: wp.array(dtype=float)
    ):
        s = wp.tid()
        a = first[s]
        b = second[s]
        d = x[b] - x[a]
        length = wp.length(d)
        along = (stiffness * (length - length0[s]) / length) * d
        wp.atomic_add(f, a, along)
        wp.atomic_sub(f, b, along)

    @wp.kernel
    def integrate(x: Points, v: Points, f: Points, x1: Points, v1: Points):
        i = wp.tid()
        speed = v[i] * (1.0 - dt * damping) + dt * (f[i] + wp.vec3(0.0, -0.98, 0.0))
        v1[i] = speed
        x1[i] = x[i] + dt * speed

    @wp.kernel
    def average(x: Points, mean: Points):
        wp.atomic_add(mean, 0, x[wp.tid()] * share)

    @wp.kernel
    def measure(mean: Points, loss: wp.array(dtype=float)):
        d = mean[0] - wp.vec3(1.0, 0.5, 0.2)
        wp.atomic_add(loss, 0, wp.dot(d, d))

    def points(values=None):
        if values is None:
            return wp.zeros(n, dtype=wp.vec3, requires_grad=True)
        return wp.array(values, dtype=wp.vec3, requires_grad=True)

    xs, vs = ([points(first), *(points() for _ in range(STEPS))] for first in (x0, v0))
    fs = [points() for _ in range(STEPS)]
    mean = wp.zeros(1, dtype=wp.vec3, requires_grad=True)
    loss = wp.zeros(1, dtype=float, requires_grad=True)
    topology = [wp.array(np.ascontiguousarray(values)) for values in (pairs[:, 0], pairs[:, 1], rest)]
    last = [None]

    def run():
        if last[0] is not None:
            last[0].zero()
        for array in (*fs, mean, loss):
            array.zero_()
        tape = last[0] = wp.Tape()
        with tape:
            for t in range(STEPS):
                wp.launch(force, dim=springs, inputs=[xs[t], fs[t], *topology])
                wp.launch(integrate, dim=n, inputs=[xs[t], vs[t], fs[t], xs[t + 1], vs[t + 1]])
            wp.launch(average, dim=n, inputs=[xs[STEPS], mean])
            wp.launch(measure, dim=1, inputs=[mean, loss])
        tape.backward(loss)

    return noted(side, run, lambda: vs[0].grad.numpy(), wp.synchronize)


SPRINGS = {name: functools.partial(of_language, name) for name in LANGUAGE}
SPRINGS |= {"jax": jax, "warp": warp}
