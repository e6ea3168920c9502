"""What the functions of `qd.` and some Python builtins mean in kernels.

`INTRINSICS` maps names to lowerings; `kernel_meaning` ties a Python function of the public interface to one.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

from qd_core import dtypes as dt
from qd_core.dtypes import PROMOTION, DType
from qd_core.frontend.arithmetic import (
    as_condition,
    as_scalar,
    binary,
    cast,
    division,
    elementwise,
    shift,
    to_runtime,
)
from qd_core.frontend.arrays import stopped
from qd_core.frontend.constructors import INTRINSIC_CONSTRUCTORS, dtype_argument
from qd_core.frontend.context import CALLS, Lowering
from qd_core.frontend.values import (
    ArrayRef,
    MatrixValue,
    StructRef,
    is_constant_matrix,
    is_number,
    is_runtime,
    rebuild,
)
from qd_core.ir.nodes import Value
from qd_core.passes.draws import RANDOM

__all__ = ["INTRINSICS", "kernel_meaning", "select"]

Rule = Callable[..., Any]
_F = TypeVar("_F")
INTRINSICS: dict[str, Rule] = dict(INTRINSIC_CONSTRUCTORS)


def kernel_meaning(name: str) -> Callable[[_F], _F]:
    """Give a Python function or class the meaning ``name`` when kernels call it."""

    def mark(f: _F) -> _F:
        CALLS[f] = INTRINSICS[name]
        return f

    return mark


def intrinsic(*names: str) -> Callable[[Rule], Rule]:
    """Register a lowering."""

    def add(rule: Rule) -> Rule:
        INTRINSICS.update(dict.fromkeys(names, rule))
        return rule

    return add


def exactly(ctx: Lowering, node: ast.AST, name: str, args: list[Any], kwargs: dict[str, Any], count: int) -> None:
    """Refuse a call unless it has ``count`` positional arguments."""
    if kwargs or len(args) != count:
        ctx.type_error(f"{name} takes {count} argument{'s' * (count != 1)}, got {len(args) + len(kwargs)}", node)


# -- elementary functions ---------------------------------------------------------------------------------------------
def _real_unary(name: str, from_integer: bool) -> Rule:
    def rule(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
        exactly(ctx, node, name, args, kwargs, 1)

        def one(x: Value) -> Value:
            return ctx.builder.emit(name, _real_operand(ctx, node, name, x, from_integer))

        return elementwise(ctx, one, (_number_as_real(args[0]),), node)

    return rule


def _number_as_real(x: Any) -> Any:
    return float(x) if is_number(x) and isinstance(x, (int, bool)) else x


def _real_operand(ctx: Lowering, node: ast.AST, name: str, x: Value, from_integer: bool) -> Value:
    if x.type.is_real:
        return x
    if not from_integer:
        ctx.type_error(
            f"'{name}' takes real inputs only: {name} needs a real operand, got {x.type.name}",
            node,
            hint=f"convert it: qd.{name}(qd.cast(x, qd.f32))",
        )
    return ctx.builder.cast(x, ctx.options.default_fp)


for _name in ("sin", "cos", "tan", "tanh", "asin", "acos"):
    INTRINSICS[_name] = _real_unary(_name, from_integer=False)
for _name in ("sqrt", "rsqrt", "exp", "log"):
    INTRINSICS[_name] = _real_unary(_name, from_integer=True)
for _name in ("isnan", "isinf"):
    INTRINSICS[_name] = _real_unary(_name, from_integer=True)


def _rounding(name: str) -> Rule:
    def rule(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
        to = kwargs.pop("dtype", args[1] if len(args) > 1 else None)
        exactly(ctx, node, name, args[:1], kwargs, 1)
        value = elementwise(
            ctx,
            lambda x: ctx.builder.emit(name, _real_operand(ctx, node, name, x, False)),
            (_number_as_real(args[0]),),
            node,
        )
        return value if to is None else cast(ctx, value, dtype_argument(ctx, to, node), node)

    return rule


for _name in ("floor", "ceil", "round"):
    INTRINSICS[_name] = _rounding(_name)


@intrinsic("atan2")
def _atan2(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    exactly(ctx, node, "atan2", args, kwargs, 2)

    def one(y: Value, x: Value) -> Value:
        dtype = dt.f64 if dt.f64 in (y.type, x.type) else dt.f32
        return ctx.builder.emit("atan2", ctx.builder.cast(y, dtype), ctx.builder.cast(x, dtype))

    return elementwise(ctx, one, tuple(map(_number_as_real, args)), node)


@intrinsic("abs")
def _abs(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    exactly(ctx, node, "abs", args, kwargs, 1)
    if is_number(args[0]):
        return abs(args[0])

    def one(x: Value) -> Value:
        return ctx.builder.emit("abs", ctx.builder.cast(x, ctx.options.default_ip) if x.type is dt.u1 else x)

    return elementwise(ctx, one, (args[0],), node)


@intrinsic("sgn")
def _sgn(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    exactly(ctx, node, "sgn", args, kwargs, 1)

    def one(x: Value) -> Value:
        return ctx.builder.emit("sgn", ctx.builder.cast(x, ctx.options.default_ip) if x.type is dt.u1 else x)

    return elementwise(ctx, one, (args[0],), node)


@intrinsic("stop_grad")
def _stop_grad(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Of an array: what the rest of the block reads of it is constant. Of a value: that value as a constant."""
    exactly(ctx, node, "stop_grad", args, kwargs, 1)
    if isinstance(args[0], StructRef):
        for member in args[0].members.values():
            _stop_grad(ctx, node, [member], {})
        return None
    if isinstance(args[0], ArrayRef):
        ctx.scope.declare(stopped(args[0].param), True)
        return None
    return elementwise(ctx, ctx.builder.stop_grad, (args[0],), node)


@intrinsic("frexp")
def _frexp(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Mantissa and exponent: two values, or two vectors."""
    from qd_core.elementary.expression import frexp

    exactly(ctx, node, "frexp", args, kwargs, 1)
    value: Any = to_runtime(ctx, _number_as_real(args[0]), node)
    parts = [frexp(ctx.builder, _real_operand(ctx, node, "frexp", x, False)) for x in getattr(value, "items", (value,))]
    return rebuild(value, iter([m for m, _ in parts])), _as_integers(value, [e for _, e in parts])


def _as_integers(like: Any, items: list[Value]) -> Any:
    return MatrixValue(like.shape, items) if isinstance(like, MatrixValue) else items[0]


def _extremum(name: str) -> Rule:
    python = {"max": max, "min": min}[name]

    def one(ctx: Lowering, a: Value, b: Value) -> Value:
        dtype = PROMOTION[a.type, b.type]
        dtype = ctx.options.default_ip if dtype is dt.u1 else dtype
        return ctx.builder.emit(name, ctx.builder.cast(a, dtype), ctx.builder.cast(b, dtype))

    def rule(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if kwargs or not args:
            ctx.type_error(f"{name} takes positional arguments", node)
        if len(args) == 1 and isinstance(args[0], (list, tuple)):
            args = list(args[0])
        if all(map(is_number, args)):
            return python(args)
        if len(args) == 1:
            return args[0]
        return reduce(lambda a, b: elementwise(ctx, lambda x, y: one(ctx, x, y), (a, b), node), args)

    return rule


INTRINSICS["max"] = _extremum("max")
INTRINSICS["min"] = _extremum("min")


@intrinsic("pow")
def _pow(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    exactly(ctx, node, "pow", args, kwargs, 2)
    return binary(ctx, ast.Pow, args[0], args[1], node)


def _binary_rule(name: str, rule: Any) -> Rule:
    def lower(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
        exactly(ctx, node, name, args, kwargs, 2)
        return elementwise(ctx, lambda a, b: rule(ctx, node, a, b), (args[0], args[1]), node)

    return lower


INTRINSICS["raw_div"] = _binary_rule("raw_div", division("raw_div"))
INTRINSICS["raw_mod"] = _binary_rule("raw_mod", division("raw_mod"))
INTRINSICS["bit_shr"] = _binary_rule("bit_shr", shift("shr"))
INTRINSICS["bit_sar"] = _binary_rule("bit_sar", shift("sar"))
INTRINSICS["bit_shl"] = _binary_rule("bit_shl", shift("shl"))


def _bit_count(name: str) -> Rule:
    def rule(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
        exactly(ctx, node, name, args, kwargs, 1)

        def one(x: Value) -> Value:
            if x.type.kind not in "iu":
                ctx.type_error(f"{name} needs an integer, got {x.type.name}", node)
            return ctx.builder.emit(name, x)

        return elementwise(ctx, one, (args[0],), node)

    return rule


INTRINSICS["popcnt"] = _bit_count("popcnt")
INTRINSICS["clz"] = _bit_count("clz")


@intrinsic("select")
def select(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``qd.select(condition, a, b)``, element by element; both alternatives are evaluated."""
    exactly(ctx, node, "select", args, kwargs, 3)

    def one(c: Value, a: Value, b: Value) -> Value:
        dtype = PROMOTION[a.type, b.type]
        return ctx.builder.select(as_condition(ctx, c, node), ctx.builder.cast(a, dtype), ctx.builder.cast(b, dtype))

    return elementwise(ctx, one, tuple(args), node)


# -- conversions ------------------------------------------------------------------------------------------------------
@intrinsic("cast")
def _cast(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    exactly(ctx, node, "cast", args, kwargs, 2)
    return cast(ctx, args[0], dtype_argument(ctx, args[1], node), node)


@intrinsic("bit_cast")
def _bit_cast(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    exactly(ctx, node, "bit_cast", args, kwargs, 2)
    to = dtype_argument(ctx, args[1], node)

    def one(x: Value) -> Value:
        if x.type.bits != to.bits or dt.u1 in (x.type, to):
            ctx.type_error(f"bit_cast needs types of one width, got {x.type.name} and {to.name}", node)
        return ctx.builder.bitcast(x, to)

    return elementwise(ctx, one, (args[0],), node)


def _python_type(python: type, default: Callable[[Lowering], DType]) -> Rule:
    def rule(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
        exactly(ctx, node, python.__name__, args, kwargs, 1)
        if not is_runtime(args[0]) and not is_constant_matrix(args[0]):
            return ctx.compile_time(lambda: python(args[0]), node, f"{python.__name__}(...)")
        return cast(ctx, args[0], default(ctx), node)

    return rule


CALLS[int] = _python_type(int, lambda ctx: ctx.options.default_ip)
CALLS[float] = _python_type(float, lambda ctx: ctx.options.default_fp)
CALLS[bool] = _python_type(bool, lambda ctx: dt.u1)


def _like(number: int) -> Rule:
    def rule(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
        exactly(ctx, node, ("zero", "one")[number], args, kwargs, 1)
        value = to_runtime(ctx, args[0], node)
        items = [
            ctx.builder.const(v.type, number) for v in (value.items if isinstance(value, MatrixValue) else (value,))
        ]
        return rebuild(value, iter(items))

    return rule


INTRINSICS["zero"], INTRINSICS["one"] = _like(0), _like(1)


@intrinsic("random")
def _random(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Value:
    return ctx.builder.random(_drawn_type(ctx, node, "random", args, kwargs), ctx.param(RANDOM, dt.u64))


@intrinsic("randn")
def _randn(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """Box and Muller, "A note on the generation of random normal deviates", Ann. Math. Stat. 29 (1958)."""
    dtype, builder = _drawn_type(ctx, node, "randn", args, kwargs), ctx.builder
    if not dtype.is_real:
        ctx.type_error(f"randn gives reals, got the type {dtype.name}", node, hint="use qd.random for integers")
    wide = dt.f64 if dtype is dt.f64 else dt.f32
    radius, angle = (builder.random(wide, ctx.param(RANDOM, dt.u64)) for _ in range(2))
    positive = builder.emit("sub", builder.const(wide, 1.0), radius)
    square = builder.emit("mul", builder.emit("log", positive), builder.const(wide, -2.0))
    turn = builder.emit("cos", builder.emit("mul", angle, builder.const(wide, 2 * math.pi)))
    return builder.cast(builder.emit("mul", builder.emit("sqrt", square), turn), dtype)


def _drawn_type(ctx: Lowering, node: ast.AST, name: str, args: list[Any], kwargs: dict[str, Any]) -> DType:
    """Type of a draw: the only argument, default_fp without one."""
    given = [*args, *(kwargs.pop(k) for k in ("dtype", "dt") if k in kwargs)]
    if len(given) > 1 or kwargs:
        ctx.type_error(f"{name} takes at most a scalar type", node)
    return dtype_argument(ctx, given[0], node) if given else ctx.options.default_fp


@intrinsic("volatile_load")
def _volatile_load(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    exactly(ctx, node, "volatile_load", args, kwargs, 1)
    return args[0]


@intrinsic("block_local", "cache_read_only", "mesh_local", "no_activate")
def _hint(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Where arrays had better be kept: what they hold is the same wherever that is."""


@intrinsic("assume_in_range")
def _assume_in_range(ctx: Lowering, node: ast.AST, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``assume_in_range(value, base, low, high)``: a hint, checked in debug mode."""
    exactly(ctx, node, "assume_in_range", args, kwargs, 4)
    value = as_scalar(ctx, args[0], node)
    if ctx.options.debug:
        low = as_scalar(ctx, binary(ctx, ast.Add, args[1], args[2], node), node)
        high = as_scalar(ctx, binary(ctx, ast.Add, args[1], args[3], node), node)
        dtype = PROMOTION[PROMOTION[value.type, low.type], high.type]
        x, a, b = (ctx.builder.cast(v, dtype) for v in (value, low, high))
        ok = ctx.builder.emit("and", ctx.builder.emit("ge", x, a), ctx.builder.emit("lt", x, b))
        ctx.builder.check(
            "assert", ok, (x, a, b), message=("assume_in_range: ", (0,), " is not in [", (1,), ", ", (2,), ")")
        )
    return args[0]


CALLS.update({f: INTRINSICS[f.__name__] for f in (abs, max, min, pow, round)})
