"""Sample operands for every operation and type: edge points and seeded random ones.

Everything that walks the op table takes its operands from here: the reference against NumPy, each backend against the
reference, and derivative checks against differences.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.ir.ops import OPS, OpDef

__all__ = ["cases", "domain_samples", "edges", "operand_types", "samples"]

Array = np.ndarray[Any, Any]

_SHIFTS = frozenset({"shl", "sar", "shr"})


def cases() -> list[tuple[OpDef, DType]]:
    """Every elementwise operation with each type that it takes, in the table's order."""
    return [(op, d) for op in OPS.values() if op.numpy is not None for d in dt.ALL if d in op.types]


def operand_types(op: OpDef, dtype: DType) -> tuple[DType, ...]:
    """Types of an elementwise operation's operands where it works on ``dtype``."""
    if op.name == "select":
        return (dt.u1, dtype, dtype)
    if op.name == "powi":
        return (dtype, dt.i32)
    return (dtype,) * op.arity


def edges(dtype: DType) -> Array:
    """Edge points of a type.

    Returns
    -------
    ndarray
        1-D, of ``dtype.numpy``. Reals: zeros of both signs, ones, halves, integers and what is around them, the
        largest and smallest normal and subnormal numbers, infinities, NaN. Integers: 0, ±1, small ones, powers of
        two, minimum and maximum.
    """
    if dtype is dt.u1:
        return np.array([False, True])
    return _real_edges(dtype) if dtype.is_real else _integer_edges(dtype)


def _real_edges(dtype: DType) -> Array:
    info = np.finfo(dtype.numpy)
    magnitudes = [
        0.0,
        1.0,
        0.5,
        1.5,
        2.0,
        2.5,
        3.0,
        7.0,
        1.0 - float(info.epsneg),
        1.0 + float(info.eps),
        1 / float(info.eps),
    ]
    magnitudes += [float(info.max), float(info.smallest_normal), float(info.smallest_subnormal), float("inf")]
    one = np.array(magnitudes, np.float64)
    return np.concatenate([one, -one, [np.nan]]).astype(dtype.numpy)


def _integer_edges(dtype: DType) -> Array:
    low, high = int(dtype.min), int(dtype.max)
    wanted = [
        0,
        1,
        -1,
        2,
        -2,
        3,
        -3,
        7,
        -7,
        10,
        100,
        dtype.bits - 1,
        dtype.bits,
        dtype.bits + 1,
        high,
        high - 1,
        low,
        low + 1,
    ]
    wanted += [1 << (dtype.bits // 2), high // 2 + 1]
    return np.array(sorted({v for v in wanted if low <= v <= high}), dtype.numpy)


def samples(op: OpDef, dtype: DType, count: int = 64, seed: int = 0) -> tuple[Array, ...]:
    """Operands of an elementwise operation: all combinations of edge points, then random ones.

    Parameters
    ----------
    op : OpDef
        A row with a NumPy meaning.
    dtype : DType
        One of ``op.types``.
    count : int
        Number of random operands: half from the operation's domain, half from the whole type.
    seed : int
        Seed; the same arguments give the same operands everywhere.

    Returns
    -------
    tuple of ndarray
        One equally long 1-D array an operand, of the types of `operand_types`.
    """
    generator = _generator(op, dtype, seed)
    kinds = operand_types(op, dtype)
    columns = zip(*itertools.product(*(_edges_of(op, n, kind) for n, kind in enumerate(kinds))), strict=True)
    grid = [np.array(c, kind.numpy) for c, kind in zip(columns, kinds, strict=True)]
    inside = [_inside(op, n, kind, count - count // 2, generator) for n, kind in enumerate(kinds)]
    anywhere = [_anywhere(op, n, kind, count // 2, generator) for n, kind in enumerate(kinds)]
    return tuple(np.concatenate(parts) for parts in zip(grid, inside, anywhere, strict=True))


def domain_samples(op: OpDef, dtype: DType, count: int = 64, seed: int = 0) -> tuple[Array, ...]:
    """Random operands from the operation's domain, for derivative checks and error bounds; arguments as for
    `samples`.
    """
    generator = _generator(op, dtype, seed)
    return tuple(_inside(op, n, kind, count, generator) for n, kind in enumerate(operand_types(op, dtype)))


def _generator(op: OpDef, dtype: DType, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(f"{op.name} {dtype.name}".encode())])


def _is_amount(op: OpDef, position: int) -> bool:
    """Whether an operand is a shift's amount or an exponent: small numbers matter there."""
    return position == 1 and (op.name in _SHIFTS or op.name == "powi")


def _edges_of(op: OpDef, position: int, kind: DType) -> Sequence[Any]:
    if op.name == "powi" and position == 1:
        return [0, 1, 2, 3, 4, 5, 16, 31, 32, 33, 1000, -1, -2, -3, -1000, 2**30, 2**31 - 1, -(2**31)]
    return edges(kind).tolist()


def _inside(op: OpDef, position: int, kind: DType, count: int, generator: np.random.Generator) -> Array:
    if kind.is_real:
        return generator.uniform(*op.domain, count).astype(kind.numpy)
    if _is_amount(op, position):
        return generator.integers(0, kind.bits if op.name in _SHIFTS else 9, count).astype(kind.numpy)
    if kind is dt.u1:
        return generator.integers(0, 2, count).astype(kind.numpy)
    return generator.integers(-20 if kind.is_signed else 0, 21, count).astype(kind.numpy)


def _anywhere(op: OpDef, position: int, kind: DType, count: int, generator: np.random.Generator) -> Array:
    """Operands from the whole type: every bit pattern of an integer, every order of magnitude of a real (NaN and
    infinities too).
    """
    if kind is dt.u1 or _is_amount(op, position):
        return _inside(op, position, kind, count, generator)
    raw = generator.integers(0, 256, count * kind.nbytes, dtype=np.uint8)
    return raw.view(kind.numpy)
