"""Random kernels, run on a backend and on the reference.

Kernels are made in IR: types, nested loops and branches, private memory, atomics, vector elements, several tasks and
reverse mode. A parallel iteration writes its own elements and shares others only through atomics whose order does not
matter, so every kernel has one right result. Real arithmetic is on small whole numbers and therefore exact: contraction
and vectorisation must change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import ArrayType, Function, Param, Region, Value
from qd_core.ir.ops import OPS

__all__ = ["Case", "cases"]

Array = np.ndarray[Any, Any]
Draw = Callable[[Any], Any]

LIMIT = 512
"""Real values stay within this, so that sums and products of two are exact in f32."""

REAL_OPS = ("add", "sub", "mul", "min", "max", "neg", "abs", "sgn", "floor")
SMOOTH_OPS = ("add", "sub", "mul", "neg")
INTEGER_OPS = tuple(
    name for name, op in OPS.items() if op.numpy is not None and op.result == "same" and dt.i32 in op.types
)
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
INTEGERS = (dt.i32, dt.i64, dt.u32, dt.u8, dt.i16, dt.u64)


@dataclass(slots=True)
class Case:
    """One kernel with arguments.

    Attributes
    ----------
    function : Function
        The kernel.
    arguments : dict
        Scalars and arrays by path.
    options : CompileOptions
        For the device.
    gradients : tuple of str
        Arrays whose gradients are wanted; empty for a forward run.
    """

    function: Function
    arguments: dict[str, Any]
    options: CompileOptions
    gradients: tuple[str, ...] = ()


@dataclass(slots=True)
class _Scope:
    """Values that may be used, by type, and what the present code may touch."""

    values: dict[DType, list[Value]] = field(default_factory=dict[DType, list[Value]])
    index: Value | None = None
    serial: bool = False

    def inner(self) -> _Scope:
        """Return a scope in which more may be defined."""
        return _Scope({t: list(v) for t, v in self.values.items()}, self.index, self.serial)

    def add(self, *values: Value) -> None:
        """Make values usable."""
        for value in values:
            self.values.setdefault(value.type, []).append(value)


class _Maker:
    """Draws one kernel.

    Parameters
    ----------
    draw : callable
        Of a Hypothesis composite.
    real, integer : DType
        Types of this kernel.
    smooth : bool
        Only what has a derivative everywhere that is worth comparing.
    """

    def __init__(self, draw: Draw, real: DType, integer: DType, smooth: bool) -> None:
        self.draw, self.real, self.integer, self.smooth = draw, real, integer, smooth
        self.read = [Param(ArrayType(real, 1), "a"), Param(ArrayType(integer, 1), "b")]
        self.own = [
            Param(ArrayType(real, 1), "y"),
            Param(ArrayType(integer, 1), "z"),
            Param(ArrayType(real, 1, (3,)), "v"),
        ]
        self.shared = [Param(ArrayType(real, 1), "total"), Param(ArrayType(dt.i32, 1), "count")]
        self.scalars = [Param(real, "r"), Param(integer, "s"), Param(dt.i32, "n")]
        self.function = Function("fuzzed", [*self.read, *self.own, *self.shared, *self.scalars], Region())
        self.b = Builder(self.function.body)
        self.budget = draw(st.integers(1, 25))
        # One kind an array: of different ones the order would matter.
        self.kinds = {
            self.shared[0]: "add" if smooth else self.pick(("add", "min", "max")),
            self.shared[1]: self.pick(("add", "min", "max", "and", "or", "xor")),
        }

    def pick(self, options: Sequence[Any]) -> Any:
        """Draw one of ``options``."""
        return self.draw(st.sampled_from(list(options)))

    # -- expressions --------------------------------------------------------------------------------------------------
    def value(self, scope: _Scope, dtype: DType) -> Value:
        """Return a known value of ``dtype``, or a constant."""
        known = scope.values.get(dtype, [])
        if known and self.draw(st.integers(0, 3)):
            return self.pick(known)
        if dtype is dt.u1:
            return self.comparison(scope)
        low = 0 if dtype.kind == "u" else -3
        return self.b.const(dtype, self.draw(st.integers(low, 5)))

    def small(self, value: Value) -> Value:
        """Clamp a real value."""
        b = self.b
        return b.emit("min", b.emit("max", value, b.const(value.type, -LIMIT)), b.const(value.type, LIMIT))

    def comparison(self, scope: _Scope) -> Value:
        """Compare two values."""
        dtype = self.pick([self.real, self.integer, dt.i32])
        return self.b.emit(self.pick(COMPARISONS), self.value(scope, dtype), self.value(scope, dtype))

    def expression(self, scope: _Scope, dtype: DType) -> Value:
        """Return a new value of ``dtype``."""
        b, kind = self.b, self.draw(st.integers(0, 5))
        if kind == 0:
            return b.select(self.comparison(scope), self.value(scope, dtype), self.value(scope, dtype))
        if kind == 1:
            return self.conversion(scope, dtype)
        if kind == 2:
            return self.load(scope, dtype)
        name = self.pick((SMOOTH_OPS if self.smooth else REAL_OPS) if dtype.is_real else INTEGER_OPS)
        operands = [self.value(scope, dtype) for _ in range(OPS[name].arity)]
        if name == "powi":
            operands[1] = b.cast(operands[1], dt.i32)
        result = b.emit(name, *operands)
        return self.small(result) if dtype.is_real else result

    def conversion(self, scope: _Scope, dtype: DType) -> Value:
        """Convert a value of another type."""
        source = self.pick([d for d in (self.real, self.integer, dt.i32) if d is not dtype])
        result = self.b.cast(self.value(scope, source), dtype)
        return self.small(result) if dtype.is_real else result

    def place(self, scope: _Scope, array: Param) -> list[Value]:
        """Return indices that are in range and that this code may touch."""
        b = self.b
        size = b.extent(array, 0)
        if array in self.own and not scope.serial:
            assert scope.index is not None
            first: Value = scope.index
        else:
            first = b.emit("mod", b.cast(self.value(scope, self.pick([dt.i32, self.integer])), dt.i32), size)
        return [first, *(b.const(dt.i32, self.draw(st.integers(0, n - 1))) for n in array.type.element_shape)]

    def load(self, scope: _Scope, dtype: DType) -> Value:
        """Read an array."""
        arrays = [p for p in (*self.read, *self.own) if p.type.dtype is dtype]
        if not arrays:
            return self.value(scope, dtype)
        array = self.pick(arrays)
        result = self.b.load(array, self.place(scope, array))
        return self.small(result) if dtype.is_real else result

    # -- statements ---------------------------------------------------------------------------------------------------
    def block(self, scope: _Scope, depth: int) -> None:
        """Emit a few statements."""
        for _ in range(self.draw(st.integers(1, 4))):
            if self.budget <= 0:
                return
            self.budget -= 1
            kinds: list[Callable[[_Scope, int], None]] = [self.assign, self.assign, self.store, self.atomic]
            if depth < 3:
                kinds += [self.branch, self.loop]
                kinds += [] if self.smooth else [self.repeat, self.private]
            self.pick(kinds)(scope, depth)

    def type(self) -> DType:
        """Draw a type."""
        return self.real if self.smooth else self.pick([self.real, self.integer, dt.i32])

    def assign(self, scope: _Scope, depth: int) -> None:
        """Define a value."""
        scope.add(self.expression(scope, self.type()))

    def store(self, scope: _Scope, depth: int) -> None:
        """Write an array."""
        array = self.pick(self.own)
        place = self.place(scope, array)
        self.b.store(array, place, self.expression(scope, array.type.dtype))

    def atomic(self, scope: _Scope, depth: int) -> None:
        """Combine into a shared array."""
        array = self.shared[0] if self.smooth else self.pick(self.shared)
        self.b.atomic(self.kinds[array], array, self.place(scope, array), self.value(scope, array.type.dtype))

    def carried(self, scope: _Scope) -> list[Value]:
        """Draw values that a region changes."""
        return [self.value(scope, self.type()) for _ in range(self.draw(st.integers(0, 2)))]

    def branch(self, scope: _Scope, depth: int) -> None:
        """Emit an ``if`` with results."""
        condition, kinds = self.comparison(scope), [v.type for v in self.carried(scope)]
        regions: list[Region] = []
        for _ in range(2):
            with self.b.inside() as region:
                inner = scope.inner()
                self.block(inner, depth + 1)
                self.b.yield_(*(self.value(inner, k) for k in kinds))
            regions.append(region)
        scope.add(*self.b.if_(condition, *regions))

    def loop(self, scope: _Scope, depth: int) -> None:
        """Emit a ``for`` with few iterations."""
        b, inits = self.b, self.carried(scope)
        bound = b.emit("mod", b.cast(self.value(scope, dt.i32), dt.i32), b.const(dt.i32, 5))
        start, reverse = b.const(dt.i32, self.draw(st.integers(-1, 2))), self.draw(st.booleans())
        breaks = not self.smooth and self.draw(st.booleans())
        with b.inside([(dt.i32, "k"), *((v.type, "c") for v in inits)], loop=True) as body:
            inner = scope.inner()
            inner.add(*body.args)
            self.block(inner, depth + 1)
            last = [self.value(inner, v.type) for v in inits]
            b.yield_(*last, *([self.comparison(inner)] if breaks else []))
        scope.add(*b.for_(start, bound, inits, body, reverse=reverse, breaks=breaks))

    def repeat(self, scope: _Scope, depth: int) -> None:
        """Emit a ``while`` that ends after a few turns at the latest."""
        b, inits = self.b, self.carried(scope)
        kinds = [(dt.i32, "turns"), *((v.type, "c") for v in inits)]
        with b.inside(kinds, loop=True) as test:
            inner = scope.inner()
            inner.add(*test.args[1:])
            few = b.emit("lt", test.args[0], b.const(dt.i32, 4))
            b.yield_(b.emit("and", few, self.comparison(inner)))
        with b.inside(kinds, loop=True) as body:
            inner = scope.inner()
            inner.add(*body.args)
            self.block(inner, depth + 1)
            turns = b.emit("add", body.args[0], b.const(dt.i32, 1))
            b.yield_(turns, *(self.value(inner, v.type) for v in inits))
        scope.add(*b.while_([b.const(dt.i32, 0), *inits], test, body)[1:])

    def private(self, scope: _Scope, depth: int) -> None:
        """Fill private memory in a loop and read it back."""
        b, dtype = self.b, self.type()
        if scope.index is None:
            return
        length = b.emit("add", b.emit("mod", self.value(scope, dt.i32), b.const(dt.i32, 6)), b.const(dt.i32, 1))
        memory, what = b.scratch(dtype, length), self.value(scope, dtype)
        with b.inside([(dt.i32, "k")], loop=True) as body:
            b.scratch_store(memory, body.args[0], b.emit("add", what, b.cast(body.args[0], dtype)))
            b.yield_()
        b.for_(b.const(dt.i32, 0), length, [], body)
        value = b.scratch_load(memory, b.emit("sub", length, b.const(dt.i32, 1)))
        scope.add(self.small(value) if dtype.is_real else value)

    # -- kernel -------------------------------------------------------------------------------------------------------
    def kernel(self, loops: int) -> Function:
        """Draw the whole kernel: parallel loops and serial code between them."""
        b = self.b
        outer = _Scope(serial=True)
        outer.add(*self.scalars)
        for _ in range(loops):
            if not self.smooth and self.draw(st.booleans()):
                self.block(outer, 2)
            with b.inside([(dt.i32, "i")], loop=True) as body:
                scope = outer.inner()
                scope.index, scope.serial = body.args[0], False
                scope.add(body.args[0])
                self.block(scope, 0)
                self.store(scope, 3)
                b.yield_()
            b.parallel_for([(b.const(dt.i32, 0), self.scalars[2])], body)
        b.yield_()
        return self.function


def _data(draw: Draw, dtype: DType, shape: Any, seed: int) -> Array:
    generator = np.random.default_rng(seed)
    if dtype.is_real or draw(st.booleans()):
        return generator.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype.numpy)
    raw = generator.integers(0, 256, (*np.atleast_1d(shape), dtype.nbytes), dtype=np.uint8)
    return np.ascontiguousarray(raw).view(dtype.numpy)[..., 0]


@st.composite
def cases(draw: Draw, types: frozenset[DType] = frozenset(dt.ALL), *, private: bool = True) -> Case:
    """Strategy for kernels with arguments.

    Parameters
    ----------
    draw : callable
        Given by Hypothesis.
    types : frozenset of DType
        What the device has; i32 and f32 are taken for granted.
    private : bool
        The device has private memory.
    """
    real = draw(st.sampled_from([d for d in (dt.f32, dt.f64) if d in types]))
    integer = draw(st.sampled_from([d for d in INTEGERS if d in types]))
    smooth = draw(st.integers(0, 3)) == 0
    maker = _Maker(draw, real, integer, smooth)
    if not private:
        maker.private = maker.assign
    function = maker.kernel(1 if smooth else draw(st.integers(1, 3)))
    count, seed = draw(st.sampled_from([1, 3, 8, 17, 64, 70, 1000])), draw(st.integers(0, 1000))
    arguments: dict[str, Any] = {"r": float(draw(st.integers(-3, 3))), "n": count}
    arguments["s"] = draw(st.integers(0 if integer.kind == "u" else -5, 9))
    for number, param in enumerate((*maker.read, *maker.own, *maker.shared)):
        size = count if param in maker.own else draw(st.integers(1, 9))
        arguments[param.path] = _data(draw, param.type.dtype, (size, *param.type.element_shape), seed + number)
    options = CompileOptions(fast_math=not smooth and draw(st.booleans()), lanes=draw(st.sampled_from([0, 0, 1])))
    return Case(function, arguments, options, ("a", "y", "v", "total") if smooth else ())
