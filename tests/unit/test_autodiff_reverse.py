"""Reverse and forward mode against central differences, construct by construct."""

from __future__ import annotations

import numpy as np
import pytest
from autodiff_kernels import E, Kernel, check, gradient, run

from qd_core import dtypes as dt
from qd_core.autodiff.reverse import reverse
from qd_core.ir.nodes import Function

RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.normal(size=shape))


# -- straight line ----------------------------------------------------------------------------------------------------------
def test_product_and_sine() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", y="f64[1]", z="f64[1]")

        def body(i: E) -> None:
            k.z[i] = k.x[i] * k.y[i] + k.sin(k.x[i] * 2.0)

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    x, y, w = normal(4), normal(4), normal(4)
    values = {"x": x, "y": y, "z": normal(4)}
    check(make, values)
    adjoints = gradient(make, values, {"z": w})
    np.testing.assert_allclose(adjoints["x"], w * (y + 2 * np.cos(2 * x)), rtol=1e-12)
    np.testing.assert_allclose(adjoints["y"], w * x, rtol=1e-12)
    np.testing.assert_array_equal(adjoints["z"], 0)


def test_vector_elements() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1x3]", out="f64[1]")

        def body(i: E) -> None:
            square = k.x[i, 0] * k.x[i, 0] + k.x[i, 1] * k.x[i, 1] + k.x[i, 2] * k.x[i, 2]
            k.out[i] = k.sqrt(square) * k.x[i, 1]

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(3, 3), "out": normal(3)})


def test_two_dimensions_and_shared_cells() -> None:
    """A stencil: neighbouring iterations add to the same gradient."""

    def make() -> Function:
        k = Kernel(u="f64[2]", out="f64[2]")

        def body(i: E, j: E) -> None:
            d = k.u[i + 1, j] - k.u[i, j]
            e = k.u[i, j + 1] - k.u[i, j]
            k.out[i, j] = k.sqrt(d * d + e * e + 1.0)

        k.parallel(k.extent(k.u) - 1, k.extent(k.u, 1) - 1, body=body)
        return k.done()

    check(make, {"u": normal(4, 5), "out": normal(4, 5)})
    text = _operations(reverse(make(), ["u", "out"]))
    assert "atomic" in text


def test_gather_through_integer_indices() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", index="i32[1]", out="f64[1]")

        def body(i: E) -> None:
            v = k.x[k.index[i]]
            k.out[i] = v * v

        k.parallel(k.extent(k.index), body=body)
        return k.done()

    check(make, {"x": normal(3), "index": np.array([0, 2, 2, 1, 0], np.int32), "out": normal(5)})


def test_exclusive_loads_need_no_atomics() -> None:
    def make() -> Function:
        k = Kernel(x="f64[2]", out="f64[2]")

        def body(i: E, j: E) -> None:
            k.out[i, j] = k.x[i, j] * k.x[i, j]

        k.parallel(k.extent(k.x), k.extent(k.x, 1), body=body)
        return k.done()

    assert "atomic" not in _operations(reverse(make(), ["x", "out"]))
    check(make, {"x": normal(2, 3), "out": normal(2, 3)})


def test_two_exclusive_loads_at_different_cells_meet() -> None:
    """x[i] and x[i+1] are each injective, but iterations i and i+1 touch the same gradient."""

    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]")

        def body(i: E) -> None:
            k.out[i] = k.x[i] * k.x[i + 1]

        k.parallel(k.extent(k.out), body=body)
        return k.done()

    assert _operations(reverse(make(), ["x", "out"])).count("atomic") == 2
    check(make, {"x": normal(5), "out": normal(4)})


def test_casts_between_reals_pass_and_to_integers_stop() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]")

        def body(i: E) -> None:
            v = k.x[i]
            steps = k.cast(k.cast(v * 3.0, dt.i32), dt.f64)
            k.out[i] = k.cast(k.cast(v, dt.f32), dt.f64) * steps

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    adjoints = gradient(make, {"x": np.array([0.5, 1.5, -2.5]), "out": np.zeros(3)}, {"out": np.ones(3)})
    np.testing.assert_array_equal(adjoints["x"], [1, 4, -7])


def test_f32_gradients_stay_f32() -> None:
    def make() -> Function:
        k = Kernel(x="f32[1]", out="f32[1]")

        def body(i: E) -> None:
            k.out[i] = k.exp(k.x[i])

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    x = np.array([0.5, -1], np.float32)
    adjoints = gradient(make, {"x": x, "out": np.zeros(2, np.float32)}, {"out": np.ones(2, np.float32)})
    assert adjoints["x"].dtype == np.float32
    np.testing.assert_allclose(adjoints["x"], np.exp(x), rtol=1e-6)


# -- memory -----------------------------------------------------------------------------------------------------------------
def test_store_takes_the_gradient_of_the_cell() -> None:
    """What was in the cell before the store has gradient zero."""

    def make() -> Function:
        k = Kernel(x="f64[1]", y="f64[1]")

        def body(i: E) -> None:
            k.y[i] = k.x[i] * 3.0

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    adjoints = gradient(make, {"x": normal(3), "y": normal(3)}, {"y": np.ones(3), "x": np.full(3, 10.0)})
    np.testing.assert_array_equal(adjoints["x"], 13)
    np.testing.assert_array_equal(adjoints["y"], 0)


def test_store_of_a_constant_clears_the_gradient() -> None:
    def make() -> Function:
        k = Kernel(y="f64[1]")

        def body(i: E) -> None:
            k.y[i] = 1.0

        k.parallel(2, body=body)
        return k.done()

    adjoints = gradient(make, {"y": normal(3)}, {"y": np.ones(3)})
    np.testing.assert_array_equal(adjoints["y"], [0, 0, 1])
    check(make, {"y": normal(3)})


def test_chain_through_memory_in_one_iteration() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", y="f64[1]", z="f64[1]")

        def body(i: E) -> None:
            k.y[i] = k.sin(k.x[i])
            k.z[i] = k.y[i] * k.y[i]

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(3), "y": normal(3), "z": normal(3)})


def test_chain_through_memory_across_tasks() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", y="f64[1]", z="f64[1]")

        def first(i: E) -> None:
            k.y[i] = k.sin(k.x[i])

        def second(i: E) -> None:
            k.z[i] = k.y[i] * k.y[i + 1]

        k.parallel(k.extent(k.x), body=first)
        k.parallel(k.extent(k.z), body=second)
        return k.done()

    check(make, {"x": normal(4), "y": normal(4), "z": normal(3)})


def test_scaling_in_place_is_linear() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]")

        def body(i: E) -> None:
            k.x[i] = k.x[i] * 2.0 + 1.0

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(3)})


def test_atomic_add_into_one_cell() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", w="f64[0]", loss="f64[0]")

        def body(i: E) -> None:
            k.loss.add((), k.x[i] * k.x[i] * k.w[()])

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(6), "w": normal(), "loss": normal()})


def test_scatter_by_atomics() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", index="i32[1]", out="f64[1]")

        def body(i: E) -> None:
            k.out.add(k.index[i], k.sin(k.x[i]))

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(5), "index": np.array([1, 0, 1, 2, 1], np.int32), "out": normal(3)})


def test_arrays_without_gradient_are_constants() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", c="f64[1]", out="f64[1]")

        def body(i: E) -> None:
            k.out[i] = k.x[i] * k.c[i]

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check_values = {"x": normal(3), "c": normal(3), "out": normal(3)}
    check(make, check_values, without=["c"])
    assert all(p.path != "c.grad" for p in reverse(make(), ["x", "out"]).params)


def test_values_of_serial_glue_gather_from_all_iterations() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", s="f64[1]", out="f64[1]")
        scale = k.sin(k.s[0]) * k.s[1]

        def body(i: E) -> None:
            k.out[i] = k.x[i] * scale

        k.parallel(k.extent(k.x), body=body)
        k.s[2] = k.s[2] * 0.5 + scale
        return k.done()

    check(make, {"x": normal(4), "s": normal(3), "out": normal(4)})


# -- if ---------------------------------------------------------------------------------------------------------------------
def test_if_with_results_and_outer_values() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]")

        def body(i: E) -> None:
            v = k.x[i]
            u = v * v
            r = k.if_(v > 0.0, lambda: [k.sin(v) * u], lambda: [u * 3.0])
            k.out[i] = r * r + u

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": np.array([-1.2, 0.3, 2.0, -0.1]), "out": normal(4)})


def test_if_with_effects_only() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]")

        def body(i: E) -> None:
            v = k.x[i]

            def then() -> None:
                k.out[i] = k.exp(v)

            def otherwise() -> None:
                k.out.add(i, v * v)

            k.if_(v > 0.0, then, otherwise)

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": np.array([-1.2, 0.3, 2.0, -0.1]), "out": normal(4)})


def test_nested_ifs() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]")

        def body(i: E) -> None:
            v = k.x[i]
            inner = lambda: [k.if_(v > 1.0, lambda: [v * v * v], lambda: [k.cos(v)])]  # noqa: E731
            r = k.if_(v > 0.0, inner, lambda: [v * 5.0])
            k.out[i] = k.exp(r * 0.1)

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": np.array([-1.2, 0.3, 2.0, 0.9]), "out": normal(4)})


# -- for --------------------------------------------------------------------------------------------------------------------
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
    assert {n.op.name for n in loops[1].regions[0].nodes} <= {"scratch_load", "sin", "cos", "mul", "add", "yield", "sub", "const"}


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
            k.out[i] = k.loop(0, k.n, [k.x[i]], lambda t, v: [k.if_(v > 0.3, lambda: [v * v - 0.4], lambda: [k.cos(v) + k.x[i]])])

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


# -- break and while --------------------------------------------------------------------------------------------------------
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
            v, c = k.while_([k.x[i], 0], lambda v, c: (v < 3.0) & (c < 20), lambda v, c: [v * k.a[i] + k.exp(v * 0.1), c + 1])
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


# -- selections -------------------------------------------------------------------------------------------------------------
def test_untaken_side_gives_no_nan() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]")

        def body(i: E) -> None:
            v = k.x[i]
            safe = k.select(v > 0.0, k.log(v) * v, 0.0)
            k.out[i] = safe + k.max(k.log(v), -1.0) + k.select(v < 1.0, v, k.exp(v) * v)

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    adjoints = gradient(make, {"x": np.array([0.0, -1.0, 2.0, 2000.0]), "out": np.zeros(4)}, {"out": np.ones(4)})
    assert np.isfinite(adjoints["x"][:3]).all()
    np.testing.assert_allclose(adjoints["x"][:3], [1, 1, np.log(2) + 1 + 0.5 + 3 * np.exp(2)], rtol=1e-12)


def test_selection_among_carried_values() -> None:
    def make() -> Function:
        k = Kernel(x="f64[2]", out="f64[1]")

        def body(i: E) -> None:
            def step(t: E, a: E, b: E) -> list[E]:
                e = k.x[i, t]
                return [k.select(e > 0.0, a * e, a), k.max(b, k.sin(e) * a)]

            a, b = k.loop(0, k.extent(k.x, 1), [1.0, 0.1], step)
            k.out[i] = a * b

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    check(make, {"x": normal(3, 5), "out": normal(3)})


# -- the shape of the result ------------------------------------------------------------------------------------------------
def _operations(function: Function) -> str:
    stack, names = [function.body], []
    while stack:
        for node in stack.pop().nodes:
            names.append(node.op.name)
            stack.extend(node.regions)
    return " ".join(names)


def test_effects_run_once() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]")

        def body(i: E) -> None:
            v = k.x[i]
            k.b.check("assert", (v > -100.0).v)
            k.b.print(("v ", (0, "")), [v.v])
            k.out[i] = v * v

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    operations = _operations(reverse(make(), ["x", "out"]))
    assert "check" not in operations
    assert "print" not in operations


def test_dead_gradient_is_no_task() -> None:
    k = Kernel(x="f64[1]", n="i32[1]")

    def body(i: E) -> None:
        k.n[i] = k.cast(k.x[i], dt.i32)

    k.parallel(k.extent(k.x), body=body)
    transposed = reverse(k.done(), ["x"])
    assert [n.op.name for n in transposed.body.nodes] == ["yield"]
    assert [p.path for p in transposed.params] == ["x", "n"]


def test_name_and_existing_gradient_parameter() -> None:
    k = Kernel(**{"x": "f64[1]", "y": "f64[1]", "x.grad": "f64[1]"})

    def body(i: E) -> None:
        k.y[i] = k.x[i] * k.x[i]

    k.parallel(k.extent(k.x), body=body)
    function = k.done()
    transposed = reverse(function, ["x", "y"])
    assert transposed.name == "kernel_grad"
    assert [p.path for p in transposed.params] == ["x", "y", "x.grad", "y.grad"]
    assert transposed.params[2] is function.params[2]


def test_size_stays_within_four_times_the_primal() -> None:
    k = Kernel(x="f64[1]", y="f64[1]")

    def body(i: E) -> None:
        v = k.x[i]
        for _ in range(200):
            v = k.sin(v) * v + k.x[i]
        k.y[i] = v

    k.parallel(k.extent(k.x), body=body)
    function = k.done()
    before = len(_operations(function).split())
    assert len(_operations(reverse(function, ["x", "y"])).split()) <= 4 * before


def test_empty_arrays() -> None:
    def make() -> Function:
        k = Kernel(x="f64[1]", y="f64[1]")

        def body(i: E) -> None:
            k.y[i] = k.x[i] * k.x[i]

        k.parallel(k.extent(k.x), body=body)
        return k.done()

    adjoints = gradient(make, {"x": np.zeros(0), "y": np.zeros(0)}, {})
    assert adjoints["x"].shape == (0,)


def test_long_chain_is_transposed_without_recursion() -> None:
    k = Kernel(x="f64[1]", y="f64[1]")

    def body(i: E) -> None:
        v = k.x[i]
        for _ in range(3000):
            v = k.sin(v)
        k.y[i] = v

    k.parallel(k.extent(k.x), body=body)
    values = {"x": np.ones(2), "y": np.zeros(2), "x.grad": np.zeros(2), "y.grad": np.ones(2)}
    run(reverse(k.done(), ["x", "y"]), values)
    assert (values["x.grad"] > 0).all()


def test_constants_written_inside_move_with_their_users() -> None:
    """Bounds and indices that are constants of an inner region are needed where the invariant load goes."""

    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]", n="i32")

        def body(i: E) -> None:
            def outer(t: E, v: E) -> list[E]:
                return [k.loop(3, 6, [v], lambda s, u: [k.sin(u) * k.x[7] + k.x[i]])]

            k.out[i] = k.loop(0, k.n, [k.x[i]], outer)

        k.parallel(4, body=body)
        return k.done()

    check(make, {"x": normal(8), "out": normal(4), "n": 2})


def test_invariant_load_of_a_loop_that_never_runs_reads_nothing() -> None:
    """The index is outside the array exactly where the loop is empty."""

    def make() -> Function:
        k = Kernel(x="f64[1]", index="i32[1]", n="i32[1]", out="f64[1]")

        def body(i: E) -> None:
            k.out[i] = k.loop(0, k.n[i], [0.5], lambda t, v: [v * k.x[k.index[i]]])

        k.parallel(k.extent(k.out), body=body)
        return k.done()

    values = {"x": normal(2), "index": np.array([1, 99], np.int32), "n": np.array([3, 0], np.int32), "out": normal(2)}
    check(make, values)


def test_serial_loops_around_parallel_ones() -> None:
    """A loop of the serial glue records values; parallel tasks between it and its reverse do not disturb them."""

    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]", total="f64[0]", n="i32")

        def outer(t: E, v: E) -> list[E]:
            return [k.loop(0, k.n, [v], lambda s, u: [k.sin(u) * k.x[s]]) * v]

        scale = k.loop(0, k.n, [k.x[0]], outer)
        k.out[0] = scale * scale

        def body(i: E) -> None:
            k.total.add((), k.out[i] * scale)

        k.parallel(k.extent(k.out), body=body)
        last = k.loop(0, k.n, [scale], lambda t, v: [k.cos(v) + k.x[t]])
        k.total.add((), last * last)
        return k.done()

    check(make, {"x": normal(4), "out": normal(3), "total": normal(), "n": 3})


def test_memory_of_inner_loops_is_reserved_once() -> None:
    """The inner loop's length does not change, so its trips share private memory reserved outside the outer loop."""
    k = Kernel(x="f64[1]", out="f64[1]", n="i32", m="i32")

    def body(i: E) -> None:
        k.out[i] = k.loop(0, k.n, [k.x[i]], lambda t, v: [k.loop(0, k.m, [v], lambda s, u: [k.sin(u)]) * v])

    k.parallel(k.extent(k.x), body=body)
    task = next(n for n in reverse(k.done(), ["x", "out"]).body.nodes if n.op.name == "parallel_for")
    assert [n.op.name for n in task.regions[0].nodes].count("scratch") == 2


def test_shared_gradients_are_updated_by_atomics() -> None:
    k = Kernel(x="f64[1]", y="f64[1]", out="f64[1]")

    def body(i: E) -> None:
        k.out[i] = k.x[i] * k.y[i]

    k.parallel(k.extent(k.x), body=body)
    function = k.done()
    assert _operations(reverse(function, ["x", "y", "out"])).count("atomic") == 0
    shared = reverse(function, ["x", "y", "out"], shared=True)
    assert _operations(shared).count("atomic") == 2
    x, gradient_of_x = normal(3), np.zeros(3)
    run(shared, {"x": x, "y": x, "out": x * x, "x.grad": gradient_of_x, "y.grad": gradient_of_x, "out.grad": np.ones(3)})
    np.testing.assert_allclose(gradient_of_x, 2 * x, rtol=1e-15)


def test_arrays_that_must_not_overlap_are_listed() -> None:
    k = Kernel(x="f64[1]", c="f64[1]", out="f64[1]")

    def body(i: E) -> None:
        k.out[i] = k.x[i] * k.c[i]

    k.parallel(k.extent(k.x), body=body)
    pairs = reverse(k.done(), ["x", "out"]).attrs["no_overlap"]
    assert pairs == (("c", "out"), ("out", "x"), ("out.grad", "x.grad"))
