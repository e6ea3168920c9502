"""Variables in private memory: large vectors and matrices that the function indexes at run time.

A vector in SSA scalars that is indexed at run time becomes a chain of selects, as long as the vector, for each access.
Beyond a few elements it is memory of the iteration instead: an access is one load or store, whatever the length.
Reading such a variable whole copies it into scalars, so that values stay immutable everywhere else.

Derivatives are taken of the scalar form: kernels that will be transformed are lowered without private memory.
"""

from __future__ import annotations

import ast
from typing import Any

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.frontend.arithmetic import converted
from qd_core.frontend.components import Index, spread
from qd_core.frontend.context import Lowering
from qd_core.frontend.values import MatrixValue, PrivateMatrix
from qd_core.ir.nodes import Value

__all__ = ["LARGEST_IN_REGISTERS", "private_get", "private_set", "read_whole", "to_private", "write_whole"]

LARGEST_IN_REGISTERS = 16
"""Elements up to which a vector stays in scalars although it is indexed at run time."""


def to_private(ctx: Lowering, name: str, value: Any) -> Any:
    """Return what the new variable ``name`` holds: private memory filled with ``value`` where that pays, else that."""
    if (
        not isinstance(value, MatrixValue)
        or len(value.items) <= LARGEST_IN_REGISTERS
        or ctx.home is None
        or not ctx.options.private_memory
        or name not in ctx.info.facts.indexed
    ):
        return value
    memory = PrivateMatrix(value.shape, value.dtype, _reserve(ctx, value.dtype, len(value.items)))
    write_whole(ctx, memory, value)
    return memory


def _reserve(ctx: Lowering, dtype: DType, length: int) -> Value:
    """Memory from the beginning of the iteration on: a loop around the variable reserves it once."""
    builder, home = ctx.builder, ctx.home
    assert home is not None
    here, there = builder.region, type(home)()
    builder.region = there
    count = builder.generic("const", dt.i32, (), {"value": length})
    scratch = builder.scratch(dtype, count)
    builder.region = here
    home.nodes[:0] = there.nodes
    return scratch


def read_whole(ctx: Lowering, memory: PrivateMatrix) -> MatrixValue:
    """Copy into scalars."""
    builder = ctx.builder
    items = [builder.scratch_load(memory.memory, builder.const(dt.i32, k)) for k in range(memory.size)]
    return MatrixValue(memory.shape, items, memory.dtype)


def write_whole(ctx: Lowering, memory: PrivateMatrix, value: MatrixValue) -> None:
    """Copy from scalars."""
    for k, item in enumerate(value.items):
        ctx.builder.scratch_store(memory.memory, ctx.builder.const(dt.i32, k), item)


def private_get(ctx: Lowering, memory: PrivateMatrix, index: tuple[Index, ...]) -> Any:
    """Component or row; a component outside reads as the first, as it does of a vector in scalars."""
    places = [_clamped(ctx, i, n) for i, n in zip(index, memory.shape, strict=False)]
    items = [ctx.builder.scratch_load(memory.memory, at) for at in _places(ctx, memory, [p for p, _ in places])]
    return items[0] if len(index) == len(memory.shape) else MatrixValue((memory.shape[1],), items, memory.dtype)


def private_set(ctx: Lowering, memory: PrivateMatrix, index: tuple[Index, ...], new: Any, node: ast.AST) -> None:
    """Replace a component or row; one outside is left alone."""
    builder = ctx.builder
    width = 1 if len(index) == len(memory.shape) else memory.shape[1]
    items = [converted(ctx, v, memory.dtype, node) for v in spread(ctx, new, width, node)]
    places = [_clamped(ctx, i, n) for i, n in zip(index, memory.shape, strict=False)]
    for at, item in zip(_places(ctx, memory, [p for p, _ in places]), items, strict=True):
        kept = item
        for _, inside in places:
            if inside is not None:
                kept = builder.select(inside, kept, builder.scratch_load(memory.memory, at))
        builder.scratch_store(memory.memory, at, kept)


def _clamped(ctx: Lowering, index: Index, extent: int) -> tuple[Value, Value | None]:
    """Return an index that is inside for sure, and whether the given one was; None where that is certain."""
    builder = ctx.builder
    if isinstance(index, int):
        return builder.const(dt.i32, index), None
    wide = builder.cast(index, dt.i64)
    low = builder.emit("ge", wide, builder.const(dt.i64, 0))
    inside = builder.emit("and", low, builder.emit("lt", wide, builder.const(dt.i64, extent)))
    return builder.select(inside, builder.cast(index, dt.i32), builder.const(dt.i32, 0)), inside


def _places(ctx: Lowering, memory: PrivateMatrix, index: list[Value]) -> list[Value]:
    """Positions of a component, or of the components of a row."""
    builder = ctx.builder
    if len(memory.shape) == 1:
        return index
    first = builder.emit("mul", index[0], builder.const(dt.i32, memory.shape[1]))
    columns = index[1:] or [builder.const(dt.i32, j) for j in range(memory.shape[1])]
    return [builder.emit("add", first, column) for column in columns]
