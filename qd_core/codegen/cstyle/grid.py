"""Tasks as functions of a grid of threads, for C-like languages of devices with 64-bit addresses.

Every task is a function of its own. Its threads take every so-many-th iteration each. Nothing is bound by name: arrays
are reached by the addresses among the words, which are laid out as `GridLayout` says. What the language must bring is
in the dialect: names, and functions that its prelude defines.

==============================================  ======================================================================
function of the prelude                         what it does
==============================================  ======================================================================
``qd_at<T>(address)``                           the ``T`` in device memory at an address, for loads and stores
``qd_fetch_<kind><T>(address, value)``          an atomic that is native; returns the old value
``qd_word(address)``, ``qd_swap(a, seen, new)`` the 32-bit word at an address; compare-and-swap, which updates ``seen``
``qd_field<T>(word, shift)``, ``qd_with(...)``  a value in a 32-bit word, and the word with another value there
``qd_fail``, ``qd_append``                      begin a record of the log; return the address of its payload, or 0
``qd_payload(value)``                           a value as a word of a record: reals as the bits of their f64
``qd_quotient(a, b)``                           of two 64-bit numbers, fast where both fit 32 bits
==============================================  ======================================================================

Private memory is as `qd_core.codegen.spirv.private` describes: small arrays of constant length are variables,
everything else lies in a pool that is divided among as many threads as it has room for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qd_core import dtypes as dt
from qd_core.codegen.cstyle.dialect import Dialect
from qd_core.codegen.cstyle.emitter import TaskWriter, word_offsets
from qd_core.codegen.spirv.scratch import is_pooled, uses_pool
from qd_core.codegen.spirv.sizing import sizing_task
from qd_core.dtypes import DType
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import ArrayType, Node, Param, Region, Role, ScratchType, Value, indices_of
from qd_core.ir.program import DeviceWord, Fixed, Program, Task

__all__ = ["POOL_WORDS", "GridDialect", "GridLayout", "TaskText", "emit_grid"]

POOL_WORDS = 4
"""Address of the pool of private memory, its length in 4-byte slots, the address of the word that tells of a fault, and
the address of an array of u32: what an iteration of each task needs, as a sizing task found."""

_NEED = Param(ArrayType(dt.i32, 1), "private_need", Role.RESIDUAL)

Form = Literal["serial", "sequence", "grid", "resident"]


@dataclass(frozen=True, slots=True)
class GridDialect(Dialect):
    """A language for grids of threads.

    Attributes
    ----------
    signature : str
        Head of a function up to its body, with ``{name}``; it declares ``words`` (64-bit), and ``begin`` may follow.
    begin : tuple of str
        First statements: they declare ``thread`` and ``threads``, 64-bit.
    natives : collection of (str, DType)
        Atomics (kind, dtype) that are one call of the prelude; others are a loop of compare-and-swap on 32 bits.
    reserved : collection of str
        Words that a variable cannot be called.
    group, max_group : int
        Threads of a group where the user asks for nothing, and at most.
    """

    signature: str = ""
    begin: tuple[str, ...] = ()
    natives: Collection[tuple[str, DType]] = ()
    reserved: Collection[str] = ()
    group: int = 256
    max_group: int = 256


@dataclass(frozen=True, slots=True)
class GridLayout:
    """Positions among the 64-bit words of a launch: core's own, then the extents of all tasks, then `POOL_WORDS`."""

    extents: int
    pool: int

    @staticmethod
    def of(program: Program) -> GridLayout:
        """Lay out the words of ``program``."""
        words = sum(1 + 2 * p.type.ndim if isinstance(p.type, ArrayType) else 1 for p in program.params)
        return GridLayout(words, words + sum(len(t.extents) for t in program.tasks))


@dataclass(frozen=True, slots=True)
class TaskText:
    """One function: its name and text, what runs it, the task's number, and whether it only sizes private memory."""

    symbol: str
    text: str
    form: Form
    group: int
    entry: int
    pooled: bool = False
    sizing: bool = False


def emit_grid(program: Program, dialect: GridDialect) -> list[TaskText]:
    """Return the functions of all tasks in the order in which they run.

    Raises
    ------
    UnsupportedError
        The dialect lacks a type.
    InvalidIRError
        An operation was not expanded.
    """
    return [code for number in range(len(program.tasks)) for code in _emit(program, number, dialect)]


def _emit(program: Program, number: int, dialect: GridDialect) -> list[TaskText]:
    task = program.tasks[number]
    form: Form = "serial" if not task.extents else "sequence" if task.attrs.get("serialize") else "grid"
    pooled = uses_pool(task.body)
    if form == "grid" and (pooled or any(isinstance(e, DeviceWord) for e in task.extents)):
        form = "resident"
    wanted = int(task.attrs.get("block_dim") or dialect.group)
    group = max(min(wanted, dialect.max_group), 1) if form in ("grid", "resident") else 1
    symbol = f"{_plain(task.name)}_{number}"
    plain = TaskText(symbol, "", form, group, number, pooled)
    codes: list[TaskText] = []
    sizing = sizing_task(task, _NEED, number) if pooled else None
    if sizing is not None:
        name = symbol + "_need"
        text = GridTask(program, number, sizing, dialect, "").text(name)
        codes.append(replace(plain, symbol=name, text=text, pooled=False, sizing=True))
    share = "" if not pooled else "guessed" if sizing is None else "measured"
    return [*codes, replace(plain, text=GridTask(program, number, task, dialect, share).text(symbol))]


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name)


class GridTask(TaskWriter):
    """Writes one task's function.

    Parameters
    ----------
    program, number, task, dialect
        What is written, and how; ``task`` is the program's own or a slice of it.
    share : str
        ``""`` without the pool; ``"measured"`` or ``"guessed"``: whence a thread's part of it is known.
    """

    def __init__(self, program: Program, number: int, task: Task, dialect: GridDialect, share: str) -> None:
        first = sum(len(t.extents) for t in program.tasks[:number])
        super().__init__(program, dialect, task, first)
        self.grid, self.number, self.share = dialect, number, share
        self.layout = GridLayout.of(program)
        self.words = word_offsets(program)
        self.words[_NEED] = self.layout.pool + 3
        self.head: list[str] = []
        self.shared: dict[tuple[Param, int], str] = {}
        self.taken: set[str] = set(dialect.reserved)
        self.cursor = "0"
        self.iteration = "0"

    # -- names --------------------------------------------------------------------------------------------------------
    def name_for(self, wanted: str) -> str:
        """Return a new name as close to the user's as the language allows."""
        name = plain = re.sub(r"_{2,}", "_", _plain(wanted)).strip("_") or "x"
        if re.match(r"\d|v\d|qd_", plain):
            name = plain = "u_" + plain
        number = 1
        while name in self.taken:
            number += 1
            name = f"{plain}_{number}"
        self.taken.add(name)
        return name

    def _word(self, array: Param, offset: int, name: str) -> str:
        """Name of a word of an array leaf, read once at the head."""
        known = self.shared.get((array, offset))
        if known is None:
            known = self.shared[array, offset] = self.name_for(array.path + name)
            kind = "const uint64_t" if offset == 0 else "const int64_t"
            self.head.append(f"    {kind} {known} = words[{self.words[array] + offset}];")
        return known

    # -- function -----------------------------------------------------------------------------------------------------
    def text(self, name: str) -> str:
        """Return the function."""
        if not self.task.extents:
            self._serial()
        else:
            self._parallel()
        begin = [f"    {line}" for line in self.grid.begin]
        return "\n".join([self.grid.signature.format(name=name) + " {", *begin, *self.head, *self.lines, "}", ""])

    def _serial(self) -> None:
        if self.share:
            self._divide()
            self.open("if (sharing != 0)")
        self.region(self.task.body)
        if self.share:
            self.close()

    def _parallel(self) -> None:
        for axis, extent in enumerate(self.task.extents):
            self.put(f"const int64_t n{axis} = {self._extent(extent, axis)};")
        product = " * ".join(f"uint64_t(n{axis} > 0 ? n{axis} : 0)" for axis in range(len(self.task.extents)))
        self.put(f"const uint64_t total = {product};")
        start, step = "thread_index", "thread_count"
        if self.share:
            self._divide()
            start, step = "(thread_index < sharing ? thread_index : total)", "sharing"
        self.open(f"for (uint64_t linear = {start}; linear < total; linear += {step})")
        self.iteration = "linear"
        self._indices()
        self.region(self.task.body)
        self.close()

    def _indices(self) -> None:
        args = self.task.body.args
        if len(args) > 1:
            self.put("uint64_t rest = linear;")
        for axis in reversed(range(1, len(args))):
            quotient = self.fresh()
            self.put(f"const uint64_t {quotient} = qd_quotient(rest, n{axis});")
            self._index(axis, f"rest - {quotient} * n{axis}")
            self.put(f"rest = {quotient};")
        self._index(0, "rest" if len(args) > 1 else "linear")

    def _index(self, axis: int, value: str) -> None:
        arg = self.task.body.args[axis]
        name = self.names[arg] = self.name_for(arg.name or f"i{axis}")
        ctype = self.ctype(arg.type)
        self.put(f"const {ctype} {name} = {ctype}({value});")

    def _extent(self, extent: object, axis: int) -> str:
        if isinstance(extent, Fixed):
            return str(extent.count)
        if isinstance(extent, DeviceWord):
            dtype = extent.param.type.dtype
            return self._at(dtype, f"{self._word(extent.param, 0, '')} + {extent.index * dtype.nbytes}")
        return f"words[{self.layout.extents + self.first + axis}]"

    # -- memory -------------------------------------------------------------------------------------------------------
    def _at(self, dtype: DType, address: str) -> str:
        return f"qd_at<{self._memory(dtype)}>({address})"

    def _memory(self, dtype: DType) -> str:
        return self.ctype(dt.u8 if dtype is dt.u1 else dtype)

    def address(self, array: Value, indices: Sequence[Value]) -> str:
        """Return the expression of an element's address."""
        assert isinstance(array, Param)
        kind: ArrayType = array.type
        size, nbytes = kind.element_size, kind.dtype.nbytes
        terms: list[str] = []
        inner = size
        for axis, index in enumerate(indices):
            if axis >= kind.ndim:
                inner //= kind.element_shape[axis - kind.ndim]
                step = str(inner * nbytes)
            elif axis == kind.ndim - 1:
                step = str(size * nbytes)
            else:
                step = f"{self._word(array, 1 + kind.ndim + axis, f'_stride{axis}')} * {nbytes}"
            if constant_of(index) != 0:
                terms.append(f"int64_t({self.use(index)})" + (f" * {step}" if step != "1" else ""))
        return " + ".join([self._word(array, 0, ""), *terms])

    def place(self, array: Value, indices: Sequence[Value]) -> str:
        """Return the lvalue of an element."""
        assert isinstance(array, Param)
        return self._at(array.type.dtype, self.address(array, indices))

    # -- atomics ------------------------------------------------------------------------------------------------------
    def _op_atomic(self, node: Node) -> None:
        kind, dtype, value = node.attrs["kind"], node.type, self.use(node.operands[-1])
        address = self.address(node.operands[0], indices_of(node))
        if (kind, dtype) in self.grid.natives:
            self.define(node, f"qd_fetch_{kind}<{self.ctype(dtype)}>({address}, {value})")
            return
        old = self.names[node] = self.fresh()
        place, seen, shift = self.fresh(), self.fresh(), "0"
        self.put(f"uint64_t {place} = {address};")
        if dtype.nbytes < 4:
            shift = self.fresh()
            self.put(f"const uint32_t {shift} = uint32_t({place} & 3) * 8;")
            self.put(f"{place} &= ~uint64_t(3);")
        self.put(f"{self.ctype(dtype)} {old};")
        self.put(f"uint32_t {seen} = qd_word({place});")
        self.open("for (;;)")
        self.put(f"{old} = qd_field<{self.ctype(dtype)}>({seen}, {shift});")
        new = self.fresh()
        self.put(f"const {self.ctype(dtype)} {new} = {self._combined(node, kind, old, value)};")
        self.put(f"if (qd_swap({place}, {seen}, qd_with({seen}, {shift}, {new}))) break;")
        self.close()

    def _combined(self, node: Node, kind: str, old: str, value: str) -> str:
        dtype: DType = node.type
        if kind == "cas":
            expected = self.use(node.operands[-2])
            bits = [old, expected]
            if dtype.is_real:
                word = dt.by_name(f"i{dtype.bits}")
                bits = [self.dialect.bitcast(dtype, word, b, self.ctype(word)) for b in bits]
            return f"{bits[0]} == {bits[1]} ? {value} : {old}"
        rule = self.rule(kind)
        return value if rule is None else rule(dtype, (old, value), self.ctype(dtype))

    # -- private memory -----------------------------------------------------------------------------------------------
    def _divide(self) -> None:
        """Divide the pool among threads."""
        pool = self.layout.pool
        self.put(f"const uint64_t slots = words[{pool + 1}];")
        if self.share == "guessed":
            self.put("const uint64_t own = slots / thread_count;")
            self.put("const uint64_t sharing = thread_count;")
            return
        self.put(f"const uint64_t need = qd_at<uint32_t>(words[{pool + 3}] + {4 * self.number});")
        self.put("const uint64_t own = need == 0 ? 1 : need;")
        self.put("const uint64_t room = slots / own;")
        self.put("const uint64_t sharing = room < thread_count ? room : thread_count;")
        self.put(f"if (sharing == 0) qd_at<uint64_t>(words[{pool + 2}]) = own;")

    def region(self, region: Region) -> list[str]:
        """Write a region; private memory reserved in it is given back."""
        cursor = self.cursor
        result = super().region(region)
        self.cursor = cursor
        return result

    def _op_scratch(self, node: Node) -> None:
        kind: ScratchType = node.type
        name = self.names[node] = self.fresh()
        if not is_pooled(node):
            length = max(int(constant_of(node.operands[0])), 1)
            self.put(f"{self.ctype(kind.dtype)} {name}[{length}];")
            return
        length = f"int64_t({self.use(node.operands[0])})"
        words = 2 if kind.dtype.bits == 64 else 1
        self.put(f"const uint64_t {name} = {self.cursor};")
        self.cursor = self.fresh()
        self.put(f"const uint64_t {self.cursor} = {name} + uint64_t({length} > 0 ? {length} : 0) * {words};")
        self.put(f"if ({self.cursor} > own) qd_at<uint64_t>(words[{self.layout.pool + 2}]) = {self.cursor};")

    def _slot(self, scratch: Node, index: Value, part: int = 0) -> str:
        """Address of a slot: never outside this thread's part."""
        wide = scratch.type.dtype.bits == 64
        place = f"{self.use(scratch)} + int64_t({self.use(index)})" + (f" * 2 + {part}" if wide else "")
        return f"words[{self.layout.pool}] + 4 * qd_slot({place}, own, sharing, thread_index)"

    def _op_scratch_load(self, node: Node) -> None:
        scratch, index = node.operands
        assert isinstance(scratch, Node)
        if not is_pooled(scratch):
            super()._op_scratch_load(node)
            return
        low = f"qd_at<uint32_t>({self._slot(scratch, index)})"
        if node.type.bits != 64:
            self.define(node, f"qd_field<{self.ctype(node.type)}>({low}, 0)")
            return
        high = f"qd_at<uint32_t>({self._slot(scratch, index, 1)})"
        word = f"int64_t(uint64_t({low}) | uint64_t({high}) << 32)"
        to = self.ctype(node.type)
        self.define(node, self.dialect.bitcast(dt.i64, node.type, word, to) if node.type.is_real else f"{to}({word})")

    def _op_scratch_store(self, node: Node) -> None:
        scratch, index, value = node.operands
        assert isinstance(scratch, Node)
        if not is_pooled(scratch):
            super()._op_scratch_store(node)
            return
        if value.type.bits != 64:
            self.put(f"qd_at<uint32_t>({self._slot(scratch, index)}) = qd_with(0, 0, {self.use(value)});")
            return
        word = self.use(value)
        if value.type.is_real:
            word = self.dialect.bitcast(value.type, dt.i64, word, self.ctype(dt.i64))
        for part, half in enumerate((word, f"uint64_t({word}) >> 32")):
            self.put(f"qd_at<uint32_t>({self._slot(scratch, index, part)}) = uint32_t({half});")

    # -- messages -----------------------------------------------------------------------------------------------------
    def _record(self, function: str, site: int, values: Sequence[Value]) -> None:
        assert self.program.log is not None
        record, log = self.fresh(), self._word(self.program.log, 0, "")
        self.put(f"const uint64_t {record} = {function}({log}, {site}, {self.iteration}, {len(values)});")
        if values:
            self.open(f"if ({record} != 0)")
            for number, value in enumerate(values):
                word = f"qd_payload({self.use(value)})" if value.type.is_real else f"int64_t({self.use(value)})"
                self.put(f"qd_at<int64_t>({record} + {8 * number}) = {word};")
            self.close()
