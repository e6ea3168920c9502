"""Expansion in programs: what is left, what is shared, and what fast math may touch."""

from __future__ import annotations

import pytest
from math_evaluation import build, count_nodes, expansion
from math_machine import elementwise_program
from math_samples import BINARY, UNARY

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.elementary import BOUNDS, expand
from qd_core.errors import Span
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Node, Region
from qd_core.ir.ops import OPS
from qd_core.ir.parse import parse_program
from qd_core.ir.print import print_program
from qd_core.ir.program import Program
from qd_core.ir.rewrite import Copier, walk
from qd_core.ir.verify import verify
from qd_core.passes.legalize import legalize

FUNCTIONS = (*UNARY, *BINARY)

LARGEST = {
    "sin": 140, "cos": 140, "tan": 140, "asin": 40, "acos": 40, "atan2": 65, "exp": 40, "log": 50, "tanh": 65,
    "pow": 160,
}  # fmt: skip
"""Operations of an f32 expansion: code size is part of the design."""


def nodes(program: Program) -> list[Node]:
    return [n for t in program.tasks for n in walk(t.body)]


def types_of(name: str, dtype: DType) -> list[DType]:
    return [dtype, dt.i32] if name == "powi" else [dtype] * (2 if name in BINARY else 1)


def test_every_operation_that_is_not_native_has_an_expansion_and_a_bound() -> None:
    missing = {o.name for o in OPS.values() if not o.native}
    assert missing == {*FUNCTIONS, "powi"}
    assert set(BOUNDS) == set(FUNCTIONS)


@pytest.mark.parametrize("name", [*FUNCTIONS, "powi"])
@pytest.mark.parametrize("dtype", [dt.f16, dt.f32, dt.f64])
def test_expansions_are_native_and_need_no_wider_real(name: str, dtype: DType) -> None:
    region, _ = expansion(name, types_of(name, dtype))
    for node in walk(region):
        assert node.op.native
        assert dtype is dt.f64 or node.type is not dt.f64


@pytest.mark.parametrize("name", FUNCTIONS)
def test_real_arithmetic_is_protected_from_fast_math(name: str) -> None:
    region, _ = expansion(name, types_of(name, dt.f32))
    arithmetic = [n for n in walk(region) if n.op.name in ("add", "sub", "mul", "div", "select") and n.type.is_real]
    assert arithmetic
    assert {n.attrs.get("exact") for n in arithmetic} == {"contract"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_op_counts(name: str) -> None:
    assert count_nodes(expansion(name, types_of(name, dt.f32))[0]) <= LARGEST[name]


def test_sine_and_cosine_share_the_reduction() -> None:
    both, _ = build(lambda b, p: [expand(b, "sin", p), expand(b, "cos", p)], [dt.f32])
    alone = count_nodes(expansion("sin", [dt.f32])[0])
    assert [n.op.name for n in walk(both)].count("if") == 1
    assert count_nodes(both) <= alone + 8


def test_protected_and_plain_arithmetic_are_numbered_apart_and_copied_as_they_are() -> None:
    _, params = build(lambda b, p: [b.emit("mul", p[0], p[0])], [dt.f32])
    b = Builder(Region())
    plain = b.emit("mul", params[0], params[0])
    b.exact = "strict"
    strict = b.emit("mul", params[0], params[0])
    assert strict is not plain
    assert isinstance(strict, Node)
    assert strict.attrs["exact"] == "strict"
    copier = Copier(Builder(Region()))
    copier.nodes([plain, strict])  # type: ignore[list-item]
    copies = [n for n in copier.builder.region.nodes if n.op.name == "mul"]
    assert [n.attrs.get("exact") for n in copies] == [None, "strict"]
    assert copier.builder.exact is None


def test_legalize_leaves_only_native_operations_and_the_original_program() -> None:
    program = elementwise_program(["sin", "exp"], [dt.f32], 10)
    legal = legalize(program)
    assert all(n.op.native for n in nodes(legal))
    assert [n.op.name for n in nodes(program) if not n.op.native] == ["sin", "exp"]
    assert legal.params == program.params
    assert [t.extents for t in legal.tasks] == [t.extents for t in program.tasks]


def test_legalize_keeps_what_the_target_has() -> None:
    program = elementwise_program(["sin", "exp"], [dt.f32], 10)
    assert [n.op.name for n in nodes(legalize(program, frozenset({"sin"}))) if not n.op.native] == ["sin"]
    by_type = legalize(program, frozenset({("exp", "f32"), ("sin", "f64")}))
    assert [n.op.name for n in nodes(by_type) if not n.op.native] == ["exp"]
    assert legalize(program, frozenset({"sin", "exp"})) is program


def test_legalize_returns_a_native_program_itself() -> None:
    program = elementwise_program(["sqrt"], [dt.f32], 10)
    assert legalize(program) is program


@pytest.mark.parametrize("dtype", [dt.f16, dt.f32, dt.f64])
@pytest.mark.parametrize("name", [*FUNCTIONS, "powi"])
def test_legal_programs_verify_and_round_trip(name: str, dtype: DType) -> None:
    legal = legalize(elementwise_program([name], types_of(name, dtype), 10))
    verify(legal)
    text = print_program(legal)
    assert print_program(parse_program(text)) == text


def test_expanded_nodes_keep_the_span() -> None:
    program = elementwise_program(["tan"], [dt.f32], 10)
    span = Span("kernel.py", 7, 4)
    for node in nodes(program):
        if node.op.name == "tan":
            node.span = span
    legal = nodes(legalize(program))
    assert {n.span for n in legal if n.op.name == "div"} == {span}
    assert {n.span for n in legal if n.op.name == "if"} == {span}


def test_powers_with_constant_exponents_need_no_logarithm() -> None:
    for exponent, operation in ((2.0, "mul"), (-1.0, "div")):
        region, _ = build(lambda b, p, e=exponent: [expand(b, "pow", [p[0], b.const(dt.f32, e)])], [dt.f32])
        assert [n.op.name for n in walk(region) if n.op.name not in ("const", "yield")] == [operation]
    region, _ = build(lambda b, p: [expand(b, "powi", [p[0], b.const(dt.i32, 100)])], [dt.f32])
    assert not [n for n in walk(region) if n.op.name in ("while", "div")]
