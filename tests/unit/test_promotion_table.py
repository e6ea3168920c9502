"""The promotion table, written out, and every binary operator on every pair of types at their extreme values.

Expected values come from Python integers and from NumPy arithmetic in the table's type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frontend_run import qd, run

from qd_core import dtypes as dt
from qd_core.dtypes import DType

TABLE = """
     i8  i16 i32 i64 u1  u8  u16 u32 u64 f16 f32 f64
i8   i8  i16 i32 i64 i8  u8  u16 u32 u64 f16 f32 f64
i16  i16 i16 i32 i64 i16 i16 u16 u32 u64 f16 f32 f64
i32  i32 i32 i32 i64 i32 i32 i32 u32 u64 f16 f32 f64
i64  i64 i64 i64 i64 i64 i64 i64 i64 u64 f16 f32 f64
u1   i8  i16 i32 i64 u1  u8  u16 u32 u64 f16 f32 f64
u8   u8  i16 i32 i64 u8  u8  u16 u32 u64 f16 f32 f64
u16  u16 u16 i32 i64 u16 u16 u16 u32 u64 f16 f32 f64
u32  u32 u32 u32 i64 u32 u32 u32 u32 u64 f16 f32 f64
u64  u64 u64 u64 u64 u64 u64 u64 u64 u64 f16 f32 f64
f16  f16 f16 f16 f16 f16 f16 f16 f16 f16 f16 f32 f64
f32  f32 f32 f32 f32 f32 f32 f32 f32 f32 f32 f32 f64
f64  f64 f64 f64 f64 f64 f64 f64 f64 f64 f64 f64 f64
"""
_ROWS = [line.split() for line in TABLE.strip().splitlines()]
RESULT = {(row[0], other): kind for row in _ROWS[1:] for other, kind in zip(_ROWS[0], row[1:], strict=True)}


def test_the_table() -> None:
    assert {(a.name, b.name): dt.PROMOTION[a, b].name for a in dt.ALL for b in dt.ALL} == RESULT


def extremes(d: DType) -> np.ndarray:
    if d is dt.u1:
        return np.array([False, True])
    if d.is_real:
        tiny, large = np.finfo(d.numpy).tiny, np.finfo(d.numpy).max
        return np.array([0.0, 1.5, -2.0, 7.0, large, -large, tiny, np.inf, -np.inf, np.nan], d.numpy)
    low, high = int(d.min), int(d.max)
    return np.array([low, low + 1, 0, 1, 3, 7, high - 1, high] + [-1] * (low < 0), d.numpy)


def wrap(x: int, d: DType) -> int:
    x &= (1 << d.bits) - 1
    return x - (1 << d.bits) if d.is_signed and x >> (d.bits - 1) else x


def _shift(a: int, n: int, d: DType, left: bool) -> int:
    if left:
        return a << n if 0 <= n < d.bits else 0
    return a >> n if 0 <= n < d.bits else -1 if a < 0 else 0


INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "max": max,
    "min": min,
}
REAL: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": lambda a, b: np.floor(a / b),
    "mod": lambda a, b: a - b * np.floor(a / b),
    "max": np.fmax,
    "min": np.fmin,
}
BITS: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


def expected(name: str, x: np.ndarray, y: np.ndarray, d: DType) -> np.ndarray:
    """``x name y`` computed in ``d``."""
    x, y = x.astype(d.numpy), y.astype(d.numpy)
    if d.is_real:
        return REAL[name](x, y)
    exact = {**INTEGER, **BITS}[name]
    results = [exact(int(a), int(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    return np.array([bool(r) if d is dt.u1 else wrap(r, d) for r in results], d.numpy)


def _arithmetic(d: DType) -> DType:
    return dt.i32 if d is dt.u1 else d


@pytest.mark.parametrize("a", dt.ALL, ids=lambda d: d.name)
def test_operators_at_extreme_values(a: DType) -> None:
    for b in dt.ALL:
        kind = dt.by_name(RESULT[a.name, b.name])
        number = _arithmetic(kind)
        quotient = dt.PROMOTION[a if a.is_real else dt.f32, b if b.is_real else dt.f32]
        x, y = (v.ravel() for v in np.meshgrid(extremes(a), extremes(b), indexing="ij"))
        arrays = [qd.types.ndarray(t, 1) for t in (a, b)]
        numbers, bits, left = (qd.types.ndarray(t, 2) for t in (number, kind, _arithmetic(a)))
        truths, quotients = qd.types.ndarray(dt.u1, 2), qd.types.ndarray(quotient, 1)

        def arithmetic(p: arrays[0], q: arrays[1], out: numbers, r: quotients, t: truths):
            for i in range(p.shape[0]):
                out[0, i] = p[i] + q[i]
                out[1, i] = p[i] - q[i]
                out[2, i] = p[i] * q[i]
                out[3, i] = p[i] // q[i]
                out[4, i] = p[i] % q[i]
                out[5, i] = max(p[i], q[i])
                out[6, i] = min(p[i], q[i])
                r[i] = p[i] / q[i]
                t[0, i] = p[i] < q[i]
                t[1, i] = p[i] <= q[i]
                t[2, i] = p[i] > q[i]
                t[3, i] = p[i] >= q[i]
                t[4, i] = p[i] == q[i]
                t[5, i] = p[i] != q[i]

        def logic(p: arrays[0], q: arrays[1], out: bits, s: left):
            for i in range(p.shape[0]):
                out[0, i] = p[i] & q[i]
                out[1, i] = p[i] | q[i]
                out[2, i] = p[i] ^ q[i]
                s[0, i] = p[i] << q[i]
                s[1, i] = p[i] >> q[i]

        out, ratio = np.zeros((7, len(x)), number.numpy), np.zeros(len(x), quotient.numpy)
        truth = np.zeros((6, len(x)), bool)
        with np.errstate(all="ignore"):
            run(arithmetic, x, y, out, ratio, truth)
            for row, name in zip(out, INTEGER, strict=True):
                np.testing.assert_array_equal(row, expected(name, x, y, number), f"{a} {name} {b}")
            wide = [v if v.dtype.kind == "f" else v.astype(np.float32) for v in (x, y)]
            np.testing.assert_array_equal(ratio, np.divide(*(v.astype(quotient.numpy) for v in wide)), f"{a} / {b}")
            p, q = x.astype(number.numpy), y.astype(number.numpy)
            np.testing.assert_array_equal(truth, [p < q, p <= q, p > q, p >= q, p == q, p != q], f"{a} compared to {b}")
        if kind.is_real:
            continue
        both, shifted = np.zeros((3, len(x)), kind.numpy), np.zeros((2, len(x)), _arithmetic(a).numpy)
        run(logic, x, y, both, shifted)
        for row, name in zip(both, BITS, strict=True):
            np.testing.assert_array_equal(row, expected(name, x, y, kind), f"{a} {name} {b}")
        pairs = list(zip(x.tolist(), y.tolist(), strict=True))
        for row, to_left in zip(shifted, (True, False), strict=True):
            own = _arithmetic(a)
            wanted = [wrap(_shift(int(m), int(n), own, to_left), own) for m, n in pairs]
            np.testing.assert_array_equal(row, np.array(wanted, own.numpy), f"{a} shifted by {b}")
