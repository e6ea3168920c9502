"""The writer of one function body: values, vectors, masks and blocks.

Text is a list of lines. A :class:`Lane` says how a value of the IR exists in the text: *uniform* (one scalar for all
lanes), *affine* (a scalar for lane 0 and a constant step from lane to lane, as the index of the vectorised axis has),
or a *vector*. Uniform and affine values become vectors only where an operation needs one, and each such vector is
written once a scope.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qd_core import dtypes as dt
from qd_core.codegen.llvm.divergence import Divergence
from qd_core.codegen.llvm.types import LLVM, MEMORY, SUFFIX, literal
from qd_core.dtypes import DType
from qd_core.errors import InvalidIRError
from qd_core.ir.nodes import Node, Param, Region, Value

if TYPE_CHECKING:
    from qd_core.codegen.llvm.module import ModuleWriter
    from qd_core.codegen.llvm.survey import Survey

__all__ = ["Emitter", "Lane"]

Handler = Callable[["Emitter", Node], Any]
HANDLERS: dict[str, Handler] = {}
_LONGEST_BLOCK = 400
"""Lines of text after which a straight line is divided."""
"""Writer of each operation by name; the modules of this package fill it."""


class Lane:
    """A value of the IR in the text.

    Attributes
    ----------
    ref : str
        Operand: a scalar when uniform or affine (lane 0), a vector otherwise.
    wide : bool
        Whether lanes may differ.
    step : int or None
        Difference between neighbouring lanes of an affine value.
    exact : bool
        No lane of an affine value has wrapped around, so its step survives widening.
    """

    __slots__ = ("exact", "ref", "step", "wide")

    def __init__(self, ref: str, wide: bool = False, step: int | None = None, exact: bool = False) -> None:
        self.ref, self.wide, self.step, self.exact = ref, wide, step, exact


class _Environment(dict[Value, Lane]):
    """Values written so far; a scalar parameter is loaded when first asked for."""

    __slots__ = ("emitter",)

    def __missing__(self, value: Value) -> Lane:
        if isinstance(value, Param):
            lane = self[value] = Lane(self.emitter.scalar_parameter(value))
            return lane
        raise InvalidIRError(f"{value!r} is used but not defined in this task")


class Emitter:
    """Writes one function.

    Parameters
    ----------
    module : ModuleWriter
        Where declarations, sites and metadata are collected.
    lanes : int
        Iterations in lock step.

    Attributes
    ----------
    mask : str or None
        Vector of i1 that says which lanes are active; None where all are. At least one is, wherever code runs.
    owned : set of Node
        Atomics on elements that no other iteration touches.
    totals : dict of Node to str
        Accumulators of atomics that are done once, at the end of the task.
    alone : str
        An i1: no other thread runs this task, so atomics need not be atomic.
    lines, entry : list of str
        The body so far, and the lines of the entry block that come before it.
    block : str
        Label of the block being written.
    """

    def __init__(self, module: ModuleWriter, lanes: int) -> None:
        self.module, self.target, self.lanes = module, module.target, lanes
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.count = 0
        self.block = "entry"
        self.begun = 0
        self.mask: str | None = None
        self.env = _Environment()
        self.env.emitter = self
        self.cache: dict[Any, str] = {}
        self.undo: list[Any] = []
        self.known: dict[Any, Any] = {}
        self.varying: set[Value] = set()
        self.divergent: set[Node] = set()
        self.used: set[Value] = set()
        self.owned: set[Node] = set()
        self.totals: dict[Node, str] = {}
        self.alone: str = "false"
        self.linear = Lane("0")
        self.scalar = LLVM
        self.vector = {d: f"<{lanes} x {t}>" for d, t in LLVM.items()}
        self.vector_memory = {d: f"<{lanes} x {t}>" for d, t in MEMORY.items()}
        self.suffix = {d: f"v{lanes}{s}" for d, s in SUFFIX.items()}
        self.mask_type = self.vector[dt.u1]
        self.flags = module.flags
        own = module.target.form.handlers
        self.handlers = {**HANDLERS, **own} if own else HANDLERS

    # -- text -----------------------------------------------------------------------------------------------------
    def new(self, text: str) -> str:
        """Write an instruction with a result and return the result."""
        self.count += 1
        ref = f"%v{self.count}"
        self.lines.append(f"  {ref} = {text}")
        return ref

    def line(self, text: str) -> None:
        """Write an instruction without a result."""
        self.lines.append("  " + text)

    def label(self, hint: str) -> str:
        """Return a new label."""
        self.count += 1
        return f"{hint}{self.count}"

    def start(self, label: str) -> None:
        """Begin the block ``label``; the one before must have ended in a branch."""
        self.lines.append(label + ":")
        self.block = label
        self.begun = len(self.lines)

    def jump(self, label: str) -> None:
        """End the block by going to ``label``."""
        self.lines.append(f"  br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        """End the block by choosing."""
        self.lines.append(f"  br i1 {condition}, label %{yes}, label %{no}")

    def once(self, key: Any, text: str) -> str:
        """Write an instruction without effect, or return the result it had in this scope."""
        ref = self.cache.get(key)
        if ref is None:
            ref = self.cache[key] = self.new(text)
            self.undo.append(key)
        return ref

    def known_as(self, key: Any, ref: str) -> None:
        """Let ``ref`` be what `once` returns for ``key`` in this scope."""
        self.cache[key] = ref
        self.undo.append(key)

    @contextmanager
    def scope(self) -> Generator[None]:
        """Forget, at the end, the vectors and addresses that were written inside: their block need not dominate what
        follows.
        """
        mark = len(self.undo)
        try:
            yield
        finally:
            for key in self.undo[mark:]:
                del self.cache[key]
            del self.undo[mark:]

    @contextmanager
    def masked(self, mask: str | None) -> Generator[None]:
        """Write under ``mask``."""
        outer, self.mask = self.mask, mask
        try:
            yield
        finally:
            self.mask = outer

    # -- values ---------------------------------------------------------------------------------------------------
    def widen(self, lane: Lane, dtype: DType) -> str:
        """Return the vector of a value."""
        if lane.wide:
            return lane.ref if lane.step is None else self._affine_vector(lane, dtype)
        return self.splat(lane.ref, dtype)

    def splat(self, ref: str, dtype: DType) -> str:
        """Return the vector whose lanes all are ``ref``."""
        if ref[0] != "%":
            return f"splat ({LLVM[dtype]} {ref})"
        wide = self.cache.get(ref)
        if wide is None:
            t = self.vector[dtype]
            one = self.new(f"insertelement {t} poison, {LLVM[dtype]} {ref}, i64 0")
            wide = self.once(ref, f"shufflevector {t} {one}, {t} poison, <{self.lanes} x i32> zeroinitializer")
        return wide

    def _affine_vector(self, lane: Lane, dtype: DType) -> str:
        # Wraps as the lanes' own arithmetic does: base + l*step is exact modulo 2^bits.
        key = (lane.ref, lane.step)
        wide = self.cache.get(key)
        if wide is None:
            wide = self.once(
                key, f"add {self.vector[dtype]} {self.splat(lane.ref, dtype)}, {self.steps(dtype, lane.step or 0)}"
            )
        return wide

    def steps(self, dtype: DType, step: int) -> str:
        """Return the constant vector 0, step, 2*step, ..."""
        t, bits = LLVM[dtype], dtype.bits
        half = 1 << (bits - 1)
        items = (((lane * step + half) & ((1 << bits) - 1)) - half for lane in range(self.lanes))
        return "<" + ", ".join(f"{t} {i}" for i in items) + ">"

    def constant(self, dtype: DType, value: Any, wide: bool) -> str:
        """Return a literal, scalar or vector."""
        text = literal(dtype, value)
        return f"splat ({LLVM[dtype]} {text})" if wide else text

    def typed(self, dtype: DType, wide: bool) -> str:
        """Return the register type of a value."""
        return self.vector[dtype] if wide else LLVM[dtype]

    def as_wide(self, value: Value, wide: bool) -> str:
        """Return the operand for ``value``, as a vector when ``wide``; it must be uniform otherwise."""
        lane = self.env[value]
        if wide:
            return self.widen(lane, value.type)
        assert not lane.wide, f"{value!r} varies where it was found uniform"
        return lane.ref

    # -- masks ----------------------------------------------------------------------------------------------------
    def mask_or_all(self) -> str:
        """Return the mask as an operand."""
        return self.mask if self.mask is not None else "splat (i1 true)"

    def both(self, a: str | None, b: str) -> str:
        """Return the conjunction of two masks; None stands for all lanes."""
        return b if a is None else self.new(f"and {self.mask_type} {a}, {b}")

    def any(self, mask: str) -> str:
        """Return an i1: whether a lane of ``mask`` is active."""
        return self.new(f"call i1 @llvm.vector.reduce.or.v{self.lanes}i1({self.mask_type} {mask})")

    def bits(self, mask: str) -> str:
        """Return the mask as an integer of as many bits."""
        return self.once(("bits", mask), f"bitcast {self.mask_type} {mask} to i{self.lanes}")

    def last_active(self) -> str:
        """Return the number (i32) of the last active lane."""
        if self.mask is None:
            return str(self.lanes - 1)
        n = self.lanes
        zeros = self.once(("zeros", self.mask), f"call i{n} @llvm.ctlz.i{n}(i{n} {self.bits(self.mask)}, i1 true)")
        less = self.once(("below", self.mask), f"sub i{n} {n - 1}, {zeros}")
        return self.lane_number(less)

    def first_active(self, mask: str) -> str:
        """Return the number (i32) of the first active lane of ``mask``, which must have one."""
        n = self.lanes
        zeros = self.new(f"call i{n} @llvm.cttz.i{n}(i{n} {self.bits(mask)}, i1 true)")
        return self.lane_number(zeros)

    def lane_number(self, bits: str) -> str:
        """Return the number of a lane, counted in an integer of as many bits as there are lanes, as i32."""
        n = self.lanes
        if n == 32:
            return bits
        return self.once(("lane", bits), f"{'zext' if n < 32 else 'trunc'} i{n} {bits} to i32")

    # -- parameters -----------------------------------------------------------------------------------------------
    def word(self, number: int, type: str = "i64") -> str:
        """Return word ``number`` of the arguments, read in the entry block; nothing in the task writes it."""
        key = ("word", number, type)
        ref = self.known.get(key)
        if ref is None:
            ref = self.known[key] = f"%w{number}{'p' if type != 'i64' else ''}"
            self.entry.append(f"  {ref}.at = getelementptr i64, ptr %words, i64 {number}")
            self.entry.append(f"  {ref} = load {type}, ptr {ref}.at, align 8, !invariant.load !0")
        return ref

    def scalar_parameter(self, param: Param) -> str:
        """Return the value of a scalar parameter."""
        word, d = self.word(self.module.offsets[param]), param.type
        if d.bits == 64:
            return self._entry(f"bitcast i64 {word} to double") if d.is_real else word
        low = self._entry(f"trunc i64 {word} to i{d.bits}")
        return self._entry(f"bitcast i{d.bits} {low} to {LLVM[d]}") if d.is_real else low

    def address(self, param: Value) -> str:
        """Return the address of an array parameter."""
        return self.word(self.module.offsets[param], self.target.pointer)

    def redirect(self, param: Value, address: str) -> None:
        """Let accesses of an array go to another address from now on."""
        self.known[("word", self.module.offsets[param], self.target.pointer)] = address

    def extent(self, param: Value, axis: int) -> str:
        """Return a run-time extent as i64."""
        return self.word(self.module.offsets[param] + 1 + axis)

    def extent32(self, param: Value, axis: int) -> str:
        """Return a run-time extent as i32: what the language calls it."""
        key = ("extent", param, axis)
        ref = self.known.get(key)
        if ref is None:
            ref = self.known[key] = self._entry(f"trunc i64 {self.extent(param, axis)} to i32")
        return ref

    def strides(self, param: Value) -> list[int | str]:
        """Stride of each axis of the full rank in scalars: a number where it is static, else a word.

        The last run-time axis and the element axes are contiguous by the layout.
        """
        strides: list[int | str] | None = self.known.get(param)
        if strides is None:
            kind = param.type
            first = self.module.offsets[param] + 1 + kind.ndim
            strides = [self.word(first + axis) for axis in range(kind.ndim - 1)]
            strides += [kind.element_size] if kind.ndim else []
            size = kind.element_size
            for n in kind.element_shape:
                size //= n
                strides.append(size)
            self.known[param] = strides
        return strides

    def _entry(self, text: str) -> str:
        self.count += 1
        ref = f"%v{self.count}"
        self.entry.append(f"  {ref} = {text}")
        return ref

    # -- bodies ---------------------------------------------------------------------------------------------------
    def prepare(self, body: Survey, found: Divergence | None) -> None:
        """Take what is known to vary (nothing without lanes), and which results are used."""
        if found is not None:
            self.varying, self.divergent = found.varying, found.divergent
        self.used = body.used

    def nodes(self, region: Region) -> None:
        """Write a region but its terminator."""
        handlers = self.handlers
        for node in region.nodes[:-1]:
            handlers[node.op.name](self, node)
            if len(self.lines) - self.begun > _LONGEST_BLOCK:
                self._divide()

    def _divide(self) -> None:
        """Begin a new block in a straight line: selection and scheduling of instructions are quadratic in a block.

        The branch is one that no pass can decide, to an arm that does nothing and that no pass can remove.
        """
        self.begun = len(self.lines)
        if not self.target.form.opaque:
            return
        odd, on = self.label("odd"), self.label("on")
        self.branch(self.new(f"icmp eq i64 {self.target.form.opaque}, {-self.count}"), odd, on)
        self.start(odd)
        self.line('call void asm sideeffect "", ""()')
        self.jump(on)
        self.start(on)
