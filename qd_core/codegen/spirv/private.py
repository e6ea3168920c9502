"""Private memory of an iteration (`scratch`).

A small array of constant length is a variable of the function. Everything else lies in a *pool* that all threads
share: slot ``s`` of thread
``t`` is the 4-byte word ``s * threads + t``, so that neighbouring threads touch neighbouring words. A region gives
back at its end what was
reserved in it, so an iteration needs at most what lives together, its *capacity*.

================================  ===================================================================
capacity                          threads that run
================================  ===================================================================
known from scalars and extents    as many as the pool has room for
found by a task that runs before  the same (`sizing`)
known only to the iteration       a number set beforehand; what does not fit is a reported fault
================================  ===================================================================

Nothing is ever written outside a thread's part. Where not even one thread fits, nothing runs and the fault is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

from qd_core import dtypes as dt
from qd_core.codegen.spirv.convert import cast
from qd_core.codegen.spirv.emitter import HANDLERS, Emitter
from qd_core.codegen.spirv.fault import report
from qd_core.codegen.spirv.memory import load_at, store_at, widen
from qd_core.codegen.spirv.scratch import is_pooled, uses_pool
from qd_core.dtypes import DType
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Node, Param, Region, ScratchType, Value
from qd_core.ir.rewrite import walk

__all__ = ["Local", "Pool", "Pooled", "capacity", "is_shared_need", "pool_slots"]


@dataclass(frozen=True, slots=True)
class Local:
    """Private memory in a Function variable."""

    variable: int


@dataclass(frozen=True, slots=True)
class Pooled:
    """Private memory in the pool: number of its first slot among this thread's (u64)."""

    first: int


def _slots(dtype: DType) -> int:
    """4-byte slots of the pool that a scalar takes."""
    return 2 if dtype.bits == 64 else 1


class Pool:
    """The part of the pool that is this thread's.

    Attributes
    ----------
    thread, threads : int
        Number of this thread, and of those that run (u64).
    capacity : int
        Slots of a thread (u64).
    checked : bool
        Reservations may exceed the capacity: they are checked, and slots are clamped.
    cursor : int
        First slot that is free at this place of the program (u64).
    """

    def __init__(self, em: Emitter, thread: int, threads: int, capacity: int, checked: bool) -> None:
        self.em, self.thread, self.threads, self.capacity, self.checked = em, thread, threads, capacity, checked
        self.cursor = em.u64(0)

    def reserve(self, count: int) -> int:
        """Reserve ``count`` (u64) slots; return the number of the first."""
        em = self.em
        first = self.cursor
        self.cursor = em.op("IAdd", em.type(dt.u64), first, count)
        if self.checked:
            with em.when(em.op("UGreaterThan", em.bool, self.cursor, self.capacity)):
                report(em, self.cursor)
        return first

    def address(self, slot: int) -> int:
        """Return the address of a slot (u64)."""
        em, u64 = self.em, self.em.type(dt.u64)
        if self.checked:
            inside = em.op("ULessThan", em.bool, slot, self.capacity)
            slot = em.op("Select", u64, inside, slot, em.op("ISub", u64, self.capacity, em.u64(1)))
        place = em.op("IAdd", u64, em.op("IMul", u64, slot, self.threads), self.thread)
        return em.op("IAdd", u64, em.word(_pool_word(em, 0)), em.op("IMul", u64, place, em.u64(4)))


def _pool_word(em: Emitter, n: int) -> int:
    assert em.layout.pool is not None
    return em.layout.pool + n


def pool_slots(em: Emitter) -> int:
    """Return the length of the pool in slots (u64)."""
    return em.word(_pool_word(em, 1))


# -- capacity ---------------------------------------------------------------------------------------------------------
def is_shared_need(body: Region) -> bool:
    """Whether all lengths of private memory in the pool hang on scalars and extents alone."""
    return all(_is_shared(n.operands[0]) for n in walk(body) if is_pooled(n))


def capacity(em: Emitter, body: Region) -> int:
    """Write the slots that an iteration needs (u64) into the entry block, where `is_shared_need`."""
    with em.entry():
        return _need(em, body, em.u64(0))


def _is_shared(value: Value) -> bool:
    """Whether a value is the same for all iterations and can be computed before them."""
    if isinstance(value, Param):
        return isinstance(value.type, DType)
    if not isinstance(value, Node) or value.regions:
        return False
    return value.op.name in ("const", "extent") or (value.op.pure and all(map(_is_shared, value.operands)))


def _need(em: Emitter, region: Region, base: int) -> int:
    """Slots in use at most while a region runs that starts with ``base`` in use."""
    u64, used, most = em.type(dt.u64), base, base
    for node in region.nodes:
        if is_pooled(node):
            used = em.op("IAdd", u64, used, _count(em, node, _evaluate(em, node.operands[0])))
            most = _larger(em, most, used)
        for inner in node.regions:
            if uses_pool(inner):
                most = _larger(em, most, _need(em, inner, used))
    return most


def _larger(em: Emitter, a: int, b: int) -> int:
    return em.op("Select", em.type(dt.u64), em.op("ULessThan", em.bool, a, b), b, a)


def _evaluate(em: Emitter, value: Value) -> int:
    """Write the chain of a shared value."""
    if isinstance(value, Node) and value.op.name != "const":
        for operand in value.operands:
            if isinstance(operand, Node):
                _evaluate(em, operand)
    if isinstance(value, Node):
        HANDLERS[value.op.name](em, value)
    return em.value(value)


def _count(em: Emitter, node: Node, length: int) -> int:
    """Slots (u64) of a `scratch` of ``length`` scalars; none where the length is negative."""
    kind: ScratchType = node.type
    dtype, u64 = node.operands[0].type, em.type(dt.u64)
    wide = cast(em, length, dtype, dt.i64)
    if dtype.is_signed:
        wide = em.op("Select", u64, em.op("SLessThan", em.bool, wide, em.u64(0)), em.u64(0), wide)
    return em.op("IMul", u64, wide, em.u64(2)) if _slots(kind.dtype) == 2 else wide


# -- operations -------------------------------------------------------------------------------------------------------
def _scratch(em: Emitter, node: Node) -> None:
    dtype = node.type.dtype
    if is_pooled(node):
        assert em.pool is not None
        em.private[node] = Pooled(em.pool.reserve(_count(em, node, em.value(node.operands[0]))))
        return
    length = max(int(constant_of(node.operands[0])), 1)
    array = em.module.type("Array", em.type(dtype), em.u32(length))
    em.private[node] = Local(em.module.variable("Function", em.module.pointer("Function", array)))


def _local_element(em: Emitter, home: Local, dtype: DType, index: int) -> int:
    return em.op("AccessChain", em.module.pointer("Function", em.type(dtype)), home.variable, index)


def _slot(em: Emitter, home: Pooled, dtype: DType, index: Value) -> int:
    u64, place = em.type(dt.u64), widen(em, em.value(index), index.type)
    offset = em.op("IMul", u64, place, em.u64(2)) if _slots(dtype) == 2 else place
    return em.op("IAdd", u64, home.first, offset)


def _scratch_load(em: Emitter, node: Node) -> None:
    scratch, index = node.operands
    dtype, home = node.type, em.private[scratch]
    if isinstance(home, Local):
        em.env[node] = em.op("Load", em.type(dtype), _local_element(em, home, dtype, em.value(index)))
        return
    pool, u64 = em.pool, em.type(dt.u64)
    assert pool is not None
    slot = _slot(em, home, dtype, index)
    word = em.op("UConvert", u64, load_at(em, pool.address(slot), dt.u32))
    if _slots(dtype) == 2:
        upper = em.op("UConvert", u64, load_at(em, pool.address(em.op("IAdd", u64, slot, em.u64(1))), dt.u32))
        word = em.op("BitwiseOr", u64, word, em.op("ShiftLeftLogical", u64, upper, em.u32(32)))
    em.env[node] = em.narrow(word, dtype)


def _scratch_store(em: Emitter, node: Node) -> None:
    scratch, index, value = node.operands
    dtype, home, stored = value.type, em.private[scratch], em.value(value)
    if isinstance(home, Local):
        em.do("Store", _local_element(em, home, dtype, em.value(index)), stored)
        return
    pool, u32, u64 = em.pool, em.type(dt.u32), em.type(dt.u64)
    assert pool is not None
    slot = _slot(em, home, dtype, index)
    word = _bits(em, stored, dtype)
    store_at(em, pool.address(slot), em.op("UConvert", u32, word) if dtype.bits != 32 else word, dt.u32)
    if _slots(dtype) == 2:
        upper = em.op("UConvert", u32, em.op("ShiftRightLogical", u64, word, em.u32(32)))
        store_at(em, pool.address(em.op("IAdd", u64, slot, em.u64(1))), upper, dt.u32)


def _bits(em: Emitter, x: int, dtype: DType) -> int:
    """Return the bits of a value as an integer of its own width, of u64 for truth values."""
    if dtype is dt.u1:
        return em.op("Select", em.type(dt.u64), x, em.u64(1), em.u64(0))
    if not dtype.is_real:
        return x
    return em.op("Bitcast", em.type({16: dt.u16, 32: dt.u32, 64: dt.u64}[dtype.bits]), x)


HANDLERS.update({"scratch": _scratch, "scratch_load": _scratch_load, "scratch_store": _scratch_store})
