"""Kernels in IR for the tests of the runtime and of translation."""

from __future__ import annotations

from qd_core import dtypes as dt
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Param, Value
from qd_core.testing.kernels import array, parallel

__all__ = ["accumulate", "chain_back", "count", "ends", "increment", "many", "saxpy", "stack"]


def saxpy() -> Function:
    """``y[i] = a * x[i] + y[i]``."""
    x, y, a = array(dt.f32, "x"), array(dt.f32, "y"), Param(dt.f32, "a")

    def write(b: Builder, i: Value) -> None:
        b.store(y, [i], b.emit("add", b.emit("mul", a, b.load(x, [i])), b.load(y, [i])))

    return parallel([a, x, y], lambda b: b.extent(y, 0), write)


def increment() -> Function:
    """``x[i] += 1``, read and written: every launch must see the one before."""
    x = array(dt.i32, "x")
    return parallel(
        [x], lambda b: b.extent(x, 0), lambda b, i: b.store(x, [i], b.emit("add", b.load(x, [i]), b.const(dt.i32, 1)))
    )


def accumulate(dtype: dt.DType = dt.i32) -> Function:
    """``total[0] += x[i]`` by atomics."""
    x, total = array(dtype, "x"), array(dtype, "total")

    def write(b: Builder, i: Value) -> None:
        b.atomic("add", total, [b.const(dt.i32, 0)], b.load(x, [i]))

    return parallel([x, total], lambda b: b.extent(x, 0), write)


def chain_back() -> Function:
    """What reverse mode makes of ``y[i] = 2 * x[i]``: take the adjoint of ``y``, clear it, add it to that of ``x``."""
    dy, dx = array(dt.f32, "y.grad"), array(dt.f32, "x.grad")

    def write(b: Builder, i: Value) -> None:
        old = b.load(dy, [i])
        b.store(dy, [i], b.const(dt.f32, 0))
        b.store(dx, [i], b.emit("add", b.load(dx, [i]), b.emit("mul", old, b.const(dt.f32, 2))))

    return parallel([dy, dx], lambda b: b.extent(dx, 0), write)


def many(count: int) -> Function:
    """``y[i] = x0[i] + x1[i] + ...`` over ``count`` arrays."""
    inputs, y = [array(dt.i32, f"x{n}") for n in range(count)], array(dt.i32, "y")

    def write(b: Builder, i: Value) -> None:
        total: Value = b.const(dt.i32, 0)
        for x in inputs:
            total = b.emit("add", total, b.load(x, [i]))
        b.store(y, [i], total)

    return parallel([*inputs, y], lambda b: b.extent(y, 0), write)


def stack(dtype: dt.DType = dt.f32, *, same: bool = False) -> Function:
    """Each iteration fills ``length[i]`` scalars of private memory (``n`` where they are the ``same``), and adds them
    up backwards.
    """
    length, y, scalar = array(dt.i32, "length"), array(dtype, "y"), Param(dt.i32, "n")

    def write(b: Builder, i: Value) -> None:
        n, zero = scalar if same else b.load(length, [i]), b.const(dt.i32, 0)
        memory = b.scratch(dtype, n)
        with b.inside([(dt.i32, "k")], loop=True) as fill:
            b.scratch_store(memory, fill.args[0], b.cast(b.emit("add", fill.args[0], i), dtype))
            b.yield_()
        b.for_(zero, n, [], fill)
        with b.inside([(dt.i32, "k"), (dtype, "sum")], loop=True) as add:
            b.yield_(b.emit("add", add.args[1], b.scratch_load(memory, add.args[0])))
        (total,) = b.for_(zero, n, [b.const(dtype, 0)], add, reverse=True)
        b.store(y, [i], total)

    return parallel([scalar if same else length, y], lambda b: b.extent(y, 0), write)


def ends() -> Function:
    """Each iteration writes the first and the last of ``length[i]`` scalars of private memory, and adds them."""
    length, y = array(dt.i32, "length"), array(dt.i32, "y")

    def write(b: Builder, i: Value) -> None:
        n, zero = b.load(length, [i]), b.const(dt.i32, 0)
        last = b.emit("sub", n, b.const(dt.i32, 1))
        memory = b.scratch(dt.i32, n)
        b.scratch_store(memory, zero, i)
        b.scratch_store(memory, last, n)
        b.store(y, [i], b.emit("add", b.scratch_load(memory, zero), b.scratch_load(memory, last)))

    return parallel([length, y], lambda b: b.extent(y, 0), write)


def count() -> Function:
    """Each iteration runs a loop ``y[i]`` times and counts it."""
    y = array(dt.i32, "y")

    def write(b: Builder, i: Value) -> None:
        zero, one = b.const(dt.i32, 0), b.const(dt.i32, 1)
        with b.inside([(dt.i32, "k"), (dt.i32, "n")], loop=True) as body:
            odd = b.emit("and", body.args[0], one)
            b.yield_(b.emit("add", body.args[1], b.emit("add", odd, b.emit("xor", odd, one))))
        b.store(y, [i], b.for_(zero, b.load(y, [i]), [zero], body)[0])

    return parallel([y], lambda b: b.extent(y, 0), write)
