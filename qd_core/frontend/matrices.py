"""Linear algebra on small vectors and matrices, written out component by component."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from qd_core import dtypes as dt
from qd_core.dtypes import PROMOTION, DType
from qd_core.frontend.arithmetic import as_matrix, binary, cast, elementwise
from qd_core.frontend.constructors import dtype_argument, filled
from qd_core.frontend.context import Lowering
from qd_core.frontend.values import MatrixValue, describe
from qd_core.ir.nodes import Value

__all__ = ["METHODS", "matmul", "transpose"]

Method = Callable[..., Any]
METHODS: dict[str, Method] = {}
"""Methods of vectors and matrices in kernels: name -> function of (lowering, node, matrix, arguments...)."""


def method(f: Method) -> Method:
    """Register a method under the function's name."""
    METHODS[f.__name__.rstrip("_")] = f
    return f


# -- building blocks --------------------------------------------------------------------------------------------------
def _common(ctx: Lowering, node: ast.AST, a: Any, b: Any) -> tuple[MatrixValue, MatrixValue, DType]:
    a, b = as_matrix(ctx, a, node), as_matrix(ctx, b, node)
    dtype = PROMOTION[a.dtype, b.dtype]
    dtype = ctx.options.default_ip if dtype is dt.u1 else dtype
    return cast(ctx, a, dtype, node), cast(ctx, b, dtype, node), dtype


def _sum(ctx: Lowering, items: Sequence[Value]) -> Value:
    return reduce(lambda x, y: ctx.builder.emit("add", x, y), items)


def _inner(ctx: Lowering, a: Sequence[Value], b: Sequence[Value]) -> Value:
    return _sum(ctx, [ctx.builder.emit("mul", x, y) for x, y in zip(a, b, strict=True)])


def matmul(ctx: Lowering, a: Any, b: Any, node: ast.AST) -> Any:
    """Matrix product: matrix @ matrix, matrix @ vector, vector @ matrix, vector @ vector (inner)."""
    a, b, dtype = _common(ctx, node, a, b)
    ctx.at(node)
    rows = [a.items] if len(a.shape) == 1 else [a.row(i).items for i in range(a.shape[0])]
    columns = [b.items] if len(b.shape) == 1 else [b.column(j).items for j in range(b.shape[1])]
    if len(rows[0]) != len(columns[0]):
        ctx.type_error(f"shapes do not match: {describe(a)} @ {describe(b)}", node)
    items = [_inner(ctx, r, c) for r in rows for c in columns]
    shape = (*a.shape[:-1], *b.shape[1:])
    return MatrixValue(shape, items, dtype) if shape else items[0]


def transpose(a: MatrixValue) -> MatrixValue:
    """Transposed matrix; a vector becomes a matrix of one row."""
    if len(a.shape) == 1:
        return MatrixValue((1, a.shape[0]), a.items, a.dtype)
    n, m = a.shape
    return MatrixValue((m, n), [a.items[i * m + j] for j in range(m) for i in range(n)], a.dtype)


def _need_vector(ctx: Lowering, node: ast.AST, *values: MatrixValue) -> None:
    for v in values:
        if len(v.shape) != 1:
            ctx.type_error(f"expected a vector, got {describe(v)}", node)


def _need_square(ctx: Lowering, node: ast.AST, a: MatrixValue, name: str) -> int:
    if len(a.shape) != 2 or a.shape[0] != a.shape[1]:
        ctx.type_error(f"{name}: expected a square matrix, got shape {a.shape}", node)
    return a.shape[0]


def _real(ctx: Lowering, a: MatrixValue, node: ast.AST) -> MatrixValue:
    return a if a.dtype.is_real else cast(ctx, a, ctx.options.default_fp, node)


# -- vectors ----------------------------------------------------------------------------------------------------------
@method
def dot(ctx: Lowering, node: ast.AST, a: MatrixValue, b: Any) -> Value:
    """Inner product of two vectors."""
    a, b, _ = _common(ctx, node, a, b)
    _need_vector(ctx, node, a, b)
    if a.shape != b.shape:
        ctx.type_error(f"shapes do not match: {describe(a)} and {describe(b)}", node)
    return _inner(ctx, a.items, b.items)


@method
def cross(ctx: Lowering, node: ast.AST, a: MatrixValue, b: Any) -> Any:
    """Cross product of 3-vectors; of 2-vectors its third component."""
    a, b, dtype = _common(ctx, node, a, b)
    emit = ctx.builder.emit
    if a.shape != b.shape or a.shape not in ((2,), (3,)):
        ctx.type_error(f"cross needs two vectors of 2 or 3 components, got {describe(a)} and {describe(b)}", node)

    def minor(i: int, j: int) -> Value:
        return emit("sub", emit("mul", a.items[i], b.items[j]), emit("mul", a.items[j], b.items[i]))

    return minor(0, 1) if a.shape == (2,) else MatrixValue((3,), [minor(1, 2), minor(2, 0), minor(0, 1)], dtype)


@method
def outer_product(ctx: Lowering, node: ast.AST, a: MatrixValue, b: Any) -> MatrixValue:
    """Matrix of the products of components."""
    a, b, dtype = _common(ctx, node, a, b)
    _need_vector(ctx, node, a, b)
    items = [ctx.builder.emit("mul", x, y) for x in a.items for y in b.items]
    return MatrixValue((*a.shape, *b.shape), items, dtype)


@method
def norm_sqr(ctx: Lowering, node: ast.AST, a: MatrixValue) -> Value:
    """Sum of the squares of all components."""
    return _inner(ctx, a.items, a.items)


@method
def norm(ctx: Lowering, node: ast.AST, a: MatrixValue, eps: Any = 0) -> Value:
    """Square root of the sum of squares (plus ``eps``)."""
    a = _real(ctx, a, node)
    total = binary(ctx, ast.Add, norm_sqr(ctx, node, a), eps, node) if not _is_zero(eps) else norm_sqr(ctx, node, a)
    return ctx.builder.emit("sqrt", total)


def _is_zero(eps: Any) -> bool:
    return isinstance(eps, (int, float)) and eps == 0


@method
def norm_inv(ctx: Lowering, node: ast.AST, a: MatrixValue, eps: Any = 0) -> Value:
    """Reciprocal of the norm."""
    a = _real(ctx, a, node)
    total = norm_sqr(ctx, node, a)
    return ctx.builder.emit("rsqrt", total if _is_zero(eps) else binary(ctx, ast.Add, total, eps, node))


@method
def normalized(ctx: Lowering, node: ast.AST, a: MatrixValue, eps: Any = 0) -> MatrixValue:
    """Vector of length one in the same direction."""
    a = _real(ctx, a, node)
    length = norm(ctx, node, a)
    if not _is_zero(eps):
        length = binary(ctx, ast.Add, length, eps, node)
    inverse_length = binary(ctx, ast.Div, cast(ctx, 1.0, a.dtype), length, node)
    return a.map(lambda v: ctx.builder.emit("mul", v, inverse_length))


# -- matrices ---------------------------------------------------------------------------------------------------------
@method
def transpose_(ctx: Lowering, node: ast.AST, a: MatrixValue) -> MatrixValue:
    """Transposed matrix."""
    return transpose(a)


@method
def trace(ctx: Lowering, node: ast.AST, a: MatrixValue) -> Value:
    """Sum of the diagonal."""
    n = _need_square(ctx, node, a, "trace")
    return _sum(ctx, [a.items[i * n + i] for i in range(n)])


@method
def determinant(ctx: Lowering, node: ast.AST, a: MatrixValue) -> Value:
    """Determinant, of at most 4 x 4."""
    n = _need_square(ctx, node, a, "determinant")
    if n > 4:
        ctx.type_error(f"determinant is written out for matrices of at most 4 x 4, got {describe(a)}", node)
    return _minor(ctx, a, tuple(range(n)), tuple(range(n)))


def _minor(ctx: Lowering, a: MatrixValue, rows: tuple[int, ...], columns: tuple[int, ...]) -> Value:
    """Determinant of the submatrix of ``rows`` and ``columns`` by expansion along its first row."""
    emit, m = ctx.builder.emit, a.shape[1]
    if len(rows) == 1:
        return a.items[rows[0] * m + columns[0]]
    total: Value | None = None
    for k, c in enumerate(columns):
        rest = _minor(ctx, a, rows[1:], columns[:k] + columns[k + 1 :])
        term = emit("mul", a.items[rows[0] * m + c], rest)
        total = term if total is None else emit("sub" if k % 2 else "add", total, term)
    assert total is not None
    return total


@method
def inverse(ctx: Lowering, node: ast.AST, a: MatrixValue) -> MatrixValue:
    """Inverse by cofactors, of at most 4 x 4."""
    a = _real(ctx, a, node)
    n = _need_square(ctx, node, a, "inverse")
    if n > 4:
        ctx.type_error(f"inverse is written out for matrices of at most 4 x 4, got {describe(a)}", node)
    emit = ctx.builder.emit
    one = ctx.builder.const(a.dtype, 1)
    scale = emit("div", one, determinant(ctx, node, a))
    if n == 1:
        return MatrixValue((1, 1), [scale], a.dtype)
    items: list[Value] = []
    for i in range(n):
        for j in range(n):
            cofactor = _minor(ctx, a, _without(n, j), _without(n, i))
            items.append(emit("mul", emit("neg", cofactor) if (i + j) % 2 else cofactor, scale))
    return MatrixValue((n, n), items, a.dtype)


def _without(n: int, k: int) -> tuple[int, ...]:
    return tuple(x for x in range(n) if x != k)


@method
def frobenius_inner(ctx: Lowering, node: ast.AST, a: MatrixValue, b: Any) -> Value:
    """Sum of the products of corresponding components."""
    product = binary(ctx, ast.Mult, a, as_matrix(ctx, b, node), node)
    return _sum(ctx, product.items)


# -- reductions and conversions ---------------------------------------------------------------------------------------
@method
def sum_(ctx: Lowering, node: ast.AST, a: MatrixValue) -> Value:
    """Sum of all components."""
    a = a if a.dtype is not dt.u1 else cast(ctx, a, ctx.options.default_ip, node)
    return _sum(ctx, a.items)


@method
def max_(ctx: Lowering, node: ast.AST, a: MatrixValue) -> Value:
    """Largest component."""
    return reduce(lambda x, y: ctx.builder.emit("max", x, y), a.items)


@method
def min_(ctx: Lowering, node: ast.AST, a: MatrixValue) -> Value:
    """Smallest component."""
    return reduce(lambda x, y: ctx.builder.emit("min", x, y), a.items)


def _truths(ctx: Lowering, a: MatrixValue) -> list[Value]:
    const, emit = ctx.builder.const, ctx.builder.emit
    return [v if v.type is dt.u1 else emit("ne", v, const(v.type, 0)) for v in a.items]


@method
def any_(ctx: Lowering, node: ast.AST, a: MatrixValue) -> Value:
    """Whether a component is not zero."""
    return reduce(lambda x, y: ctx.builder.emit("or", x, y), _truths(ctx, a))


@method
def all_(ctx: Lowering, node: ast.AST, a: MatrixValue) -> Value:
    """Whether no component is zero."""
    return reduce(lambda x, y: ctx.builder.emit("and", x, y), _truths(ctx, a))


@method
def cast_(ctx: Lowering, node: ast.AST, a: MatrixValue, dtype: Any) -> MatrixValue:
    """Components converted to a scalar type."""
    return cast(ctx, a, dtype_argument(ctx, dtype, node), node)


@method
def to_list(ctx: Lowering, node: ast.AST, a: MatrixValue) -> list[Any]:
    """Components as a compile-time list (of rows)."""
    if len(a.shape) == 1:
        return list(a.items)
    return [list(a.row(i).items) for i in range(a.shape[0])]


@method
def zero(ctx: Lowering, node: ast.AST, a: MatrixValue) -> MatrixValue:
    """Zeros of the same shape and type."""
    return filled(ctx, a.shape, 0, a.dtype)


@method
def copy(ctx: Lowering, node: ast.AST, a: MatrixValue) -> MatrixValue:
    """The value itself: assignment copies."""
    return a


def _elementwise_method(op: str) -> Method:
    def rule(ctx: Lowering, node: ast.AST, a: MatrixValue) -> Any:
        return elementwise(ctx, lambda x: ctx.builder.emit(op, x), (a,), node)

    return rule


METHODS["abs"] = _elementwise_method("abs")
