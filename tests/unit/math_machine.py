"""Runs one operation over NumPy arrays as machine code of the built-in backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.cpu.backend import CpuBackend
from qd_core.cpu.device import CpuModule
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import ArrayType, Param, Region
from qd_core.ir.program import Fixed, Program, Task


def elementwise_program(names: Sequence[str], types: Sequence[DType], count: int) -> Program:
    """Return out_k[i] = names_k(x0[i], ...) for ``count`` elements; parameters are the inputs, then the outputs."""
    inputs = [Param(ArrayType(t, 1), f"x{k}") for k, t in enumerate(types)]
    outputs = [Param(ArrayType(types[0], 1), f"out{k}") for k in range(len(names))]
    b = Builder(Region())
    with b.inside([(dt.i32, "i")], loop=True) as body:
        i = body.args[0]
        values = [b.load(x, [i]) for x in inputs]
        for name, out in zip(names, outputs, strict=True):
            b.store(out, [i], b.emit(name, *values))
        b.yield_()
    tasks, split = (Task("task", (Fixed(count),), body),), len(inputs)
    reads, writes = frozenset(range(split)), frozenset(range(split, split + len(outputs)))
    return Program("elementwise", (*inputs, *outputs), tasks, reads=reads, writes=writes)


def compile_program(program: Program, *, fast_math: bool, lanes: int = 0) -> CpuModule:
    """Return loaded machine code."""
    backend = CpuBackend()
    device = backend.open(backend.devices()[0], {})
    compiler = backend.compiler(device.info.target)
    for stage in compiler.pipeline():
        program = stage(program)
    module = device.load(compiler.compile(program, CompileOptions(fast_math=fast_math, lanes=lanes)))
    assert isinstance(module, CpuModule)
    return module


def run_module(module: CpuModule, arrays: Sequence[Any]) -> None:
    """Run on contiguous arrays, inputs then outputs, of one length."""
    words = np.array([w for a in arrays for w in (a.ctypes.data, a.size, 1)], np.uint64)
    extents = np.array([arrays[0].size], np.int64)
    module(words.ctypes.data, extents.ctypes.data)


def run_machine(name: str, *arrays: Any, fast_math: bool = True, lanes: int = 0) -> Any:
    """Value of ``name`` at arrays by machine code."""
    types = [dt.from_numpy(a.dtype) for a in arrays]
    assert all(t is not None for t in types)
    module = compile_program(elementwise_program([name], types, arrays[0].size), fast_math=fast_math, lanes=lanes)  # type: ignore[arg-type]
    out = np.empty(arrays[0].size, arrays[0].dtype)
    run_module(module, [*(np.ascontiguousarray(a) for a in arrays), out])
    return out
