"""Atomics on array elements: one instruction where the target has it, else a loop of compare-and-swap on the word
that holds the element.

Every atomic instruction stands in a small function that takes the pointer as a parameter. Drivers inline it;
translators to source text need
it, because they name an atomic's address space after a variable or a parameter, and a pointer made of an address has
neither
(`docs/moltenvk.md`).
"""

from __future__ import annotations

from qd_core import dtypes as dt
from qd_core.codegen.spirv.arithmetic import combine
from qd_core.codegen.spirv.control import loop
from qd_core.codegen.spirv.emitter import HANDLERS, Emitter
from qd_core.codegen.spirv.grammar import code, enum
from qd_core.codegen.spirv.memory import element_address, from_memory, load_at, store_at, to_memory
from qd_core.dtypes import DType
from qd_core.errors import UnsupportedError
from qd_core.ir.nodes import Node, indices_of

__all__ = ["atomic_add_u32", "compare_exchange_u32", "update"]

_DEVICE, _RELAXED = 1, 0
"""Scope and memory semantics of every atomic: iterations are independent, tasks are ordered by barriers outside."""

_INTEGER = {"and": "AtomicAnd", "or": "AtomicOr", "xor": "AtomicXor", "exchange": "AtomicExchange", "add": "AtomicIAdd"}


def _instruction(kind: str, dtype: DType) -> str:
    if kind in ("min", "max"):
        return f"Atomic{'S' if dtype.is_signed else 'U'}{kind.capitalize()}"
    return "AtomicFAddEXT" if kind == "add" and dtype.is_real else _INTEGER[kind]


def _atomic(em: Emitter, node: Node) -> None:
    value = em.value(node.operands[-1])
    total = em.totals.get(node)
    if total is not None:
        kind = em.type(node.type)
        em.do("Store", total, combine(em, node.attrs["kind"], node.type, em.op("Load", kind, total), value))
    else:
        em.env[node] = _plain(em, node, value) if node in em.owned else update(em, node, value)


def update(em: Emitter, node: Node, value: int) -> int:
    """Write the atomic ``node`` with another value; return the old one."""
    kind, dtype = node.attrs["kind"], node.type
    address = element_address(em, node.operands[0], indices_of(node))
    if (kind, dtype) in em.target.atomics:
        return _native(em, kind, dtype, address, value)
    return _emulated(em, node, kind, dtype, address, value)


def _plain(em: Emitter, node: Node, value: int) -> int:
    """Read, combine and write the element of an iteration that nobody else touches; return the old value."""
    address = element_address(em, node.operands[0], indices_of(node))
    old = load_at(em, address, node.type)
    store_at(em, address, _combined(em, node, old, value), node.type)
    return old


def _word(em: Emitter, bits: int) -> DType:
    if bits == 64:
        em.module.capability("Int64Atomics")
        return dt.u64
    return dt.u32


def _native(em: Emitter, kind: str, dtype: DType, address: int, value: int) -> int:
    if not dtype.is_real:
        word = _word(em, dtype.bits)
        return _apply(em, _instruction(kind, dtype), em.type(word), address, value)
    if kind == "exchange":
        word = em.type(_word(em, dtype.bits))
        old = _apply(em, "AtomicExchange", word, address, em.op("Bitcast", word, value))
        return em.op("Bitcast", em.type(dtype), old)
    em.module.capability(f"AtomicFloat{dtype.bits}AddEXT")
    em.module.extension("SPV_EXT_shader_atomic_float_add")
    return _apply(em, "AtomicFAddEXT", em.type(dtype), address, value)


def _apply(em: Emitter, instruction: str, kind: int, address: int, *values: int) -> int:
    """Call the function of an atomic instruction on the ``kind`` at ``address``."""
    pointer = em.module.pointer("PhysicalStorageBuffer", kind)
    function = em.shared((instruction, kind), lambda: _function(em, instruction, kind, pointer, len(values)))
    return em.op("FunctionCall", kind, function, em.place(address, kind), *values)


def _function(em: Emitter, instruction: str, kind: int, pointer: int, count: int) -> int:
    """Write the function of an atomic instruction with ``count`` operands after the pointer; return its id."""
    m, function = em.module, em.module.id()
    signature = m.type("Function", kind, pointer, *(kind,) * count)
    scope, relaxed = em.u32(_DEVICE), em.u32(_RELAXED)
    with em.writing(m.functions):
        em.out.append(5 << 16 | code("Function"))
        em.out += (kind, function, enum("FunctionControl", "None"), signature)
        place, *values = (em.op("FunctionParameter", t) for t in (pointer, *(kind,) * count))
        m.decorate(place, "Aliased")
        em.do("Label", m.id())
        semantics = (relaxed, relaxed) if instruction == "AtomicCompareExchange" else (relaxed,)
        em.do("ReturnValue", em.op(instruction, kind, place, scope, *semantics, *values))
        em.do("FunctionEnd")
    return function


def atomic_add_u32(em: Emitter, address: int, value: int) -> int:
    """Add to a u32 in memory; return the old value."""
    return _apply(em, "AtomicIAdd", em.type(dt.u32), address, value)


def compare_exchange_u32(em: Emitter, address: int, value: int, expected: int) -> int:
    """Write ``value`` where memory holds ``expected``; return the old value."""
    return _apply(em, "AtomicCompareExchange", em.type(dt.u32), address, value, expected)


def _emulated(em: Emitter, node: Node, kind: str, dtype: DType, address: int, value: int) -> int:
    """Read, combine, and write back if nobody else did meanwhile; a value that would not change is not written."""
    bits = 64 if dtype.bits == 64 else 32
    if bits not in em.target.atomic_widths:
        raise UnsupportedError(f"atomic.{kind}.{dtype.name}", em.target.backend, span=node.span)
    word = _word(em, bits)
    field = _Field(em, word, dtype, address)

    def test(phis: list[int]) -> int:
        return phis[1]

    def body(phis: list[int]) -> list[int]:
        old = phis[0]
        new = field.insert(old, _combined(em, node, field.extract(old), value))
        found = _apply(em, "AtomicCompareExchange", em.type(word), field.address, new, old)
        return [found, em.op("INotEqual", em.bool, found, old)]

    first = _apply(em, "AtomicLoad", em.type(word), field.address)
    phis = loop(em, [em.type(word), em.bool], [first, em.const(dt.u1, True)], test, body)
    return field.extract(phis[0])


def _combined(em: Emitter, node: Node, old: int, value: int) -> int:
    """Write what an atomic leaves where it finds ``old``."""
    kind, dtype = node.attrs["kind"], node.type
    if kind != "cas":
        return combine(em, kind, dtype, old, value)
    bits = [old, em.value(node.operands[-2])]
    if dtype.is_real:
        bits = [em.op("Bitcast", em.module.int(dtype.bits), v) for v in bits]
    return em.op("Select", em.type(dtype), em.op("IEqual", em.bool, *bits), value, old)


class _Field:
    """Where a value lies in the word on which compare-and-swap works."""

    def __init__(self, em: Emitter, word: DType, dtype: DType, address: int) -> None:
        self.em, self.word, self.dtype, self.address, self.shift = em, word, dtype, address, 0
        if dtype.bits < 32:
            em.type(dt.u8 if dtype.nbytes == 1 else dt.u16)
            u32, u64 = em.type(dt.u32), em.type(dt.u64)
            low = em.op("UConvert", u32, em.op("BitwiseAnd", u64, address, em.u64(3)))
            self.shift = em.op("ShiftLeftLogical", u32, low, em.u32(3))
            self.address = em.op("BitwiseAnd", u64, address, em.u64(~3))

    def extract(self, word: int) -> int:
        """Return the value that ``word`` holds."""
        em, dtype = self.em, self.dtype
        if self.shift:
            word = em.op("ShiftRightLogical", em.type(dt.u32), word, self.shift)
            word = em.op("UConvert", em.module.int(dtype.nbytes * 8), word)
        if dtype.is_real:
            return em.op("Bitcast", em.type(dtype), word)
        return from_memory(em, word, dtype)

    def insert(self, word: int, value: int) -> int:
        """Return ``word`` with the value in its place."""
        em, dtype, u32 = self.em, self.dtype, self.em.type(dt.u32)
        raw = to_memory(em, value, dtype)
        if dtype.is_real:
            raw = em.op("Bitcast", em.module.int(dtype.bits), raw)
        if not self.shift:
            return raw
        mask = em.op("ShiftLeftLogical", u32, em.u32((1 << dtype.nbytes * 8) - 1), self.shift)
        kept = em.op("BitwiseAnd", u32, word, em.op("Not", u32, mask))
        return em.op("BitwiseOr", u32, kept, em.op("ShiftLeftLogical", u32, em.op("UConvert", u32, raw), self.shift))


HANDLERS["atomic"] = _atomic
