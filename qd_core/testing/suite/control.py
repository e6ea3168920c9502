"""Control flow, iteration spaces, private memory and tasks that depend on each other."""

# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Param, Region, Value
from qd_core.testing.compare import agree
from qd_core.testing.device import DeviceUnderTest
from qd_core.testing.kernels import array, parallel
from qd_core.testing.plugin import in_slice, requires

__all__ = [
    "test_atomics_in_loops",
    "test_branches",
    "test_extents_that_the_device_computes",
    "test_loops",
    "test_loops_end_early",
    "test_many_axes",
    "test_no_iterations",
    "test_private_memory",
    "test_scalars_of_every_type",
    "test_serial_code_between_parallel_loops",
    "test_unbounded_loops",
]

N = 37
"""Iterations: no multiple of any vector width."""


def branch(
    b: Builder, condition: Value, then: Callable[[], Sequence[Value]], other: Callable[[], Sequence[Value]]
) -> tuple[Value, ...]:
    """Emit an ``if``; both functions return what their side yields."""
    regions: list[Region] = []
    for side in (then, other):
        with b.inside() as region:
            b.yield_(*side())
        regions.append(region)
    return b.if_(condition, *regions)


def loop(
    b: Builder, start: Value, stop: Value, inits: Sequence[Value], body: Callable[..., Sequence[Value]], **attrs: Any
) -> tuple[Value, ...]:
    """Emit a ``for``; ``body(index, *carried)`` returns what it yields."""
    with b.inside([(start.type, "k"), *((v.type, f"c{n}") for n, v in enumerate(inits))], loop=True) as region:
        b.yield_(*body(*region.args))
    return b.for_(start, stop, list(inits), region, **attrs)


def repeat(
    b: Builder, inits: Sequence[Value], condition: Callable[..., Value], body: Callable[..., Sequence[Value]]
) -> tuple[Value, ...]:
    """Emit a ``while``."""
    types = [(v.type, f"c{n}") for n, v in enumerate(inits)]
    with b.inside(types, loop=True) as test:
        b.yield_(condition(*test.args))
    with b.inside(types, loop=True) as region:
        b.yield_(*body(*region.args))
    return b.while_(list(inits), test, region)


def over(y: Param, *inputs: Param, write: Callable[[Builder, Value], Value]) -> Function:
    """Return the kernel ``y[i] = write(i)`` over all of ``y``."""
    return parallel([*inputs, y], lambda b: b.extent(y, 0), lambda b, i: b.store(y, [i], write(b, i)))


@in_slice("smoke")
def test_branches(device: DeviceUnderTest) -> None:
    """Lanes take different sides, nested; the side not taken neither stores nor loads."""
    x, y, z = array(dt.i32, "x"), array(dt.i32, "y"), array(dt.i32, "z")

    def write(b: Builder, i: Value) -> Value:
        v, one, none = b.load(x, [i]), b.const(dt.i32, 1), b.const(dt.i32, 0)
        odd = b.emit("ne", b.emit("and", v, one), none)
        big = b.emit("gt", v, b.const(dt.i32, 20))

        def store() -> Sequence[Value]:
            b.store(z, [i], v)
            return [b.emit("mul", v, b.const(dt.i32, 3))]

        def outside() -> Sequence[Value]:
            return [b.load(x, [b.emit("sub", i, b.const(dt.i32, 1))])]

        def inner() -> Sequence[Value]:
            return branch(b, big, store, lambda: [v])

        return branch(b, odd, inner, lambda: branch(b, b.emit("gt", i, none), outside, lambda: [one]))[0]

    agree(
        device,
        over(y, x, z, write=write),
        {"x": np.arange(N, dtype=np.int32), "y": np.zeros(N, np.int32), "z": np.full(N, -1, np.int32)},
    )


@in_slice("smoke")
@pytest.mark.parametrize("reverse", [False, True])
def test_loops(device: DeviceUnderTest, reverse: bool) -> None:
    """Bounds that differ between lanes, empty ones among them; nested loops with carried values, up and down."""
    x, y = array(dt.i32, "x"), array(dt.f32, "y")

    def write(b: Builder, i: Value) -> Value:
        stop, zero = b.load(x, [i]), b.const(dt.i32, -2)

        def outer(k: Value, total: Value) -> Sequence[Value]:
            real = b.cast(k, dt.f32)
            (inner,) = loop(
                b,
                k,
                stop,
                [total],
                lambda m, t: [b.emit("add", b.emit("mul", t, b.const(dt.f32, 0.5)), b.cast(m, dt.f32))],
            )
            return [b.emit("add", inner, real)]

        return loop(b, zero, stop, [b.const(dt.f32, 1)], outer, reverse=reverse)[0]

    agree(device, over(y, x, write=write), {"x": (np.arange(N) % 9 - 4).astype(np.int32), "y": np.zeros(N, np.float32)})


@pytest.mark.parametrize("lanes", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@requires("atomic.add.i32")
def test_atomics_in_loops(device: DeviceUnderTest, reverse: bool, lanes: int) -> None:
    """The place of an atomic depends on a loop whose bounds differ between lanes."""
    x, count = array(dt.i32, "x"), array(dt.i32, "count")

    def write(b: Builder, i: Value) -> None:
        def body(k: Value) -> Sequence[Value]:
            b.atomic("add", count, [k], b.const(dt.i32, 1))
            return []

        loop(b, b.const(dt.i32, 0), b.load(x, [i]), [], body, reverse=reverse)

    given = {"x": (np.arange(N) * 3 % 5).astype(np.int32), "count": np.zeros(5, np.int32)}
    options = CompileOptions(fast_math=False, lanes=lanes)
    agree(device, parallel([x, count], lambda b: b.extent(x, 0), write), given, options=options)


def test_loops_end_early(device: DeviceUnderTest) -> None:
    """`break` leaves each lane's loop at its own time."""
    x, y = array(dt.i32, "x"), array(dt.i32, "y")

    def write(b: Builder, i: Value) -> Value:
        limit = b.load(x, [i])

        def body(k: Value, total: Value) -> Sequence[Value]:
            new = b.emit("add", total, k)
            return [new, b.emit("lt", new, limit)]

        return loop(b, b.const(dt.i32, 0), b.const(dt.i32, 50), [b.const(dt.i32, 0)], body, breaks=True)[0]

    agree(device, over(y, x, write=write), {"x": (np.arange(N) * 7).astype(np.int32), "y": np.zeros(N, np.int32)})


def test_unbounded_loops(device: DeviceUnderTest) -> None:
    """`while` with a bound of each lane's own: steps of the Collatz sequence."""
    x, y = array(dt.i64, "x"), array(dt.i32, "y")

    def write(b: Builder, i: Value) -> Value:
        one, two, three = (b.const(dt.i64, n) for n in (1, 2, 3))

        def body(v: Value, steps: Value) -> Sequence[Value]:
            even = b.emit("eq", b.emit("and", v, one), b.const(dt.i64, 0))
            half, triple = b.emit("floordiv", v, two), b.emit("add", b.emit("mul", v, three), one)
            return [b.select(even, half, triple), b.emit("add", steps, b.const(dt.i32, 1))]

        return repeat(b, [b.load(x, [i]), b.const(dt.i32, 0)], lambda v, _: b.emit("gt", v, one), body)[1]

    agree(device, over(y, x, write=write), {"x": np.arange(1, N + 1), "y": np.zeros(N, np.int32)})


@in_slice("smoke")
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4), (1, 1, 1), (5, 0, 2), (300, 7)], ids=str)
def test_many_axes(device: DeviceUnderTest, shape: tuple[int, ...]) -> None:
    """Two and three axes; each place is visited once, with its own indices."""
    y = array(dt.i32, "y", len(shape))
    function = Function("k", [y], Region())
    b = Builder(function.body)
    zero = b.const(dt.i32, 0)
    with b.inside([(dt.i32, f"i{d}") for d in range(len(shape))], loop=True) as body:
        code = b.load(y, list(body.args))
        for index in body.args:
            code = b.emit("add", b.emit("mul", code, b.const(dt.i32, 1000)), index)
        b.store(y, list(body.args), code)
        b.yield_()
    b.parallel_for([(zero, b.extent(y, d)) for d in range(len(shape))], body)
    b.yield_()
    agree(device, function, {"y": np.ones(shape, np.int32)})


def test_no_iterations(device: DeviceUnderTest) -> None:
    """Empty ranges run nothing: stop below start, and arrays without elements."""
    y, n = array(dt.i32, "y"), Param(dt.i32, "n")
    function = parallel([n, y], lambda b: n, lambda b, i: b.store(y, [i], i))
    for count in (0, -3):
        assert agree(device, function, {"n": count, "y": np.full(4, 9, np.int32)})["y"].tolist() == [9] * 4
    empty = parallel([y], lambda b: b.extent(y, 0), lambda b, i: b.store(y, [i], i))
    agree(device, empty, {"y": np.zeros(0, np.int32)})


@requires("type.f64")
def test_serial_code_between_parallel_loops(device: DeviceUnderTest) -> None:
    """A later task sees what earlier ones stored, and values that serial code computed."""
    x, y = array(dt.f64, "x"), array(dt.f64, "y")
    function = Function("k", [x, y], Region())
    b = Builder(function.body)
    zero = b.const(dt.i32, 0)

    def doubled(target: Param, scale: Callable[[Value], Value]) -> None:
        with b.inside([(dt.i32, "i")], loop=True) as body:
            i = body.args[0]
            b.store(target, [i], scale(i))
            b.yield_()
        b.parallel_for([(zero, b.extent(target, 0))], body)

    doubled(x, lambda i: b.emit("add", b.load(x, [i]), b.load(x, [i])))
    (total,) = loop(b, zero, b.extent(x, 0), [b.const(dt.f64, 0)], lambda k, t: [b.emit("add", t, b.load(x, [k]))])
    doubled(y, lambda i: b.emit("sub", total, b.load(x, [i])))
    b.store(x, [zero], total)
    b.yield_()
    agree(device, function, {"x": np.arange(1.0, 1 + N), "y": np.zeros(N)})


@requires("launch.device_extent")
def test_extents_that_the_device_computes(device: DeviceUnderTest) -> None:
    """The number of iterations is a value that an earlier task stored."""
    x, y = array(dt.i32, "x"), array(dt.i32, "y")
    function = Function("k", [x, y], Region())
    b = Builder(function.body)
    zero = b.const(dt.i32, 0)
    b.store(x, [zero], b.emit("add", b.load(x, [zero]), b.load(x, [b.const(dt.i32, 1)])))
    with b.inside([(dt.i32, "i")], loop=True) as body:
        b.store(y, [body.args[0]], b.const(dt.i32, 1))
        b.yield_()
    b.parallel_for([(zero, b.load(x, [zero]))], body)
    b.yield_()
    for first in (4, -9):
        after = agree(device, function, {"x": np.array([first, 7], np.int32), "y": np.zeros(N, np.int32)})
        assert after["y"].sum() == max(first + 7, 0)


@requires("memory.private")
def test_private_memory(device: DeviceUnderTest) -> None:
    """Each iteration owns as much memory as it asks for, and nobody else's."""
    x, y = array(dt.i32, "x"), array(dt.f32, "y")

    def write(b: Builder, i: Value) -> Value:
        n, zero = b.load(x, [i]), b.const(dt.i32, 0)
        own = b.scratch(dt.f32, n)

        def keep(k: Value) -> Sequence[Value]:
            b.scratch_store(own, k, b.cast(b.emit("add", b.emit("mul", i, b.const(dt.i32, 100)), k), dt.f32))
            return []

        loop(b, zero, n, [], keep)
        return loop(
            b, zero, n, [b.const(dt.f32, 0)], lambda k, t: [b.emit("sub", b.scratch_load(own, k), t)], reverse=True
        )[0]

    agree(
        device, over(y, x, write=write), {"x": (np.arange(N) * 5 % 23).astype(np.int32), "y": np.zeros(N, np.float32)}
    )


@pytest.mark.parametrize("dtype", [pytest.param(d, marks=requires(f"type.{d.name}"), id=d.name) for d in dt.ALL])
def test_scalars_of_every_type(device: DeviceUnderTest, dtype: dt.DType) -> None:
    """Scalar arguments arrive as they were passed, at the ends of their range too."""
    y, scalars = array(dtype, "y"), [Param(dtype, f"s{n}") for n in range(3)]

    def write(b: Builder, i: Value) -> None:
        for n, s in enumerate(scalars):
            b.store(y, [b.const(dt.i32, n)], s)

    values = [False, True, True] if dtype is dt.u1 else [dtype.min, dtype.max, dtype.scalar(1).item()]
    given = {**{f"s{n}": v for n, v in enumerate(values)}, "y": np.zeros(3, dtype.numpy)}
    assert agree(device, parallel([*scalars, y], 1, write), given)["y"].tolist() == values
