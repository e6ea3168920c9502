"""What the transformed function looks like: effects, parameters, size, private memory, atomics."""

from __future__ import annotations

import numpy as np
from autodiff_kernels import E, Kernel, check, gradient, operations, run

from qd_core import dtypes as dt
from qd_core.autodiff.reverse import reverse
from qd_core.ir.nodes import Function

RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.normal(size=shape))


# -- the shape of the result ----------------------------------------------------------------------------------------
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

    names = operations(reverse(make(), ["x", "out"]))
    assert "check" not in names
    assert "print" not in names


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
    before = len(operations(function).split())
    assert len(operations(reverse(function, ["x", "y"])).split()) <= 4 * before


def test_size_does_not_hang_on_the_length_of_loops() -> None:
    def size(length: int) -> int:
        k = Kernel(x="f64[1]", y="f64[1]")

        def body(i: E) -> None:
            v = k.loop(0, length, [k.x[i]], lambda t, v: [k.loop(t, length, [v], lambda s, w: [k.sin(w) * v])])
            k.y[i] = v * v

        k.parallel(k.extent(k.x), body=body)
        return len(operations(reverse(k.done(), ["x", "y"])).split())

    assert size(100_000) == size(2_000_000_000)


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
    names = [n.op.name for n in task.regions[0].nodes]
    assert names.count("scratch") == 4  # records and block states of both loops
    assert names.index("scratch") < names.index("for")


def test_shared_gradients_are_updated_by_atomics() -> None:
    k = Kernel(x="f64[1]", y="f64[1]", out="f64[1]")

    def body(i: E) -> None:
        k.out[i] = k.x[i] * k.y[i]

    k.parallel(k.extent(k.x), body=body)
    function = k.done()
    assert operations(reverse(function, ["x", "y", "out"])).count("atomic") == 0
    shared = reverse(function, ["x", "y", "out"], shared=True)
    assert operations(shared).count("atomic") == 2
    x, gradient_of_x = normal(3), np.zeros(3)
    run(
        shared, {"x": x, "y": x, "out": x * x, "x.grad": gradient_of_x, "y.grad": gradient_of_x, "out.grad": np.ones(3)}
    )
    np.testing.assert_allclose(gradient_of_x, 2 * x, rtol=1e-15)


def test_arrays_that_must_not_overlap_are_listed() -> None:
    k = Kernel(x="f64[1]", c="f64[1]", out="f64[1]")

    def body(i: E) -> None:
        k.out[i] = k.x[i] * k.c[i]

    k.parallel(k.extent(k.x), body=body)
    pairs = reverse(k.done(), ["x", "out"]).attrs["no_overlap"]
    assert pairs == (("c", "out"), ("out", "x"), ("out.grad", "x.grad"))
