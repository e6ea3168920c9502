"""Reverse and forward mode against central differences: straight lines, memory, branches, selections."""

from __future__ import annotations

import numpy as np
from autodiff_kernels import E, Kernel, check, gradient, operations

from qd_core import dtypes as dt
from qd_core.autodiff.reverse import reverse
from qd_core.ir.nodes import Function

RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.normal(size=shape))


# -- straight line --------------------------------------------------------------------------------------------------
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
    text = operations(reverse(make(), ["u", "out"]))
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

    assert "atomic" not in operations(reverse(make(), ["x", "out"]))
    check(make, {"x": normal(2, 3), "out": normal(2, 3)})


def test_two_exclusive_loads_at_different_cells_meet() -> None:
    """x[i] and x[i+1] are each injective, but iterations i and i+1 touch the same gradient."""

    def make() -> Function:
        k = Kernel(x="f64[1]", out="f64[1]")

        def body(i: E) -> None:
            k.out[i] = k.x[i] * k.x[i + 1]

        k.parallel(k.extent(k.out), body=body)
        return k.done()

    assert operations(reverse(make(), ["x", "out"])).count("atomic") == 2
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


# -- memory ---------------------------------------------------------------------------------------------------------
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


# -- if -------------------------------------------------------------------------------------------------------------
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


# -- selections -----------------------------------------------------------------------------------------------------
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
