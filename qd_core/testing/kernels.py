"""Small IR kernels for tests, built without the front end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.errors import Span
from qd_core.ir.build import Builder
from qd_core.ir.nodes import ArrayType, Function, Param, Region, Value
from qd_core.ir.ops import OpDef
from qd_core.testing.samples import operand_types

__all__ = ["SPAN", "array", "elementwise", "parallel", "result_type", "serial"]

SPAN = Span("kernel.py", 7, 4, 7, 9, "k")
"""The place that nodes of these kernels name."""


def array(dtype: DType, path: str, ndim: int = 1, element_shape: tuple[int, ...] = ()) -> Param:
    """Return an array parameter."""
    return Param(ArrayType(dtype, ndim, element_shape), path)


def parallel(
    params: Sequence[Param],
    n: int | Callable[[Builder], Value],
    write: Callable[[Builder, Value], None],
    index: DType = dt.i32,
) -> Function:
    """Return a kernel of one parallel loop over [0, n).

    ``n``, where it is no number, and ``write`` emit the bound and the body: ``n(builder)``, ``write(builder, index)``.
    """
    function = Function("k", list(params), Region())
    b = Builder(function.body)
    b.span = SPAN
    stop = b.const(index, n) if isinstance(n, int) else b.cast(n(b), index)
    with b.inside([(index, "i")], loop=True) as body:
        write(b, body.args[0])
        b.yield_()
    b.parallel_for([(b.const(index, 0), stop)], body)
    b.yield_()
    return function


def serial(params: Sequence[Param], write: Callable[[Builder], None]) -> Function:
    """Return a kernel of serial code, which ``write(builder)`` emits."""
    function = Function("k", list(params), Region())
    b = Builder(function.body)
    b.span = SPAN
    write(b)
    b.yield_()
    return function


def result_type(op: OpDef, dtype: DType) -> DType:
    """Return the result type of an elementwise operation on ``dtype``."""
    return dt.u1 if op.result == "u1" else dt.i32 if op.result == "i32" else dtype


def elementwise(op: OpDef, dtype: DType) -> Function:
    """Return the kernel ``y[i] = op(x0[i], x1[i], ...)`` over all of ``y``."""
    inputs = [array(kind, f"x{n}") for n, kind in enumerate(operand_types(op, dtype))]
    y = array(result_type(op, dtype), "y")

    def write(b: Builder, i: Value) -> None:
        b.store(y, [i], b.emit(op.name, *(b.load(x, [i]) for x in inputs)))

    return parallel([*inputs, y], lambda b: b.extent(y, 0), write)
