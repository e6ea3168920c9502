"""Tasks as C functions: structured control flow stays structured, every SSA value is a local constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from qd_core import dtypes as dt
from qd_core.codegen.cstyle.arithmetic import Rule, cast, elementwise
from qd_core.codegen.cstyle.dialect import Dialect
from qd_core.dtypes import DType
from qd_core.errors import InvalidIRError, Span, UnsupportedError
from qd_core.ir.nodes import ArrayType, Node, Param, Region, Value, indices_of
from qd_core.ir.ops import OPS
from qd_core.ir.program import DeviceWord, Program, Task

__all__ = ["KERNEL", "TaskWriter", "emit_source", "word_offsets"]

KERNEL = "qd_kernel"
"""Name of the function that runs all tasks."""


def emit_source(program: Program, dialect: Dialect) -> str:
    """Return the source text of a program.

    Parameters
    ----------
    program : Program
        Legalised: operations that are not native were expanded.
    dialect : Dialect
        Language and device.

    Raises
    ------
    UnsupportedError
        The dialect lacks a type.
    InvalidIRError
        An operation was not expanded.
    """
    passed = ", ".join(
        filter(None, ("words", "extents", *(a.split()[-1].lstrip("*") for a in _split(dialect.arguments))))
    )
    calls, functions, first = [], [], 0
    for number, task in enumerate(program.tasks):
        functions.append(TaskWriter(program, dialect, task, first).text(f"task_{number}"))
        calls.append(f"    task_{number}({passed});")
        first += len(task.extents)
    kernel = "\n".join([f"{dialect.entry} {{", *calls, "    return 0;", "}"])
    return "\n".join([dialect.prelude, *functions, kernel, ""])


def _split(arguments: str) -> list[str]:
    return [a.strip() for a in arguments.split(",") if a.strip()]


class TaskWriter:
    """One task's function.

    Parameters
    ----------
    program, dialect, task
        What is written, and how.
    first : int
        Position of the task's extents.
    """

    def __init__(self, program: Program, dialect: Dialect, task: Task, first: int) -> None:
        self.program, self.dialect, self.task, self.first = program, dialect, task, first
        self.words = word_offsets(program)
        self.names: dict[Value, str] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0

    # -- text ---------------------------------------------------------------------------------------------------------
    def put(self, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * self.depth + text)

    def open(self, text: str) -> None:
        """Begin a block."""
        self.put(text + " {")
        self.depth += 1

    def close(self, text: str = "}") -> None:
        """End a block."""
        self.depth -= 1
        self.put(text)

    def fresh(self) -> str:
        """Return a new name."""
        self.count += 1
        return f"v{self.count}"

    def ctype(self, dtype: DType, span: Span | None = None) -> str:
        """Return the name of a type; `UnsupportedError` where there is none."""
        name = self.dialect.types.get(dtype)
        if name is None:
            raise UnsupportedError(f"type.{dtype.name}", self.dialect.backend, span=span)
        return name

    def define(self, value: Value, expression: str) -> None:
        """Give a value a name."""
        name = self.names[value] = self.fresh()
        self.put(f"const {self.ctype(value.type)} {name} = {expression};")

    def use(self, value: Value) -> str:
        """Return the name of a value; parameters are read from their word."""
        known = self.names.get(value)
        if known is None:
            assert isinstance(value, Param)
            known = self.names[value] = self._scalar(value)
        return known

    def _scalar(self, param: Param) -> str:
        word, dtype = f"words[{self.words[param]}]", param.type
        if dtype is dt.u1:
            return f"(({word} & 255) != 0)"
        if not dtype.is_real:
            return f"(({self.ctype(dtype)}){word})"
        bits = dt.by_name(f"i{dtype.bits}")
        return self.dialect.bitcast(bits, dtype, f"(int{dtype.bits}_t){word}", self.ctype(dtype))

    def rule(self, name: str) -> Rule | None:
        """Return how an operation is written; None where it must be expanded before."""
        return self.dialect.rules.get(name) or elementwise(name)

    # -- function -----------------------------------------------------------------------------------------------------
    def text(self, name: str) -> str:
        """Return the function."""
        more = f", {self.dialect.arguments}" if self.dialect.arguments else ""
        axes = range(len(self.task.extents))
        for axis, extent in enumerate(self.task.extents):
            self.put(f"const int64_t n{axis} = {self._extent(extent, axis)};")
        iteration = "0"
        for axis in axes:
            self.open(f"for (int64_t i{axis} = 0; i{axis} < n{axis}; i{axis}++)")
            iteration = f"i{axis}" if axis == 0 else f"({iteration} * n{axis} + i{axis})"
        self.iteration = iteration
        for axis, arg in enumerate(self.task.body.args):
            self.names[arg] = f"(({self.ctype(arg.type)})i{axis})"
        self.region(self.task.body)
        for _ in axes:
            self.close()
        return "\n".join(
            [f"static void {name}(const int64_t *words, const int64_t *extents{more}) {{", *self.lines, "}", ""]
        )

    def _extent(self, extent: Any, axis: int) -> str:
        if isinstance(extent, DeviceWord):
            return f"({self.pointer(extent.param)})[{extent.index}]"
        return f"extents[{self.first + axis}]"

    # -- memory -------------------------------------------------------------------------------------------------------
    def pointer(self, array: Param) -> str:
        """Return the expression of an array's first scalar's address."""
        kind: ArrayType = array.type
        ctype = "uint8_t" if kind.dtype is dt.u1 else self.ctype(kind.dtype)
        return self.dialect.pointer(f"words[{self.words[array]}]", ctype)

    def place(self, array: Value, indices: Sequence[Value]) -> str:
        """Return the lvalue of an element."""
        assert isinstance(array, Param)
        kind: ArrayType = array.type
        base = self.words[array] + 1 + kind.ndim
        terms = [f"(int64_t){self.use(i)} * words[{base + axis}]" for axis, i in enumerate(indices[: kind.ndim])]
        for axis, index in enumerate(indices[kind.ndim :]):
            terms.append(f"(int64_t){self.use(index)} * {math.prod(kind.element_shape[axis + 1 :])}")
        return f"({self.pointer(array)})[{' + '.join(terms) or '0'}]"

    def _log(self) -> str:
        assert self.program.log is not None
        return self.pointer(self.program.log)

    # -- operations ---------------------------------------------------------------------------------------------------
    def region(self, region: Region) -> list[str]:
        """Write a region's operations; return the names of what it yields."""
        for node in region.nodes[:-1]:
            self.node(node)
        return [self.use(v) for v in region.yields]

    def node(self, node: Node) -> None:
        """Write one operation."""
        write = getattr(self, f"_op_{node.op.name}", None)
        if write is not None:
            write(node)
            return
        rule = self.rule(node.op.name)
        if rule is None:
            raise InvalidIRError(f"{node.op.name} must be expanded before C is written", span=node.span)
        operands = [self.use(v) for v in node.operands]
        self.define(node, rule(node.operands[0].type, operands, self.ctype(node.type, node.span)))

    def _op_const(self, node: Node) -> None:
        self.names[node] = self.dialect.literal(node.type, node.attrs["value"], self.ctype(node.type))

    def _op_cast(self, node: Node) -> None:
        source = node.operands[0]
        self.define(node, cast(source.type, node.type, self.use(source), self.ctype(node.type)))

    def _op_bitcast(self, node: Node) -> None:
        source = node.operands[0]
        self.define(node, self.dialect.bitcast(source.type, node.type, self.use(source), self.ctype(node.type)))

    def _op_extent(self, node: Node) -> None:
        array = node.operands[0]
        assert isinstance(array, Param)
        self.define(node, f"(int32_t)words[{self.words[array] + 1 + node.attrs['axis']}]")

    def _op_load(self, node: Node) -> None:
        place = self.place(node.operands[0], node.operands[1:])
        self.define(node, f"{place} != 0" if node.type is dt.u1 else place)

    def _op_store(self, node: Node) -> None:
        self.put(f"{self.place(node.operands[0], node.operands[1:-1])} = {self.use(node.operands[-1])};")

    def _op_atomic(self, node: Node) -> None:
        kind, dtype, value = node.attrs["kind"], node.type, self.use(node.operands[-1])
        old = self.names[node] = self.fresh()
        rule = self.rule(kind)
        new = value if rule is None else rule(dtype, (old, value), self.ctype(dtype))
        if kind == "cas":
            new = f"({self._bits(old, dtype)} == {self._bits(self.use(node.operands[-2]), dtype)} ? {value} : {old})"
        place = self.place(node.operands[0], indices_of(node))
        self.put(self.dialect.atomic(place, old, self.ctype(dtype), new, kind))

    def _bits(self, text: str, dtype: DType) -> str:
        return f"qd_{dtype.name}_as_i{dtype.bits}({text})" if dtype.is_real else text

    def _op_scratch(self, node: Node) -> None:
        name = self.names[node] = self.fresh()
        length = self.use(node.operands[0])
        self.put(f"{self.ctype(node.attrs['to'])} {name}[{length} > 0 ? {length} : 1];")

    def _op_scratch_load(self, node: Node) -> None:
        self.define(node, f"{self.use(node.operands[0])}[{self.use(node.operands[1])}]")

    def _op_scratch_store(self, node: Node) -> None:
        memory, index, value = (self.use(v) for v in node.operands)
        self.put(f"{memory}[{index}] = {value};")

    # -- messages -----------------------------------------------------------------------------------------------------
    def _op_check(self, node: Node) -> None:
        self.open(f"if (!{self.use(node.operands[0])})")
        self._record("qd_fail", node.attrs["site"], node.operands[1:])
        self.close()

    def _op_print(self, node: Node) -> None:
        self._record("qd_append", node.attrs["site"], node.operands)

    def _record(self, function: str, site: int, values: Sequence[Value]) -> None:
        record = self.fresh()
        self.put(f"int64_t *{record} = {function}({self._log()}, {site}, {self.iteration}, {len(values)});")
        for number, value in enumerate(values):
            word = f"qd_bits({self.use(value)})" if value.type.is_real else f"(int64_t){self.use(value)}"
            self.put(f"if ({record}) {record}[{number}] = {word};")

    # -- control ------------------------------------------------------------------------------------------------------
    def _declare(self, values: Sequence[Value], inits: Sequence[str] = ()) -> list[str]:
        """Declare variables for values, and name them."""
        names: list[str] = []
        for number, value in enumerate(values):
            name = self.names[value] = self.fresh()
            start = f" = {inits[number]}" if inits else ""
            self.put(f"{self.ctype(value.type)} {name}{start};")
            names.append(name)
        return names

    def _assign(self, names: Sequence[str], values: Sequence[str]) -> None:
        """Set several variables at once: values may be old contents of the variables."""
        moving = [(n, v) for n, v in zip(names, values, strict=True) if n != v]
        if len(moving) > 1:
            copies = [self.fresh() for _ in moving]
            for copy, (name, value) in zip(copies, moving, strict=True):
                self.put(f"const {self.dialect.deduced.format(name=name)} {copy} = {value};")
            moving = [(name, copy) for copy, (name, _) in zip(copies, moving, strict=True)]
        for name, value in moving:
            self.put(f"{name} = {value};")

    def _op_if(self, node: Node) -> None:
        names = self._declare(node.results)
        self.open(f"if ({self.use(node.operands[0])})")
        self._assign(names, self.region(node.regions[0]))
        self.close("} else {")
        self.depth += 1
        self._assign(names, self.region(node.regions[1]))
        self.close()

    def _op_for(self, node: Node) -> None:
        start, stop, *inits = (self.use(v) for v in node.operands)
        body = node.regions[0]
        names = self._declare(node.results, inits)
        self.names.update(zip(body.args[1:], names, strict=True))
        reverse, ctype = node.attrs["reverse"], self.ctype(body.args[0].type)
        index = self.names[body.args[0]] = self.fresh()
        first, last = (f"{stop} - 1", start) if reverse else (start, f"{stop} - 1")
        self.open(f"if ({start} < {stop}) for ({ctype} {index} = {first};; {index}{'--' if reverse else '++'})")
        values = self.region(body)
        going = values.pop() if node.attrs["breaks"] else None
        if going is not None:
            going, leave = self.fresh(), going
            self.put(f"const bool {going} = {leave};")
        self._assign(names, values)
        self.put(f"if ({f'!{going} || ' if going else ''}{index} == {last}) break;")
        self.close()

    def _op_while(self, node: Node) -> None:
        test, body = node.regions
        names = self._declare(node.results, [self.use(v) for v in node.operands])
        self.names.update(zip(test.args, names, strict=True))
        self.names.update(zip(body.args, names, strict=True))
        self.open("for (;;)")
        (going,) = self.region(test)
        self.put(f"if (!{going}) break;")
        self._assign(names, self.region(body))
        self.close()


def word_offsets(program: Program) -> dict[Param, int]:
    """Position of each leaf's first word."""
    offsets: dict[Param, int] = {}
    position = 0
    for param in program.params:
        offsets[param] = position
        position += 1 + 2 * param.type.ndim if isinstance(param.type, ArrayType) else 1
    return offsets


assert all(elementwise(o.name) or not o.native for o in OPS.values() if o.numpy is not None), "an operation has no C"
