"""Builds small programs and runs them on the CPU and on the reference, for tests of code generation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.backend.contract import Access, BufferRef, BufferUse, CompileOptions, Launch, Module
from qd_core.cpu import CpuBackend
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Arg, ArrayType, Param, Region, Role, Value
from qd_core.ir.program import Extent, Fixed, HostExpr, Program, Site, Task
from qd_core.reference.backend import ReferenceBackend

Body = Callable[..., None]

EXACT = CompileOptions(fast_math=False)


def array(name: str, dtype: DType, ndim: int = 1, *element: int, role: Role = Role.DATA) -> Param:
    """Return an array parameter."""
    return Param(ArrayType(dtype, ndim, tuple(element)), name, role)


def launch_extent() -> HostExpr:
    """Return an extent that the launch passes."""
    region = Region()
    b = Builder(region)
    b.yield_(b.const(dt.i64, 0))
    return HostExpr(region)


def task(extents: Sequence[int | Extent | None], body: Body, index: DType = dt.i32, **attrs: Any) -> Task:
    """Return a parallel task (a serial one without extents); None is an extent that the launch passes."""
    args = tuple(Arg(index, f"i{d}") for d in range(len(extents)))
    region = Region(args)
    b = Builder(region)
    body(b, *args)
    b.yield_()
    kinds = (Fixed(e) if isinstance(e, int) else launch_extent() if e is None else e for e in extents)
    return Task("t", tuple(kinds), region, attrs)


def program(params: Sequence[Param], *tasks: Task, sites: Sequence[Site] = ()) -> Program:
    """Return a program."""
    return Program(
        "test", tuple(params), tasks, tuple(sites), frozenset(range(len(params))), frozenset(range(len(params)))
    )


def loop(b: Builder, start: Value, stop: Value, inits: Sequence[Value], body: Any, **attrs: Any) -> tuple[Value, ...]:
    """Emit a `for`; ``body(index, *carried)`` returns what it yields."""
    types = [(start.type, "k"), *((v.type, f"c{n}") for n, v in enumerate(inits))]
    with b.inside(types, loop=True) as region:
        b.yield_(*body(*region.args))
    return b.for_(start, stop, list(inits), region, **attrs)


def branch(b: Builder, condition: Value, then: Any, other: Any = tuple) -> tuple[Value, ...]:
    """Emit an `if`; both functions return what their side yields."""
    regions: list[Region] = []
    for side in (then, other):
        with b.inside() as region:
            b.yield_(*side())
        regions.append(region)
    return b.if_(condition, *regions)


def repeat(b: Builder, inits: Sequence[Value], condition: Any, body: Any) -> tuple[Value, ...]:
    """Emit a `while`."""
    types = [(v.type, f"c{n}") for n, v in enumerate(inits)]
    with b.inside(types, loop=True) as test:
        b.yield_(condition(*test.args))
    with b.inside(types, loop=True) as region:
        b.yield_(*body(*region.args))
    return b.while_(list(inits), test, region)


@functools.cache
def cpu() -> tuple[CpuBackend, Any, Any]:
    """Return the backend, an open device and its compiler."""
    backend = CpuBackend()
    info = backend.devices()[0]
    return backend, backend.open(info, {}), backend.compiler(info.target)


def pack(
    params: Sequence[Param], values: Sequence[Any], first: Callable[[int, np.ndarray[Any, Any]], int]
) -> memoryview:
    """Pack values into words; ``first(ordinal, array)`` is the first word of an array leaf."""
    words: list[int] = []
    ordinal = 0
    for param, value in zip(params, values, strict=True):
        if isinstance(param.type, ArrayType):
            n, size = param.type.ndim, value.itemsize
            words += [first(ordinal, value), *value.shape[:n], *(s // size for s in value.strides[:n])]
            ordinal += 1
        else:
            words.append(int.from_bytes(np.asarray(value, param.type.numpy).tobytes(), "little"))
    return memoryview(np.array(words, np.uint64))


def run_cpu(
    p: Program, values: Sequence[Any], extents: Sequence[int] = (), options: CompileOptions = EXACT, threads: int = 1
) -> Module:
    """Compile and run on the CPU, writing to the arrays in ``values``; with one thread, iterations run in order."""
    _, device, compiler = cpu()
    device.pool.set_threads(threads)
    module = device.load(compiler.compile(p, options))
    words = pack(p.params, values, lambda _, value: value.ctypes.data)
    device.default_stream.run(module, Launch(words, list(extents), ()))
    return module


def run_reference(p: Program, values: Sequence[Any], extents: Sequence[int] = ()) -> None:
    """Run on the reference interpreter, writing to the arrays in ``values``."""
    backend = ReferenceBackend()
    info = backend.devices()[0]
    device, compiler = backend.open(info, {}), backend.compiler(info.target)
    module = device.load(compiler.compile(p, EXACT))
    uses: list[BufferUse] = []
    for param, value in zip(p.params, values, strict=True):
        if isinstance(param.type, ArrayType):
            buffer = device.adopt(_span(value))
            assert buffer is not None
            uses.append(BufferUse(BufferRef(buffer, 0, buffer.nbytes), Access.READ_WRITE, param.role, param.path))
    words = pack(p.params, values, lambda ordinal, _: ordinal)
    device.default_stream.run(module, Launch(words, list(extents), uses))


def _span(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return all memory from the first to the last element of a view, as one contiguous array."""
    if value.flags.c_contiguous:
        return value
    scalars = 1 + sum((n - 1) * s // value.itemsize for n, s in zip(value.shape, value.strides, strict=True))
    return np.lib.stride_tricks.as_strided(value, (scalars,), (value.itemsize,))


def both(p: Program, values: Sequence[Any], extents: Sequence[int] = (), options: CompileOptions = EXACT) -> list[Any]:
    """Run on CPU and reference with equal inputs; assert equal outputs (bit for bit but for NaN) and return them."""
    ours, theirs = ([v.copy() if isinstance(v, np.ndarray) else v for v in values] for _ in range(2))
    run_cpu(p, ours, extents, options)
    run_reference(p, theirs, extents)
    for param, a, b in zip(p.params, ours, theirs, strict=True):
        if isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b, err_msg=param.path)
    return ours
