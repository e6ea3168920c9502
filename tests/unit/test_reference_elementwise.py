"""The meaning of every operation against Python's own integers and floats."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Region
from qd_core.ir.ops import OPS, OpDef
from qd_core.reference.interpret import interpret
from qd_core.testing.kernels import array, elementwise, parallel, result_type
from qd_core.testing.samples import cases, samples


# -- elementwise operations ------------------------------------------------------------------------------------------
def wrap(kind: DType, value: int) -> int:
    value &= (1 << kind.bits) - 1
    return value - (1 << kind.bits) if kind.kind == "i" and value >> (kind.bits - 1) else value


def rounded(kind: DType, value: float) -> float:
    """Nearest value of a real type, by Python's own conversion."""
    code = {16: "e", 32: "f", 64: "d"}[kind.bits]
    try:
        return struct.unpack(code, struct.pack(code, value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def trunc_div(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def int_pow(kind: DType, x: int, n: int) -> int:
    if n >= 0:
        return pow(x, n, 1 << kind.bits)
    return {1: 1, -1: -1 if n % 2 else 1}.get(x, 0)


def shifted(kind: DType, x: int, by: int, name: str) -> int:
    inside = 0 <= by < kind.bits
    if name == "shl":
        return x << by if inside else 0
    if name == "sar":
        return x >> by if inside else -(x < 0)
    return (x & ((1 << kind.bits) - 1)) >> by if inside else 0


INTEGER: dict[str, Callable[..., Any]] = {
    "neg": lambda k, x: -x,
    "abs": lambda k, x: abs(x),
    "sgn": lambda k, x: (x > 0) - (x < 0),
    "not": lambda k, x: ~x,
    "popcnt": lambda k, x: bin(x & ((1 << k.bits) - 1)).count("1"),
    "clz": lambda k, x: k.bits - (x & ((1 << k.bits) - 1)).bit_length(),
    "add": lambda k, a, b: a + b,
    "sub": lambda k, a, b: a - b,
    "mul": lambda k, a, b: a * b,
    "floordiv": lambda k, a, b: a // b if b else 0,
    "mod": lambda k, a, b: a % b if b else 0,
    "raw_div": lambda k, a, b: trunc_div(a, b) if b else 0,
    "raw_mod": lambda k, a, b: a - b * trunc_div(a, b) if b else 0,
    "min": lambda k, a, b: min(a, b),
    "max": lambda k, a, b: max(a, b),
    "and": lambda k, a, b: a & b,
    "or": lambda k, a, b: a | b,
    "xor": lambda k, a, b: a ^ b,
    "shl": lambda k, a, b: shifted(k, a, b, "shl"),
    "sar": lambda k, a, b: shifted(k, a, b, "sar"),
    "shr": lambda k, a, b: shifted(k, a, b, "shr"),
    "powi": int_pow,
    "lt": lambda k, a, b: a < b,
    "le": lambda k, a, b: a <= b,
    "gt": lambda k, a, b: a > b,
    "ge": lambda k, a, b: a >= b,
    "eq": lambda k, a, b: a == b,
    "ne": lambda k, a, b: a != b,
    "select": lambda k, c, a, b: a if c else b,
}
TRUTH: dict[str, Callable[..., Any]] = {
    "not": lambda k, x: not x,
    "and": lambda k, a, b: a and b,
    "or": lambda k, a, b: a or b,
    "xor": lambda k, a, b: a != b,
}


def finite(f: Callable[[float], float]) -> Callable[[DType, float], float]:
    """A rounding of `math` that leaves infinities and NaN, and the sign of zero, alone."""
    return lambda k, x: math.copysign(float(f(x)), x) if math.isfinite(x) else x


def quotient(a: float, b: float) -> float:
    if b != 0:
        return a / b
    if a == 0 or math.isnan(a) or math.isnan(b):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1, b)


def floored(x: float) -> float:
    return math.copysign(float(math.floor(x)), x) if math.isfinite(x) else x


def guarded(f: Callable[..., float]) -> Callable[..., float]:
    """A function of `math` with IEEE's results where Python raises: NaN outside the domain, infinity on overflow."""

    def call(kind: DType, *args: float) -> float:
        try:
            return f(*args)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return call


def power(kind: DType, x: float, y: float) -> float:
    odd = abs(math.fmod(y, 2)) == 1 if math.isfinite(y) else False
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and odd else math.inf
    except ValueError:
        if x != 0:
            return math.nan
        return math.copysign(math.inf, x) if odd else math.inf


def squared_power(kind: DType, x: float, n: int) -> float:
    result, base, left = 1.0, x, abs(n)
    while left:
        result = rounded(kind, result * base) if left & 1 else result
        base, left = rounded(kind, base * base), left >> 1
    return quotient(1.0, result) if n < 0 else result


def half_away(x: float) -> float:
    whole = math.floor(abs(x))
    return whole + (abs(x) - whole >= 0.5)


def floor_quotient(kind: DType, a: float, b: float) -> float:
    return floored(rounded(kind, quotient(a, b)))


def remainder(a: float, b: float) -> float:
    return math.nan if b == 0 or math.isinf(a) else math.fmod(a, b)


def smaller(kind: DType, a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else min(a, b)


def larger(kind: DType, a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else max(a, b)


REAL: dict[str, Callable[..., Any]] = {
    **{n: INTEGER[n] for n in ("neg", "abs", "sgn", "lt", "le", "gt", "ge", "eq", "ne", "select")},
    "floor": finite(math.floor),
    "ceil": finite(math.ceil),
    "trunc": finite(math.trunc),
    "round": finite(half_away),
    "sqrt": guarded(lambda x: x if x == 0 else math.sqrt(x)),
    "rsqrt": guarded(lambda x: quotient(1.0, x if x == 0 else math.sqrt(x))),
    "isnan": lambda k, x: math.isnan(x),
    "isinf": lambda k, x: math.isinf(x),
    "sin": guarded(math.sin),
    "cos": guarded(math.cos),
    "tan": guarded(math.tan),
    "asin": guarded(math.asin),
    "acos": guarded(math.acos),
    "tanh": guarded(math.tanh),
    "exp": guarded(math.exp),
    "log": guarded(lambda x: -math.inf if x == 0 else math.log(x)),
    "atan2": guarded(math.atan2),
    "pow": power,
    "powi": squared_power,
    "add": lambda k, a, b: a + b,
    "sub": lambda k, a, b: a - b,
    "mul": lambda k, a, b: a * b,
    "div": lambda k, a, b: quotient(a, b),
    "floordiv": floor_quotient,
    "mod": lambda k, a, b: rounded(k, a - rounded(k, b * floor_quotient(k, a, b))),
    "raw_div": lambda k, a, b: finite(math.trunc)(k, rounded(k, quotient(a, b))),
    "raw_mod": lambda k, a, b: remainder(a, b),
    "min": smaller,
    "max": larger,
}
ELEMENTARY = {"rsqrt", "sin", "cos", "tan", "asin", "acos", "tanh", "exp", "log", "atan2", "pow"}
"""Their f64 values differ between math libraries by units in the last place."""


def expectation(op: OpDef, kind: DType) -> Callable[..., Any]:
    if kind.is_real:
        return REAL[op.name]
    return TRUTH.get(op.name, INTEGER[op.name]) if kind is dt.u1 else INTEGER[op.name]


def expected(op: OpDef, kind: DType, operands: Sequence[np.ndarray]) -> np.ndarray:
    result = result_type(op, kind)
    f = expectation(op, kind)
    values = [f(kind, *row) for row in zip(*(o.tolist() for o in operands), strict=True)]
    fit = (lambda v: rounded(result, v)) if result.is_real else bool if result is dt.u1 else (lambda v: wrap(result, v))
    return np.array([fit(v) for v in values], result.numpy)


def assert_same(
    got: np.ndarray, want: np.ndarray, operands: Sequence[np.ndarray], ulp: int = 0, zero_sign: bool = True
) -> None:
    assert got.dtype == want.dtype
    same = got == want
    if got.dtype.kind == "f":
        same = (same & ((np.signbit(got) == np.signbit(want)) | (not zero_sign))) | (np.isnan(got) & np.isnan(want))
        with np.errstate(all="ignore"):
            same |= np.abs(got - want) <= ulp * np.spacing(np.abs(want)) if ulp else False
    bad = np.flatnonzero(~same)
    assert not bad.size, [(tuple(o[i].item() for o in operands), got[i].item(), want[i].item()) for i in bad[:5]]


def run_elementwise(op: OpDef, kind: DType, operands: Sequence[np.ndarray]) -> np.ndarray:
    out = np.zeros(operands[0].size, result_type(op, kind).numpy)
    interpret(elementwise(op, kind), {**{f"x{n}": o for n, o in enumerate(operands)}, "y": out})
    return out


@pytest.mark.parametrize(("op", "kind"), cases(), ids=lambda v: v.name)
def test_elementwise(op: OpDef, kind: DType) -> None:
    operands = samples(op, kind)
    want = expected(op, kind, operands)
    got = run_elementwise(op, kind, operands)
    # Which zero fmin and fmax return is open; elementary functions may be off by an ulp of f64.
    assert_same(got, want, operands, ulp=2 * (op.name in ELEMENTARY), zero_sign=op.name not in ("min", "max"))


def test_every_elementwise_operation_has_an_expectation() -> None:
    for op, kind in cases():
        assert callable(expectation(op, kind))


# -- conversions -------------------------------------------------------------------------------------------------------
def cast_expected(value: Any, to: DType) -> Any:
    if to is dt.u1:
        return value != 0
    if to.is_real:
        return rounded_integer(to, value) if isinstance(value, int) else rounded(to, value)
    if isinstance(value, float):
        small = to.bits <= 32 and to is not dt.u32
        low, high = (-(2**31), 2**31) if small else (-(2**63), 2**64 if to is dt.u64 else 2**63)
        value = math.trunc(value) if math.isfinite(value) and low <= math.trunc(value) < high else low
    return wrap(to, value)


def rounded_integer(to: DType, value: int) -> float:
    """Integer to real with one rounding: through the nearest multiple, ties to even, by integer arithmetic."""
    digits = {16: 11, 32: 24, 64: 53}[to.bits]
    magnitude, shift = abs(value), max(abs(value).bit_length() - digits, 0)
    kept, rest, half = magnitude >> shift, magnitude & ((1 << shift) - 1), (1 << shift) >> 1
    kept += rest > half or (rest == half and shift > 0 and kept & 1)
    return math.copysign(rounded(to, float(kept << shift)), value)


CAST_EXTRA = {
    "f": [
        -0.5,
        0.9999,
        2147483647.5,
        2147483648.0,
        -2147483649.0,
        4294967295.0,
        4294967296.0,
        9.3e18,
        -9.3e18,
        1.9e19,
        65519.0,
        65520.0,
    ],
    "i": [2**24 + 1, 2**25 + 3, 2**53 + 1, 2**60 + 2**36 + 1, -(2**60) - 2**36 - 1, 65519, 65520, 65521],
}


def cast_samples(kind: DType) -> np.ndarray:
    edge = samples(OPS["eq"], kind)[0][:200]
    extra = CAST_EXTRA["f" if kind.is_real else "i"] if kind is not dt.u1 else []
    fits = [v for v in extra if kind.is_real or kind.min <= v <= kind.max]
    with np.errstate(over="ignore"):
        return np.unique(np.concatenate([np.unique(edge), np.array(fits, kind.numpy)]))


@pytest.mark.parametrize("to", dt.ALL, ids=repr)
@pytest.mark.parametrize("kind", dt.ALL, ids=repr)
def test_cast(kind: DType, to: DType) -> None:
    x, y = array(kind, "x"), array(to, "y")
    data = cast_samples(kind)
    function = parallel([x, y], data.size, lambda b, i: b.store(y, [i], b.cast(b.load(x, [i]), to)))
    out = np.zeros(data.size, to.numpy)
    interpret(function, {"x": data, "y": out})
    want = np.array([cast_expected(v, to) for v in data.tolist()], to.numpy)
    assert_same(out, want, [data])


@pytest.mark.parametrize("to", dt.ALL, ids=repr)
@pytest.mark.parametrize("kind", dt.ALL, ids=repr)
def test_cast_of_a_constant_folds_to_the_same(kind: DType, to: DType) -> None:
    b = Builder(Region())
    data = cast_samples(kind)
    got = np.array([b.cast(b.const(kind, v), to).attrs["value"] for v in data.tolist()], to.numpy)  # type: ignore[attr-defined]
    assert_same(got, np.array([cast_expected(v, to) for v in data.tolist()], to.numpy), [data])


def test_bitcast() -> None:
    x, y = array(dt.f32, "x"), array(dt.u32, "y")
    data = np.array([0.0, -0.0, 1.0, np.inf, np.nan], np.float32)
    out = np.zeros(5, np.uint32)
    interpret(
        parallel([x, y], 5, lambda b, i: b.store(y, [i], b.bitcast(b.load(x, [i]), dt.u32))), {"x": data, "y": out}
    )
    assert out.tolist() == [struct.unpack("<I", struct.pack("<f", v))[0] for v in data.tolist()]
