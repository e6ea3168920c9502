"""Private memory of an iteration on a grid.

Small memory of constant length is a local array. Everything else lies in a *pool* that all threads share: slot ``s`` of
thread ``t`` is the 4-byte word ``s * threads + t``, so that neighbouring threads touch neighbouring words; values of 8
bytes take two slots. An iteration gives back what it reserved. As many threads run as the pool has room for. Lengths
that only the iteration knows are checked when they are reserved: a thread that lacks room says so (`LAUNCH`'s fault
word), and its slots are clamped, so that nothing is ever touched outside its part.
"""

from __future__ import annotations

from dataclasses import dataclass

from qd_core import dtypes as dt
from qd_core.codegen.llvm.convert import convert
from qd_core.codegen.llvm.elementwise import Typed
from qd_core.codegen.llvm.emitter import Emitter, Lane
from qd_core.codegen.llvm.grid_state import GridState, evaluate, is_invariant
from qd_core.codegen.llvm.memory import from_memory, to_memory
from qd_core.codegen.llvm.types import LLVM, MEMORY
from qd_core.dtypes import DType
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Node, Region, ScratchType, Value
from qd_core.ir.rewrite import walk

__all__ = ["HANDLERS", "Pool", "open_pool", "scratch_kind"]

LOCAL_NBYTES = 256
"""Private memory of a constant length up to this is a local array."""

POOL, SLOTS, FAULT = 0, 1, 2
"""Positions in the words that the launcher adds."""


@dataclass(slots=True, eq=False)
class Pool:
    """Part of a thread.

    Attributes
    ----------
    base : str
        Address of the pool.
    threads, capacity : str
        Threads that share it, and slots of each (i64).
    checked : bool
        Reservations may exceed the capacity.
    before : dict
        The reservation that lives below each one, or None: a region gives back at its end what it reserved.
    ends : dict
        Slots in use after a reservation (i64).
    """

    base: str
    threads: str
    capacity: str
    checked: bool
    before: dict[Node, Node | None]
    ends: dict[Node | None, str]


def _is_pooled(node: Node) -> bool:
    if node.op.name != "scratch":
        return False
    length = constant_of(node.operands[0])
    return length is None or length * node.type.dtype.nbytes > LOCAL_NBYTES


def scratch_kind(body: Region) -> str:
    """How a task uses the pool: ``""``, ``"known"`` (its need follows from scalars and extents) or ``"unknown"``."""
    pooled = [n for n in walk(body) if _is_pooled(n)]
    if not pooled:
        return ""
    return "known" if all(is_invariant(n.operands[0]) for n in pooled) else "unknown"


def _launch_word(em: Emitter, number: int, type: str = "i64") -> str:
    at = em.new(f"getelementptr i64, ptr %launch, i64 {number}")
    return em.new(f"load {type}, ptr {at}, align 8, !invariant.load !0")


def open_pool(em: Emitter, body: Region) -> None:
    """Work out the part of a thread, and lower the number of threads to what the pool has room for."""
    state, kind = GridState.of(em), scratch_kind(body)
    if not kind:
        return
    before: dict[Node, Node | None] = {}
    _nest(body, None, before)
    base, slots = _launch_word(em, POOL, em.target.pointer), _launch_word(em, SLOTS)
    if kind == "known":
        need = em.new(f"call i64 @llvm.smax.i64(i64 {_need(em, body, '0')}, i64 1)")
        room = em.new(f"udiv i64 {slots}, {need}")
        threads = em.new(f"call i64 @llvm.umin.i64(i64 {state.threads}, i64 {room})")
        state.pool = Pool(base, threads, need, False, before, {None: "0"})
        _report(em, em.new(f"icmp eq i64 {threads}, 0"), need)
    else:
        threads = state.threads
        state.pool = Pool(base, threads, em.new(f"udiv i64 {slots}, {threads}"), True, before, {None: "0"})
    state.threads = threads


def _nest(region: Region, below: Node | None, before: dict[Node, Node | None]) -> None:
    for node in region.nodes:
        if _is_pooled(node):
            before[node] = below
            below = node
        for inner in node.regions:
            _nest(inner, below, before)


def _need(em: Emitter, region: Region, base: str) -> str:
    """Slots in use at most while a region runs that starts with ``base`` in use."""
    used = most = base
    for node in region.nodes:
        if _is_pooled(node):
            used = em.new(f"add i64 {used}, {_slots(em, node, evaluate(em, node.operands[0]))}")
            most = em.new(f"call i64 @llvm.umax.i64(i64 {most}, i64 {used})")
        for inner in node.regions:
            if scratch_kind(inner):
                most = em.new(f"call i64 @llvm.umax.i64(i64 {most}, i64 {_need(em, inner, used)})")
    return most


def _slots(em: Emitter, node: Node, length: str) -> str:
    kind: ScratchType = node.type
    wide = convert(Typed(em, node.operands[0].type, False), length, dt.i64)
    count = em.new(f"call i64 @llvm.smax.i64(i64 {wide}, i64 0)")
    return em.new(f"shl i64 {count}, 1") if kind.dtype.nbytes == 8 else count


def _report(em: Emitter, bad: str, need: str) -> None:
    yes, done = em.label("lacking"), em.label("enough")
    em.branch(bad, yes, done)
    em.start(yes)
    at = _launch_word(em, FAULT, em.target.pointer)
    em.line(f"store volatile i64 {need}, {em.target.pointer} {at}, align 8")
    em.jump(done)
    em.start(done)


# -- operations -------------------------------------------------------------------------------------------------------
def _scratch(em: Emitter, node: Node) -> None:
    if not _is_pooled(node):
        name = em.label("%local")
        kind: ScratchType = node.type
        length = max(int(constant_of(node.operands[0])), 1)
        em.entry.append(f"  {name} = alloca [{length} x {MEMORY[kind.dtype]}], align 8")
        em.env[node] = Lane(name)
        return
    pool = GridState.of(em).pool
    assert pool is not None
    first = pool.ends[pool.before[node]]
    end = pool.ends[node] = em.new(f"add i64 {first}, {_slots(em, node, em.env[node.operands[0]].ref)}")
    if pool.checked:
        _report(em, em.new(f"icmp ugt i64 {end}, {pool.capacity}"), end)
    em.env[node] = Lane(first)
    em.known[node] = pool


def _place(em: Emitter, scratch: Value, index: Value, d: DType) -> list[str]:
    """Pointers to the words of an element of the pool."""
    pool: Pool = em.known[scratch]
    at = convert(Typed(em, index.type, False), em.env[index].ref, dt.i64)
    words = 2 if d.nbytes == 8 else 1
    at = em.new(f"shl i64 {at}, 1") if words == 2 else at
    slot = em.new(f"add i64 {em.env[scratch].ref}, {at}")
    return [_pointer(em, pool, slot if n == 0 else em.new(f"add i64 {slot}, {n}")) for n in range(words)]


def _pointer(em: Emitter, pool: Pool, slot: str) -> str:
    if pool.checked:
        last = em.new(f"sub i64 {pool.capacity}, 1")
        slot = em.new(f"call i64 @llvm.umin.i64(i64 {slot}, i64 {last})")
    row = em.new(f"mul i64 {slot}, {pool.threads}")
    word = em.new(f"add i64 {row}, {GridState.of(em).first}")
    return em.new(f"getelementptr i32, {em.target.pointer} {pool.base}, i64 {word}")


def _local(em: Emitter, scratch: Value, index: Value, d: DType) -> str:
    at = convert(Typed(em, index.type, False), em.env[index].ref, dt.i64)
    return em.new(f"getelementptr {MEMORY[d]}, ptr {em.env[scratch].ref}, i64 {at}")


def _load(em: Emitter, node: Node) -> None:
    scratch, index = node.operands
    d: DType = node.type
    if scratch not in em.known:
        raw = em.new(f"load {MEMORY[d]}, ptr {_local(em, scratch, index, d)}, align {d.nbytes}")
        em.env[node] = Lane(from_memory(em, raw, d, False))
        return
    words = [em.new(f"load i32, {em.target.pointer} {p}, align 4") for p in _place(em, scratch, index, d)]
    em.env[node] = Lane(_from_words(em, words, d))


def _from_words(em: Emitter, words: list[str], d: DType) -> str:
    if len(words) == 2:
        both = em.new(GridState.of(em).facts.join.format(*words))
        return em.new(f"bitcast i64 {both} to double") if d.is_real else both
    whole = words[0] if d.bits == 32 else em.new(f"trunc i32 {words[0]} to i{d.bits}")
    return em.new(f"bitcast i{d.bits} {whole} to {LLVM[d]}") if d.is_real else whole


def _store(em: Emitter, node: Node) -> None:
    scratch, index, value = node.operands
    d, ref = value.type, em.env[value].ref
    if scratch not in em.known:
        p = _local(em, scratch, index, d)
        em.line(f"store {MEMORY[d]} {to_memory(em, ref, d, False)}, ptr {p}, align {d.nbytes}")
        return
    for p, word in zip(_place(em, scratch, index, d), _to_words(em, ref, d), strict=True):
        em.line(f"store i32 {word}, {em.target.pointer} {p}, align 4")


def _to_words(em: Emitter, ref: str, d: DType) -> list[str]:
    bits = em.new(f"bitcast {LLVM[d]} {ref} to i{d.bits}") if d.is_real else ref
    if d.bits == 64:
        both = em.new(GridState.of(em).facts.halves.format(bits))
        return [em.new(f"extractvalue {{ i32, i32 }} {both}, {n}") for n in range(2)]
    return [bits if d.bits == 32 else em.new(f"zext i{d.bits} {bits} to i32")]


HANDLERS = {"scratch": _scratch, "scratch_load": _load, "scratch_store": _store}
