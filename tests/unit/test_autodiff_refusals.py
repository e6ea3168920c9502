"""What cannot be differentiated is an error that names array and line; what looks like it but can is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from autodiff_kernels import E, Kernel, check

from qd_core import dtypes as dt
from qd_core.autodiff.forward import forward
from qd_core.autodiff.reverse import reverse
from qd_core.errors import NotDifferentiableError
from qd_core.ir.nodes import Function

RANDOM = np.random.default_rng(5)


def refused(
    function: Function, paths: list[str], match: str, line: int, transform: Callable[..., Function] = reverse
) -> NotDifferentiableError:
    with pytest.raises(NotDifferentiableError, match=match) as caught:
        transform(function, paths)
    assert caught.value.span is not None
    assert caught.value.span.line == line
    assert caught.value.why
    return caught.value


def elementwise(body: Callable[[Kernel, E], None], **params: str) -> Function:
    k = Kernel(**params)
    k.parallel(k.extent(k.x), body=lambda i: body(k, i))
    return k.done()


# -- overwritten values ---------------------------------------------------------------------------------------------
def test_square_in_place() -> None:
    def body(k: Kernel, i: E) -> None:
        v = k.x[i]
        k.x[i] = v * v

    error = refused(elementwise(body, x="f64[1]"), ["x"], "`x`.*overwritten later at line 2", 1)
    assert "copy" in error.hint


def test_overwritten_by_an_atomic() -> None:
    def body(k: Kernel, i: E) -> None:
        k.x.add(i, k.sin(k.x[i]))

    refused(elementwise(body, x="f64[1]"), ["x"], "overwritten later", 1)


def test_overwritten_by_a_later_task() -> None:
    k = Kernel(x="f64[1]", y="f64[1]")

    def first(i: E) -> None:
        k.y[i] = k.sin(k.x[i])

    def second(i: E) -> None:
        k.x[i] = 0.0

    k.parallel(k.extent(k.x), body=first)
    k.parallel(k.extent(k.x), body=second)
    refused(k.done(), ["x", "y"], "`x`", 1)


def test_overwritten_in_a_later_trip() -> None:
    def body(k: Kernel, i: E) -> None:
        def step(t: E) -> None:
            k.x[i] = k.sin(k.x[i])

        k.loop(0, 3, [], step)

    refused(elementwise(body, x="f64[1]"), ["x"], "`x`", 1)


def test_stepping_forward_and_reading_ahead() -> None:
    """x[t] = f(x[t+1]): the element written at trip t was read at trip t-1."""

    def body(k: Kernel, i: E) -> None:
        def step(t: E) -> None:
            k.x[t + 1] = k.sin(k.x[t + 2])

        k.loop(0, 3, [], step)

    function = elementwise(body, x="f64[1]")
    refused(function, ["x"], "`x`", 1)


def test_control_that_is_overwritten() -> None:
    def body(k: Kernel, i: E) -> None:
        n = k.n[i]
        k.out[i] = k.loop(0, n, [k.x[i]], lambda t, v: [k.sin(v)])
        k.n[i] = n + 1

    refused(elementwise(body, x="f64[1]", n="i32[1]", out="f64[1]"), ["x", "out"], "`n`", 1)


@pytest.mark.parametrize("offset", [1, 2])
def test_written_elements_that_are_provably_others(offset: int) -> None:
    def make() -> Function:
        def body(k: Kernel, i: E) -> None:
            def step(t: E) -> None:
                v = k.x[t * 2, i]
                k.x[t * 2 + offset, i] = k.sin(v)

            k.loop(0, 3, [], step)

        k = Kernel(x="f64[2]")
        k.parallel(k.extent(k.x, 1), body=lambda i: body(k, i))
        return k.done()

    check(make, {"x": RANDOM.normal(size=(8, 2))})


def test_exclusive_branches_do_not_follow_each_other() -> None:
    def make() -> Function:
        def body(k: Kernel, i: E) -> None:
            def then() -> None:
                k.y[i] = k.sin(k.x[i])

            def otherwise() -> None:
                k.x[i] = 1.0

            k.if_(k.c[i] > 0, then, otherwise)

        return elementwise(body, x="f64[1]", y="f64[1]", c="i32[1]")

    check(make, {"x": RANDOM.normal(size=3), "y": RANDOM.normal(size=3), "c": np.array([1, 0, 1], np.int32)})


def test_component_by_component_in_place() -> None:
    """Elements of a vector are different addresses."""

    def make() -> Function:
        def body(k: Kernel, i: E) -> None:
            k.x[i, 0] = k.x[i, 1] * k.x[i, 2]

        return elementwise(body, x="f64[1x3]")

    check(make, {"x": RANDOM.normal(size=(2, 3))})


# -- detours through arrays without gradient ------------------------------------------------------------------------
def detour(k: Kernel, i: E) -> None:
    k.t[i] = k.x[i] * 2.0
    k.out[i] = 1.0
    k.out.add(i, k.t[i])


def test_detour_through_an_array_without_gradient() -> None:
    function = elementwise(detour, x="f64[1]", t="f64[1]", out="f64[1]")
    error = refused(function, ["x", "out"], r"`t` has no gradient.*read \(line 3\)", 2)
    assert "needs_grad" in error.hint
    refused(function, ["x", "out"], "`t` has no gradient", 2, forward)


def test_detour_across_tasks() -> None:
    k = Kernel(x="f64[1]", t="f64[1]", out="f64[1]")

    def first(i: E) -> None:
        k.t[i] = k.x[i]

    def second(i: E) -> None:
        k.out[i] = k.t[i]

    k.parallel(k.extent(k.x), body=first)
    k.parallel(k.extent(k.x), body=second)
    refused(k.done(), ["x", "out"], "`t`", 2)


def test_results_for_inspection_are_no_detour() -> None:
    """Active values may be stored where nothing on the path reads them."""

    def make() -> Function:
        def body(k: Kernel, i: E) -> None:
            v = k.sin(k.x[i])
            k.log[i] = v
            k.out[i] = v * v

        return elementwise(body, x="f64[1]", log="f64[1]", out="f64[1]")

    check(make, {"x": RANDOM.normal(size=3), "log": np.zeros(3), "out": np.zeros(3)}, without=["log"])


# -- operations -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["exchange"])
def test_atomics_without_a_derivative(kind: str) -> None:
    def body(k: Kernel, i: E) -> None:
        k.out.add(0, k.x[i], kind)

    function = elementwise(body, x="f64[1]", out="f64[1]")
    refused(function, ["x", "out"], f"atomic {kind} on the differentiated array `out`", 2)
    refused(function, ["x", "out"], f"atomic {kind}", 2, forward)


def test_old_value_of_an_atomic_add() -> None:
    def body(k: Kernel, i: E) -> None:
        k.out[i] = k.total.add(0, k.x[i])

    refused(elementwise(body, x="f64[1]", total="f64[1]", out="f64[1]"), ["x", "total", "out"], "old value", 2)


def test_control_that_hangs_on_an_atomic() -> None:
    def body(k: Kernel, i: E) -> None:
        place = k.count.add(0, 1)
        k.out[place] = k.sin(k.x[i])

    refused(elementwise(body, x="f64[1]", count="i32[1]", out="f64[1]"), ["x", "out"], "cannot be computed again", 2)


def test_bits_of_a_real() -> None:
    def body(k: Kernel, i: E) -> None:
        bits = E(k, k.b.bitcast(k.x[i].v, dt.i64))
        k.out[i] = E(k, k.b.bitcast((bits + 1).v, dt.f64))

    refused(elementwise(body, x="f64[1]", out="f64[1]"), ["x", "out"], "bitcast", 1)


def test_access_to_the_gradients_themselves() -> None:
    def body(k: Kernel, i: E) -> None:
        gradient = k.op("neg", k.wrap(1.0))
        k.x[i] = gradient * getattr(k, "x.grad")[i]

    refused(elementwise(body, **{"x": "f64[1]", "x.grad": "f64[1]"}), ["x"], "`x.grad`", 1)
