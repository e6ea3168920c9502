"""The op table: what every operation *is*.

One :class:`OpDef` row an operation. Printer, parser, verifier, builder, reference interpreter, sample generator,
derivative
check, documentation and the support matrix read this table and nothing else. Elementwise rows carry their meaning as a
NumPy
function over arrays of the operand type; its result is converted to the result type by the reader.

Elementwise operations take operands of *one* type (the front end casts first). Exceptions are written in
`operand_types`.

The attribute ``exact`` of a node with a real result limits fast math (it is absent on what users write). Error-free
transformations of `qd_core.elementary` rely on it, so every code generator obeys:

* absent: the user's ``fast_math`` decides (reassociate, contract, reciprocal, no signed zeros);
* ``"contract"``: a multiplication and an addition may be fused when ``fast_math`` is on, nothing else (LLVM: flag
``contract`` only);
* ``"strict"``: rounded as written, never fused (LLVM: no flag).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.dtypes import DType

__all__ = ["ATOMIC_KINDS", "OPS", "ORDERED_KINDS", "OpDef", "elementwise", "op"]

NumPyMeaning = Callable[..., Any]

REAL = frozenset(d for d in dt.ALL if d.is_real)
INT = frozenset(d for d in dt.ALL if d.kind in "iu")
NUM = REAL | INT
BITS = INT | {dt.u1}
ANY = NUM | {dt.u1}


@dataclass(frozen=True, slots=True, eq=False)
class OpDef:
    """One row of the table.

    Attributes
    ----------
    name : str
        Text name.
    arity : int
        Number of operands; -1 when it varies.
    types : frozenset of DType
        Operand types an elementwise operation accepts.
    result : str
        ``"same"`` (operand type), ``"u1"``, ``"i32"``, ``"attr"`` (attribute ``to``), ``"none"``, or ``"special"``
        (the builder method of that name decides).
    numpy : callable or None
        Meaning of an elementwise operation; takes NumPy arrays of the operand type.
    domain : tuple of float
        Interval from which samples of real operands are drawn, where the operation is defined and well conditioned.
    pure : bool
        No effect, and the result depends on operands and attributes only.
    reads, writes : bool
        Touches array or scratch memory.
    commutative : bool
        Operands may be exchanged.
    terminator : bool
        Ends a region.
    regions : int
        Number of regions.
    native : bool
        Every code generator must print it; otherwise `qd_core.elementary` decomposes it where the target has none.
    doc : str
        One sentence, with edge cases.
    """

    name: str
    arity: int
    types: frozenset[DType] = ANY
    result: str = "same"
    numpy: NumPyMeaning | None = None
    domain: tuple[float, float] = (-8.0, 8.0)
    pure: bool = True
    reads: bool = False
    writes: bool = False
    commutative: bool = False
    terminator: bool = False
    regions: int = 0
    native: bool = True
    doc: str = ""

    def __repr__(self) -> str:
        return self.name

    @property
    def effect(self) -> bool:
        """Must be kept although nobody uses the result, in the order it was written."""
        return self.writes or self.terminator


def _sign(x: Any) -> Any:
    return np.where(x > 0, 1, np.where(x < 0, -1, 0))


def _reciprocal_root(x: Any) -> Any:
    return 1 / np.sqrt(x)


def _wide(f: Callable[..., Any]) -> NumPyMeaning:
    """Evaluate a real function in f64: the reference's f32 result is correctly rounded but for double rounding."""

    def meaning(*args: Any) -> Any:
        dtype = np.asarray(args[0]).dtype
        return np.asarray(f(*(np.asarray(a, np.float64) for a in args))).astype(dtype)

    return meaning


def _div(a: Any, b: Any) -> Any:
    return np.asarray(a) / np.asarray(b)


def _where_nonzero(f: Callable[[Any, Any], Any]) -> NumPyMeaning:
    """Apply an integer division, with 0 where the divisor is 0 (the `check` beside it reports the fault)."""

    def meaning(a: Any, b: Any) -> Any:
        a, b = np.broadcast_arrays(a, b)
        if a.dtype.kind == "f":
            return f(a, b)
        zero = b == 0
        return np.where(zero, b.dtype.type(0), f(a, np.where(zero, b.dtype.type(1), b)))

    return meaning


def _floor_mod(a: Any, b: Any) -> Any:
    return a - b * np.floor(a / b) if np.asarray(a).dtype.kind == "f" else np.mod(a, b)


def _raw_div(a: Any, b: Any) -> Any:
    if np.asarray(a).dtype.kind == "f":
        return np.trunc(a / b)
    q = np.floor_divide(a, b)
    return q + np.asarray((q * b != a) & ((a < 0) != (b < 0)), dtype=np.asarray(a).dtype)


def _raw_mod(a: Any, b: Any) -> Any:
    return np.fmod(a, b)


def _round_half_away(x: Any) -> Any:
    t = np.trunc(x)
    away = t + np.where(np.abs(x - t) >= 0.5, np.copysign(1, x), 0).astype(t.dtype)
    return np.copysign(away, x)


def _shift_amount(a: Any, b: Any) -> tuple[Any, Any]:
    bits = np.asarray(a).dtype.itemsize * 8
    in_range = (b >= 0) & (b < bits)
    return in_range, np.where(in_range, b, np.asarray(b).dtype.type(0))


def _shl(a: Any, b: Any) -> Any:
    in_range, amount = _shift_amount(a, b)
    return np.where(in_range, np.left_shift(a, amount), np.asarray(a).dtype.type(0))


def _sar(a: Any, b: Any) -> Any:
    in_range, amount = _shift_amount(a, b)
    fill = np.where(
        np.asarray(a) < 0, np.asarray(a).dtype.type(0) - np.asarray(a).dtype.type(1), np.asarray(a).dtype.type(0)
    )
    return np.where(in_range, np.right_shift(a, amount), fill)


def _shr(a: Any, b: Any) -> Any:
    a = np.asarray(a)
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    in_range, amount = _shift_amount(a, b)
    shifted = np.right_shift(a.astype(unsigned), amount.astype(unsigned)).astype(a.dtype)
    return np.where(in_range, shifted, a.dtype.type(0))


def _min(a: Any, b: Any) -> Any:
    return np.fmin(a, b) if np.asarray(a).dtype.kind == "f" else np.minimum(a, b)


def _max(a: Any, b: Any) -> Any:
    return np.fmax(a, b) if np.asarray(a).dtype.kind == "f" else np.maximum(a, b)


def _pow(x: Any, y: Any) -> Any:
    """NumPy takes a square root when the exponent is 0.5 everywhere, which differs at -inf and -0."""
    result, half = np.power(x, y), np.equal(y, 0.5)
    at_ends = np.where(np.equal(x, 0), result.dtype.type(0), result.dtype.type(np.inf))
    return np.where(half & (np.equal(x, 0) | np.equal(x, -np.inf)), at_ends, result)


def _powi(x: Any, n: Any) -> Any:
    """Square and multiply in the base's own arithmetic (integers wrap); a negative power of one is 0, 1 or -1."""
    x, n = np.broadcast_arrays(x, n)
    one = x.dtype.type(1)
    result = np.full(x.shape, one, x.dtype)
    base, left = x.copy(), np.abs(n.astype(np.int64))
    while np.any(left):
        result = np.where(left & 1 == 1, result * base, result)
        base, left = base * base, left >> 1
    if x.dtype.kind == "f":
        return np.where(n < 0, one / result, result)
    return np.where(n >= 0, result, np.where(np.abs(x) == 1, result, x.dtype.type(0)))


def _popcnt(x: Any) -> Any:
    return np.bitwise_count(np.asarray(x).view(f"u{np.asarray(x).dtype.itemsize}"))


def _clz(x: Any) -> Any:
    x = np.asarray(x)
    v, n = x.view(f"u{x.dtype.itemsize}").astype(np.uint64), np.full(x.shape, x.dtype.itemsize * 8, np.int32)
    for _ in range(x.dtype.itemsize * 8):
        n = n - (v > 0)
        v = v >> np.uint64(1)
    return n


OPS: dict[str, OpDef] = {}


def _row(name: str, arity: int, doc: str, **kw: Any) -> None:
    OPS[name] = OpDef(name, arity, doc=doc, **kw)


# -- constants and conversions --------------------------------------------------------------------------------------
_row("const", 0, "The constant `value` of type `to`.", result="attr")
_row(
    "cast",
    1,
    "Convert to `to`. Real to integer truncates; outside the range (or NaN) of i32 for targets of at most 32 signed or "
    "16 unsigned "
    "bits, of i64 for u32 and i64, it is that type's minimum, then wraps; u64 takes -2**63 to 2**64 - 1, and 2**63 "
    "for the rest. Integers wrap. To "
    "`u1`: non-zero.",
    result="attr",
)
_row("bitcast", 1, "Reinterpret the bits as `to`, of the same width.", result="attr", types=NUM)

# -- unary ----------------------------------------------------------------------------------------------------------
_row("neg", 1, "Negation; integers wrap.", types=NUM, numpy=np.negative)
_row("abs", 1, "Absolute value; the minimum of a signed type is its own.", types=NUM, numpy=np.abs)
_row("sgn", 1, "-1, 0 or 1 by sign; 0 for NaN.", types=NUM, numpy=_sign)
_row("not", 1, "Bitwise complement; of `u1`: logical.", types=BITS, numpy=np.invert)
_row("floor", 1, "Largest integer not above.", types=REAL, numpy=np.floor)
_row("ceil", 1, "Smallest integer not below.", types=REAL, numpy=np.ceil)
_row("trunc", 1, "Toward zero.", types=REAL, numpy=np.trunc)
_row("round", 1, "Nearest integer, half away from zero.", types=REAL, numpy=_round_half_away)
_row("sqrt", 1, "Square root, correctly rounded; NaN below zero.", types=REAL, numpy=np.sqrt, domain=(0.0, 100.0))
_row("rsqrt", 1, "1/sqrt(x).", types=REAL, numpy=_wide(_reciprocal_root), domain=(0.01, 100.0))
_row("isnan", 1, "Is not a number; survives fast math.", types=REAL, result="u1", numpy=np.isnan)
_row("isinf", 1, "Is an infinity; survives fast math.", types=REAL, result="u1", numpy=np.isinf)
_row("popcnt", 1, "Number of one bits.", types=INT, result="i32", numpy=_popcnt)
_row("clz", 1, "Leading zero bits; the width for 0.", types=INT, result="i32", numpy=_clz)

# -- elementary functions: `qd_core.elementary` has them as IR -----------------------------------------------------
for _name, _f, _domain in (
    ("sin", np.sin, (-100.0, 100.0)),
    ("cos", np.cos, (-100.0, 100.0)),
    ("tan", np.tan, (-1.4, 1.4)),
    ("asin", np.arcsin, (-1.0, 1.0)),
    ("acos", np.arccos, (-1.0, 1.0)),
    ("tanh", np.tanh, (-10.0, 10.0)),
    ("exp", np.exp, (-10.0, 10.0)),
    ("log", np.log, (0.001, 1000.0)),
):
    _row(
        _name,
        1,
        f"Elementary function `{_name}`; error bound in `qd_core.elementary`.",
        types=REAL,
        numpy=_wide(_f),
        domain=_domain,
        native=False,
    )
_row("atan2", 2, "Angle of the point (second, first) in (-pi, pi].", types=REAL, numpy=_wide(np.arctan2), native=False)
_row(
    "pow",
    2,
    "First to the power of second, C99 edge cases.",
    types=REAL,
    numpy=_wide(_pow),
    domain=(0.1, 8.0),
    native=False,
)
_row(
    "powi",
    2,
    "Base to an i32 exponent by squaring. Integers wrap; an integer to a negative power is 0 but for bases 1 and -1.",
    types=NUM,
    numpy=_powi,
    native=False,
)

# -- binary ---------------------------------------------------------------------------------------------------------
_row("add", 2, "Sum; integers wrap.", types=NUM, numpy=np.add, commutative=True)
_row("sub", 2, "Difference; integers wrap.", types=NUM, numpy=np.subtract)
_row("mul", 2, "Product; integers wrap.", types=NUM, numpy=np.multiply, commutative=True)
_row("div", 2, "Quotient of reals (IEEE).", types=REAL, numpy=_div)
_row(
    "floordiv",
    2,
    "Floor of the quotient; integer by zero is 0.",
    types=NUM,
    numpy=_where_nonzero(lambda a, b: np.floor(a / b) if a.dtype.kind == "f" else np.floor_divide(a, b)),
)
_row(
    "mod",
    2,
    "a - b*floor(a/b): the sign of the divisor; integer by zero is 0.",
    types=NUM,
    numpy=_where_nonzero(_floor_mod),
)
_row("raw_div", 2, "Quotient truncated toward zero; integer by zero is 0.", types=NUM, numpy=_where_nonzero(_raw_div))
_row(
    "raw_mod",
    2,
    "Remainder of the truncated quotient: the sign of the dividend; integer by zero is 0.",
    types=NUM,
    numpy=_where_nonzero(_raw_mod),
)
_row("min", 2, "Smaller; the other one when one is NaN.", types=NUM, numpy=_min, commutative=True)
_row("max", 2, "Larger; the other one when one is NaN.", types=NUM, numpy=_max, commutative=True)
_row("and", 2, "Bitwise and.", types=BITS, numpy=np.bitwise_and, commutative=True)
_row("or", 2, "Bitwise or.", types=BITS, numpy=np.bitwise_or, commutative=True)
_row("xor", 2, "Bitwise exclusive or.", types=BITS, numpy=np.bitwise_xor, commutative=True)
_row("shl", 2, "Shift left; 0 when the amount is negative or not below the width.", types=INT, numpy=_shl)
_row(
    "sar",
    2,
    "Shift right keeping the sign (logical for unsigned); an amount outside the width leaves only the sign.",
    types=INT,
    numpy=_sar,
)
_row("shr", 2, "Shift right filling with zeros; 0 when the amount is outside the width.", types=INT, numpy=_shr)
for _name, _f in (("lt", np.less), ("le", np.less_equal), ("gt", np.greater), ("ge", np.greater_equal)):
    _row(_name, 2, "Ordered comparison; false with NaN.", types=NUM, result="u1", numpy=_f)
_row("eq", 2, "Equal; false with NaN.", result="u1", numpy=np.equal, commutative=True)
_row("ne", 2, "Not equal; true with NaN.", result="u1", numpy=np.not_equal, commutative=True)
_row(
    "select",
    3,
    "Second operand where the first (u1) is true, else third; both are evaluated.",
    result="special",
    numpy=np.where,
)

_row(
    "random",
    1,
    "A new number of the stream that the operand (u64) keys: a real uniform in [0, 1), of an integer type all bits. "
    "`passes.draws` numbers and expands it before any other transform.",
    result="attr",
    pure=False,
)
_row("stop_grad", 1, "The operand, whose derivative is taken as 0; no code after offloading.", result="special")

# -- arrays ---------------------------------------------------------------------------------------------------------
_row("extent", 1, "Extent of run-time axis `axis` as i32.", result="special")
_row(
    "load",
    -1,
    "Element of an array at one index per axis of its full rank; indices must be in range.",
    result="special",
    pure=False,
    reads=True,
)
_row("store", -1, "Write the last operand to an array at the indices between.", result="none", pure=False, writes=True)
_row(
    "atomic",
    -1,
    "Combine the last operand into an array element by `kind` (add, min, max, and, or, xor, exchange); the old value. "
    "`cas` writes it where the element has the bits of the operand before it, which follows the indices.",
    result="special",
    pure=False,
    reads=True,
    writes=True,
)
_row(
    "scratch",
    1,
    "Private memory of the iteration: `operand` scalars of type `to`, uninitialised, freed with the iteration.",
    result="special",
    pure=False,
    writes=True,
)
_row("scratch_load", 2, "Element of private memory.", result="special", pure=False, reads=True)
_row(
    "scratch_store",
    3,
    "Write an element of private memory: scratch, index, value.",
    result="none",
    pure=False,
    writes=True,
)

# -- messages -------------------------------------------------------------------------------------------------------
_row(
    "check",
    -1,
    "Record a failure of `kind` at this site with the values after the first operand when that (u1) is false; "
    "execution goes on.",
    result="none",
    pure=False,
    writes=True,
)
_row(
    "print",
    -1,
    "Append a record with the operands for `parts`, a tuple of text pieces and operand numbers with format.",
    result="none",
    pure=False,
    writes=True,
)

# -- control --------------------------------------------------------------------------------------------------------
_row("if", 1, "Two regions without arguments; their yields are the results.", result="special", pure=False, regions=2)
_row(
    "for",
    -1,
    "Serial loop over [start, stop) (operands 0 and 1, one integer type), downward when `reverse`. Region arguments: "
    "index, then carried "
    "values (initial values follow the bounds). Yields the carried values and, with `breaks`, a last u1: go on.",
    result="special",
    pure=False,
    regions=1,
)
_row(
    "while",
    -1,
    "Regions: condition (carried values to u1), body (carried values to carried values).",
    result="special",
    pure=False,
    regions=2,
)
_row(
    "parallel_for",
    -1,
    "Independent iterations over the box of start, stop pairs; one index argument an axis; no results. Root only.",
    result="none",
    pure=False,
    writes=True,
    regions=1,
)
_row("yield", -1, "Ends a region and gives its results.", result="none", pure=False, terminator=True)


def op(name: str) -> OpDef:
    """Return the row called ``name``; `KeyError` when the table has none."""
    return OPS[name]


def elementwise() -> list[OpDef]:
    """Rows with a NumPy meaning: what op-table tests walk."""
    return [o for o in OPS.values() if o.numpy is not None]


ATOMIC_KINDS = ("add", "min", "max", "and", "or", "xor", "exchange", "cas")
ORDERED_KINDS = frozenset(("exchange", "cas"))
"""Atomics whose result depends on the order in which they come: several cannot be combined before."""
