"""Making vectors, matrices and structs: `qd.Vector([...])`, `qd.Matrix([[...]])`, and calls of type objects."""

from __future__ import annotations

import ast
import math
from typing import Any

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.errors import QuadrantsIndexError
from qd_core.frontend.annotations import MatrixType, StructType, as_dtype
from qd_core.frontend.arithmetic import as_matrix, as_scalar, cast, promote_all, to_runtime
from qd_core.frontend.context import Lowering
from qd_core.frontend.values import MatrixValue, StructValue, describe, is_constant_matrix, is_number, static_int
from qd_core.ir.nodes import Value

__all__ = ["INTRINSIC_CONSTRUCTORS", "construct", "convert_to", "dtype_argument", "filled", "struct_constant"]


def construct(ctx: Lowering, node: ast.Call, kind: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a type object: a cast for scalars, a value for matrices and structs."""
    if isinstance(kind, StructType):
        return _struct(ctx, node, kind, args, kwargs)
    if kwargs or not args:
        ctx.type_error(f"{kind!r} takes its components as positional arguments", node)
    if isinstance(kind, DType):
        if len(args) != 1:
            ctx.type_error(f"a conversion to {kind.name} takes one value, got {len(args)}", node)
        return cast(ctx, args[0], kind, node)
    return _matrix(ctx, node, kind, args)


def _matrix(ctx: Lowering, node: ast.AST, kind: MatrixType, args: list[Any]) -> MatrixValue:
    """Components from scalars, vectors and lists in order; a single scalar fills."""
    size = math.prod(kind.shape)
    parts = [to_runtime(ctx, a, node) for a in args]
    items = [v for p in parts for v in (p.items if isinstance(p, MatrixValue) else (p,))]
    if len(items) == 1 and isinstance(parts[0], Value):
        items = items * size
    if len(items) != size:
        ctx.type_error(f"{kind!r} needs {size} components, got {len(items)}", node)
    dtype = as_dtype(kind.dtype, ctx.options.default_ip, ctx.options.default_fp) or promote_all(items)
    return MatrixValue(kind.shape, [ctx.builder.cast(v, dtype) for v in items], dtype)


def _struct(ctx: Lowering, node: ast.AST, kind: StructType, args: list[Any], kwargs: dict[str, Any]) -> StructValue:
    if len(args) > len(kind.members):
        ctx.type_error(f"{kind!r} has {len(kind.members)} members, got {len(args)} arguments", node)
    given = {**dict(zip(kind.members, args, strict=False))}
    for name, value in kwargs.items():
        if name not in kind.members or name in given:
            ctx.type_error(
                f"{kind!r} has no member {name!r}, or it is given twice",
                node,
                hint=f"members: {', '.join(kind.members)}",
            )
        given[name] = value
    return StructValue({k: convert_to(ctx, t, given.get(k, 0), node) for k, t in kind.members.items()}, kind)


def convert_to(ctx: Lowering, kind: Any, value: Any, node: ast.AST) -> Any:
    """Convert ``value`` to a scalar, matrix or struct type."""
    dtype = as_dtype(kind, ctx.options.default_ip, ctx.options.default_fp)
    if dtype is not None:
        return cast(ctx, as_scalar(ctx, value, node) if isinstance(value, MatrixValue) else value, dtype, node)
    if isinstance(kind, MatrixType):
        return _to_matrix(ctx, kind, value, node)
    if isinstance(kind, StructType):
        return _to_struct(ctx, kind, value, node)
    ctx.type_error(f"{kind!r} is no type of a value", node)


def _to_matrix(ctx: Lowering, kind: MatrixType, value: Any, node: ast.AST) -> MatrixValue:
    if is_number(value) or isinstance(value, Value):
        return _matrix(ctx, node, kind, [value])
    matrix = as_matrix(ctx, value, node)
    if matrix.shape != kind.shape:
        ctx.type_error(f"expected {kind!r}, got {describe(matrix)}", node)
    dtype = as_dtype(kind.dtype, ctx.options.default_ip, ctx.options.default_fp) or matrix.dtype
    return cast(ctx, matrix, dtype, node)


def _to_struct(ctx: Lowering, kind: StructType, value: Any, node: ast.AST) -> StructValue:
    if is_number(value):
        return _struct(ctx, node, kind, [], dict.fromkeys(kind.members, value))
    if hasattr(value, "__qd_struct__"):
        value = struct_constant(ctx, value, node)
    if hasattr(value, "__qd_struct__"):
        value = value.__qd_struct__()[0]
    if isinstance(value, dict):
        return _struct(ctx, node, kind, [], value)
    if not isinstance(value, StructValue) or list(value.members) != list(kind.members):
        ctx.type_error(f"expected {kind!r}, got {describe(value)}", node)
    return StructValue({k: convert_to(ctx, t, value.members[k], node) for k, t in kind.members.items()}, kind)


def struct_constant(ctx: Lowering, value: Any, node: ast.AST) -> StructValue:
    """A struct of Python scope as a value of the kernel."""
    members, kind = value.__qd_struct__()
    if kind is not None:
        return _struct(ctx, node, kind, [], members)
    return StructValue({k: _member_constant(ctx, v, node) for k, v in members.items()})


def _member_constant(ctx: Lowering, value: Any, node: ast.AST) -> Any:
    return struct_constant(ctx, value, node) if hasattr(value, "__qd_struct__") else to_runtime(ctx, value, node)


# -- qd.Vector, qd.Matrix ---------------------------------------------------------------------------------------------
def dtype_argument(ctx: Lowering, value: Any, node: ast.AST) -> DType:
    """Return the scalar type that an argument names."""
    dtype = as_dtype(value, ctx.options.default_ip, ctx.options.default_fp)
    if dtype is None:
        ctx.type_error(f"expected a scalar type, got {describe(value)}", node, hint="for example qd.f32")
    return dtype


def _dtype_of(ctx: Lowering, args: list[Any], kwargs: dict[str, Any], position: int, node: ast.AST) -> DType | None:
    given = kwargs.pop("dt", kwargs.pop("dtype", args[position] if len(args) > position else None))
    if kwargs:
        ctx.type_error(f"unexpected argument {next(iter(kwargs))!r}", node)
    return None if given is None else dtype_argument(ctx, given, node)


def _vector(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> MatrixValue:
    """``qd.Vector(components, dt=None)``."""
    if not args:
        ctx.type_error("qd.Vector needs its components", node, hint="qd.Vector([x, y, z])")
    return as_matrix(ctx, _compile_time_list(args[0]), node, _dtype_of(ctx, args, kwargs, 1, node))


_matrix_constructor = _vector


def _compile_time_list(value: Any) -> Any:
    return (
        value
        if isinstance(value, (list, tuple, MatrixValue)) or is_constant_matrix(value) or not hasattr(value, "tolist")
        else value.tolist()
    )


def _extent(ctx: Lowering, value: Any, node: ast.AST) -> int:
    n = static_int(value)
    if n is None or n < 1:
        ctx.error(
            QuadrantsIndexError,
            f"the size of a vector or matrix must be a positive number known at compile time, got {describe(value)}",
            node,
        )
    return n


def filled(ctx: Lowering, shape: tuple[int, ...], number: float, dtype: DType) -> MatrixValue:
    """Matrix of one number."""
    return MatrixValue(shape, [ctx.builder.cast(ctx.builder.const(dt.f64, number), dtype)] * math.prod(shape), dtype)


def _make(axes: int, pattern: str) -> Any:
    """Return the lowering of ``Vector.zero(dt, n)``, ``Matrix.one(dt, n, m)``, ``Matrix.identity(dt, n)``..."""

    def rule(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> MatrixValue:
        dtype = dtype_argument(ctx, args[0] if args else kwargs.get("dt"), node)
        sizes = [_extent(ctx, a, node) for a in (*args[1:], *(v for k, v in kwargs.items() if k in ("n", "m", "i")))]
        if pattern == "identity":
            return _unit_rows(ctx, sizes[0], dtype)
        shape = tuple(sizes) if sizes else (1,)
        return filled(ctx, shape, 0 if pattern == "zero" else 1, dtype)

    return rule


def _unit_rows(ctx: Lowering, n: int, dtype: DType) -> MatrixValue:
    zero, one = filled(ctx, (1,), 0, dtype).items[0], filled(ctx, (1,), 1, dtype).items[0]
    return MatrixValue((n, n), [one if i == j else zero for i in range(n) for j in range(n)], dtype)


def _unit(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> MatrixValue:
    """``Vector.unit(n, i, dt=None)``: the i-th unit vector."""
    n, i = _extent(ctx, args[0], node), static_int(args[1])
    dtype = dtype_argument(ctx, args[2] if len(args) > 2 else kwargs.get("dt", int), node)
    if i is None or not 0 <= i < n:
        ctx.error(QuadrantsIndexError, f"unit vector {describe(args[1])} of {n} components", node)
    return MatrixValue((n,), [filled(ctx, (1,), float(k == i), dtype).items[0] for k in range(n)], dtype)


def _diag(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> MatrixValue:
    """``Matrix.diag(dim, val)``."""
    values = [*args, *kwargs.values()]
    n, value = _extent(ctx, values[0], node), as_scalar(ctx, values[1], node)
    zero = ctx.builder.const(value.type, 0)
    return MatrixValue((n, n), [value if i == j else zero for i in range(n) for j in range(n)], value.type)


def _rows(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> MatrixValue:
    """``Matrix.rows([v0, v1, ...])``."""
    return as_matrix(ctx, args[0], node)


def _cols(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> MatrixValue:
    """``Matrix.cols([v0, v1, ...])``."""
    from qd_core.frontend.matrices import transpose

    return transpose(as_matrix(ctx, args[0], node))


def _struct_of(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> StructValue:
    """``qd.Struct(a=..., b=...)`` or ``qd.Struct({"a": ...})``: members of the types of their values."""
    if len(args) > 1 or (args and not isinstance(args[0], dict)):
        ctx.type_error("qd.Struct takes its members by name, or a dict of them", node)
    members = {**(args[0] if args else {}), **kwargs}
    return StructValue({name: _member_value(ctx, v, node) for name, v in members.items()})


def _member_value(ctx: Lowering, value: Any, node: ast.AST) -> Any:
    if isinstance(value, dict):
        return _struct_of(ctx, node, [value], {})
    return value if isinstance(value, StructValue) else _member_constant(ctx, value, node)


INTRINSIC_CONSTRUCTORS: dict[str, Any] = {
    "Struct": _struct_of,
    "Vector": _vector, "Matrix": _matrix_constructor, "Vector.zero": _make(1, "zero"), "Vector.one": _make(1, "one"),
    "Vector.unit": _unit, "Matrix.zero": _make(2, "zero"), "Matrix.one": _make(2, "one"),
    "Matrix.identity": _make(2, "identity"), "Matrix.diag": _diag, "Matrix.rows": _rows, "Matrix.cols": _cols,
    "Matrix.unit": _unit,
}  # fmt: skip
