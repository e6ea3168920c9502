"""Atomic operations.

Lanes that meet in one element and do not ask for the old value are combined first, so that one atomic serves them all.
Otherwise each active lane does its own, in order. Every operation is relaxed: kernels have no ordering between
iterations to preserve.
"""

from __future__ import annotations

from qd_core import dtypes as dt
from qd_core.codegen.llvm.elementwise import Typed
from qd_core.codegen.llvm.emitter import HANDLERS, Emitter, Lane
from qd_core.codegen.llvm.memory import Place, from_memory, last_value, offsets, place, pointer, read, to_memory, write
from qd_core.codegen.llvm.types import LLVM, MEMORY, literal
from qd_core.dtypes import DType
from qd_core.ir.nodes import Node, indices_of

__all__ = ["combine_lanes", "identity", "instruction"]


def instruction(kind: str, d: DType) -> str:
    """Return LLVM's name of an atomic operation."""
    if kind == "exchange":
        return "xchg"
    if d.is_real:
        return f"f{kind}"
    return ("" if d.is_signed else "u") + kind if kind in ("min", "max") else kind


def identity(kind: str, d: DType) -> str:
    """Return the literal that changes nothing when combined."""
    if kind in ("min", "max"):
        if d.is_real:  # NaN loses against every number, and leaves a NaN alone
            return literal(d, float("nan"))
        return literal(d, d.max if kind == "min" else d.min)
    if kind == "and":
        return literal(d, True if d is dt.u1 else -1)
    return literal(d, -0.0) if d.is_real else literal(d, 0)


def combine_lanes(em: Emitter, kind: str, lane: Lane, d: DType) -> str:
    """Return, as a scalar, the values of all active lanes combined by ``kind``."""
    if kind == "exchange":
        return last_value(em, lane, d)
    if not lane.wide and kind in ("min", "max", "and", "or"):
        return lane.ref
    t = em.vector[d]
    wide = em.widen(lane, d)
    if em.mask is not None:
        wide = em.new(f"select {em.mask_type} {em.mask}, {t} {wide}, {t} splat ({LLVM[d]} {identity(kind, d)})")
    return reduce_vector(em, kind, wide, d)


def reduce_vector(em: Emitter, kind: str, wide: str, d: DType) -> str:
    """Return the lanes of a vector combined by ``kind``."""
    t, suffix = em.vector[d], em.suffix[d]
    if kind == "add" and d.is_real:
        # Which iteration adds first is open anyway, so the lanes may be added as a tree.
        return em.new(
            f"call reassoc {LLVM[d]} @llvm.vector.reduce.fadd.{suffix}({LLVM[d]} {literal(d, -0.0)}, {t} {wide})"
        )
    name = kind
    if kind in ("min", "max"):
        name = f"f{kind}" if d.is_real else f"{'s' if d.is_signed else 'u'}{kind}"
    return em.new(f"call {LLVM[d]} @llvm.vector.reduce.{name}.{suffix}({t} {wide})")


def update(em: Emitter, kind: str, d: DType, pointer: str, value: str, expected: str = "") -> str:
    """Write one atomic operation on a scalar in its memory type; return the old value. ``expected``: of ``cas``."""
    scope = f" {em.target.atomic_scope}" if em.target.atomic_scope else ""
    if kind == "cas":
        return _compare_exchange(em, d, f"{em.target.pointer} {pointer}", value, expected, scope)
    name = instruction(kind, d)
    return em.new(
        f"atomicrmw {name} {em.target.pointer} {pointer}, {MEMORY[d]} {value}{scope} monotonic, align {d.nbytes}"
    )


def _compare_exchange(em: Emitter, d: DType, pointer: str, value: str, expected: str, scope: str) -> str:
    word = f"i{8 * d.nbytes}"
    if d.is_real:
        value, expected = (em.new(f"bitcast {MEMORY[d]} {v} to {word}") for v in (value, expected))
    pair = em.new(f"cmpxchg {pointer}, {word} {expected}, {word} {value}{scope} monotonic monotonic, align {d.nbytes}")
    old = em.new(f"extractvalue {{ {word}, i1 }} {pair}, 0")
    return em.new(f"bitcast {word} {old} to {MEMORY[d]}") if d.is_real else old


def _atomic(em: Emitter, node: Node) -> None:
    param, value = node.operands[0], node.operands[-1]
    kind, d, lane = node.attrs["kind"], value.type, em.env[value]
    if node in em.totals:
        _accumulate(em, kind, em.totals[node], lane, d)
        return
    at = place(em, param, indices_of(node))
    if kind == "cas":
        expected = em.env[node.operands[-2]]
        if em.lanes == 1:
            refs = (to_memory(em, v.ref, d, False) for v in (lane, expected))
            em.env[node] = Lane(from_memory(em, update(em, kind, d, pointer(em, at, MEMORY[d]), *refs), d, False))
        else:
            em.env[node] = Lane(_each_lane(em, kind, at, lane, d, expected), True)
    elif node in em.owned:
        em.env[node] = _plain(em, kind, at, lane, d)
    elif em.lanes == 1:
        em.env[node] = Lane(_one(em, kind, d, pointer(em, at, MEMORY[d]), lane.ref))
    elif at.uniform and node not in em.used:
        combined = combine_lanes(em, kind, lane, d)
        update(em, kind, d, pointer(em, at, MEMORY[d]), to_memory(em, combined, d, False))
    else:
        em.env[node] = Lane(_each_lane(em, kind, at, lane, d), True)


def _accumulate(em: Emitter, kind: str, total: str, lane: Lane, d: DType) -> None:
    """Combine the active lanes into an accumulator."""
    wide = em.lanes > 1
    t = em.typed(d, wide)
    value = em.widen(lane, d) if wide else lane.ref
    if em.mask is not None:
        value = em.new(f"select {em.mask_type} {em.mask}, {t} {value}, {t} splat ({LLVM[d]} {identity(kind, d)})")
    old = em.new(f"load {t}, ptr {total}, align 64")
    em.line(f"store {t} {combine(Typed(em, d, wide), kind, old, value)}, ptr {total}, align 64")


def _plain(em: Emitter, kind: str, at: Place, lane: Lane, d: DType) -> Lane:
    """Read, combine and write elements that no other iteration touches; return the old values."""
    old = read(em, at, d)
    value = lane
    if kind != "exchange":
        wide = old.wide or lane.wide
        typed = Typed(em, d, wide)
        a, b = (em.widen(old, d), em.widen(lane, d)) if wide else (old.ref, lane.ref)
        value = Lane(combine(typed, kind, a, b), wide)
    write(em, at, d, value)
    return old


def combine(t: Typed, kind: str, a: str, b: str) -> str:
    """Combine two values outside memory."""
    if kind in ("min", "max"):
        name = f"{kind}num" if t.dtype.is_real else f"{'s' if t.dtype.is_signed else 'u'}{kind}"
        return t.call(name, a, b)
    return t.op(f"fadd {t.em.flags}" if t.dtype.is_real else kind, a, b)


def _one(em: Emitter, kind: str, d: DType, pointer: str, value: str) -> str:
    """Combine one scalar into memory, plainly where this task runs alone; return the old value."""
    if em.alone == "false":
        return from_memory(em, update(em, kind, d, pointer, to_memory(em, value, d, False)), d, False)
    if em.alone == "true":
        return _one_plain(em, kind, d, pointer, value)
    plain, shared, done = em.label("plain"), em.label("shared"), em.label("updated")
    em.branch(em.alone, plain, shared)
    em.start(plain)
    a = _one_plain(em, kind, d, pointer, value)
    em.jump(done)
    em.start(shared)
    b = from_memory(em, update(em, kind, d, pointer, to_memory(em, value, d, False)), d, False)
    em.jump(done)
    em.start(done)
    return em.new(f"phi {LLVM[d]} [ {a}, %{plain} ], [ {b}, %{shared} ]")


def _one_plain(em: Emitter, kind: str, d: DType, pointer: str, value: str) -> str:
    access = f"{em.target.pointer} {pointer}, align {d.nbytes}"
    old = from_memory(em, em.new(f"load {MEMORY[d]}, {access}"), d, False)
    new = value if kind == "exchange" else combine(Typed(em, d, False), kind, old, value)
    em.line(f"store {MEMORY[d]} {to_memory(em, new, d, False)}, {access}")
    return old


def _each_lane(em: Emitter, kind: str, at: Place, lane: Lane, d: DType, expected: Lane | None = None) -> str:
    """Loop over the active lanes in order; return the old values as a vector."""
    t, index = em.vector[d], em.vector[dt.i64]
    values, where = em.widen(lane, d), offsets(em, at)
    wanted = em.widen(expected, d) if expected is not None else ""
    n = em.lanes
    active = em.bits(em.mask) if em.mask is not None else str((1 << n) - 1)
    head, done, before = em.label("lanes"), em.label("done"), em.block
    em.jump(head)
    em.start(head)
    left, olds = em.new(""), em.new("")
    lines = len(em.lines)
    number = em.new(f"call i{n} @llvm.cttz.i{n}(i{n} {left}, i1 true)")
    offset = em.new(f"extractelement {index} {where}, i{n} {number}")
    p = em.new(f"getelementptr {MEMORY[d]}, {em.target.pointer} {at.base}, i64 {offset}")
    one = em.new(f"extractelement {t} {values}, i{n} {number}")
    if wanted:
        refs = (to_memory(em, v, d, False) for v in (one, em.new(f"extractelement {t} {wanted}, i{n} {number}")))
        old = from_memory(em, update(em, kind, d, p, *refs), d, False)
    else:
        old = _one(em, kind, d, p, one)
    kept = em.new(f"insertelement {t} {olds}, {LLVM[d]} {old}, i{n} {number}")
    less = em.new(f"sub i{n} {left}, 1")
    rest = em.new(f"and i{n} {left}, {less}")
    em.lines[lines - 2] += f"phi i{n} [ {active}, %{before} ], [ {rest}, %{em.block} ]"
    em.lines[lines - 1] += f"phi {t} [ zeroinitializer, %{before} ], [ {kept}, %{em.block} ]"
    em.branch(em.new(f"icmp eq i{n} {rest}, 0"), done, head)
    em.start(done)
    return kept


HANDLERS["atomic"] = _atomic
