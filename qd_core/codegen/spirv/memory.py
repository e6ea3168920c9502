"""Array accesses through 64-bit addresses, and the private memory of an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qd_core import dtypes as dt
from qd_core.codegen.spirv.emitter import HANDLERS, Emitter
from qd_core.dtypes import DType
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Node, Param, Value

__all__ = ["element_address", "load_at", "store_at", "to_memory", "widen"]

_ALIGNED = 2


# -- addresses --------------------------------------------------------------------------------------------------------
def element_address(em: Emitter, param: Value, indices: Sequence[Value]) -> int:
    """Return the address (u64) of ``param[indices]``."""
    assert isinstance(param, Param)
    nbytes, constant = param.type.dtype.nbytes, 0
    terms: list[int] = []
    for axis, (index, stride) in enumerate(zip(indices, em.strides(param), strict=True)):
        known = constant_of(index)
        if known is not None and stride is not None:
            constant += int(known) * stride * nbytes
        elif known != 0:
            terms.append(_term(em, param, axis, index, stride))
    address, u64 = em.address(param), em.type(dt.u64)
    for term in terms:
        address = em.op("IAdd", u64, address, term)
    return em.op("IAdd", u64, address, em.u64(constant)) if constant else address


def _term(em: Emitter, param: Param, axis: int, index: Value, stride: int | None) -> int:
    """Bytes that an index contributes."""
    nbytes, u64 = param.type.dtype.nbytes, em.type(dt.u64)
    wide = widen(em, em.value(index), index.type)
    if stride is None:
        step = em.shared(("step", param, axis), lambda: em.op("IMul", u64, em.stride_word(param, axis), em.u64(nbytes)))
        return em.op("IMul", u64, wide, step)
    return em.op("IMul", u64, wide, em.u64(stride * nbytes)) if stride * nbytes != 1 else wide


def widen(em: Emitter, x: int, dtype: DType) -> int:
    """Return an integer extended to 64 bits by its own sign."""
    if dtype.bits == 64:
        return x
    return em.op("SConvert" if dtype.is_signed else "UConvert", em.type(dt.u64), x)


# -- values in memory ---------------------------------------------------------------------------------------------------
def from_memory(em: Emitter, x: int, dtype: DType) -> int:
    """Return a value read from memory in its register type."""
    return em.op("INotEqual", em.bool, x, em.const(dt.u8, 0)) if dtype is dt.u1 else x


def to_memory(em: Emitter, x: int, dtype: DType) -> int:
    """Return a value as it is kept in memory."""
    return em.op("Select", em.type(dt.u8), x, em.const(dt.u8, 1), em.const(dt.u8, 0)) if dtype is dt.u1 else x


def load_at(em: Emitter, address: int, dtype: DType) -> int:
    """Read a value at an address."""
    kind = em.memory_type(dtype)
    return from_memory(em, em.op("Load", kind, em.pointer(address, kind), _ALIGNED, dtype.nbytes), dtype)


def store_at(em: Emitter, address: int, value: int, dtype: DType) -> None:
    """Write a value at an address."""
    stored = to_memory(em, value, dtype)
    em.do("Store", em.pointer(address, em.memory_type(dtype)), stored, _ALIGNED, dtype.nbytes)


def _load(em: Emitter, node: Node) -> None:
    param, *indices = node.operands
    em.env[node] = load_at(em, element_address(em, param, indices), node.type)


def _store(em: Emitter, node: Node) -> None:
    param, *indices, value = node.operands
    stored = em.value(value)
    store_at(em, element_address(em, param, indices), stored, value.type)


def _extent(em: Emitter, node: Node) -> None:
    param, axis = node.operands[0], node.attrs["axis"]
    assert isinstance(param, Param)
    em.env[node] = em.shared(node, lambda: em.op("UConvert", em.type(dt.i32), em.extent(param, axis)))


# -- private memory -------------------------------------------------------------------------------------------------------
LOCAL_NBYTES = 256
"""Private memory of a constant length up to this lives in a variable of the function."""


@dataclass(frozen=True, slots=True)
class Local:
    """Private memory in a Function variable: an array type's pointer and its number of elements."""

    variable: int
    length: int


@dataclass(frozen=True, slots=True)
class Pooled:
    """Private memory in the pool: number of its first slot among this thread's (u64)."""

    first: int


def is_local(node: Node) -> bool:
    """Whether a `scratch` node fits a Function variable."""
    length = constant_of(node.operands[0])
    return length is not None and 0 <= length * node.type.dtype.nbytes <= LOCAL_NBYTES


def slots(dtype: DType) -> int:
    """4-byte slots of the pool that a scalar takes."""
    return 2 if dtype.bits == 64 else 1


class Pool:
    """This thread's part of the pool: slot ``s`` of thread ``t`` lies at ``(s * threads + t) * 4``, so that neighbours coalesce.

    What is beyond the thread's capacity is never touched: slots are clamped to the last one, and the overflow is reported.
    """

    def __init__(self, em: Emitter, thread: int, threads: int, capacity: int) -> None:
        self.em, self.thread, self.threads, self.capacity = em, thread, threads, capacity
        self.cursor = em.module.variable("Function", em.module.pointer("Function", em.type(dt.u64)))

    def reset(self) -> None:
        """Free everything: an iteration begins."""
        self.em.do("Store", self.cursor, self.em.u64(0))

    def reserve(self, count: int) -> int:
        """Reserve ``count`` (u64) slots; return the number of the first."""
        em, u64 = self.em, self.em.type(dt.u64)
        first = em.op("Load", u64, self.cursor)
        em.do("Store", self.cursor, em.op("IAdd", u64, first, count))
        return first

    def address(self, slot: int) -> int:
        """Address of a slot (u64), inside this thread's part whatever the slot."""
        em, u64 = self.em, self.em.type(dt.u64)
        last = em.op("ISub", u64, self.capacity, em.u64(1))
        inside = em.op("ULessThan", em.bool, slot, self.capacity)
        slot = em.op("Select", u64, inside, slot, last)
        place = em.op("IAdd", u64, em.op("IMul", u64, slot, self.threads), self.thread)
        assert em.layout.pool is not None
        return em.op("IAdd", u64, em.word(em.layout.pool), em.op("IMul", u64, place, em.u64(4)))


def _scratch(em: Emitter, node: Node) -> None:
    dtype = node.type.dtype
    if is_local(node):
        length = max(int(constant_of(node.operands[0])), 1)
        array = em.module.type("Array", em.type(dtype), em.u32(length))
        em.private[node] = Local(em.module.variable("Function", em.module.pointer("Function", array)), length)
        return
    length = widen(em, em.value(node.operands[0]), node.operands[0].type)
    u64 = em.type(dt.u64)
    length = em.op("Select", u64, em.op("SLessThan", em.bool, length, em.u64(0)), em.u64(0), length)
    count = em.op("IMul", u64, length, em.u64(slots(dtype)))
    assert em.pool is not None
    em.private[node] = Pooled(em.pool.reserve(count))


def _local_element(em: Emitter, home: Local, dtype: DType, index: int) -> int:
    return em.op("AccessChain", em.module.pointer("Function", em.type(dtype)), home.variable, index)


def _slot(em: Emitter, home: Pooled, dtype: DType, index: int) -> int:
    u64 = em.type(dt.u64)
    offset = em.op("IMul", u64, index, em.u64(2)) if slots(dtype) == 2 else index
    return em.op("IAdd", u64, home.first, offset)


def _scratch_load(em: Emitter, node: Node) -> None:
    scratch, place = node.operands
    dtype, home, index = node.type, em.private[scratch], em.value(place)
    if isinstance(home, Local):
        em.env[node] = em.op("Load", em.type(dtype), _local_element(em, home, dtype, index))
        return
    assert em.pool is not None
    slot = _slot(em, home, dtype, widen(em, index, place.type))
    u32, u64 = em.type(dt.u32), em.type(dt.u64)
    word = em.op("UConvert", u64, load_at(em, em.pool.address(slot), dt.u32))
    if slots(dtype) == 2:
        upper = em.op("UConvert", u64, load_at(em, em.pool.address(em.op("IAdd", u64, slot, em.u64(1))), dt.u32))
        word = em.op("BitwiseOr", u64, word, em.op("ShiftLeftLogical", u64, upper, em.const(dt.u32, 32)))
    assert u32
    em.env[node] = em.narrow(word, dtype)


def bits64(em: Emitter, x: int, dtype: DType) -> int:
    """Return the bits of a value, zero-extended to u64."""
    u64 = em.type(dt.u64)
    if dtype is dt.u1:
        return em.op("Select", u64, x, em.u64(1), em.u64(0))
    raw = em.op("Bitcast", em.module.int(dtype.bits), x) if dtype.is_real else x
    if dtype is dt.f16:
        em.type(dt.u16)
    return raw if dtype.bits == 64 else em.op("UConvert", u64, raw)


def _scratch_store(em: Emitter, node: Node) -> None:
    scratch, place, value = node.operands
    dtype, home, index, stored = value.type, em.private[scratch], em.value(place), em.value(value)
    if isinstance(home, Local):
        em.do("Store", _local_element(em, home, dtype, index), stored)
        return
    assert em.pool is not None
    slot = _slot(em, home, dtype, widen(em, index, place.type))
    u32, u64 = em.type(dt.u32), em.type(dt.u64)
    word = bits64(em, stored, dtype)
    store_at(em, em.pool.address(slot), em.op("UConvert", u32, word), dt.u32)
    if slots(dtype) == 2:
        upper = em.op("UConvert", u32, em.op("ShiftRightLogical", u64, word, em.const(dt.u32, 32)))
        store_at(em, em.pool.address(em.op("IAdd", u64, slot, em.u64(1))), upper, dt.u32)


HANDLERS.update(
    {"load": _load, "store": _store, "extent": _extent, "scratch": _scratch, "scratch_load": _scratch_load, "scratch_store": _scratch_store}
)
