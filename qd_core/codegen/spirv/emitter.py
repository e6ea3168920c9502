"""Writes one task of a program as a SPIR-V module.

Values are SSA ids; regions become structured control flow. What all iterations share (argument words, addresses,
strides) is computed in the
entry block, whose text grows while the body is written. Handlers of the operations register themselves in `HANDLERS`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.codegen.spirv.grammar import code, extended
from qd_core.codegen.spirv.layout import ArgumentLayout
from qd_core.codegen.spirv.module import Module
from qd_core.codegen.spirv.target import SpirvTarget
from qd_core.dtypes import DType
from qd_core.errors import InvalidIRError
from qd_core.ir.nodes import Node, Param, Region, Value
from qd_core.ir.program import Program, Task

if TYPE_CHECKING:
    from qd_core.codegen.spirv.private import Local, Pool, Pooled

__all__ = ["HANDLERS", "Emitter"]

Handler = Callable[["Emitter", Node], None]
HANDLERS: dict[str, Handler] = {}

_EXT, _LABEL, _BRANCH = code("ExtInst"), code("Label"), code("Branch")
_MEMORY_ALIGNED = 2


class Emitter:
    """State of the task being written.

    Attributes
    ----------
    env : dict
        Id of every scalar value so far.
    block : int
        Label of the block that is being written.
    linear : int or None
        Id (u64) of the iteration's linear number; None in a serial task.
    private : dict
        Where each `scratch` node's memory lies.
    pool : Pool or None
        This thread's part of the pool of private memory.
    owned : set of Node
        Atomics on elements that no other iteration touches.
    totals : dict of Node to int
        Variable into which an atomic combines.
    """

    def __init__(
        self, program: Program, task: Task, target: SpirvTarget, options: CompileOptions, layout: ArgumentLayout
    ) -> None:
        self.program, self.task, self.target, self.options, self.layout = program, task, target, options, layout
        self.module = Module()
        self.env: dict[Value, int] = {}
        self.linear: int | None = None
        self.private: dict[Value, Local | Pooled] = {}
        self.pool: Pool | None = None
        self.owned: set[Node] = set()
        self.totals: dict[Node, int] = {}
        self.block = self.module.begin()
        self.out = self.module.body
        self.void = self.module.type("Void")
        self.bool = self.module.type("Bool")
        self._words: dict[int, int] = {}
        self._shared: dict[Any, int] = {}
        self._arguments: int | None = None
        for mode, bits in sorted(target.float_modes):
            self.module.capability(mode)
            self.module.mode(mode, bits)

    # -- instructions -----------------------------------------------------------------------------------------------
    def op(self, name: str, type_id: int, *operands: int) -> int:
        """Append an instruction with a result; return its id."""
        result = self.module.id()
        self.out.append((3 + len(operands)) << 16 | code(name))
        self.out += (type_id, result, *operands)
        return result

    def do(self, name: str, *operands: int) -> None:
        """Append an instruction without a result."""
        self.out.append((1 + len(operands)) << 16 | code(name))
        self.out += operands

    def ext(self, name: str, type_id: int, *operands: int) -> int:
        """Append an instruction of the extended set; return its id."""
        return self.op("ExtInst", type_id, self.module.extended, extended(name), *operands)

    @contextmanager
    def writing(self, section: list[int]) -> Generator[None]:
        """Append instructions to another section of the module."""
        out, self.out = self.out, section
        try:
            yield
        finally:
            self.out = out

    @contextmanager
    def scope(self) -> Generator[None]:
        """Forget the values that are written inside: they need not dominate what follows."""
        env, self.env = self.env, dict(self.env)
        try:
            yield
        finally:
            self.env = env

    def entry(self) -> AbstractContextManager[None]:
        """Write into the entry block, whatever block is current."""
        return self.writing(self.module.prologue)

    def shared(self, key: Any, make: Callable[[], int]) -> int:
        """Return what ``make()`` wrote into the entry block for ``key``."""
        known = self._shared.get(key)
        if known is None:
            with self.entry():
                known = make()
            self._shared[key] = known
        return known

    # -- blocks -----------------------------------------------------------------------------------------------------
    def label(self) -> int:
        """Return a label for a later block."""
        return self.module.id()

    def start(self, label: int) -> None:
        """Begin the block ``label``."""
        self.do("Label", label)
        self.block = label

    def jump(self, label: int) -> None:
        """End the block by a branch."""
        self.do("Branch", label)

    def choose(self, condition: int, then: int, other: int) -> None:
        """End the block by a conditional branch."""
        self.do("BranchConditional", condition, then, other)

    @contextmanager
    def when(self, condition: int) -> Generator[None]:
        """Write a block that runs where ``condition`` holds."""
        then, merge = self.label(), self.label()
        self.do("SelectionMerge", merge, 0)
        self.choose(condition, then, merge)
        self.start(then)
        yield
        self.jump(merge)
        self.start(merge)

    # -- types and constants ------------------------------------------------------------------------------------------
    def type(self, dtype: DType) -> int:
        """Type of a value in a register."""
        if dtype is dt.u1:
            return self.bool
        self._demand(dtype)
        return self.module.float(dtype.bits) if dtype.is_real else self.module.int(dtype.bits)

    def memory_type(self, dtype: DType) -> int:
        """Type of a value in memory."""
        if dtype is dt.u1:
            dtype = dt.u8
        type_id = self.type(dtype)
        if dtype.bits in (8, 16):
            self.module.capability(f"StorageBuffer{dtype.bits}BitAccess")
            if dtype.bits == 8:
                self.module.extension("SPV_KHR_8bit_storage")
        return type_id

    def _demand(self, dtype: DType) -> None:
        if dtype.bits == 32:
            return
        self.target.require(dtype, self.task.body.nodes[0].span)
        self.module.capability(f"{'Float' if dtype.is_real else 'Int'}{dtype.bits}")

    def const(self, dtype: DType, value: Any) -> int:
        """Return the constant ``value`` of a type."""
        if dtype is dt.u1:
            return self.module.truth(bool(value))
        return self.module.constant(self.type(dtype), *_constant_words(dtype, value))

    def u32(self, value: int) -> int:
        """Return a u32 constant."""
        return self.const(dt.u32, value)

    def u64(self, value: int) -> int:
        """Return a u64 constant."""
        return self.const(dt.u64, value)

    # -- arguments
    # ------------------------------------------------------------------------------------------------------
    def word(self, index: int) -> int:
        """Return word ``index`` of the launch (u64), loaded once in the entry block."""
        known = self._words.get(index)
        if known is None:
            with self.entry():
                known = self._words[index] = self._load_word(index)
        return known

    def _load_word(self, index: int) -> int:
        u64 = self.type(dt.u64)
        if self.layout.inline:
            return self._push_word(index)
        base = self._arguments
        if base is None:
            base = self._arguments = self._push_word(0)
        address = self.op("IAdd", u64, base, self.u64(8 * index)) if index else base
        return self.op("Load", u64, self.pointer(address, u64), _MEMORY_ALIGNED, 8)

    def _push_word(self, index: int) -> int:
        m, u64 = self.module, self.type(dt.u64)
        block = self.shared("push", self._declare_push)
        pointer = self.op("AccessChain", m.pointer("PushConstant", u64), block, self.u32(0), self.u32(index))
        return self.op("Load", u64, pointer)

    def _declare_push(self) -> int:
        m = self.module
        words = m.type("Array", self.type(dt.u64), self.u32(self.layout.size if self.layout.inline else 1))
        block = m.type("Struct", words)
        m.decorate(words, "ArrayStride", 8)
        m.decorate(block, "Block")
        m.decorate_member(block, 0, "Offset", 0)
        return m.variable("PushConstant", m.pointer("PushConstant", block))

    def pointer(self, address: int, target: int) -> int:
        """Return a pointer to ``target`` at a 64-bit address, for loads.

        It passes through a Function variable decorated `AliasedPointer`: optimisers remove it, and a translator to
        source text sees
        that later stores may change what a load through it sees (`docs/moltenvk.md`).
        """
        raw = self.place(address, target)
        m = self.module
        type_id = m.pointer("PhysicalStorageBuffer", target)
        home = m.variable("Function", m.pointer("Function", type_id))
        m.decorate(home, "AliasedPointer")
        self.do("Store", home, raw)
        return self.op("Load", type_id, home)

    def place(self, address: int, target: int) -> int:
        """Return a pointer to ``target`` at a 64-bit address, for stores and atomics.

        Not through a variable: SPIRV-Tools 2023 takes a store through a pointer from one for a store to the variable,
        and removes it.
        """
        return self.op("ConvertUToPtr", self.module.pointer("PhysicalStorageBuffer", target), address)

    def narrow(self, word: int, dtype: DType) -> int:
        """Return the low bits of a 64-bit word as a value of ``dtype``."""
        if dtype is dt.u1:
            return self.op(
                "INotEqual", self.bool, self.op("BitwiseAnd", self.type(dt.u64), word, self.u64(0xFF)), self.u64(0)
            )
        bits = word if dtype.bits == 64 else self.op("UConvert", self.module.int(dtype.bits), word)
        if dtype.bits < 32:
            self._demand(dt.u8 if dtype.bits == 8 else dt.u16)
        return self.op("Bitcast", self.type(dtype), bits) if dtype.is_real else bits

    # -- values
    # ---------------------------------------------------------------------------------------------------------
    def value(self, value: Value) -> int:
        """Return the id of a value; scalar parameters are read at their first use."""
        known = self.env.get(value)
        if known is None:
            if not isinstance(value, Param):
                raise InvalidIRError(f"{value!r} is used before it is computed")
            word = self.word(self.layout.offsets[value])
            known = self.env[value] = self.shared(value, lambda: self.narrow(word, value.type))
        return known

    def values(self, values: tuple[Value, ...]) -> list[int]:
        """Return the ids of values."""
        return [self.value(v) for v in values]

    def nodes(self, region: Region) -> list[int]:
        """Write a region's nodes; return the ids of what it yields. Private memory reserved in it is given back."""
        pool = self.pool
        cursor = pool.cursor if pool is not None else 0
        for node in region.nodes[:-1]:
            HANDLERS[node.op.name](self, node)
        if pool is not None:
            pool.cursor = cursor
        return self.values(region.yields)

    # -- array parameters
    # -------------------------------------------------------------------------------------------------
    def address(self, param: Param) -> int:
        """Return the address (u64) of an array."""
        return self.word(self.layout.offsets[param])

    def extent(self, param: Param, axis: int) -> int:
        """Return an extent as u64."""
        return self.word(self.layout.offsets[param] + 1 + axis)

    def strides(self, param: Param) -> list[int | None]:
        """Stride of each axis of the full rank in scalars where it is static, else None (`stride_word`)."""
        kind = param.type
        strides: list[int | None] = [None] * max(kind.ndim - 1, 0)
        strides += [kind.element_size] if kind.ndim else []
        size = kind.element_size
        for n in kind.element_shape:
            size //= n
            strides.append(size)
        return strides

    def stride_word(self, param: Param, axis: int) -> int:
        """Return the run-time stride of an axis as u64."""
        return self.word(self.layout.offsets[param] + 1 + param.type.ndim + axis)


def _constant_words(dtype: DType, value: Any) -> tuple[int, ...]:
    if dtype.is_real:
        bits = int.from_bytes(struct.pack({16: "<e", 32: "<f", 64: "<d"}[dtype.bits], value), "little")
    else:
        bits = int(value) & ((1 << dtype.bits) - 1)
    return (bits & 0xFFFFFFFF, bits >> 32) if dtype.bits == 64 else (bits,)
