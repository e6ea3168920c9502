"""Printer and parser: golden texts, round trips, messages."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from qd_core import dtypes as dt
from qd_core.errors import InvalidIRError, Span
from qd_core.ir.build import Builder
from qd_core.ir.nodes import ArrayType, Function, Node, Param, Region, Role, ScratchType, Value
from qd_core.ir.ops import OPS
from qd_core.ir.parse import parse_function, parse_program
from qd_core.ir.print import format_literal, format_type, print_function, print_program
from qd_core.ir.verify import verify
from qd_core.passes.offload import offload
from qd_core.testing.kernels import array, elementwise, parallel, serial
from qd_core.testing.samples import cases


def saxpy() -> Function:
    n, a, x, y = Param(dt.i32, "n"), Param(dt.f32, "a"), array(dt.f32, "x"), array(dt.f32, "y")

    def write(b: Builder, i: Value) -> None:
        b.store(y, [i], b.emit("add", b.emit("mul", a, b.load(x, [i])), b.load(y, [i])))

    return parallel([n, a, x, y], lambda b: n, write)


def everything() -> Function:
    """One of each kind of node, type, attribute and role."""
    n = Param(dt.i64, "n")
    x = array(dt.f32, "state.pos", 1, (3,))
    grad = Param(ArrayType(dt.f32, 1, (3,)), "state.pos.grad", Role.ADJOINT)
    odd = Param(ArrayType(dt.u8, 2, (), (4, 5)), "odd 'name'", Role.TEMP)
    out = Param(ArrayType(dt.f64, 0), "result", Role.RESULT)
    function = Function("every 'thing'", [n, x, grad, odd, out], Region(), Span("a b.py", 1), {"mode": ("reverse", 1)})
    b = Builder(function.body)
    b.span = Span("a b.py", 3, 4, 5, 9, "every")
    zero = b.const(dt.i64, 0)
    with b.inside([(dt.i64, "i")], loop=True) as body:
        _messages(b, x, grad, body.args[0])
        _loops(b, x, out, body.args[0], n)
        b.yield_()
    b.parallel_for([(zero, n)], body, block_dim=64, name=None)
    with b.inside([(dt.i64, "i")], loop=True) as second:
        b.span = None
        b.atomic("max", odd, [second.args[0], b.extent(x, 0)], b.cast(n, dt.u8))
        b.yield_()
    b.parallel_for([(b.const(dt.i64, 1), n)], second)
    b.yield_()
    return function


def _messages(b: Builder, x: Param, grad: Param, i: Value) -> None:
    value = b.load(x, [i, b.const(dt.i32, 2)])
    ok = b.emit("lt", value, b.const(dt.f32, math.inf))
    b.check("assert", ok, [value], message="a\n\"quoted\" 'text'", names=("v",))
    b.print(("v = ", (0, ".3f"), "\n"), [value])
    b.exact = "strict"
    b.store(grad, [i, b.const(dt.i32, 0)], b.emit("mul", value, b.const(dt.f32, -0.0)))
    b.exact = None


def _loops(b: Builder, x: Param, out: Param, i: Value, n: Value) -> None:
    memory = b.scratch(dt.f64, n)
    with b.inside([(dt.i64, "i"), (dt.f64, ""), (dt.u1, "going")], loop=True) as body:
        j, s, going = body.args
        b.scratch_store(memory, j, s)
        b.yield_(b.emit("add", s, b.scratch_load(memory, j)), b.emit("not", going), going)
    s, going = b.for_(i, n, [b.const(dt.f64, math.nan), b.const(dt.u1, True)], body, reverse=True, breaks=True)
    with b.inside([(dt.f64, "s")], loop=True) as condition:
        b.yield_(b.emit("and", going, b.emit("gt", condition.args[0], b.const(dt.f64, -1e-300))))
    with b.inside([(dt.f64, "s")], loop=True) as again:
        b.yield_(b.emit("neg", again.args[0]))
    (s,) = b.while_([s], condition, again)
    with b.inside() as then:
        b.store(out, [], s)
        b.yield_(b.bitcast(s, dt.i64), b.const(dt.u64, 2**64 - 1))
    with b.inside() as other:
        b.yield_(b.const(dt.i64, -(2**63)), b.const(dt.u64, 0))
    first, _ = b.if_(going, then, other)
    b.check("bounds", b.emit("ne", first, i), site=7)


TEXTS: dict[str, Callable[[], Function]] = {"saxpy": saxpy, "everything": everything}


@pytest.mark.parametrize("name", TEXTS)
def test_golden_function(name: str, golden: Callable[[str, str], None]) -> None:
    function = TEXTS[name]()
    verify(function)
    golden(f"ir/{name}.txt", print_function(function))
    golden(f"ir/{name}.loc.txt", print_function(function, locations=True))


@pytest.mark.parametrize("name", TEXTS)
def test_golden_program(name: str, golden: Callable[[str, str], None]) -> None:
    program = offload(TEXTS[name]())
    verify(program)
    golden(f"ir/{name}.program.txt", print_program(program))


@pytest.mark.parametrize("locations", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_function_round_trip(name: str, locations: bool) -> None:
    text = print_function(TEXTS[name](), locations=locations)
    again = parse_function(text)
    verify(again)
    assert print_function(again, locations=locations) == text


@pytest.mark.parametrize("locations", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_program_round_trip(name: str, locations: bool) -> None:
    program = offload(TEXTS[name]())
    text = print_program(program, locations=locations)
    again = parse_program(text)
    verify(again)
    assert print_program(again, locations=locations) == text
    assert (again.sites, again.reads, again.writes) == (program.sites, program.reads, program.writes)
    assert [p.path for p in again.params] == [p.path for p in program.params]


def test_every_elementwise_operation_round_trips() -> None:
    for op, kind in cases():
        text = print_function(elementwise(op, kind), locations=True)
        assert print_function(parse_function(text), locations=True) == text


def test_spans_survive_in_full() -> None:
    function = everything()
    again = parse_function(print_function(function, locations=True))
    assert again.span == function.span
    assert [n.span for n in again.body.nodes] == [n.span for n in function.body.nodes]
    assert again.attrs == function.attrs


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1e-300, math.inf, -math.inf, math.nan, 0.1, 5e-324, 1.7976931348623157e308]
)
def test_real_constants_round_trip_bit_for_bit(value: float) -> None:
    def write(b: Builder) -> None:
        b.store(Y, [], b.const(dt.f64, value))

    function = parse_function(print_function(serial([Y], write)))
    again = next(n.attrs["value"] for n in function.body.nodes if n.op.name == "const")
    assert repr(again) == repr(value)


Y = Param(ArrayType(dt.f64, 0), "y")


def test_equal_names_are_made_unique_once() -> None:
    x, other = array(dt.f32, "i"), Param(dt.i32, "i_1")
    function = parallel([x, other], 3, lambda b, i: b.store(x, [i], b.const(dt.f32, 1)))
    text = print_function(function)
    assert "(%i: f32[?] data, %i_1: i32 data)" in text
    assert "(%i_2: i32)" in text
    assert print_function(parse_function(text)) == text


def test_parameters_of_one_path_keep_it() -> None:
    function = serial([array(dt.f32, "x"), array(dt.f32, "x")], lambda b: None)
    text = print_function(function)
    again = parse_function(text)
    assert [p.path for p in again.params] == ["x", "x"]
    assert print_function(again) == text


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (dt.u1, "u1"),
        (ArrayType(dt.f32, 2), "f32[?, ?]"),
        (ArrayType(dt.f32, 1, (3, 2)), "f32[?](3, 2)"),
        (ArrayType(dt.i64, 2, (), (4, 5)), "i64[4, 5]"),
        (ArrayType(dt.i64, 0), "i64[]"),
        (ScratchType(dt.f16), "scratch<f16>"),
    ],
)
def test_types(type: object, text: str) -> None:
    assert format_type(type) == text
    source = f"func 'k'(%x: {text} data) {{\n  yield\n}}\n"
    function = parse_function(source)
    assert function.params[0].type == type
    assert print_function(function) == source


def test_an_attribute_without_text_is_refused() -> None:
    with pytest.raises(InvalidIRError, match="without text form"):
        format_literal(object())


def test_undefined_operands_print_as_a_question() -> None:
    region = Region()
    stray = Node(OPS["const"], dt.f32, (), {"value": 1.0}, None)
    region.nodes.append(Node(OPS["yield"], None, (stray,), {}, None))
    assert "yield %?" in print_function(Function("k", [], region))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func 'k'() {\n  yield\n", "line 3, column 1: expected an operation, found the end"),
        ("func 'k'() {\n  %0 = frob : f32\n}", "line 2, column 8: unknown operation, found 'frob'"),
        (
            "func 'k'() {\n  %0 = neg %1 : f32\n}",
            "line 2, column 12: expected a value that is defined above, found '%1'",
        ),
        ("func 'k'() {\n  %0 = const 1 : q7\n}", "line 2, column 18: expected a type, found 'q7'"),
        ("func 'k'() {\n  %0 = const 1\n}", "line 2, column 8: 1 results with 0 types, found 'const'"),
        ("func 'k'(%x: f32 boss) {}", "line 1, column 22: expected a role"),
        ("func 'k'(%x: f32[?, 3] data) {}", "expected axes that are all fixed or all free"),
        ("func 'k'() {\n  yield\n} }", "line 3, column 3: expected the end of the text, found '}'"),
        ("func 'k'() {\n  ;\n}", "line 2, column 3: unexpected character ';'"),
        ("func 'k'() {\n  %0 = const 1 : i32\n  %0 = const 2 : i32\n}", "%0 is defined twice"),
        ("kernel", "line 1, column 1: expected 'func', found 'kernel'"),
    ],
)
def test_errors_name_line_and_column(text: str, message: str) -> None:
    with pytest.raises(InvalidIRError) as caught:
        parse_function(text)
    assert message in str(caught.value)


def test_values_of_a_region_are_unknown_behind_it() -> None:
    text = (
        "func 'k'(%c: u1 data) {\n  if %c {\n    %0 = const 1 : i32\n    yield\n  } {\n    yield\n  }\n  yield %0\n}\n"
    )
    with pytest.raises(InvalidIRError, match="line 8, column 9"):
        parse_function(text)
