"""Records of `check` and `print` in the log array.

The log is an array of i64 words: {words used, capacity, dropped records, first failed site + 1}, then records {site,
iteration, payload}.
Counts stay below 2^31, so their low halves are updated by 32-bit atomics. The record that first does not fit leaves
-1 where it would
begin, which ends the records for readers.
"""

from __future__ import annotations

from collections.abc import Sequence

from qd_core import dtypes as dt
from qd_core.codegen.spirv.atomics import atomic_add_u32, compare_exchange_u32
from qd_core.codegen.spirv.convert import cast
from qd_core.codegen.spirv.emitter import HANDLERS, Emitter
from qd_core.codegen.spirv.memory import load_at, store_at
from qd_core.dtypes import DType
from qd_core.errors import InvalidIRError
from qd_core.ir.nodes import Node, Param, Value

__all__: list[str] = []

_HEADER = 4
_CURSOR, _CAPACITY, _DROPPED, _FIRST_ERROR = range(_HEADER)


def _log(em: Emitter, node: Node) -> Param:
    if em.program.log is None:
        raise InvalidIRError(f"{node.op.name} has no log", span=node.span)
    return em.program.log


class _Log:
    def __init__(self, em: Emitter, node: Node) -> None:
        self.em, self.base = em, em.address(_log(em, node))

    def word(self, index: int) -> int:
        """Address of a word of the log."""
        return self.em.op("IAdd", self.em.type(dt.u64), self.base, self.em.u64(8 * index))

    def append(self, site: int, payload: Sequence[int]) -> None:
        """Write a record of u64 words, or count it as dropped where it does not fit."""
        em, u64 = self.em, self.em.type(dt.u64)
        length = 2 + len(payload)
        capacity = load_at(em, self.word(_CAPACITY), dt.u64)
        used = em.op("UConvert", u64, load_at(em, self.word(_CURSOR), dt.u32))
        open_, end = em.op("ULessThan", em.bool, used, capacity), em.label()
        reserve, dropped = em.label(), em.label()
        em.do("SelectionMerge", end, 0)
        em.choose(open_, reserve, dropped)
        em.start(dropped)
        atomic_add_u32(em, self.word(_DROPPED), em.u32(1))
        em.jump(end)
        em.start(reserve)
        self._reserve(site, payload, length, capacity)
        em.jump(end)
        em.start(end)

    def _reserve(self, site: int, payload: Sequence[int], length: int, capacity: int) -> None:
        em, u64 = self.em, self.em.type(dt.u64)
        at = em.op("UConvert", u64, atomic_add_u32(em, self.word(_CURSOR), em.u32(length)))
        record = em.op("IAdd", u64, self.word(_HEADER), em.op("IMul", u64, at, em.u64(8)))
        fits = em.op("ULessThanEqual", em.bool, em.op("IAdd", u64, at, em.u64(length)), capacity)
        write, full, end = em.label(), em.label(), em.label()
        em.do("SelectionMerge", end, 0)
        em.choose(fits, write, full)
        em.start(write)
        iteration = em.linear if em.linear is not None else em.u64(0)
        for n, word in enumerate((em.u64(site), iteration, *payload)):
            store_at(em, em.op("IAdd", u64, record, em.u64(8 * n)), word, dt.u64)
        em.jump(end)
        em.start(full)
        atomic_add_u32(em, self.word(_DROPPED), em.u32(1))
        with em.when(em.op("ULessThan", em.bool, at, capacity)):
            store_at(em, record, em.u64(-1), dt.u64)
        em.jump(end)
        em.start(end)


def _payload(em: Emitter, values: Sequence[Value]) -> list[int]:
    return [_payload_word(em, em.value(v), v.type) for v in values]


def _payload_word(em: Emitter, x: int, dtype: DType) -> int:
    """Integers extended by their sign, reals as the bits of their f64."""
    if not dtype.is_real:
        return cast(em, x, dtype, dt.i64)
    if dt.f64 in em.target.types:
        return em.op("Bitcast", em.type(dt.u64), cast(em, x, dtype, dt.f64))
    return _widen_real(em, cast(em, x, dtype, dt.f32))


def _widen_real(em: Emitter, x: int) -> int:
    """Bits of the f64 equal to an f32, made by integer operations where the device has no f64."""
    u64, u32 = em.type(dt.u64), em.type(dt.u32)
    bits = em.op("Bitcast", u32, x)
    sign = em.op(
        "ShiftLeftLogical", u64, em.op("UConvert", u64, em.op("ShiftRightLogical", u32, bits, em.u32(31))), em.u32(63)
    )
    magnitude = em.op("BitwiseAnd", u32, bits, em.u32(0x7FFFFFFF))
    # A subnormal number becomes normal when it is scaled up; what its exponent gains is taken off again.
    tiny = em.op("ULessThan", em.bool, magnitude, em.u32(0x00800000))
    whole = em.op("ConvertUToF", em.type(dt.f32), magnitude)
    scaled = em.op("Select", u32, tiny, em.op("Bitcast", u32, whole), magnitude)
    normal = em.op("ShiftLeftLogical", u64, em.op("UConvert", u64, scaled), em.u32(29))
    special = em.op("UGreaterThanEqual", em.bool, magnitude, em.u32(0x7F800000))
    bias = em.op("Select", u64, tiny, em.u64((1023 - 127 - 149) << 52), em.u64((1023 - 127) << 52))
    bias = em.op("Select", u64, special, em.u64((2047 - 255) << 52), bias)
    zero = em.op("IEqual", em.bool, magnitude, em.u32(0))
    wide = em.op("Select", u64, zero, em.u64(0), em.op("IAdd", u64, normal, bias))
    return em.op("BitwiseOr", u64, sign, wide)


def _check(em: Emitter, node: Node) -> None:
    ok, *values = node.operands
    site = node.attrs["site"]
    with em.when(em.op("LogicalNot", em.bool, em.value(ok))):
        log = _Log(em, node)
        before = compare_exchange_u32(em, log.word(_FIRST_ERROR), em.u32(site + 1), em.u32(0))
        with em.when(em.op("IEqual", em.bool, before, em.u32(0))):
            log.append(site, _payload(em, values))


def _print(em: Emitter, node: Node) -> None:
    _Log(em, node).append(node.attrs["site"], _payload(em, node.operands))


HANDLERS.update({"check": _check, "print": _print})
