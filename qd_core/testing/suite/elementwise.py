"""Every elementwise operation and every conversion, on each dtype and at the edges.

One kernel a dtype and arity holds all operations, a row each; when it cannot be compiled, the operations are tried one
by one to name those at fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Value
from qd_core.ir.ops import OpDef
from qd_core.testing.compare import EXACT, run
from qd_core.testing.device import DeviceUnderTest
from qd_core.testing.kernels import array, parallel, result_type
from qd_core.testing.plugin import in_slice, requires
from qd_core.testing.samples import cases, domain_samples, edges, operand_types, samples
from qd_core.testing.tolerance import assert_close

__all__ = ["test_bit_patterns", "test_conversions", "test_operations", "test_operations_with_fast_math"]

Array = np.ndarray[Any, Any]
Row = tuple[OpDef, tuple[Array, ...]]


class Group:
    """Operations that take operands of the same types.

    Parameters
    ----------
    dtype : DType
        What they work on.
    kinds : tuple of DType
        Types of their operands.
    ops : list of OpDef
        One row each.
    """

    def __init__(self, dtype: DType, kinds: tuple[DType, ...], ops: list[OpDef]) -> None:
        self.dtype, self.kinds, self.ops = dtype, kinds, ops

    def __str__(self) -> str:
        return f"{self.dtype.name}-{len(self.kinds)}" + ("i" if self.kinds[1:] == (dt.i32,) != (self.dtype,) else "")

    def needs(self) -> tuple[str, ...]:
        """Capabilities that the kernel of this group needs."""
        return tuple(
            sorted({f"type.{d.name}" for d in (*self.kinds, *(result_type(op, self.dtype) for op in self.ops))})
        )


def groups() -> list[Group]:
    """Return the op table by operand types."""
    by_kinds: dict[tuple[DType, tuple[DType, ...]], list[OpDef]] = defaultdict(list)
    for op, dtype in cases():
        by_kinds[dtype, operand_types(op, dtype)].append(op)
    return [Group(dtype, kinds, ops) for (dtype, kinds), ops in by_kinds.items()]


GROUPS = [pytest.param(g, marks=requires(*g.needs()), id=str(g)) for g in groups()]
REAL_GROUPS = [pytest.param(g, marks=requires(*g.needs()), id=str(g)) for g in groups() if g.dtype.is_real]
TYPES = [pytest.param(d, marks=requires(f"type.{d.name}"), id=d.name) for d in dt.ALL]


def kernel(dtype: DType, kinds: Sequence[DType], ops: Sequence[OpDef]) -> Function:
    """Return the kernel ``y_<type>[row, i] = op(x0[row, i], …)`` with a row for every operation."""
    inputs = [array(kind, f"x{n}", 2) for n, kind in enumerate(kinds)]
    results = [result_type(op, dtype) for op in ops]
    outputs = {kind: array(kind, f"y_{kind.name}", 2) for kind in dict.fromkeys(results)}

    def write(b: Builder, i: Value) -> None:
        for row, (op, kind) in enumerate(zip(ops, results, strict=True)):
            place = [b.const(dt.i32, row), i]
            b.store(outputs[kind], place, b.emit(op.name, *(b.load(x, place) for x in inputs)))

    return parallel([*inputs, *outputs.values()], lambda b: b.extent(inputs[0], 1), write)


def operands(rows: Sequence[Row], kinds: Sequence[DType]) -> dict[str, Array]:
    """Stack the rows' operands; short rows repeat their first samples."""
    length = max(r[1][0].size for r in rows)
    return {f"x{n}": np.stack([np.resize(r[1][n], length) for r in rows]) for n in range(len(kinds))}


def results_of(device: DeviceUnderTest, group: Group, rows: Sequence[Row], options: CompileOptions) -> dict[str, Array]:
    """Run the rows in one kernel and return the result of each operation by name."""
    ops = [op for op, _ in rows]
    inputs = operands(rows, group.kinds)
    kinds = [result_type(op, group.dtype) for op in ops]
    shape = inputs["x0"].shape
    arguments = {**inputs, **{f"y_{k.name}": np.zeros(shape, k.numpy) for k in kinds}}
    after = run(device, kernel(group.dtype, group.kinds, ops), arguments, options=options)
    return {op.name: after[f"y_{k.name}"][row] for row, (op, k) in enumerate(zip(ops, kinds, strict=True))}


def problems(
    device: DeviceUnderTest, group: Group, sampler: Callable[..., tuple[Array, ...]], options: CompileOptions
) -> dict[str, list[str]]:
    """Compare all operations of a group with their meaning; what is wrong with each, by name."""
    rows: list[Row] = [(op, sampler(op, group.dtype)) for op in group.ops]
    try:
        actual = results_of(device, group, rows, options)
    except Exception as error:
        return culprits(device, group, rows, options, error)
    return {op.name: differs(op, group.dtype, given, actual[op.name]) for op, given in rows}


def culprits(
    device: DeviceUnderTest, group: Group, rows: Sequence[Row], options: CompileOptions, error: Exception
) -> dict[str, list[str]]:
    """Run operations one by one and say which fail, and how; all do when only the whole kernel raises ``error``."""
    found: dict[str, list[str]] = {}
    for row in rows:
        try:
            results_of(device, group, [row], options)
        except Exception as own:
            found[row[0].name] = [f"{row[0].name} of {group.dtype.name}: {type(own).__name__}: {own}"]
    together = f"{group}: only all operations together fail: {type(error).__name__}: {error}"
    return found or {op.name: [together] for op, _ in rows}


def walk(
    device: DeviceUnderTest, group: Group, sampler: Callable[..., tuple[Array, ...]], options: CompileOptions
) -> None:
    """Fail with everything that is wrong in a group."""
    wrong = [text for texts in problems(device, group, sampler, options).values() for text in texts]
    assert not wrong, "\n".join(dict.fromkeys(wrong))


def differs(op: OpDef, dtype: DType, given: tuple[Array, ...], actual: Array) -> list[str]:
    """Compare one operation with its meaning; the error's text, if any."""
    assert op.numpy is not None
    kind = result_type(op, dtype).numpy
    with np.errstate(all="ignore"):
        reference = np.asarray(op.numpy(*given)).astype(kind)
        exact = np.asarray(op.numpy(*(g.astype(np.float64) if g.dtype.kind == "f" else g for g in given)))
    try:
        assert_close(
            actual[: reference.size], reference, exact if kind.kind == "f" else None, what=f"{op.name} of {dtype.name}"
        )
    except AssertionError as error:
        where = np.flatnonzero(_unequal(actual[: reference.size], reference))[:1]
        return [f"{error}; first operands: {[g[i] for i in where for g in given]}"]
    return []


def _unequal(a: Array, b: Array) -> Array:
    return np.asarray(~((a == b) | ((a != a) & (b != b))))


@pytest.mark.parametrize("group", GROUPS)
def test_operations(device: DeviceUnderTest, group: Group) -> None:
    """Every operation on edge points and random operands, with arithmetic as written."""
    walk(device, group, samples, EXACT)


@in_slice("full")
@pytest.mark.parametrize("group", REAL_GROUPS)
def test_operations_with_fast_math(device: DeviceUnderTest, group: Group) -> None:
    """Every operation where it is well conditioned, with the arithmetic that users get."""
    walk(device, group, domain_samples, CompileOptions())


def conversion_samples(source: DType) -> Array:
    """Edge points of ``source``, the edge points of all other types near them, and random bits."""
    generator = np.random.default_rng(source.bits)
    others = [edges(d).astype(np.float64) for d in dt.ALL if d is not source]
    if source is dt.u1:
        return edges(source)
    random = generator.integers(0, 256, 256 * source.nbytes, dtype=np.uint8).view(source.numpy)
    if not source.is_real:
        return np.concatenate([edges(source), random])
    with np.errstate(all="ignore"):
        near = np.concatenate(others).astype(source.numpy)
        around = [near, np.nextafter(near, -np.inf, dtype=source.numpy), np.nextafter(near, np.inf, dtype=source.numpy)]
        return np.concatenate([edges(source), random, *around, near + source.scalar(0.5), near - source.scalar(0.5)])


def conversion(source: DType, targets: Sequence[DType], name: str) -> Function:
    """Return the kernel that converts x to every target by ``cast`` or ``bitcast``."""
    x, outputs = array(source, "x"), [array(d, f"y_{d.name}") for d in targets]

    def write(b: Builder, i: Value) -> None:
        value = b.load(x, [i])
        for y in outputs:
            b.store(y, [i], getattr(b, name)(value, y.type.dtype))

    return parallel([x, *outputs], lambda b: b.extent(x, 0), write)


def converted(device: DeviceUnderTest, source: DType, targets: Sequence[DType], name: str) -> None:
    """Compare conversions from ``source`` with the reference."""
    from qd_core.testing.compare import expect

    x = conversion_samples(source)
    arguments = {"x": x, **{f"y_{d.name}": np.zeros(x.size, d.numpy) for d in targets}}
    function = conversion(source, targets, name)
    expected, actual = expect(function, arguments), run(device, function, arguments)
    wrong: list[str] = []
    for d in targets:
        got, wanted = actual[f"y_{d.name}"], expected.run.arrays[f"y_{d.name}"]
        different = np.flatnonzero(_unequal(got, wanted))
        if different.size:
            i = int(different[0])
            wrong.append(f"{name} of {source.name} {x[i]!r} to {d.name} gives {got[i]!r}, the reference {wanted[i]!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("source", TYPES)
def test_conversions(device: DeviceUnderTest, source: DType) -> None:
    """`cast` to every claimed type: exact, saturating and wrapping as the op table says."""
    converted(device, source, [d for d in dt.ALL if d is not source and device.has(f"type.{d.name}")], "cast")


@pytest.mark.parametrize("source", [p for p in TYPES if p.values[0] is not dt.u1])
def test_bit_patterns(device: DeviceUnderTest, source: DType) -> None:
    """`bitcast` to every claimed type of the same width."""
    same = [d for d in dt.ALL if d.bits == source.bits and d is not source and device.has(f"type.{d.name}")]
    converted(device, source, same, "bitcast")
