"""Elementary functions as IR, one library for every backend.

:func:`expand` builds what an operation of the table with ``native=False`` stands for, out of native operations.
Everything is branch free but for the reduction of huge trigonometric arguments, so it runs in SIMD lanes. f64 is not
needed for f16 and f32, and f32 needs 64-bit integers only in that reduction. Real nodes carry the attribute ``exact``
(see `ir.ops`), so the bounds hold under fast math, and results are the same on every backend that rounds as written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qd_core import dtypes as dt
from qd_core.elementary import exponential, power, trigonometry
from qd_core.elementary.expression import Expr, protected
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Value

__all__ = ["BOUNDS", "expand"]

_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "sin": trigonometry.sin,
    "cos": trigonometry.cos,
    "tan": trigonometry.tan,
    "asin": trigonometry.asin,
    "acos": trigonometry.acos,
    "atan2": trigonometry.atan2,
    "exp": exponential.exp,
    "log": exponential.log,
    "tanh": exponential.tanh,
    "pow": power.pow,
}


def expand(b: Builder, name: str, operands: Sequence[Value]) -> Value:
    """Emit the operation ``name`` as native operations.

    Parameters
    ----------
    b : Builder
        Receives the nodes at the end of its region, with its current span.
    name : str
        An operation of the table that is not native.
    operands : sequence of Value
        Its operands; f16, f32 or f64 (`powi`: any number, and an i32 exponent).

    Returns
    -------
    Value
        The result, of the first operand's type.
    """
    if name == "powi":
        with protected(b):
            return power.powi(b, operands[0], operands[1])
    function = _FUNCTIONS[name]
    dtype = operands[0].type
    wide = dt.f32 if dtype is dt.f16 else dtype
    with protected(b):
        result = function(*(Expr(b, b.cast(v, wide)) for v in operands))
    return b.cast(result.value, dtype)


BOUNDS: dict[str, dict[str, float]] = {
    "sin": {"f16": 0.51, "f32": 1.2, "f64": 1.2},
    "cos": {"f16": 0.51, "f32": 1.2, "f64": 1.2},
    "tan": {"f16": 0.51, "f32": 1.8, "f64": 1.8},
    "asin": {"f16": 0.51, "f32": 1.4, "f64": 1.4},
    "acos": {"f16": 0.51, "f32": 1.4, "f64": 1.4},
    "atan2": {"f16": 0.51, "f32": 1.75, "f64": 1.75},
    "exp": {"f16": 0.51, "f32": 1.2, "f64": 1.2},
    "log": {"f16": 0.51, "f32": 1.0, "f64": 1.0},
    "tanh": {"f16": 0.51, "f32": 1.5, "f64": 1.5},
    "pow": {"f16": 0.51, "f32": 1.4, "f64": 1.4},
}
"""Largest error in units in the last place, measured against correctly rounded values and rounded up; contraction
included.

`powi` is the product it is defined as, so it has no bound of its own.
"""
