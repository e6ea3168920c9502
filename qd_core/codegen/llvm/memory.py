"""Array accesses: where the lanes' elements lie decides how they are read and written.

===============  ============================================================
elements         access
===============  ============================================================
one for all      a scalar load, a scalar store of the last active lane's value
neighbours       a vector load or store, masked where a mask holds
a fixed step     components of neighbouring elements: one wide load and a shuffle; else lane by lane
anything else    gather and scatter
===============  ============================================================

Memory of inactive lanes is never touched: a gather or scatter under a mask sends them to the last active lane's
element, where they read, or write again, what that lane does. It comes last in program order, so a repeated store
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qd_core import dtypes as dt
from qd_core.codegen.llvm.emitter import HANDLERS, Emitter, Lane
from qd_core.codegen.llvm.types import LLVM, MEMORY
from qd_core.dtypes import DType
from qd_core.ir.nodes import Node, Param, Value

__all__ = ["Place", "place", "read", "write"]


@dataclass(slots=True)
class Place:
    """Elements that the lanes access, as offsets in scalars from the array's address.

    Attributes
    ----------
    base : str
        Address of the array.
    offset : str
        Uniform part (i64), of lane 0 where ``step`` is set.
    step : int or str
        Offset from lane to lane: a number, or a uniform i64.
    vector : str or None
        Varying part (vector of i64).
    component : int or None
        Which scalar of its element is accessed, where that is static.
    """

    param: Value
    base: str
    offset: str
    step: int | str = 0
    vector: str | None = None
    component: int | None = None

    @property
    def uniform(self) -> bool:
        """Whether all lanes access one element."""
        return self.vector is None and self.step == 0


def place(em: Emitter, param: Value, indices: Sequence[Value]) -> Place:
    """Work out where ``param[indices]`` lies for each lane."""
    constant, offset, step, vector = 0, "", 0, None
    steps: list[str] = []
    for value, stride in zip(indices, em.strides(param), strict=True):
        lane, d = em.env[value], value.type
        if lane.ref[0] != "%" and not lane.wide and isinstance(stride, int):
            constant += int(lane.ref) * stride
        elif not lane.wide or lane.step is not None:
            offset = _plus(em, offset, _times(em, _index64(em, lane.ref, d), stride))
            if lane.step and isinstance(stride, int):
                step += lane.step * stride
            elif lane.step:
                steps.append(_times(em, str(lane.step), stride))
        else:
            vector = _vector_term(em, vector, lane.ref, d, stride)
    uniform = _plus(em, offset, str(constant) if constant or not offset else "")
    run: int | str = step
    for term in steps:
        run = _plus(em, str(run) if run else "", term)
    return Place(param, em.address(param), uniform, run, vector, _component(em, param, indices))


def _component(em: Emitter, param: Value, indices: Sequence[Value]) -> int | None:
    kind = param.type
    component = 0
    for value, stride in zip(indices[kind.ndim :], em.strides(param)[kind.ndim :], strict=True):
        ref = em.env[value].ref
        if ref[0] == "%" or not isinstance(stride, int):
            return None
        component += int(ref) * stride
    return component


def _index64(em: Emitter, ref: str, d: DType) -> str:
    # Indices lie in 0 to extent - 1 where a lane is active. Two active lanes whose indices are both in that range
    # cannot be a wrap-around apart (their affine difference is far below 2^31), so the index of lane 0 may be widened
    # and stepped from even where the sum could have wrapped.
    if d.bits == 64 or ref[0] != "%":
        return ref
    return em.once(("i64", ref), f"{'sext' if d.is_signed else 'zext'} {LLVM[d]} {ref} to i64")


def index64(em: Emitter, value: Value) -> str:
    """Return an index that is the same in all lanes as i64."""
    return _index64(em, em.env[value].ref, value.type)


def _times(em: Emitter, ref: str, stride: int | str) -> str:
    if stride == 1:
        return ref
    return em.once(("*", ref, stride), f"mul i64 {ref}, {stride}")


def _plus(em: Emitter, a: str, b: str) -> str:
    if not a or not b:
        return a or b
    return em.once(("+", a, b), f"add i64 {a}, {b}")


def _vector_term(em: Emitter, total: str | None, ref: str, d: DType, stride: int | str) -> str:
    wide = em.vector[dt.i64]
    if d.bits < 64:
        ref = em.once(("i64", ref), f"{'sext' if d.is_signed else 'zext'} {em.vector[d]} {ref} to {wide}")
    if stride != 1:
        by = f"splat (i64 {stride})" if isinstance(stride, int) else em.splat(stride, dt.i64)
        ref = em.once(("*", ref, stride), f"mul {wide} {ref}, {by}")
    return ref if total is None else em.once(("+", total, ref), f"add {wide} {total}, {ref}")


# -- pointers ----------------------------------------------------------------------------------------------------------
def pointer(em: Emitter, at: Place, memory: str, shift: int = 0) -> str:
    """Return the pointer of the uniform part, ``shift`` scalars further."""
    p = at.base
    if at.offset != "0":
        p = em.once(("p", p, at.offset, memory), f"getelementptr {memory}, {em.target.pointer} {p}, i64 {at.offset}")
    return p if shift == 0 else em.new(f"getelementptr {memory}, {em.target.pointer} {p}, i64 {shift}")


def offsets(em: Emitter, at: Place) -> str:
    """Return the lanes' offsets as a vector of i64, those of inactive lanes replaced by the last active lane's."""
    wide = em.vector[dt.i64]
    total = at.vector
    if at.offset != "0" or total is None:
        uniform = em.splat(at.offset, dt.i64)
        total = uniform if total is None else em.new(f"add {wide} {total}, {uniform}")
    if at.step != 0:
        total = em.new(f"add {wide} {total}, {_run(em, at.step)}")
    return redirect(em, total, dt.i64)


def _run(em: Emitter, step: int | str) -> str:
    if isinstance(step, int):
        return em.steps(dt.i64, step)
    return em.once(("run", step), f"mul {em.vector[dt.i64]} {em.steps(dt.i64, 1)}, {em.splat(step, dt.i64)}")


def redirect(em: Emitter, vector: str, d: DType) -> str:
    """Return ``vector`` with the last active lane's value in the inactive ones."""
    if em.mask is None:
        return vector
    last = em.new(f"extractelement {em.vector[d]} {vector}, i32 {em.last_active()}")
    return em.new(f"select {em.mask_type} {em.mask}, {em.vector[d]} {vector}, {em.vector[d]} {em.splat(last, d)}")


def _pointers(em: Emitter, at: Place, memory: str) -> str:
    return em.new(f"getelementptr {memory}, {em.target.pointer} {at.base}, {em.vector[dt.i64]} {offsets(em, at)}")


# -- loads -------------------------------------------------------------------------------------------------------------
def from_memory(em: Emitter, ref: str, d: DType, wide: bool) -> str:
    """Return a value read from memory in its register type."""
    if d is not dt.u1:
        return ref
    t, zero = (em.vector_memory[d], "zeroinitializer") if wide else ("i8", "0")
    return em.new(f"icmp ne {t} {ref}, {zero}")


def to_memory(em: Emitter, ref: str, d: DType, wide: bool) -> str:
    """Return a value as it is kept in memory."""
    if d is not dt.u1:
        return ref
    return em.new(f"zext {em.typed(d, wide)} {ref} to {em.vector_memory[d] if wide else 'i8'}")


def _load(em: Emitter, node: Node) -> None:
    param, *indices = node.operands
    em.env[node] = read(em, place(em, param, indices), node.type)


def read(em: Emitter, at: Place, d: DType) -> Lane:
    """Read the lanes' elements."""
    meta = em.module.alias(at.param)
    if at.uniform:
        raw = em.new(f"load {MEMORY[d]}, {em.target.pointer} {pointer(em, at, MEMORY[d])}, align {d.nbytes}{meta}")
    elif at.vector is None and at.step == 1:
        raw = _load_contiguous(em, at, d, meta)
    elif at.vector is None and em.mask is None:
        raw = _load_stepped(em, at, d, meta)
    else:
        raw = _gather(em, at, d, meta)
    return Lane(from_memory(em, raw, d, not at.uniform), not at.uniform)


def _load_contiguous(em: Emitter, at: Place, d: DType, meta: str) -> str:
    t, p = em.vector_memory[d], pointer(em, at, MEMORY[d])
    if em.mask is None:
        return em.new(f"load {t}, {em.target.pointer} {p}, align {d.nbytes}{meta}")
    if d.nbytes * 8 not in em.target.masked_memory:
        return _gather(em, at, d, meta)
    name = f"@llvm.masked.load.v{em.lanes}{_memory_suffix(d)}.p{em.target.address_space}"
    where = f"{em.target.pointer} align {d.nbytes} {p}"
    return em.new(f"call {t} {name}({where}, {em.mask_type} {em.mask}, {t} zeroinitializer){meta}")


def _memory_suffix(d: DType) -> str:
    return f"{'f' if d.is_real else 'i'}{d.nbytes * 8}"


def _load_stepped(em: Emitter, at: Place, d: DType, meta: str) -> str:
    """Components of neighbouring elements by one load of the whole elements, which lie in the array; other steps lane
    by lane.
    """
    step, kind = at.step, at.param.type
    if isinstance(step, int) and step == kind.element_size and step <= 4 and at.component is not None:
        scalars = step * em.lanes
        p = pointer(em, at, MEMORY[d], -at.component)
        t = f"<{scalars} x {MEMORY[d]}>"
        whole = em.new(f"load {t}, {em.target.pointer} {p}, align {d.nbytes}{meta}")
        picks = ", ".join(f"i32 {at.component + lane * step}" for lane in range(em.lanes))
        return em.new(f"shufflevector {t} {whole}, {t} poison, <{em.lanes} x i32> <{picks}>")
    result, t = "poison", em.vector_memory[d]
    for lane, p in enumerate(_stepped_pointers(em, at, MEMORY[d])):
        one = em.new(f"load {MEMORY[d]}, {em.target.pointer} {p}, align {d.nbytes}{meta}")
        result = em.new(f"insertelement {t} {result}, {MEMORY[d]} {one}, i64 {lane}")
    return result


def _stepped_pointers(em: Emitter, at: Place, memory: str) -> list[str]:
    p = pointer(em, at, memory)
    pointers = [p]
    for lane in range(1, em.lanes):
        if isinstance(at.step, int):
            pointers.append(em.new(f"getelementptr {memory}, {em.target.pointer} {p}, i64 {lane * at.step}"))
        else:
            pointers.append(em.new(f"getelementptr {memory}, {em.target.pointer} {pointers[-1]}, i64 {at.step}"))
    return pointers


def gather(em: Emitter, pointers: str, d: DType, space: int = 0) -> str:
    """Read one scalar for each lane; every pointer must be good."""
    t = em.vector_memory[d]
    name = f"@llvm.masked.gather.v{em.lanes}{_memory_suffix(d)}.v{em.lanes}p{space}"
    where = f"{_vector_of_pointers(em, space)} align {d.nbytes} {pointers}"
    return em.new(f"call {t} {name}({where}, {em.mask_type} splat (i1 true), {t} poison)")


def scatter(em: Emitter, pointers: str, wide: str, d: DType, space: int = 0) -> None:
    """Write one scalar for each lane, in the order of the lanes; every pointer must be good."""
    name = f"@llvm.masked.scatter.v{em.lanes}{_memory_suffix(d)}.v{em.lanes}p{space}"
    where = f"{_vector_of_pointers(em, space)} align {d.nbytes} {pointers}"
    em.line(f"call void {name}({em.vector_memory[d]} {wide}, {where}, {em.mask_type} splat (i1 true))")


def _vector_of_pointers(em: Emitter, space: int) -> str:
    return f"<{em.lanes} x {'ptr' if space == 0 else f'ptr addrspace({space})'}>"


def _gather(em: Emitter, at: Place, d: DType, meta: str) -> str:
    result = gather(em, _pointers(em, at, MEMORY[d]), d, em.target.address_space)
    em.lines[-1] += meta
    return result


# -- stores ------------------------------------------------------------------------------------------------------------
def _store(em: Emitter, node: Node) -> None:
    param, *indices, value = node.operands
    write(em, place(em, param, indices), value.type, em.env[value])


def write(em: Emitter, at: Place, d: DType, lane: Lane) -> None:
    """Write the lanes' elements; the last active lane wins where they meet."""
    meta = em.module.alias(at.param)
    if at.uniform:
        scalar = to_memory(em, last_value(em, lane, d), d, False)
        em.line(f"store {MEMORY[d]} {scalar}, {em.target.pointer} {pointer(em, at, MEMORY[d])}, align {d.nbytes}{meta}")
        return
    wide = em.widen(lane, d)
    if at.vector is None and at.step == 1 and (em.mask is None or d.nbytes * 8 in em.target.masked_memory):
        _store_contiguous(em, at, d, to_memory(em, wide, d, True), meta)
    elif at.vector is None and em.mask is None:
        _store_stepped(em, at, d, to_memory(em, wide, d, True), meta)
    else:
        _scatter(em, at, d, to_memory(em, redirect(em, wide, d), d, True), meta)


def last_value(em: Emitter, lane: Lane, d: DType) -> str:
    """Return, as a scalar, the value of the last active lane."""
    if not lane.wide:
        return lane.ref
    return em.new(f"extractelement {em.vector[d]} {em.widen(lane, d)}, i32 {em.last_active()}")


def _store_contiguous(em: Emitter, at: Place, d: DType, wide: str, meta: str) -> None:
    t, p = em.vector_memory[d], pointer(em, at, MEMORY[d])
    if em.mask is None:
        em.line(f"store {t} {wide}, {em.target.pointer} {p}, align {d.nbytes}{meta}")
        return
    name = f"@llvm.masked.store.v{em.lanes}{_memory_suffix(d)}.p{em.target.address_space}"
    em.line(f"call void {name}({t} {wide}, {em.target.pointer} align {d.nbytes} {p}, {em.mask_type} {em.mask}){meta}")


def _store_stepped(em: Emitter, at: Place, d: DType, wide: str, meta: str) -> None:
    t = em.vector_memory[d]
    for lane, p in enumerate(_stepped_pointers(em, at, MEMORY[d])):
        one = em.new(f"extractelement {t} {wide}, i64 {lane}")
        em.line(f"store {MEMORY[d]} {one}, {em.target.pointer} {p}, align {d.nbytes}{meta}")


def _scatter(em: Emitter, at: Place, d: DType, wide: str, meta: str) -> None:
    scatter(em, _pointers(em, at, MEMORY[d]), wide, d, em.target.address_space)
    em.lines[-1] += meta


def _extent(em: Emitter, node: Node) -> None:
    param = node.operands[0]
    assert isinstance(param, Param)
    em.env[node] = Lane(em.extent32(param, node.attrs["axis"]))


HANDLERS.update({"load": _load, "store": _store, "extent": _extent})
