"""Generated PTX is what the assembler takes, for every model, within a budget of registers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from ptx_tools import assemble, assemblers, models_of
from qd_cuda.compiler import CudaCompiler, unpack
from qd_cuda.facts import MODELS, best_model, ptx_of_driver, target_of

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Value
from qd_core.ir.ops import OPS
from qd_core.ir.program import Program
from qd_core.passes.offload import offload
from qd_core.testing.kernels import array, elementwise, parallel, serial

needs_assembler = pytest.mark.skipif(
    not assemblers(), reason="no ptxas: pip install nvidia-cuda-nvcc-cu12, or set QD_PTXAS"
)

CHECKED = (dt.f16, dt.f32, dt.f64, dt.i8, dt.u16, dt.i32, dt.u64, dt.u1)
ELEMENTWISE = [name for name, op in OPS.items() if op.numpy is not None and name not in ("select",)]


def compile_for(model: int, function: Function, **options: object) -> bytes:
    """PTX of a kernel."""
    compiler = CudaCompiler(target_of(model))
    program: Program = offload(function)
    for step in compiler.pipeline():
        program = step(program)
    return unpack(compiler.compile(program, CompileOptions(**options))).ptx  # type: ignore[arg-type]


def check(function_of: object, tmp_path: Path, models: list[int], **options: object) -> list[object]:
    """Assemble a kernel by the newest assembler that knows each model."""
    found: list[object] = []
    for model in models:
        place = next((p for _, p in sorted(assemblers().items(), reverse=True) if model in models_of(p)), None)
        if place is not None:
            found += assemble(place, model, compile_for(model, function_of(), **options), tmp_path)  # type: ignore[operator]
    assert found, "no assembler knows any of these models"
    return found


@needs_assembler
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str, tmp_path: Path) -> None:
    op = OPS[name]
    for dtype in (d for d in CHECKED if d in op.types):
        check(lambda dtype=dtype: elementwise(op, dtype), tmp_path, [90 if dtype.bits != 16 else 75])


def reduction(dtype: DType, kind: str) -> Function:
    x, s = array(dtype, "x"), array(dtype, "s")

    def write(b: Builder, i: Value) -> None:
        given = [b.load(x, [i])] * (2 if kind == "cas" else 1)
        b.atomic(kind, s, [b.const(dt.i32, 0)], *given)

    return parallel([x, s], lambda b: b.extent(x, 0), write)


def scatter(dtype: DType, kind: str) -> Function:
    x, k, s = array(dtype, "x"), array(dt.i32, "k"), array(dtype, "s")

    def write(b: Builder, i: Value) -> None:
        given = [b.load(x, [i])] * (2 if kind == "cas" else 1)
        b.atomic(kind, s, [b.load(k, [i])], *given)

    return parallel([x, k, s], lambda b: b.extent(x, 0), write)


KINDS = {
    d.name: ["exchange"]
    + (["add", "min", "max", "cas"] if d is not dt.u1 else [])
    + (["and", "or", "xor"] if not d.is_real else [])
    for d in dt.ALL
}


@needs_assembler
@pytest.mark.parametrize("make", [reduction, scatter])
@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
def test_atomics(make: object, dtype: DType, tmp_path: Path) -> None:
    for kind in KINDS[dtype.name]:
        for model in (60, 90):
            known = any(model in models_of(p) for p in assemblers().values())
            check(partial(make, dtype, kind), tmp_path, [model if known else 90])  # type: ignore[arg-type]


def saxpy() -> Function:
    x, y = array(dt.f32, "x"), array(dt.f32, "y")

    def write(b: Builder, i: Value) -> None:
        b.store(y, [i], b.emit("add", b.load(y, [i]), b.emit("mul", b.load(x, [i]), b.const(dt.f32, 0.5))))

    return parallel([x, y], lambda b: b.extent(x, 0), write)


def history() -> Function:
    """Private memory of a length known from a scalar array's extent."""
    x, n = array(dt.f64, "x"), array(dt.i32, "n")

    def write(b: Builder, i: Value) -> None:
        length = b.extent(n, 0)
        memory = b.scratch(dt.f64, length)
        with b.inside([(dt.i32, "t")], loop=True) as fill:
            b.scratch_store(memory, fill.args[0], b.load(x, [i]))
            b.yield_()
        b.for_(b.const(dt.i32, 0), length, [], fill)
        with b.inside([(dt.i32, "t"), (dt.f64, "sum")], loop=True) as read:
            b.yield_(b.emit("add", read.args[1], b.scratch_load(memory, read.args[0])))
        (total,) = b.for_(b.const(dt.i32, 0), length, [b.const(dt.f64, 0.0)], read)
        b.store(x, [i], total)

    return parallel([x, n], lambda b: b.extent(x, 0), write)


BUDGET = {"saxpy": (32, 0), "reduction": (40, 0), "scatter": (40, 0), "history": (48, 0)}
"""Registers a thread and spilled bytes that a kernel may need on sm_90."""


@needs_assembler
@pytest.mark.parametrize("model", MODELS)
def test_models(model: int, tmp_path: Path) -> None:
    if not any(model in models_of(p) for p in assemblers().values()):
        pytest.skip(f"no ptxas at hand knows sm_{model}")
    kernels = {
        "saxpy": saxpy,
        "reduction": lambda: reduction(dt.f32, "add"),
        "scatter": lambda: scatter(dt.i32, "add"),
        "history": history,
    }
    for name, make in kernels.items():
        for resources in check(make, tmp_path, [model]):
            registers, spilled = BUDGET[name]
            assert resources.registers <= registers or model != 90, (name, resources)  # type: ignore[attr-defined]
            assert resources.spilled <= spilled, (name, resources)  # type: ignore[attr-defined]


def test_loads_of_a_tile_come_before_its_stores() -> None:
    """Four iterations in flight a thread: what makes streaming kernels as fast as a copy."""
    text = compile_for(90, saxpy()).decode()
    tile = [line.split()[0] for line in text.splitlines() if "+3072]" in line or "+1024]" in line]
    assert [op.rstrip(";") for op in tile] == ["ld.global.b32"] * 4 + ["st.global.b32"] * 2


def test_a_sum_reaches_memory_once_a_block() -> None:
    text = compile_for(90, reduction(dt.f32, "add")).decode()
    assert text.count("atom.") + text.count("red.global") == 1
    assert text.count("shfl.sync.down") == 10


def test_code_does_not_hang_on_the_process() -> None:
    assert compile_for(80, saxpy()) == compile_for(80, saxpy())


def test_exact_arithmetic_without_fast_math() -> None:
    fast = compile_for(90, elementwise(OPS["div"], dt.f32)).decode()
    exact = compile_for(90, elementwise(OPS["div"], dt.f32), fast_math=False).decode()
    assert "div.full.f32" in fast
    assert "div.rn.f32" in exact
    assert "div.full" not in exact


def test_models_and_drivers() -> None:
    assert ptx_of_driver(13000) == 90
    assert ptx_of_driver(12040) == 84
    assert ptx_of_driver(8000) == 0
    assert best_model(90, 90) == 90
    assert best_model(103, 90) == 100
    assert best_model(90, 75) == 86
    assert best_model(52) is None


def test_serial_code_is_one_thread() -> None:
    s = array(dt.f32, "s")
    text = compile_for(90, serial([s], lambda b: b.store(s, [b.const(dt.i32, 0)], b.const(dt.f32, 1.0)))).decode()
    assert "%tid" not in text
