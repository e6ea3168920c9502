"""Legality of IR, from the op table: run between stages in tests and on what a backend's passes return.

A broken rule raises :class:`~qd_core.errors.InvalidIRError`, which names the operation and shows its source line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.errors import InvalidIRError, Span
from qd_core.ir.nodes import ArrayType, Function, Node, Param, Region, ScratchType, Value
from qd_core.ir.ops import ATOMIC_KINDS, BITS, NUM, OPS, OpDef
from qd_core.ir.program import DeviceWord, Extent, Fixed, HostExpr, Program, Task, accesses

__all__ = ["verify"]


def verify(code: Function | Program) -> None:
    """Check a function or a program against every rule of the IR.

    Parameters
    ----------
    code : Function or Program
        What to check; it is not changed.

    Raises
    ------
    InvalidIRError
        A value is used where it is not visible; a node or region stands twice; operands, results, attributes, region
        arguments or yields do not fit the op table; `parallel_for` stands elsewhere than in a kernel's root region; a
        region does not end with its only terminator; a program's extents, sites, `reads` or `writes` do not fit its
        tasks.
    """
    if isinstance(code, Program):
        _verify_program(code)
        return
    scope = _Scope(code.params)
    _require(not code.body.args, f"the body of {code.name!r} has arguments", code.span)
    scope.region(code.body, root=True)


def _require(condition: object, message: str, span: Span | None = None) -> None:
    if not condition:
        raise InvalidIRError(message, span=span)


class _Scope:
    """Walks regions with the set of values that are visible."""

    def __init__(self, params: Sequence[Param]) -> None:
        self.visible: set[Value] = set()
        self.seen: set[int] = set()
        self.messages: list[Node] = []
        for p in params:
            _require(p not in self.visible, f"parameter {p.path!r} is listed twice")
            _require(isinstance(p.type, (DType, ArrayType)), f"parameter {p.path!r} has the type {p.type!r}")
            self.visible.add(p)

    def region(self, region: Region, *, root: bool = False) -> None:
        """Check a region and forget its values afterwards."""
        _require(
            region.nodes and region.nodes[-1].op.terminator, "a region does not end with a terminator", _span_of(region)
        )
        self._once(region, "a region stands in two places", _span_of(region))
        defined: list[Value] = []
        for arg in region.args:
            _require(arg.region is region, f"region argument {arg.name!r} belongs to another region", _span_of(region))
            self._define(arg, defined)
        for node in region.nodes:
            self._node(node, root)
            if node.op.terminator and node is not region.nodes[-1]:
                raise InvalidIRError(f"{node.op.name} is not last in its region", span=node.span)
            for value in node.results or ((node,) if node.type is not None else ()):
                self._define(value, defined)
        self.visible.difference_update(defined)

    def _define(self, value: Value, defined: list[Value]) -> None:
        self.visible.add(value)
        defined.append(value)

    def _once(self, item: object, message: str, span: Span | None) -> None:
        _require(id(item) not in self.seen, message, span)
        self.seen.add(id(item))

    def _node(self, node: Node, root: bool) -> None:
        if OPS.get(node.op.name) is not node.op:
            raise InvalidIRError(f"operation {node.op.name!r} is not in the op table", span=node.span)
        self._once(node, "a node stands in two places", node.span)
        for n, operand in enumerate(node.operands):
            if operand not in self.visible:
                raise InvalidIRError(f"operand {n} of {node.op.name} is not visible here: {operand!r}", span=node.span)
        _require(
            node.op.name != "parallel_for" or root, "parallel_for stands outside a kernel's root region", node.span
        )
        _check_node(node)
        if node.op.name in ("check", "print"):
            self.messages.append(node)
        for region in node.regions:
            self.region(region)


def _span_of(region: Region) -> Span | None:
    return next((n.span for n in region.nodes if n.span is not None), None)


# -- one node against its row ---------------------------------------------------------------------------------------
class _View:
    """A node under check, with the ways to complain about it."""

    def __init__(self, node: Node) -> None:
        self.node, self.operands, self.attrs = node, node.operands, node.attrs
        self.types = [v.type for v in node.operands]

    def require(self, condition: object, message: str) -> None:
        if not condition:
            raise InvalidIRError(f"{self.node.op.name}: {message}", span=self.node.span)

    def attr(self, name: str, kind: type | tuple[type, ...]) -> Any:
        value = self.attrs.get(name)
        self.require(isinstance(value, kind), f"attribute {name!r} is {value!r}")
        return value

    def result(self, type: Any) -> None:
        if self.node.type != type:
            self.require(False, f"its type is {self.node.type!r}, not {type!r}")

    def scalars(self, start: int = 0) -> None:
        for n, t in enumerate(self.types[start:], start):
            self.require(isinstance(t, DType), f"operand {n} is no scalar but {t!r}")

    def integer(self, n: int) -> None:
        t = self.types[n]
        self.require(isinstance(t, DType) and t.kind in "iu", f"operand {n} is no integer but {t!r}")

    def same(self, what: str, got: Iterable[Any], wanted: Iterable[Any]) -> None:
        got, wanted = list(got), list(wanted)
        self.require(got == wanted, f"{what} are {got!r}, not {wanted!r}")


def _check_node(node: Node) -> None:
    view, op = _View(node), node.op
    if op.arity not in (-1, len(node.operands)):
        view.require(False, f"has {len(node.operands)} operands, not {op.arity}")
    if len(node.regions) != op.regions:
        view.require(False, f"has {len(node.regions)} regions, not {op.regions}")
    view.require(not node.results or op.regions, "has several results but no region")
    if op.result == "none" or op.regions or op.terminator:
        view.require(node.type is None, f"has no result but the type {node.type!r}")
    rule = _RULES.get(op.name)
    if rule is not None:
        rule(view)
    elif op.numpy is not None:
        _elementwise(view, op)
    else:
        view.require(False, "the verifier has no rule for it")


def _elementwise(v: _View, op: OpDef) -> None:
    first, result = v.types[0], op.result
    wanted = first if result == "same" else dt.u1 if result == "u1" else dt.i32
    if first in op.types and all([t is first for t in v.types]) and v.node.type is wanted and not v.attrs:
        return  # the common case, without writing messages
    v.require(v.attrs.get("exact") in (None, "contract", "strict"), f"attribute 'exact' is {v.attrs.get('exact')!r}")
    v.require(first in op.types, f"does not take {first!r}")
    v.same("its operand types", v.types, [first] * op.arity)
    v.result(wanted)


def _powi(v: _View) -> None:
    v.require(v.types[0] in v.node.op.types, f"does not take {v.types[0]!r}")
    v.require(v.types[1] is dt.i32, f"its exponent is {v.types[1]!r}, not i32")
    v.result(v.types[0])


def _select(v: _View) -> None:
    v.require(v.types[0] is dt.u1, f"its condition is {v.types[0]!r}, not u1")
    v.scalars()
    v.same("its alternatives", v.types[1:2], v.types[2:3])
    v.result(v.types[1])


def _const(v: _View) -> None:
    kind, value = v.node.type, v.attrs.get("value")
    v.require(isinstance(kind, DType), f"its type is {kind!r}")
    wanted = float if kind.is_real else bool if kind is dt.u1 else int
    v.require(type(value) is wanted, f"value {value!r} is no {wanted.__name__}")
    v.require(kind.is_real or kind.min <= value <= kind.max, f"value {value!r} is outside {kind!r}")


def _convert(v: _View) -> None:
    to = v.attr("to", DType)
    v.scalars()
    v.require(v.types[0] in v.node.op.types, f"does not take {v.types[0]!r}")
    v.require(v.node.op.name == "cast" or to.bits == v.types[0].bits, f"{to!r} and {v.types[0]!r} differ in width")
    v.result(to)


def _random(v: _View) -> None:
    v.require(v.types[0] is dt.u64, f"its key is {v.types[0]!r}, not u64")
    v.result(v.attr("to", DType))


def _array(v: _View, indices: int) -> ArrayType:
    v.require(v.types and isinstance(v.types[0], ArrayType), "operand 0 is no array")
    array: ArrayType = v.types[0]
    v.require(indices == array.rank, f"{indices} indices for an array of rank {array.rank}")
    for n in range(1, 1 + indices):
        v.integer(n)
    return array


def _extent(v: _View) -> None:
    v.require(isinstance(v.types[0], ArrayType), "operand 0 is no array")
    axis = v.attr("axis", int)
    v.require(0 <= axis < v.types[0].ndim, f"axis {axis} of an array with {v.types[0].ndim} run-time axes")
    v.result(dt.i32)


def _stop_grad(v: _View) -> None:
    v.scalars()
    v.result(v.types[0])


def _load(v: _View) -> None:
    v.result(_array(v, len(v.operands) - 1).dtype)


def _store(v: _View) -> None:
    array = _array(v, len(v.operands) - 2)
    v.require(v.types[-1] is array.dtype, f"stores {v.types[-1]!r} to an array of {array.dtype!r}")


def _atomic(v: _View) -> None:
    kind = v.attr("kind", str)
    array = _array(v, len(v.operands) - (3 if kind == "cas" else 2))
    v.require(kind in ATOMIC_KINDS, f"unknown kind {kind!r}")
    takes = BITS if kind in ("and", "or", "xor") else NUM if kind != "exchange" else frozenset(dt.ALL)
    v.require(array.dtype in takes, f"{kind} does not take {array.dtype!r}")
    for given in v.types[1 + array.rank :]:
        v.require(given is array.dtype, f"combines {given!r} into an array of {array.dtype!r}")
    v.result(array.dtype)


def _scratch(v: _View) -> None:
    v.integer(0)
    v.result(ScratchType(v.attr("to", DType)))


def _scratch_load(v: _View) -> None:
    v.require(isinstance(v.types[0], ScratchType), "operand 0 is no scratch memory")
    v.integer(1)
    v.result(v.types[0].dtype)


def _scratch_store(v: _View) -> None:
    v.require(isinstance(v.types[0], ScratchType), "operand 0 is no scratch memory")
    v.integer(1)
    v.require(v.types[2] is v.types[0].dtype, f"stores {v.types[2]!r} to scratch memory of {v.types[0].dtype!r}")


def _check(v: _View) -> None:
    v.require(v.types and v.types[0] is dt.u1, "its condition is no u1")
    v.scalars()
    v.attr("kind", str)


def _print(v: _View) -> None:
    v.scalars()
    for part in v.attr("parts", tuple):
        number = part if isinstance(part, int) else part[0] if isinstance(part, tuple) and part else None
        v.require(
            isinstance(part, str) or isinstance(number, int), f"part {part!r} is neither text nor an operand number"
        )
        v.require(number is None or 0 <= number < len(v.operands), f"part {part!r} names no operand")


def _args(v: _View, region: Region, wanted: Sequence[Any]) -> None:
    v.same("its region's arguments", (a.type for a in region.args), wanted)


def _yields(v: _View, region: Region, wanted: Sequence[Any]) -> None:
    v.require(region.nodes and region.nodes[-1].op.terminator, "its region does not end with a terminator")
    v.same("the types that its region yields", (y.type for y in region.yields), wanted)


def _results(v: _View, wanted: Sequence[Any]) -> None:
    v.same("its results", (r.type for r in v.node.results), wanted)
    for n, r in enumerate(v.node.results):
        v.require(
            getattr(r, "node", None) is v.node and getattr(r, "index", None) == n, f"result {n} belongs to another node"
        )


def _if(v: _View) -> None:
    v.require(v.types[0] is dt.u1, f"its condition is {v.types[0]!r}, not u1")
    results = [r.type for r in v.node.results]
    _results(v, results)
    for region in v.node.regions:
        _args(v, region, [])
        _yields(v, region, results)


def _for(v: _View) -> None:
    v.require(len(v.operands) >= 2, "has no bounds")
    v.integer(0)
    v.same("its bounds", v.types[:1], v.types[1:2])
    v.attr("reverse", bool)
    v.scalars()
    carried, body = v.types[2:], v.node.regions[0]
    _args(v, body, [v.types[0], *carried])
    _yields(v, body, [*carried, *([dt.u1] if v.attr("breaks", bool) else [])])
    _results(v, carried)


def _while(v: _View) -> None:
    v.scalars()
    condition, body = v.node.regions
    _args(v, condition, v.types)
    _yields(v, condition, [dt.u1])
    _args(v, body, v.types)
    _yields(v, body, v.types)
    _results(v, v.types)


def _parallel_for(v: _View) -> None:
    v.require(v.operands and len(v.operands) % 2 == 0, "bounds are no pairs")
    for n in range(len(v.operands)):
        v.integer(n)
    v.same("its stops", v.types[1::2], v.types[::2])
    _args(v, v.node.regions[0], v.types[::2])
    _yields(v, v.node.regions[0], [])
    _results(v, [])


def _yield(v: _View) -> None:
    v.scalars()


_RULES: dict[str, Callable[[_View], None]] = {
    "const": _const,
    "cast": _convert,
    "bitcast": _convert,
    "powi": _powi,
    "select": _select,
    "extent": _extent,
    "random": _random,
    "stop_grad": _stop_grad,
    "load": _load,
    "store": _store,
    "atomic": _atomic,
    "scratch": _scratch,
    "scratch_load": _scratch_load,
    "scratch_store": _scratch_store,
    "check": _check,
    "print": _print,
    "if": _if,
    "for": _for,
    "while": _while,
    "parallel_for": _parallel_for,
    "yield": _yield,
}


# -- programs -------------------------------------------------------------------------------------------------------
def _verify_program(program: Program) -> None:
    scope = _Scope(program.params)
    reads: set[Value] = set()
    writes: set[Value] = set()
    for task in program.tasks:
        _verify_task(scope, program, task)
        read, written = accesses(task.body)
        reads |= read
        writes |= written
    for what, found, listed in (("read", reads, program.reads), ("written", writes, program.writes)):
        for n, p in enumerate(program.params):
            _require(
                p not in found or n in listed,
                f"{program.name}: parameter {p.path!r} is {what} but not listed as {what}",
            )
    for node in scope.messages:
        _verify_site(program, node)


def _verify_task(scope: _Scope, program: Program, task: Task) -> None:
    span, body = _span_of(task.body), task.body
    _require(
        len(body.args) == len(task.extents),
        f"task {task.name!r}: {len(body.args)} indices for {len(task.extents)} axes",
        span,
    )
    for arg in body.args:
        _require(arg.type in (dt.i32, dt.i64), f"task {task.name!r}: index {arg.name!r} is {arg.type!r}", span)
    for extent in task.extents:
        _verify_extent(scope, program, task, extent)
    scope.region(body)
    _require(not body.yields, f"task {task.name!r} yields values", span)


def _verify_extent(scope: _Scope, program: Program, task: Task, extent: Extent) -> None:
    name = f"extent of task {task.name!r}"
    if isinstance(extent, Fixed):
        _require(extent.count >= 0, f"{name} is negative: {extent.count}")
    elif isinstance(extent, DeviceWord):
        _require(extent.param in scope.visible, f"{name}: {extent.param!r} is no parameter")
        _require(isinstance(extent.param.type, ArrayType), f"{name}: {extent.param!r} is no array")
    else:
        scope.region(extent.body)
        _verify_host(name, extent)


def _verify_host(name: str, extent: HostExpr) -> None:
    body = extent.body
    _require(
        not body.args and [v.type for v in body.yields] == [dt.i64], f"{name} does not yield one i64", _span_of(body)
    )
    for node in body.nodes[:-1]:
        host = node.op.numpy is not None or node.op.name in ("const", "cast", "bitcast", "extent")
        _require(host, f"{name} cannot be computed by the host: {node.op.name}", node.span)


def _verify_site(program: Program, node: Node) -> None:
    number: Any = node.attrs.get("site")
    name = f"{program.name}: {node.op.name}"
    _require(
        isinstance(number, int) and 0 <= number < len(program.sites),
        f"{name} has the unknown site {number!r}",
        node.span,
    )
    words = node.operands[1:] if node.op.name == "check" else node.operands
    types = tuple(v.type.name for v in words)
    listed = tuple(program.sites[number].dtypes)
    _require(types == listed, f"{name} records {types!r}, its site says {listed!r}", node.span)
    _require(program.log is not None, f"{name} has no log to write to", node.span)
