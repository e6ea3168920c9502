"""Private memory of an iteration: one entry a lane side by side, so that lanes at one index access neighbours.

Memory into which every lane stores the same, at the same index, holds plain scalars.
"""

from __future__ import annotations

from qd_core import dtypes as dt
from qd_core.codegen.llvm.convert import convert
from qd_core.codegen.llvm.elementwise import Typed
from qd_core.codegen.llvm.emitter import HANDLERS, Emitter, Lane
from qd_core.codegen.llvm.memory import from_memory, gather, redirect, scatter, to_memory
from qd_core.codegen.llvm.types import MEMORY
from qd_core.dtypes import DType
from qd_core.ir.nodes import Node, Value

__all__: list[str] = []


def _scratch(em: Emitter, node: Node) -> None:
    """Reserve for the longest lane."""
    d: DType = node.attrs["to"]
    length, value = em.env[node.operands[0]], node.operands[0]
    longest = _longest(em, length, value.type)
    entry = d.nbytes * (em.lanes if node in em.varying else 1)
    count = em.new(f"call i64 @llvm.smax.i64(i64 {longest}, i64 0)")
    nbytes = em.new(f"mul i64 {count}, {entry}")
    em.env[node] = Lane(em.target.form.allocate(em, nbytes))
    em.known[node] = em.mask


def _longest(em: Emitter, length: Lane, d: DType) -> str:
    typed = Typed(em, d, length.wide)
    wide = convert(typed, em.widen(length, d) if length.wide else length.ref, dt.i64)
    if not length.wide:
        return wide
    t = em.vector[dt.i64]
    if em.mask is not None:
        wide = em.new(f"select {em.mask_type} {em.mask}, {t} {wide}, {t} zeroinitializer")
    return em.new(f"call i64 @llvm.vector.reduce.smax.v{em.lanes}i64({t} {wide})")


def _per_lane(em: Emitter, scratch: Value) -> bool:
    return scratch in em.varying


def _uniform_index(em: Emitter, index: Lane, d: DType) -> str:
    return convert(Typed(em, d, False), index.ref, dt.i64)


def _row(em: Emitter, base: str, index: Lane, d: DType, memory: str) -> str:
    return em.new(f"getelementptr {memory}, ptr {base}, i64 {_uniform_index(em, index, d)}")


def _entries(em: Emitter, scratch: Value, index: Value, memory: str) -> str:
    """Pointers to the lanes' own entries where their indices differ."""
    wide = em.vector[dt.i64]
    offset = redirect(em, convert(Typed(em, index.type, True), em.widen(em.env[index], index.type), dt.i64), dt.i64)
    if _per_lane(em, scratch):
        first = em.new(f"mul {wide} {offset}, splat (i64 {em.lanes})")
        offset = em.new(f"add {wide} {first}, {redirect(em, em.steps(dt.i64, 1), dt.i64)}")
    return em.new(f"getelementptr {memory}, ptr {em.env[scratch].ref}, {wide} {offset}")


def _load(em: Emitter, node: Node) -> None:
    scratch, index = node.operands
    d, base, at = node.type, em.env[scratch].ref, em.env[index]
    if at.wide:
        raw, wide = gather(em, _entries(em, scratch, index, MEMORY[d]), d), True
    else:
        wide = _per_lane(em, scratch)
        t = em.vector_memory[d] if wide else MEMORY[d]
        alignment = d.nbytes * em.lanes if wide else d.nbytes
        raw = em.new(f"load {t}, ptr {_row(em, base, at, index.type, t)}, align {min(alignment, 32)}")
    em.env[node] = Lane(from_memory(em, raw, d, wide), wide)


def _store(em: Emitter, node: Node) -> None:
    scratch, index, value = node.operands
    d, base, at, lane = value.type, em.env[scratch].ref, em.env[index], em.env[value]
    if not _per_lane(em, scratch):
        ref = to_memory(em, lane.ref, d, False)
        em.line(f"store {MEMORY[d]} {ref}, ptr {_row(em, base, at, index.type, MEMORY[d])}, align {d.nbytes}")
        return
    t = em.vector_memory[d]
    wide = em.widen(lane, d)
    if at.wide:
        scatter(em, _entries(em, scratch, index, MEMORY[d]), to_memory(em, redirect(em, wide, d), d, True), d)
        return
    p = _row(em, base, at, index.type, t)
    alignment = min(d.nbytes * em.lanes, 32)
    if em.mask is not None and em.mask != em.known[scratch]:
        # The memory is this vector's alone: entries of lanes that will be active again are written back rather than
        # masked out. Lanes that were not active when it was reserved never read it.
        old = from_memory(em, em.new(f"load {t}, ptr {p}, align {alignment}"), d, True)
        wide = em.new(f"select {em.mask_type} {em.mask}, {em.vector[d]} {wide}, {em.vector[d]} {old}")
    em.line(f"store {t} {to_memory(em, wide, d, True)}, ptr {p}, align {alignment}")


HANDLERS.update({"scratch": _scratch, "scratch_load": _load, "scratch_store": _store})
