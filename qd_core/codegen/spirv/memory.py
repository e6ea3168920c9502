"""Array accesses through 64-bit addresses."""

from __future__ import annotations

from collections.abc import Sequence

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


# -- values in memory
# ---------------------------------------------------------------------------------------------------
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
    em.do("Store", em.place(address, em.memory_type(dtype)), stored, _ALIGNED, dtype.nbytes)


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


HANDLERS.update({"load": _load, "store": _store, "extent": _extent})
