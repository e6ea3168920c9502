"""Small kernels that find out what a driver really serves: one a feature, with what it must give.

A feature that a driver advertises counts only when its kernel gives the right answer. Kernels over elements and atomics
are programs like any other; those of the group, the subgroup and the clock write SPIR-V by the emitter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.backend.contract import Artifact, CompileOptions, TaskEntry
from qd_core.codegen.spirv.emitter import Emitter
from qd_core.codegen.spirv.grammar import enum
from qd_core.codegen.spirv.layout import ArgumentLayout
from qd_core.codegen.spirv.memory import store_at
from qd_core.codegen.spirv.task import TaskCode
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Arg, ArrayType, Param, Region, Value
from qd_core.ir.program import Fixed, Program, Task
from qd_vulkan.compiler import FORMAT, VulkanCompiler, code_of, pack

__all__ = ["LONG", "Probe", "atomic_probe", "clock_probe", "group_probe", "long_loop", "shared_probe",
           "subgroup_probes", "subgroup_size", "type_probe", "zero_sign"]  # fmt: skip

N = 64
LONG = 70_000

Array = np.ndarray[Any, Any]
Make = Callable[[VulkanCompiler], Artifact]


@dataclass(frozen=True)
class Probe:
    """One kernel over an array ``y``.

    Attributes
    ----------
    make : callable
        Compiles it.
    given : ndarray
        What the array holds before.
    right : callable
        Whether what it holds afterwards is right.
    extent : int
        Iterations.
    """

    make: Make
    given: Array
    right: Callable[[Array], bool]
    extent: int = N


def _loop(dtype: DType, extent: int, body: Callable[[Builder, Param, Value], None], block: int = 0) -> Make:
    def make(compiler: VulkanCompiler) -> Artifact:
        y, region = Param(ArrayType(dtype, 1), "y"), Region((Arg(dt.i32, "i"),))
        b = Builder(region)
        b.exact = "strict"
        body(b, y, region.args[0])
        b.yield_()
        attrs = {"block_dim": block} if block else {}
        task = Task("probe", (Fixed(extent),), region, attrs)
        program = Program("probe", (y,), (task,), (), frozenset({0}), frozenset({0}))
        return compiler.compile(program, CompileOptions(fast_math=False))

    return make


def _equals(wanted: Array) -> Callable[[Array], bool]:
    return lambda found: np.array_equal(found, wanted)


# -- elements ----------------------------------------------------------------------------------------------------------
def type_probe(dtype: DType) -> Probe:
    """Neighbours are read, computed with and written, each by an invocation of its own."""
    given = np.arange(N).astype(dtype.numpy)
    if dtype is dt.u1:
        given = (np.arange(N) % 3 == 0).astype(dtype.numpy)
        wanted = given == 0
    else:
        wanted = (given * 4).astype(dtype.numpy)

    def body(b: Builder, y: Param, i: Value) -> None:
        x = b.load(y, [i])
        if dtype is dt.u1:
            b.store(y, [i], b.emit("eq", x, b.const(dt.u1, False)))
        else:
            b.store(y, [i], b.emit("add", b.emit("mul", x, b.const(dtype, 3)), x))

    return Probe(_loop(dtype, N, body), given, _equals(wanted))


_HEAD = 16
_MEANING: dict[str, Callable[[Array], Any]] = {
    "add": lambda a: a.sum(dtype=a.dtype), "min": np.min, "max": np.max, "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce, "xor": np.bitwise_xor.reduce,
}  # fmt: skip


def atomic_probe(dtype: DType, kinds: Iterable[str]) -> Probe:
    """Many invocations combine into one element for each kind."""
    kinds = tuple(kinds)
    given = np.zeros(_HEAD + 8 * N, dtype.numpy)
    values = np.random.default_rng(7).integers(1, 100, 8 * N).astype(dtype.numpy)
    given[_HEAD:], given[:_HEAD] = values, 77

    def body(b: Builder, y: Param, i: Value) -> None:
        value = b.load(y, [b.emit("add", i, b.const(dt.i32, _HEAD))])
        for place, kind in enumerate(kinds):
            expected = [b.const(dtype, 77)] if kind == "cas" else []
            b.atomic(kind, y, [b.const(dt.i32, place)], *expected, value)

    def right(found: Array) -> bool:
        for place, kind in enumerate(kinds):
            if kind in ("exchange", "cas"):
                good = found[place] in values
            else:
                good = found[place] == _MEANING[kind](np.append(values, given[place]))
            if not good:
                return False
        return np.array_equal(found[_HEAD:], values)

    return Probe(_loop(dtype, 8 * N, body), given, right, 8 * N)


def group_probe(group: int) -> Probe:
    """Two full groups of a size: every invocation runs once."""

    def body(b: Builder, y: Param, i: Value) -> None:
        b.store(y, [i], b.emit("add", b.load(y, [i]), b.emit("mul", i, b.const(dt.i32, 3))))

    given = np.ones(2 * group, np.int32)
    wanted = given + 3 * np.arange(2 * group, dtype=np.int32)
    return Probe(_loop(dt.i32, 2 * group, body, group), given, _equals(wanted), 2 * group)


# -- faults ------------------------------------------------------------------------------------------------------------
def long_loop() -> Probe:
    """Trips of a long loop: some drivers end it early."""

    def body(b: Builder, y: Param, i: Value) -> None:
        with b.inside([(dt.i32, "k"), (dt.i32, "n")], loop=True) as inner:
            b.yield_(b.emit("add", inner.args[1], b.emit("and", inner.args[0], b.const(dt.i32, 1))))
        (odd,) = b.for_(b.const(dt.i32, 0), b.load(y, [i]), [b.const(dt.i32, 0)], inner)
        b.store(y, [i], odd)

    return Probe(_loop(dt.i32, 1, body), np.array([LONG], np.int32), _equals(np.array([LONG // 2], np.int32)), 1)


def zero_sign() -> Probe:
    """Reciprocal of a product that is minus zero: some consumers lose the sign."""

    def body(b: Builder, y: Param, i: Value) -> None:
        product = b.emit("mul", b.load(y, [i]), b.load(y, [b.const(dt.i32, 1)]))
        b.store(y, [i], b.emit("div", b.const(dt.f32, 1), product))

    return Probe(_loop(dt.f32, 1, body), np.array([-0.0, 1], np.float32), lambda y: bool(y[0] == -np.inf), 1)


# -- groups, subgroups, clocks -----------------------------------------------------------------------------------------
def _raw(write: Callable[[Emitter, int], int]) -> Make:
    """A kernel of one group: ``write(emitter, invocation)`` gives the u32 for the invocation's element."""

    def make(compiler: VulkanCompiler) -> Artifact:
        y, body = Param(ArrayType(dt.u32, 1), "y"), Region((Arg(dt.i32, "i"),))
        b = Builder(body)
        b.store(y, [body.args[0]], b.const(dt.u32, 0))  # says that the array is written: the runtime orders by it
        b.yield_()
        task = Task("probe", (Fixed(N),), body)
        program = Program("probe", (y,), (task,), (), frozenset(), frozenset({0}))
        layout = ArgumentLayout.of(program, compiler.spirv)
        em = Emitter(program, task, compiler.spirv, CompileOptions(), layout)
        em.module.mode("LocalSize", N, 1, 1)
        local = builtin(em, "LocalInvocationIndex")
        value = write(em, local)
        u64 = em.type(dt.u64)
        place = em.op("IMul", u64, em.op("UConvert", u64, local), em.u64(4))
        store_at(em, em.op("IAdd", u64, em.address(y), place), value, dt.u32)
        em.do("Return")
        code = TaskCode(em.module.binary(), "grid", N, 0)
        return Artifact(FORMAT, pack(code_of(program, layout, [code])), (TaskEntry.of(program, 0, "probe", (N,)),))

    return make


def builtin(em: Emitter, name: str) -> int:
    """Return a scalar input (u32)."""
    m, u32 = em.module, em.type(dt.u32)
    variable = m.variable("Input", m.pointer("Input", u32))
    m.decorate(variable, "BuiltIn", enum("BuiltIn", name))
    return em.op("Load", u32, variable)


_ZEROS = np.zeros(N, np.uint32)


def shared_probe(nbytes: int) -> Probe:
    """The first and the last words of a group's memory, passed to other invocations across a barrier."""

    def write(em: Emitter, local: int) -> int:
        m, u32, count = em.module, em.type(dt.u32), nbytes // 4
        memory = m.variable("Workgroup", m.pointer("Workgroup", m.type("Array", u32, em.u32(count))))
        place = m.pointer("Workgroup", u32)
        low, high = local, em.op("ISub", u32, em.u32(count - 1), local)
        for at in (low, high):
            em.do("Store", em.op("AccessChain", place, memory, at), em.op("IAdd", u32, at, em.u32(5)))
        em.do("ControlBarrier", em.u32(2), em.u32(2), em.u32(0x108))
        other = em.op("ISub", u32, em.u32(N - 1), local)
        last = em.op("ISub", u32, em.u32(count - 1), other)
        found = [em.op("Load", u32, em.op("AccessChain", place, memory, at)) for at in (other, last)]
        return em.op("IAdd", u32, *found)

    return Probe(_raw(write), _ZEROS, _equals(np.full(N, nbytes // 4 - 1 + 10, np.uint32)))


_SUBGROUP = 3


def subgroup_size() -> Probe:
    """Lanes of a subgroup, as the device's code sees them."""

    def write(em: Emitter, local: int) -> int:
        em.module.capability("GroupNonUniform")
        return builtin(em, "SubgroupSize")

    return Probe(_raw(write), _ZEROS, lambda y: bool(y[0] and (y == y[0]).all()))


def subgroup_probes(size: int) -> dict[str, Probe]:
    """What lanes do together, for subgroups of ``size`` lanes."""

    def reduce(em: Emitter, local: int) -> int:
        em.module.capability("GroupNonUniformArithmetic")
        return em.op("GroupNonUniformIAdd", em.type(dt.u32), em.u32(_SUBGROUP), 0, em.u32(1))

    def shuffle(em: Emitter, local: int) -> int:
        em.module.capability("GroupNonUniformShuffle")
        u32, lane = em.type(dt.u32), builtin(em, "SubgroupLocalInvocationId")
        other = em.op("BitwiseXor", u32, lane, em.u32(1))
        return em.op("GroupNonUniformShuffle", u32, em.u32(_SUBGROUP), em.op("IMul", u32, lane, em.u32(3)), other)

    def ballot(em: Emitter, local: int) -> int:
        em.module.capability("GroupNonUniformBallot")
        u32, lane = em.type(dt.u32), builtin(em, "SubgroupLocalInvocationId")
        odd = em.op("IEqual", em.bool, em.op("BitwiseAnd", u32, lane, em.u32(1)), em.u32(1))
        bits = em.op("GroupNonUniformBallot", em.module.type("Vector", u32, 4), em.u32(_SUBGROUP), odd)
        return em.op("CompositeExtract", u32, bits, 0)

    lanes = np.arange(N) % size
    odd = sum(1 << n for n in range(1, min(size, 32), 2))
    answers = {
        "subgroup.reduce": (reduce, np.full(N, size)), "subgroup.shuffle": (shuffle, 3 * (lanes ^ 1)),
        "subgroup.ballot": (ballot, np.full(N, odd)),
    }  # fmt: skip
    return {
        name: Probe(_raw(write), _ZEROS, _equals(wanted.astype(np.uint32))) for name, (write, wanted) in answers.items()
    }


def clock_probe() -> Probe:
    """Two readings of the clock with work between them: it goes on."""

    def write(em: Emitter, local: int) -> int:
        em.module.capability("ShaderClockKHR")
        em.module.extension("SPV_KHR_shader_clock")
        u32, u64 = em.type(dt.u32), em.type(dt.u64)
        first = em.op("ReadClockKHR", u64, em.u32(_SUBGROUP))
        em.do("ControlBarrier", em.u32(2), em.u32(2), em.u32(0x108))
        second = em.op("ReadClockKHR", u64, em.u32(_SUBGROUP))
        later = em.op("UGreaterThan", em.bool, second, first)
        runs = em.op("INotEqual", em.bool, first, em.u64(0))
        return em.op("Select", u32, em.op("LogicalAnd", em.bool, later, runs), em.u32(1), em.u32(0))

    return Probe(_raw(write), _ZEROS, lambda y: bool(y.any()))
