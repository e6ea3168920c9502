"""Operations that SPIR-V's own instructions do not compute exactly, as IR.

``OpFRem`` is specified as ``x - y * trunc(x / y)`` with roundings, which is far off for large quotients. The
remainder of two reals is
exact, and long division on their bits gives it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Node, Region, Value
from qd_core.ir.program import Program, Task
from qd_core.ir.rewrite import Copier, eliminate_dead, walk

__all__ = ["expand_real_remainders", "remainder"]


def expand_real_remainders(program: Program) -> Program:
    """Return ``program`` with every `raw_mod` of reals as long division; itself when it has none."""
    if not any(_is_remainder(n) for t in program.tasks for n in walk(t.body)):
        return program
    return replace(program, tasks=tuple(map(_expand, program.tasks)))


def _is_remainder(node: Node) -> bool:
    return node.op.name == "raw_mod" and node.type.is_real


def _expand(task: Task) -> Task:
    if not any(map(_is_remainder, walk(task.body))):
        return task

    def rule(copier: Copier, node: Node) -> bool:
        if _is_remainder(node):
            copier.mapping[node] = remainder(copier.builder, *copier.values(node.operands))
            return True
        return False

    body = Copier(Builder(Region()), rule=rule).region(task.body, loop=True)
    eliminate_dead(body)
    return replace(task, body=body)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Bits of a real type: the integer of its width, and the bits of its mantissa."""

    word: DType
    mantissa: int

    @property
    def sign(self) -> int:
        return 1 << (self.word.bits - 1)

    @property
    def infinity(self) -> int:
        return self.sign - (1 << self.mantissa)


_LAYOUTS = {dt.f32: _Layout(dt.u32, 23), dt.f64: _Layout(dt.u64, 52)}


def remainder(b: Builder, x: Value, y: Value) -> Value:
    """Emit the remainder of ``x`` by ``y`` truncated toward zero: exact, with the sign of ``x``; NaN where ``y``
    is 0 or ``x`` infinite.
    """
    dtype: DType = x.type
    if dtype is dt.f16:
        return b.cast(remainder(b, b.cast(x, dt.f32), b.cast(y, dt.f32)), dt.f16)
    layout = _LAYOUTS[dtype]
    word = layout.word
    bits_x, bits_y = b.bitcast(x, word), b.bitcast(y, word)
    magnitudes = [b.emit("and", v, b.const(word, layout.sign - 1)) for v in (bits_x, bits_y)]
    ax, ay = magnitudes
    infinity = b.const(word, layout.infinity)
    bad = b.emit(
        "or", b.emit("eq", ay, b.const(word, 0)), b.emit("or", b.emit("ge", ax, infinity), b.emit("gt", ay, infinity))
    )
    longer = b.emit("ge", ax, ay)
    with b.inside() as then:
        b.yield_(_long_division(b, layout, ax, ay))
    with b.inside() as otherwise:
        b.yield_(ax)
    (rest,) = b.if_(b.emit("and", longer, b.emit("not", bad)), then, otherwise)
    signed = b.emit("or", rest, b.emit("and", bits_x, b.const(word, layout.sign)))
    nan = b.const(dtype, float("nan"))
    return b.select(bad, nan, b.bitcast(signed, dtype))


def _split(b: Builder, layout: _Layout, a: Value) -> tuple[Value, Value]:
    """Exponent (i32, 1 for the smallest normal numbers, less for smaller ones) and mantissa with its leading one."""
    word, one = layout.word, b.const(layout.word, 1 << layout.mantissa)
    exponent = b.cast(b.emit("shr", a, b.const(word, layout.mantissa)), dt.i32)
    fraction = b.emit("and", a, b.const(word, (1 << layout.mantissa) - 1))
    shift = b.emit("sub", b.emit("clz", fraction), b.const(dt.i32, word.bits - 1 - layout.mantissa))
    small = b.emit("eq", exponent, b.const(dt.i32, 0))
    mantissa = b.select(small, b.emit("shl", fraction, b.cast(shift, word)), b.emit("or", fraction, one))
    return b.select(small, b.emit("sub", b.const(dt.i32, 1), shift), exponent), mantissa


def _long_division(b: Builder, layout: _Layout, ax: Value, ay: Value) -> Value:
    """Bits of the remainder of two positive numbers: one subtraction a bit of the quotient."""
    word = layout.word
    (ex, mx), (ey, my) = _split(b, layout, ax), _split(b, layout, ay)

    def reduced(m: Value) -> Value:
        return b.select(b.emit("ge", m, my), b.emit("sub", m, my), m)

    with b.inside([(dt.i32, "bit"), (word, "rest")], loop=True) as body:
        b.yield_(b.emit("shl", reduced(body.args[1]), b.const(word, 1)))
    (shifted,) = b.for_(ey, ex, [mx], body)
    rest = reduced(shifted)
    shift = b.emit("sub", b.emit("clz", rest), b.const(dt.i32, word.bits - 1 - layout.mantissa))
    exponent = b.emit("sub", ey, shift)
    fraction = b.emit("sub", b.emit("shl", rest, b.cast(shift, word)), b.const(word, 1 << layout.mantissa))
    normal = b.emit("or", fraction, b.emit("shl", b.cast(exponent, word), b.const(word, layout.mantissa)))
    # Below the normal numbers the exponent of the divisor cannot follow: the mantissa is shifted to the fixed one.
    room = b.emit("sub", ey, b.const(dt.i32, 1))
    whole = b.select(
        b.emit("lt", room, b.const(dt.i32, 0)),
        b.emit("shr", rest, b.cast(b.emit("neg", room), word)),
        b.emit("shl", rest, b.cast(room, word)),
    )
    tiny = b.emit("le", exponent, b.const(dt.i32, 0))
    zero = b.emit("eq", rest, b.const(word, 0))
    return b.select(zero, b.const(word, 0), b.select(tiny, whole, normal))
