"""Every native elementwise operation and every cast on the CPU against the op table, in lanes and in scalars."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
from llvm_programs import array, program, run_cpu, run_reference, task

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.dtypes import DType
from qd_core.ir.fold import evaluate
from qd_core.ir.ops import OpDef
from qd_core.testing.samples import cases, edges, operand_types, samples

_NATIVE: dict[DType, list[OpDef]] = collections.defaultdict(list)
for _op, _dtype in cases():
    if _op.native:
        _NATIVE[_dtype].append(_op)

LANES = [pytest.param(0, id="lanes"), pytest.param(1, id="scalar")]


def _result(op: OpDef, dtype: DType) -> DType:
    if op.name == "select" or op.result == "same":
        return dtype
    return dt.by_name(op.result)


def _ulps(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.abs(a.astype(np.float64) - b) / np.spacing(np.abs(b)).astype(np.float64)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", list(_NATIVE), ids=str)
def test_operation_equals_its_numpy_meaning(dtype: DType, lanes: int) -> None:
    params, values, tasks, expected, extents = [], [], [], [], []
    for op in _NATIVE[dtype]:
        arguments = samples(op, dtype)
        inputs = [array(f"{op.name}{k}", kind) for k, kind in enumerate(operand_types(op, dtype))]
        result = _result(op, dtype)
        out, got = array(op.name, result), np.zeros(len(arguments[0]), result.numpy)

        def body(b: Any, i: Any, op: OpDef = op, inputs: Any = inputs, out: Any = out) -> None:
            b.store(out, [i], b.emit(op.name, *(b.load(x, [i]) for x in inputs)))

        params += [*inputs, out]
        values += [*arguments, got]
        tasks.append(task([None], body))
        extents.append(len(got))
        expected.append((op, arguments, got, evaluate(op, arguments, result)))
    run_cpu(program(params, *tasks), values, extents, CompileOptions(fast_math=False, lanes=lanes))
    for op, arguments, got, want in expected:
        equal = (got == want) | ((got != got) & (want != want))
        if op.name == "rsqrt":  # two roundings: the square root's and the quotient's
            finite = np.isfinite(want) & np.isfinite(got)
            equal[finite] |= _ulps(got[finite], want[finite]) <= 1
        wrong = np.flatnonzero(~equal)
        shown = [(tuple(a[k] for a in arguments), got[k], want[k]) for k in wrong[:4]]
        assert not shown, f"{op.name}({dtype}): (operands, got, wanted) = {shown}"


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("source", dt.ALL, ids=str)
def test_cast_equals_the_reference(source: DType, lanes: int) -> None:
    points = edges(source)
    if source.is_real:
        around = [2.0**b + s for b in (7, 8, 15, 16, 31, 32, 62, 63) for s in (-1, -0.5, 0, 0.5, 1)]
        with np.errstate(over="ignore"):
            points = np.concatenate([points, np.array(around + [-a for a in around]).astype(source.numpy)])
    x = array("x", source)
    outs = [array(d.name, d) for d in dt.ALL]

    def body(b: Any, i: Any) -> None:
        for out in outs:
            b.store(out, [i], b.cast(b.load(x, [i]), out.type.dtype))

    p = program([x, *outs], task([None], body))
    ours, theirs = ([points, *(np.zeros(len(points), d.numpy) for d in dt.ALL)] for _ in range(2))
    run_cpu(p, ours, [len(points)], CompileOptions(fast_math=False, lanes=lanes))
    run_reference(p, theirs, [len(points)])
    for d, got, want in zip(dt.ALL, ours[1:], theirs[1:], strict=True):
        np.testing.assert_array_equal(got, want, err_msg=f"{source} to {d} of {points}")


@pytest.mark.parametrize("lanes", LANES)
def test_bitcast_keeps_the_bits(lanes: int) -> None:
    pairs = [(dt.f32, dt.u32), (dt.f64, dt.i64), (dt.f16, dt.i16), (dt.i32, dt.u32), (dt.u32, dt.f32), (dt.i64, dt.f64)]
    for source, to in pairs:
        x, y = array("x", source), array("y", to)
        p = program([x, y], task([None], lambda b, i, x=x, y=y, to=to: b.store(y, [i], b.bitcast(b.load(x, [i]), to))))
        points = edges(source)
        got = np.zeros(len(points), to.numpy)
        run_cpu(p, [points, got], [len(points)], CompileOptions(lanes=lanes))
        assert got.tobytes() == points.tobytes()


def test_fast_math_keeps_nan_and_infinity() -> None:
    x, nan, inf = array("x", dt.f32), array("nan", dt.u1), array("inf", dt.u1)

    def body(b: Any, i: Any) -> None:
        v = b.load(x, [i])
        b.store(nan, [i], b.emit("isnan", b.emit("sub", b.emit("mul", v, v), v)))
        b.store(inf, [i], b.emit("isinf", b.emit("add", v, v)))

    values = [np.array([0, 1, np.inf, -np.inf, np.nan, 3e38], np.float32), np.zeros(6, bool), np.zeros(6, bool)]
    run_cpu(program([x, nan, inf], task([None], body)), values, [6], CompileOptions(fast_math=True))
    assert values[1].tolist() == [False, False, True, False, True, False]
    assert values[2].tolist() == [False, False, True, True, False, True]
