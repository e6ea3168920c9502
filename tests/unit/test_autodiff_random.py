"""Random kernels: nests of loops, branches and memory; reverse and forward mode must be transposes of each other."""

from __future__ import annotations

import random

import numpy as np
import pytest
from autodiff_kernels import E, Kernel, gradient, run, tangent

from qd_core import dtypes as dt
from qd_core.ir.nodes import Function
from qd_core.passes.hoist import hoist_invariants

EXTENT = 3
ROWS = 4


class Writer:
    """Writes one random kernel: sines and cosines bound reals; `x` is read, `y` and `z` are written."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.k = Kernel(x="f64[2]", c="f64[1]", index="i32[1]", y="f64[2]", z="f64[1]", n="i32")

    def function(self) -> Function:
        k = self.k
        glue = k.sin(k.x[0, 0] * k.x[1, 2]) if self.r.random() < 0.4 else None

        def body(i: E) -> None:
            reals, integers = [k.x[self.r.randrange(ROWS), i], k.c[i] * 0.5], [i, k.n, k.index[i]]
            if glue is not None:
                reals.append(glue)
            self.block(3, i, reals, integers, 6)
            k.y[0, i] = self.real(reals, integers)
            k.z.add(self.r.choice([0, i]), self.real(reals, integers) * reals[-1])

        k.parallel(EXTENT, body=body)
        if self.r.random() < 0.5:
            k.z.add(1, k.sin(k.y[0, 1]) * (glue if glue is not None else k.x[2, 0]))
        return k.done()

    # -- expressions --------------------------------------------------------------------------------------------
    def real(self, reals: list[E], integers: list[E]) -> E:
        k, r = self.k, self.r
        a, b = r.choice(reals), r.choice(reals)
        kind = r.randrange(9)
        if kind == 0:
            return a * b
        if kind == 1:
            return k.sin(a + b)
        if kind == 2:
            return k.cos(a * 1.3)
        if kind == 3:
            return a - b * 0.5
        if kind == 4:
            return k.select(a < b, k.tanh(a), k.sin(b) * a)
        if kind == 5:
            return k.max(k.tanh(a), b * 0.7)
        if kind == 6:
            return a * k.sin(k.cast(r.choice(integers), dt.f64))
        if kind == 7:
            return k.x[r.randrange(ROWS), r.choice(integers) % EXTENT] + a
        return k.tanh(a) / (b * b + 1.0)

    def integer(self, reals: list[E], integers: list[E]) -> E:
        k, r = self.k, self.r
        kind = r.randrange(3)
        if kind == 0:
            return (r.choice(integers) * 3 + r.choice(integers)) % 5
        if kind == 1:
            return k.cast(r.choice(reals) * 2.0, dt.i32)
        return k.index[r.choice(integers) % EXTENT]

    def condition(self, reals: list[E], integers: list[E]) -> E:
        return self.r.choice(
            [lambda: (self.r.choice(integers) % 2).eq(0), lambda: self.r.choice(reals) < self.r.choice(reals)]
        )()

    # -- statements ---------------------------------------------------------------------------------------------
    def block(self, depth: int, i: E, reals: list[E], integers: list[E], size: int) -> None:
        """Append to ``reals`` and ``integers``; what inner blocks append stays theirs."""
        for _ in range(self.r.randrange(2, size)):
            choices = [self.plain, self.plain, self.memory]
            if depth:
                choices += [self.branch, self.loop, self.loop, self.until]
            self.r.choice(choices)(depth - 1, i, reals, integers)

    def plain(self, depth: int, i: E, reals: list[E], integers: list[E]) -> None:
        reals.append(self.real(reals, integers))
        integers.append(self.integer(reals, integers))

    def memory(self, depth: int, i: E, reals: list[E], integers: list[E]) -> None:
        row = self.r.randrange(1, 3)
        if self.r.random() < 0.5:
            self.k.y[row, i] = self.k.y[row, i] * 0.5 + self.real(reals, integers)
        else:
            self.k.y.add((row, i), self.real(reals, integers))

    def inner(self, depth: int, i: E, reals: list[E], integers: list[E]) -> tuple[list[E], list[E]]:
        own, numbers = list(reals), list(integers)
        self.block(depth, i, own, numbers, 4)
        return own, numbers

    def branch(self, depth: int, i: E, reals: list[E], integers: list[E]) -> None:
        def side() -> list[E]:
            own, numbers = self.inner(depth, i, reals, integers)
            return [own[-1], self.r.choice(own), numbers[-1]]

        a, b, c = self.k.if_(self.condition(reals, integers), side, side)
        reals += [a, b]
        integers.append(c)

    def loop(self, depth: int, i: E, reals: list[E], integers: list[E]) -> None:
        breaks, downward = self.r.random() < 0.3, self.r.random() < 0.4
        start = self.r.choice([0, 1, self.r.choice(integers) % 3])
        stop = self.r.choice([self.k.n, 3, self.integer(reals, integers) % 4])

        def body(t: E, a: E, b: E, c: E) -> list[E]:
            own, numbers = self.inner(depth, i, [*reals, a, b], [*integers, t, c])
            nexts = [self.r.choice([own[-1], b, a]), self.real(own, numbers), (numbers[-1] + c) % 7]
            return [*nexts, self.condition(own, numbers)] if breaks else nexts

        inits = [self.r.choice(reals), 0.3, self.r.choice(integers) % 7]
        a, b, c = self.k.loop(start, stop, inits, body, reverse=downward, breaks=breaks)
        reals += [a, b]
        integers.append(c)

    def until(self, depth: int, i: E, reals: list[E], integers: list[E]) -> None:
        limit = self.r.randrange(0, 4)

        def test(a: E, c: E) -> E:
            return (c < limit) & self.condition([*reals, a], [*integers, c])

        def body(a: E, c: E) -> list[E]:
            own, numbers = self.inner(depth, i, [*reals, a], [*integers, c])
            return [self.real(own, numbers), c + 1]

        a, c = self.k.while_([self.r.choice(reals), 0], test, body)
        reals.append(a)
        integers.append(c)


def data(seed: int) -> dict[str, object]:
    g = np.random.default_rng(seed)
    return {
        "x": g.normal(size=(ROWS, EXTENT)),
        "c": g.normal(size=EXTENT),
        "index": g.integers(0, EXTENT, EXTENT).astype(np.int32),
        "y": g.normal(size=(3, EXTENT)),
        "z": g.normal(size=EXTENT),
        "n": int(g.integers(0, 4)),
    }


def transposes(seed: int) -> None:
    values = data(seed)
    paths = ["x", "y", "z"]
    g = np.random.default_rng(seed + 1)
    duals = {p: g.normal(size=values[p].shape) for p in paths}  # type: ignore[attr-defined]
    seeds = {p: g.normal(size=values[p].shape) for p in paths}  # type: ignore[attr-defined]

    def make() -> Function:
        return Writer(seed).function()

    adjoints = gradient(make, values, seeds, ["c"])
    tangents = tangent(make, values, duals, ["c"])
    inner = [np.sum(seeds[p] * tangents[p]) for p in paths]
    outer = [np.sum(adjoints[p] * duals[p]) for p in paths]
    scale = sum(np.sum(np.abs(seeds[p] * tangents[p])) + np.sum(np.abs(adjoints[p] * duals[p])) for p in paths)
    np.testing.assert_allclose(sum(outer), sum(inner), atol=1e-11 * scale, rtol=0)


def unchanged_by_hoisting(seed: int) -> None:
    plain, moved = data(seed), data(seed)
    run(Writer(seed).function(), plain)
    run(hoist_invariants(Writer(seed).function(), no_overlap=True), moved)
    for name, value in plain.items():
        np.testing.assert_array_equal(moved[name], value, err_msg=f"seed {seed}: {name}")


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_hoisting_changes_no_bit(first: int) -> None:
    for seed in range(first, first + 10):
        unchanged_by_hoisting(seed)


def test_hoisting_moves_something() -> None:
    kernels = [Writer(seed).function() for seed in range(10)]
    assert sum(hoist_invariants(f, no_overlap=True) is not f for f in kernels) > 5


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_reverse_is_the_transpose_of_forward(first: int) -> None:
    for seed in range(first, first + 10):
        transposes(seed)
