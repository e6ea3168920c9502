"""Reverse and forward mode against central differences: loops of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from autodiff_kernels import E, Kernel, check, gradient

from qd_core import dtypes as dt
from qd_core.autodiff.reverse import reverse
from qd_core.ir.nodes import Function

RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.normal(size=shape))


# -- for ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("trips", [0, 1, 5])
def test_carried_scalar(trips: int) -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", a="f64[1]", loss="f64[1]", n="i32")

        def body(i: E) -> None:
            v = k.loop(0, k.n, [k.x[i]], lambda t, v: [k.a[i] * k.sin(v) + 0.1])
            k.loss.add(0, v)

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    x, a = normal(4), normal(4)
    values = {"x": x, "a": a, "loss": normal(1), "n": trips}
    check(make, values)
    adjoints = gradient(make, values, {"loss": np.ones(1)})
    dx, da, v = np.ones(4), np.zeros(4), x
    for _ in range(trips):
        da, dx, v = np.sin(v) + a * np.cos(v) * da, a * np.cos(v) * dx, a * np.sin(v) + 0.1
    np.testing.assert_allclose(adjoints["x"], dx, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(adjoints["a"], da, rtol=1e-12, atol=1e-15)


def test_invariant_gradient_is_added_once() -> None:
    k = Kernel(x="f64[1]", a="f64[1]", loss="f64[1]", n="i32")

    def body(i: E) -> None:
        k.loss.add(0, k.loop(0, k.n, [k.x[i]], lambda t, v: [k.a[i] * k.sin(v) + 0.1]))

    k.parallel(k.extent(k.x), body=body)
    transposed = reverse(k.done(), ["x", "a", "loss"])
    task = next(n for n in transposed.body.nodes if n.op.name == "parallel_for")
    loops = [n for n in task.regions[0].nodes if n.op.name == "for"]
    assert len(loops) == 2
    recorded_again, reversed_trips = [n for n in loops[1].regions[0].nodes if n.op.name == "for"]
    assert "scratch_store" in {n.op.name for n in recorded_again.regions[0].nodes}
    assert {n.op.name for n in reversed_trips.regions[0].nodes} <= {
        "scratch_load",
        "sin",
        "cos",
        "mul",
        "add",
        "yield",
        "sub",
        "const",
    }


@pytest.mark.parametrize("downward", [False, True])
def test_several_carried_and_swapped(downward: bool) -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]", n="i32")

        def body(i: E) -> None:
            def step(t: E, a: E, b: E, c: E) -> list[E]:
                return [b * c, a + k.sin(c), b * k.cast(t, dt.f64)]

            a, b, c = k.loop(2, k.n, [k.x[i], k.x[i] * 2.0, 0.5], step, reverse=downward)
            k.out[i] = a * b + c

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(3), "out": normal(3), "n": 6})
    check(make, {"x": normal(3), "out": normal(3), "n": 1})


def test_value_from_before_used_inside_and_after() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]", n="i32")

        def body(i: E) -> None:
            v = k.x[i]
            w = k.exp(v)
            s = k.loop(0, k.n, [0.0], lambda t, s: [s * w + v])
            k.out[i] = s * s * w

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(3), "out": normal(3), "n": 4})


def test_loads_that_move_with_the_loop() -> None:
    def make() -> Function:
        k = Kernel(x="f64[2]", out="f64[1]")

        def body(i: E) -> None:
            k.out[i] = k.loop(0, k.extent(k.x, 1), [1.0], lambda t, p: [p * k.x[i, t]])

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(3, 4), "out": normal(3)})


def test_nested_loops_with_dependent_bounds() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", w="f64[1]", out="f64[1]", n="i32")

        def body(i: E) -> None:
            def outer(t: E, v: E) -> list[E]:
                u = k.loop(t, k.n, [v * 0.5], lambda s, u: [k.sin(u) * k.w[s] + v])
                return [u + v * 0.3]

            k.out[i] = k.loop(0, k.n, [k.x[i]], outer)

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(3), "w": normal(5), "out": normal(3), "n": 4})


def test_three_deep() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]", n="i32")

        def body(i: E) -> None:
            def third(r: E, u: E) -> list[E]:
                return [k.sin(u) + k.x[i]]

            def second(s: E, v: E) -> list[E]:
                return [k.loop(0, s + 1, [v * 1.1], third)]

            k.out[i] = k.loop(0, k.n, [k.x[i]], lambda t, v: [k.loop(0, k.n, [v], second) * v])

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(2), "out": normal(2), "n": 3})


def test_bounds_from_array_elements() -> None:
    """A sparse matrix product: bounds and columns are array elements, one indexed by another."""

    def make() -> Function:
        k = Kernel(start="i32[1]", column="i32[1]", value="f64[1]", x="f64[1]", out="f64[1]")

        def body(i: E) -> None:
            k.out[i] = k.loop(k.start[i], k.start[i + 1], [0.0], lambda t, s: [s + k.value[t] * k.x[k.column[t]]])

        k.parallel(k.extent(k.out), body=body)
        return k.done()

    start, column = np.array([0, 2, 2, 5], np.int32), np.array([0, 2, 1, 0, 2], np.int32)
    check(make, {"start": start, "column": column, "value": normal(5), "x": normal(3), "out": normal(3)})


def test_bound_computed_from_a_real_value() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]")

        def body(i: E) -> None:
            n = k.cast(k.x[i] * 2.0, dt.i32)
            k.out[i] = k.loop(0, n, [k.x[i]], lambda t, v: [v * v + 0.1])

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": np.array([0.3, 1.2, 0.8, -2.0]), "out": normal(4)})


def test_integers_that_steer_later_branches() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]", n="i32")

        def body(i: E) -> None:
            def step(t: E, v: E, c: E) -> list[E]:
                u = k.if_((c % 2).eq(0), lambda: [k.sin(v) * v], lambda: [v + 0.7])
                return [u, c * 3 + k.cast(v > 0.5, dt.i32)]

            v, c = k.loop(0, k.n, [k.x[i], i], step)
            k.out[i] = v * k.cast(c % 5, dt.f64)

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(6), "out": normal(6), "n": 5})


def test_condition_on_a_carried_value() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]", n="i32")

        def body(i: E) -> None:
            k.out[i] = k.loop(
                0, k.n, [k.x[i]], lambda t, v: [k.if_(v > 0.3, lambda: [v * v - 0.4], lambda: [k.cos(v) + k.x[i]])]
            )

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(6), "out": normal(6), "n": 6})


def test_accumulation_in_memory_inside_a_loop() -> None:
    def make() -> Function:
        k = Kernel(x="f64[2]", y="f64[1]")

        def body(i: E) -> None:
            def step(t: E) -> None:
                k.y[i] = k.y[i] * 0.5 + k.sin(k.x[i, t])

            k.loop(0, k.extent(k.x, 1), [], step)

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(2, 3), "y": normal(2)})


def test_time_stepping_in_one_kernel() -> None:
    """x[t+1] = f(x[t]): the element read at trip t is never written later."""

    def make() -> Function:
        k = Kernel(x="f64[2]")

        def body(i: E) -> None:
            def step(t: E) -> None:
                v = k.x[t, i]
                k.x[t + 1, i] = v * v * 0.5 + k.sin(v)

            k.loop(0, k.extent(k.x) - 1, [], step)

        k.parallel(k.extent(k.x, 1), body=body)
        return k.done()

    check(make, {"x": normal(4, 3)})


def test_loop_in_serial_glue() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[0]")
        k.out[()] = k.loop(0, k.extent(k.x), [1.0], lambda t, p: [p * k.sin(k.x[t])])
        return k.done()

    check(make, {"x": normal(4), "out": normal()})


# -- break and while ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("downward", [False, True])
def test_break_on_data(downward: bool) -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]", n="i32")

        def body(i: E) -> None:
            def step(t: E, v: E) -> list[E]:
                u = v * 1.3 + k.sin(k.cast(t, dt.f64) * 0.1 * v)
                return [u, u < 2.0]

            k.out[i] = k.loop(1, k.n, [k.x[i]], step, reverse=downward, breaks=True)

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(7), "out": normal(7), "n": 9})
    check(make, {"x": normal(7), "out": normal(7), "n": 0})


def test_while_on_data() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", a="f64[1]", out="f64[1]")

        def body(i: E) -> None:
            v, c = k.while_(
                [k.x[i], 0], lambda v, c: (v < 3.0) & (c < 20), lambda v, c: [v * k.a[i] + k.exp(v * 0.1), c + 1]
            )
            k.out[i] = v * v + k.cast(c, dt.f64) * v

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(5), "a": np.abs(normal(5)) + 1, "out": normal(5)})
    check(make, {"x": normal(5) + 9, "a": normal(5), "out": normal(5)})


def test_while_inside_for_with_break() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]", n="i32")

        def body(i: E) -> None:
            def step(t: E, v: E, w: E) -> list[E]:
                u = k.while_([v], lambda u: u > 0.5, lambda u: [u * 0.5 + k.sin(u) * 0.1])
                r = u * w + k.x[i]
                return [r, w + u, k.op("lt", r, 4.0)]

            v, w = k.loop(0, k.n, [k.x[i], 1.0], step, breaks=True)
            k.out[i] = v * w

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": np.array([1.5, 0.2, 2.4, -0.8]), "out": normal(4), "n": 5})
