"""The builder changes nothing but the work: folded and simplified code means what was written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.ir.build import Builder, constant_of
from qd_core.ir.nodes import Function, Region, Value
from qd_core.ir.ops import OPS, OpDef
from qd_core.ir.rewrite import Copier, eliminate_dead
from qd_core.ir.verify import verify
from qd_core.reference.interpret import interpret
from qd_core.testing.kernels import array, elementwise, parallel, result_type, serial
from qd_core.testing.samples import cases, operand_types, samples


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit, but any NaN for any other."""
    equal = (a == b) & (np.signbit(a) == np.signbit(b)) if a.dtype.kind == "f" else a == b
    return bool(np.all(equal | ((a != a) & (b != b))))


# -- folding ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("op", "kind"), cases(), ids=lambda v: v.name)
def test_constants_fold_to_what_the_interpreter_computes(op: OpDef, kind: DType) -> None:
    columns = [c[:: max(1, c.size // 50)] for c in samples(op, kind)]
    out = np.zeros(columns[0].size, result_type(op, kind).numpy)
    interpret(elementwise(op, kind), {**{f"x{n}": c for n, c in enumerate(columns)}, "y": out})
    b = Builder(Region())
    kinds = operand_types(op, kind)
    folded: list[Any] = []
    for row in zip(*(c.tolist() for c in columns), strict=True):
        value = b.emit(op.name, *(b.const(k, v) for k, v in zip(kinds, row, strict=True)))
        folded.append(constant_of(value))
    assert None not in folded
    assert same(np.array(folded, out.dtype), out)


# -- simplification -----------------------------------------------------------------------------------------------
class Plain:
    """Emits operations as written, without folding, simplifying or numbering."""

    def __init__(self, b: Builder) -> None:
        self.b = b

    def const(self, kind: DType, value: Any) -> Value:
        return self.b.generic("const", kind, (), {"value": value})

    def emit(self, name: str, *operands: Value) -> Value:
        op = OPS[name]
        kind = operands[1].type if name == "select" else operands[0].type
        return self.b.generic(name, dt.u1 if op.result == "u1" else kind, operands, {})

    def cast(self, value: Value, to: DType) -> Value:
        return self.b.generic("cast", to, (value,), {"to": to})


Emit = Callable[[Any, list[Value]], Value]
INTS = (
    "add",
    "sub",
    "mul",
    "and",
    "or",
    "xor",
    "min",
    "max",
    "floordiv",
    "mod",
    "raw_div",
    "raw_mod",
    "shl",
    "sar",
    "shr",
)
REALS = ("add", "sub", "mul", "div")  # without min and max: which of two zeros they choose is open


def leaf(kind: DType, constants: list[Any]) -> st.SearchStrategy[Emit]:
    names: st.SearchStrategy[Emit] = st.integers(0, 1).map(lambda n: lambda b, xs: xs[n])
    return names | st.sampled_from(constants).map(lambda v: lambda b, xs: b.const(kind, v))


def unary(inner: st.SearchStrategy[Emit], names: tuple[str, ...]) -> st.SearchStrategy[Emit]:
    return st.tuples(st.sampled_from(names), inner).map(lambda t: lambda b, xs: b.emit(t[0], t[1](b, xs)))


def binary(inner: st.SearchStrategy[Emit], names: tuple[str, ...]) -> st.SearchStrategy[Emit]:
    def build(t: tuple[str, Emit, Emit]) -> Emit:
        return lambda b, xs: b.emit(t[0], t[1](b, xs), t[2](b, xs))

    return st.tuples(st.sampled_from(names), inner, inner).map(build)


def chosen(inner: st.SearchStrategy[Emit]) -> st.SearchStrategy[Emit]:
    """A select by a comparison, possibly negated or joined with another."""

    def build(t: tuple[str, str, Emit, Emit, Emit, Emit]) -> Emit:
        def emit(b: Any, xs: list[Value]) -> Value:
            a, c, d, e = (f(b, xs) for f in t[2:])
            first = b.emit(t[0], a, c)
            return b.emit("select", b.emit("and", b.emit("not", first), b.emit(t[1], d, e)), a, d)

        return emit

    comparison = st.sampled_from(("lt", "le", "gt", "ge", "eq", "ne"))
    return st.tuples(comparison, comparison, inner, inner, inner, inner).map(build)


def expressions(kind: DType) -> st.SearchStrategy[Emit]:
    if kind.is_real:
        start = leaf(kind, [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, float("inf"), float("nan")])
        return st.recursive(start, lambda e: binary(e, REALS) | unary(e, ("neg", "abs")) | chosen(e), max_leaves=12)
    start = leaf(kind, [0, 1, 2, 3, 7, int(kind.max), int(kind.min), *([-1, -2] if kind.kind == "i" else [])])
    return st.recursive(start, lambda e: binary(e, INTS) | unary(e, ("neg", "abs", "not")) | chosen(e), max_leaves=12)


def run_expression(kind: DType, emit: Emit, columns: list[np.ndarray], plain: bool) -> np.ndarray:
    params = [array(kind, "x0"), array(kind, "x1"), array(kind, "y")]

    def write(b: Builder, i: Value) -> None:
        loaded = [b.load(p, [i]) for p in params[:2]]
        b.store(params[2], [i], emit(Plain(b) if plain else b, loaded))

    out = np.zeros(columns[0].size, kind.numpy)
    interpret(parallel(params, out.size, write), {"x0": columns[0], "x1": columns[1], "y": out})
    return out


@pytest.mark.parametrize("kind", [dt.i32, dt.u8, dt.i64, dt.f32, dt.f64], ids=repr)
def test_simplified_expressions_mean_what_was_written(kind: DType) -> None:
    columns = [c[:400] for c in samples(OPS["add"], kind)]

    @settings(deadline=None)
    @given(expressions(kind))
    def check(emit: Emit) -> None:
        got, want = run_expression(kind, emit, columns, False), run_expression(kind, emit, columns, True)
        assert same(got, want)

    check()


@pytest.mark.parametrize("exponent", range(-8, 17))
@pytest.mark.parametrize("kind", [dt.i32, dt.u64, dt.f32, dt.f64], ids=repr)
def test_constant_exponents_become_products(kind: DType, exponent: int) -> None:
    columns = [samples(OPS["add"], kind)[0]] * 2

    def emit(b: Any, xs: list[Value]) -> Value:
        return b.emit("powi", xs[0], b.const(dt.i32, exponent))

    got, want = run_expression(kind, emit, columns, False), run_expression(kind, emit, columns, True)
    assert same(got, want)


def test_literals_beyond_the_type_become_infinities_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        b = Builder(Region())
        assert constant_of(b.const(dt.f32, 1e300)) == float("inf")
        assert constant_of(b.cast(b.const(dt.f64, -1e300), dt.f16)) == float("-inf")


# -- numbering ----------------------------------------------------------------------------------------------------
def test_equal_values_are_one_node_and_zeros_of_both_signs_are_two() -> None:
    x = array(dt.f32, "x")
    b = Builder(Region())
    i = b.const(dt.i32, 1)
    v = b.load(x, [i])
    assert b.emit("add", v, v) is b.emit("add", v, v)
    assert b.const(dt.f32, 0.0) is not b.const(dt.f32, -0.0)
    assert b.const(dt.i32, 1) is not b.const(dt.i64, 1)
    assert b.const(dt.u1, True) is not b.const(dt.i32, 1)
    assert b.const(dt.f32, float("nan")) is b.const(dt.f32, float("nan"))


def test_values_of_a_region_are_not_reused_outside() -> None:
    y = array(dt.f32, "y")

    def write(b: Builder, i: Value) -> None:
        with b.inside() as then:
            b.store(y, [i], b.emit("sqrt", b.cast(i, dt.f32)))
            b.yield_()
        with b.inside() as other:
            b.yield_()
        b.if_(b.emit("lt", i, b.const(dt.i32, 2)), then, other)
        b.store(y, [i], b.emit("sqrt", b.cast(i, dt.f32)))

    verify(parallel([y], 4, write))


def memory_trace(write: Callable[[Builder, Any, Any], None]) -> list[str]:
    x, y = array(dt.f32, "x"), array(dt.f32, "y")
    return [n.op.name for n in serial([x, y], lambda b: write(b, x, y)).body.nodes if n.op.reads or n.op.writes]


def test_loads_are_reused_until_memory_may_have_changed() -> None:
    def write(b: Builder, x: Any, y: Any) -> None:
        at = [b.const(dt.i32, 0)]
        assert b.load(x, at) is b.load(x, at)
        b.store(y, at, b.load(x, at))
        b.load(x, at)
        b.atomic("add", y, at, b.const(dt.f32, 1))
        b.load(x, at)

    assert memory_trace(write) == ["load", "store", "load", "atomic", "load"]


def test_a_load_behind_a_store_to_the_same_place_is_the_value() -> None:
    def write(b: Builder, x: Any, y: Any) -> None:
        at, one = [b.const(dt.i32, 0)], b.const(dt.f32, 1)
        b.store(x, at, one)
        assert b.load(x, at) is one

    assert memory_trace(write) == ["store"]


@pytest.mark.parametrize("nested", [False, True])
def test_stores_inside_regions_end_the_reuse_of_loads(nested: bool) -> None:
    def write(b: Builder, x: Any, y: Any) -> None:
        at = [b.const(dt.i32, 0)]
        before = b.load(x, at)
        condition = b.emit("lt", before, b.const(dt.f32, 1))
        with b.inside() as then:
            if nested:
                inner_if(b, condition, lambda: b.store(y, at, before))
            else:
                b.store(y, at, before)
            b.yield_()
        with b.inside() as other:
            b.yield_()
        b.if_(condition, then, other)
        assert b.load(x, at) is not before

    memory_trace(write)


def inner_if(b: Builder, condition: Value, body: Callable[[], None]) -> None:
    with b.inside() as then:
        body()
        b.yield_()
    with b.inside() as other:
        b.yield_()
    b.if_(condition, then, other)


def test_loads_before_a_loop_are_not_reused_in_a_body_that_stores_later() -> None:
    x, y = array(dt.i32, "x"), array(dt.i32, "y")

    def write(b: Builder) -> None:
        zero = b.const(dt.i32, 0)
        b.load(x, [zero])
        with b.inside([(dt.i32, "j")], loop=True) as body:
            b.store(y, [body.args[0]], b.load(x, [zero]))
            b.store(x, [zero], b.emit("add", b.load(x, [zero]), b.const(dt.i32, 10)))
            b.yield_()
        b.for_(zero, b.const(dt.i32, 3), [], body)

    data, out = np.array([1], np.int32), np.zeros(3, np.int32)
    interpret(serial([x, y], write), {"x": data, "y": out})
    assert out.tolist() == [1, 11, 21]


# -- copying and dead code ---------------------------------------------------------------------------------------------
def test_a_copy_means_the_same_and_dead_code_goes() -> None:
    x, y = array(dt.f64, "x"), array(dt.f64, "y")

    def write(b: Builder, i: Value) -> None:
        v = b.load(x, [i])
        b.emit("sqrt", v)
        with b.inside([(dt.i32, "j"), (dt.f64, "s"), (dt.f64, "unused")], loop=True) as body:
            _, s, unused = body.args
            b.yield_(
                b.emit("add", b.emit("mul", s, v), b.const(dt.f64, 1)),
                b.emit("mul", unused, v),
                b.emit("lt", s, b.const(dt.f64, 50)),
            )
        s, _ = b.for_(b.const(dt.i32, 0), i, [v, v], body, breaks=True)
        b.store(y, [i], s)

    function = parallel([x, y], 12, write)
    copy = Function("copy", function.params, Region())
    copier = Copier(Builder(copy.body))
    copier.nodes(function.body.nodes)
    eliminate_dead(copy)
    verify(copy)
    assert "sqrt" not in [n.op.name for n in copy.body.nodes[-2].regions[0].nodes]
    data = np.linspace(-2, 2, 12)
    outs = [np.zeros(12), np.zeros(12)]
    interpret(function, {"x": data, "y": outs[0]})
    interpret(copy, {"x": data, "y": outs[1]})
    assert same(*outs)
