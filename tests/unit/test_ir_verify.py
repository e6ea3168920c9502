"""The verifier: every rule is broken once and refused with the operation's name and line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from qd_core import dtypes as dt
from qd_core.errors import InvalidIRError
from qd_core.ir.build import Builder
from qd_core.ir.nodes import ArrayType, Function, Node, Param, Region, Role
from qd_core.ir.ops import OPS, OpDef
from qd_core.ir.parse import parse_function
from qd_core.ir.program import DeviceWord, Fixed, HostExpr, Program
from qd_core.ir.verify import verify
from qd_core.passes.offload import offload
from qd_core.testing.kernels import SPAN, array, elementwise, parallel, serial
from qd_core.testing.samples import cases

HEAD = "func 'k'(%n: i32 data, %r: f32 data, %c: u1 data, %x: f32[?](3) data, %i: i32[?] data, %z: f32[] data)"


def kernel(*lines: str) -> Function:
    return parse_function(HEAD + " {\n" + "\n".join(lines) + "\n}\n")


def refused(function: Any, message: str) -> str:
    with pytest.raises(InvalidIRError) as caught:
        verify(function)
    assert message in caught.value.message
    return str(caught.value)


def test_what_the_builder_makes_is_valid() -> None:
    for op, kind in cases():
        verify(elementwise(op, kind))


BROKEN: dict[str, tuple[str, ...]] = {
    "add: its operand types are [i32, f32], not [i32, i32]": ("%0 = add %n, %r : i32", "yield"),
    "add: its type is f64, not f32": ("%0 = add %r, %r : f64", "yield"),
    "add: does not take u1": ("%0 = add %c, %c : u1", "yield"),
    "add: has 1 operands, not 2": ("%0 = add %r : f32", "yield"),
    "sqrt: does not take i32": ("%0 = sqrt %n : i32", "yield"),
    "lt: its type is f32, not u1": ("%0 = lt %r, %r : f32", "yield"),
    "popcnt: its type is i64, not i32": ("%0 = popcnt %n : i64", "yield"),
    "powi: its exponent is f32, not i32": ("%0 = powi %r, %r : f32", "yield"),
    "select: its condition is i32, not u1": ("%0 = select %n, %r, %r : f32", "yield"),
    "select: its alternatives are [f32], not [i32]": ("%0 = select %c, %r, %n : f32", "yield"),
    "add: does not take f32[?](3)".replace("f32[?](3)", "array<?x3:f32>"): ("%0 = add %x, %x : f32", "yield"),
    "mul: attribute 'exact' is 'loose'": ("%0 = mul %r, %r {exact='loose'} : f32", "yield"),
    "const: value 1 is no float": ("%0 = const 1 : f32", "yield"),
    "const: value 1.0 is no int": ("%0 = const 1.0 : i32", "yield"),
    "const: value 1 is no bool": ("%0 = const 1 : u1", "yield"),
    "const: value 256 is outside u8": ("%0 = const 256 : u8", "yield"),
    "cast: attribute 'to' is None": ("%0 = cast %n : f32", "yield"),
    "cast: its type is f64, not f32": ("%0 = cast %n {to=f32} : f64", "yield"),
    "bitcast: f64 and f32 differ in width": ("%0 = bitcast %r {to=f64} : f64", "yield"),
    "extent: axis 1 of an array with 1 run-time axes": ("%0 = extent %x {axis=1} : i32", "yield"),
    "extent: operand 0 is no array": ("%0 = extent %n {axis=0} : i32", "yield"),
    "load: 1 indices for an array of rank 2": ("%0 = load %x, %n : f32", "yield"),
    "load: operand 2 is no integer but f32": ("%0 = load %x, %n, %r : f32", "yield"),
    "load: operand 0 is no array": ("%0 = load %r, %n : f32", "yield"),
    "load: its type is f64, not f32": ("%0 = load %z : f64", "yield"),
    "store: stores i32 to an array of f32": ("store %z, %n", "yield"),
    "store: has no result but the type f32": ("%0 = store %z, %r : f32", "yield"),
    "atomic: unknown kind 'avg'": ("%0 = atomic %z, %r {kind='avg'} : f32", "yield"),
    "atomic: and does not take f32": ("%0 = atomic %z, %r {kind='and'} : f32", "yield"),
    "atomic: combines i32 into an array of f32": ("%0 = atomic %z, %n {kind='add'} : f32", "yield"),
    "scratch: its type is scratch<f32>, not scratch<f64>": ("%0 = scratch %n {to=f64} : scratch<f32>", "yield"),
    "scratch: operand 0 is no integer but f32": ("%0 = scratch %r {to=f64} : scratch<f64>", "yield"),
    "scratch_load: operand 0 is no scratch memory": ("%0 = scratch_load %n, %n : f32", "yield"),
    "scratch_store: stores i32 to scratch memory of f32": (
        "%0 = scratch %n {to=f32} : scratch<f32>",
        "scratch_store %0, %n, %n",
        "yield",
    ),
    "check: its condition is no u1": ("check %n {kind='assert'}", "yield"),
    "check: attribute 'kind' is None": ("check %c", "yield"),
    "print: part (1, '') names no operand": ("print %n {parts=((1, ''),)}", "yield"),
    "print: part 1.5 is neither text nor an operand number": ("print %n {parts=(1.5,)}", "yield"),
    "if: the types that its region yields are [], not [f32]": (
        "%0 = if %c : f32 {",
        "yield %r",
        "} {",
        "yield",
        "}",
        "yield",
    ),
    "if: its condition is i32, not u1": ("if %n {", "yield", "} {", "yield", "}", "yield"),
    "if: its region's arguments are [i32], not []": ("if %c (%a: i32) {", "yield", "} {", "yield", "}", "yield"),
    "for: its bounds are [i32], not [f32]": (
        "for %n, %r {reverse=False, breaks=False} (%j: i32) {",
        "yield",
        "}",
        "yield",
    ),
    "for: its region's arguments are [i64], not [i32]": (
        "for %n, %n {reverse=False, breaks=False} (%j: i64) {",
        "yield",
        "}",
        "yield",
    ),
    "for: attribute 'reverse' is None": ("for %n, %n {breaks=False} (%j: i32) {", "yield", "}", "yield"),
    "for: the types that its region yields are [], not [u1]": (
        "for %n, %n {reverse=False, breaks=True} (%j: i32) {",
        "yield",
        "}",
        "yield",
    ),
    "for: its results are [], not [f32]": (
        "for %n, %n, %r {reverse=False, breaks=False} (%j: i32, %s: f32) {",
        "yield %s",
        "}",
        "yield",
    ),
    "while: the types that its region yields are [i32], not [u1]": (
        "%0 = while %n : i32 (%a: i32) {",
        "yield %a",
        "} (%b: i32) {",
        "yield %b",
        "}",
        "yield",
    ),
    "parallel_for: bounds are no pairs": ("parallel_for %n, %n, %n (%j: i32) {", "yield", "}", "yield"),
    "parallel_for: its stops are [i64], not [i32]": (
        "%0 = cast %n {to=i64} : i64",
        "parallel_for %n, %0 (%j: i32) {",
        "yield",
        "}",
        "yield",
    ),
    "parallel_for: operand 0 is no integer but f32": ("parallel_for %r, %r (%j: f32) {", "yield", "}", "yield"),
    "parallel_for: the types that its region yields are [i32], not []": (
        "parallel_for %n, %n (%j: i32) {",
        "yield %j",
        "}",
        "yield",
    ),
    "parallel_for stands outside a kernel's root region": (
        "if %c {",
        "parallel_for %n, %n (%j: i32) {",
        "yield",
        "}",
        "yield",
        "} {",
        "yield",
        "}",
        "yield",
    ),
    "yield is not last in its region": ("yield", "yield"),
    "a region does not end with a terminator": ("%0 = add %n, %n : i32",),
    "yield: operand 0 is no scalar but array<?:i32>": ("yield %i",),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_rules(message: str) -> None:
    refused(kernel(*BROKEN[message]), message)


def test_an_empty_region_is_refused() -> None:
    refused(Function("k", [], Region()), "does not end with a terminator")


def test_the_message_shows_the_line() -> None:
    function = serial([array(dt.f32, "x")], lambda b: None)
    bad = Node(OPS["add"], dt.f32, (function.params[0],) * 2, {}, SPAN)
    function.body.nodes.insert(0, bad)
    assert "kernel.py:7:5" in refused(function, "add: does not take")


def test_a_value_is_used_before_it_is_defined() -> None:
    function = kernel("%0 = neg %r : f32", "%1 = neg %0 : f32", "yield")
    nodes = function.body.nodes
    nodes[0], nodes[1] = nodes[1], nodes[0]
    refused(function, "operand 0 of neg is not visible here")


def test_a_value_of_a_region_is_used_outside() -> None:
    function = kernel("if %c {", "%0 = neg %r : f32", "yield", "} {", "yield", "}", "%1 = neg %r : f32", "yield")
    inner = function.body.nodes[0].regions[0].nodes[0]
    function.body.nodes[1].operands = (inner,)
    refused(function, "operand 0 of neg is not visible here")


def test_a_value_of_one_side_is_used_in_the_other() -> None:
    function = kernel("if %c {", "%0 = neg %r : f32", "yield", "} {", "%1 = neg %r : f32", "yield", "}", "yield")
    then, other = function.body.nodes[0].regions
    other.nodes[0].operands = (then.nodes[0],)
    refused(function, "not visible here")


def test_a_region_argument_is_used_outside() -> None:
    function = kernel("parallel_for %n, %n (%j: i32) {", "yield", "}", "%0 = neg %n : i32", "yield")
    function.body.nodes[1].operands = function.body.nodes[0].regions[0].args
    refused(function, "not visible here")


def test_a_loop_result_is_used_inside_the_loop() -> None:
    function = kernel(
        "%0 = for %n, %n, %r {reverse=False, breaks=False} : f32 (%j: i32, %s: f32) {",
        "%1 = neg %s : f32",
        "yield %1",
        "}",
        "yield",
    )
    loop = function.body.nodes[0]
    loop.regions[0].nodes[0].operands = loop.results
    refused(function, "not visible here")


def test_a_parameter_of_another_function_is_not_visible() -> None:
    function = kernel("%0 = neg %r : f32", "yield")
    function.body.nodes[0].operands = (Param(dt.f32, "r"),)
    refused(function, "not visible here")


def test_a_node_stands_twice() -> None:
    function = kernel("%0 = neg %r : f32", "yield")
    function.body.nodes.insert(0, function.body.nodes[0])
    refused(function, "a node stands in two places")


def test_a_region_stands_twice() -> None:
    function = kernel("if %c {", "yield", "} {", "yield", "}", "yield")
    node = function.body.nodes[0]
    node.regions = (node.regions[0], node.regions[0])
    refused(function, "two places")


def test_an_argument_belongs_to_its_region() -> None:
    function = kernel("parallel_for %n, %n (%j: i32) {", "yield", "}", "yield")
    function.body.nodes[0].regions[0].args[0].region = None
    refused(function, "region argument 'j' belongs to another region")


def test_results_belong_to_their_node() -> None:
    function = kernel(
        "%0 = if %c : f32 {",
        "yield %r",
        "} {",
        "yield %r",
        "}",
        "%1 = if %c : f32 {",
        "yield %r",
        "} {",
        "yield %r",
        "}",
        "yield",
    )
    first, second, _ = function.body.nodes
    second.results = first.results
    refused(function, "if: result 0 belongs to another node")


def test_an_operation_must_be_the_tables() -> None:
    function = kernel("%0 = neg %r : f32", "yield")
    function.body.nodes[0].op = OpDef("neg", 1)
    refused(function, "operation 'neg' is not in the op table")


def test_arguments_of_a_body_are_refused() -> None:
    function = serial([], lambda b: None)
    with Builder(Region()).inside([(dt.i32, "a")]) as region:
        pass
    region.nodes = function.body.nodes
    function.body = region
    refused(function, "the body of 'k' has arguments")


def test_a_parameter_is_listed_twice() -> None:
    x = array(dt.f32, "x")
    refused(serial([x, x], lambda b: None), "parameter 'x' is listed twice")


def test_every_operation_has_a_rule() -> None:
    """A row that the verifier does not know is refused rather than passed."""
    from qd_core.ir import verify as module

    rules: dict[str, Any] = vars(module)["_RULES"]
    assert [name for name, op in OPS.items() if op.numpy is None and name not in rules] == []


# -- programs -----------------------------------------------------------------------------------------------------
def program() -> Program:
    n, x, y = Param(dt.i32, "n"), array(dt.f32, "x"), array(dt.f32, "y")

    def write(b: Builder, i: Any) -> None:
        v = b.load(x, [i])
        b.check("assert", b.emit("lt", v, b.const(dt.f32, 1)), [v])
        b.store(y, [i], v)

    return offload(parallel([n, x, y], lambda b: n, write))


def changed(p: Program, **fields: Any) -> Program:
    return dataclasses.replace(p, **fields)


def with_task(p: Program, **fields: Any) -> Program:
    return changed(p, tasks=(dataclasses.replace(p.tasks[0], **fields),))


def host(*lines: str) -> HostExpr:
    return HostExpr(parse_function("func 'h'() {\n" + "\n".join(lines) + "\n}").body)


def site_of(p: Program) -> Node:
    return next(n for n in p.tasks[0].body.nodes if n.op.name == "check")


def test_a_cut_kernel_is_valid() -> None:
    verify(program())


CHANGES: dict[str, Callable[[Program], Program]] = {
    "parameter 'y' is written but not listed as written": lambda p: changed(p, writes=frozenset()),
    "parameter 'x' is read but not listed as read": lambda p: changed(p, reads=frozenset()),
    "check has the unknown site 0": lambda p: changed(p, sites=()),
    "check records ('f32',), its site says ()": lambda p: changed(
        p, sites=(dataclasses.replace(p.sites[0], dtypes=()),)
    ),
    "check has no log to write to": lambda p: changed(p, params=tuple(q for q in p.params if q.role is not Role.LOG)),
    "1 indices for 0 axes": lambda p: with_task(p, extents=()),
    "extent of task 'parallel_0' is negative: -1": lambda p: with_task(p, extents=(Fixed(-1),)),
    "is no parameter": lambda p: with_task(p, extents=(DeviceWord(array(dt.i64, "t"), 0),)),
    "is no array": lambda p: with_task(p, extents=(DeviceWord(p.params[0], 0),)),
    "does not yield one i64": lambda p: with_task(p, extents=(host("%0 = const 1 : i32", "yield %0"),)),
    "is not visible here": lambda p: changed(p, params=p.params[1:]),
}


@pytest.mark.parametrize("message", CHANGES)
def test_broken_programs(message: str) -> None:
    refused(CHANGES[message](program()), message)


def test_an_extent_is_for_the_host() -> None:
    p = program()
    x = p.params[1]
    region = Region()
    b = Builder(region)
    b.yield_(b.cast(b.load(x, [b.const(dt.i32, 0)]), dt.i64))
    refused(with_task(p, extents=(HostExpr(region),)), "cannot be computed by the host: load")


def test_messages_of_a_program_have_sites() -> None:
    p = program()
    del site_of(p).attrs["site"]
    refused(p, "check has the unknown site None")


def test_tasks_have_i32_or_i64_indices_and_yield_nothing() -> None:
    n, x = Param(dt.i32, "n"), Param(ArrayType(dt.f32, 1), "x")
    p = offload(parallel([n, x], lambda b: n, lambda b, i: b.store(x, [i], b.const(dt.f32, 0)), index=dt.u32))
    refused(p, "index 'i' is u32")
    p = program()
    p.tasks[0].body.terminator.operands = (n,)
    refused(changed(p, params=(*p.params, n)), "yields values")
