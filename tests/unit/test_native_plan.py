"""Both packers, one table: what the native entry packs is what the Python packer packs, on the CPU device."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions, Launch
from qd_core.cpu.backend import CpuBackend
from qd_core.dtypes import DType
from qd_core.errors import LaunchError
from qd_core.ir.build import Builder
from qd_core.ir.nodes import ArrayType, Function, Param, Region, Value
from qd_core.passes.offload import offload
from qd_core.runtime import native
from qd_core.runtime.array import Ndarray, ScalarNdarray, VectorNdarray
from qd_core.runtime.context import Options, Runtime, set_active
from qd_core.runtime.interop import array_source
from qd_core.runtime.launch import Executable
from qd_core.runtime.log import Log
from qd_core.runtime.native import NativeLauncher
from qd_core.runtime.native_plan import Origin, plan_of

pytestmark = pytest.mark.skipif(
    native.unavailable_reason() is not None, reason=f"native launches are off: {native.unavailable_reason()}"
)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    backend = CpuBackend()
    info = backend.devices()[0]
    runtime = Runtime(backend, info, backend.open(info, {}), backend.compiler(info.target), Options())
    runtime.log = Log(runtime.device)
    set_active(runtime)
    yield runtime
    set_active(None)


@dataclass
class Case:
    """A kernel with its two ways to launch."""

    runtime: Runtime
    executable: Executable
    names: tuple[str, ...]

    def python(self, values: Sequence[Any]) -> tuple[list[int], list[int]]:
        """Launch through Python and return what was packed."""
        packed: list[Launch] = []
        stream = self.runtime.device.default_stream
        run = stream.run
        stream.run = lambda module, launch: packed.append(launch)
        try:
            self.launch(values)
        finally:
            stream.run = run
        words = np.frombuffer(packed[0].words, np.uint64)
        return words[: self.executable.table.size].tolist(), list(packed[0].extents)

    def launch(self, values: Sequence[Any]) -> Any:
        """Launch through Python."""
        pairs = list(zip(self.names, values, strict=True))
        scalars = {n: v for n, v in pairs if isinstance(v, (int, float))}
        sources = {n: array_source(v, n) for n, v in pairs if not isinstance(v, (int, float))}
        return self.executable.launch(scalars, sources)

    def native(self, values: Sequence[Any]) -> NativeLauncher:
        """Return a launcher with the plan for such values."""
        plan = plan_of(self.executable, values, {n: Origin(i) for i, n in enumerate(self.names)})
        assert plan is not None
        launcher = NativeLauncher(lambda *args: "slow")
        launcher.install(plan)
        return launcher


def build(runtime: Runtime, function: Function) -> Case:
    names = tuple(p.path for p in function.params)
    return Case(runtime, Executable.build(runtime, offload(function), CompileOptions()), names)


def weighted_sum(array: ArrayType, scalar: DType) -> Function:
    """y[i] = s * x[i] over the range (n, len(x)): scalars, arrays, and an extent that needs a formula."""
    n, s, x, y = Param(dt.i32, "n"), Param(scalar, "s"), Param(array, "x"), Param(array, "y")
    body = Region()
    builder = Builder(body)
    with builder.inside([(dt.i32, "i")], loop=True) as loop:
        index = [loop.args[0], *(builder.const(dt.i32, 0) for _ in range(array.rank - 1))]
        product: Value = builder.emit("mul", builder.load(x, index), builder.cast(s, array.dtype))
        builder.store(y, index, product)
        builder.yield_()
    builder.parallel_for([(n, builder.extent(x, 0))], loop)
    builder.yield_()
    return Function("weighted_sum", [n, s, x, y], body)


SCALARS = {
    dt.i32: st.integers(-(2**31), 2**31 - 1) | st.booleans(),
    dt.u32: st.integers(0, 2**32 - 1),
    dt.i64: st.integers(-(2**63), 2**63 - 1),
    dt.f32: st.floats(width=32, allow_nan=True) | st.integers(-(2**53), 2**53) | st.booleans(),
    dt.f64: st.floats(allow_nan=True),
}

_cases: dict[Any, Case] = {}


def case_of(runtime: Runtime, array: ArrayType, scalar: DType) -> Case:
    key = (runtime.generation, array, scalar)
    if key not in _cases:
        _cases[key] = build(runtime, weighted_sum(array, scalar))
    return _cases[key]


@pytest.mark.parametrize("element", [(), (3,)], ids=["scalars", "vectors"])
@pytest.mark.parametrize("ours", [True, False], ids=["ndarray", "numpy"])
@pytest.mark.parametrize("scalar", SCALARS, ids=str)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_both_packers_give_the_same_words(
    runtime: Runtime, scalar: DType, ours: bool, element: tuple[int, ...], data: st.DataObject
) -> None:
    array = ArrayType(dt.f32, 2, element)
    case = case_of(runtime, array, scalar)
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    values = [
        data.draw(st.integers(-8, 8)),
        data.draw(SCALARS[scalar]),
        *(make_array(ours, shape, element) for _ in range(2)),
    ]
    words, extents = case.python(values)
    capture = Recorder(case, values)
    assert capture.launch(values) is None
    assert (capture.words, capture.extents) == (words, extents)


def make_array(ours: bool, shape: tuple[int, ...], element: tuple[int, ...]) -> Any:
    if not ours:
        return np.ones((*shape, *element), np.float32)
    kind: type[Ndarray] = VectorNdarray if element else ScalarNdarray
    return kind(dt.f32, shape, element)


class Recorder:
    """A native launcher whose kernel only records."""

    def __init__(self, case: Case, values: Sequence[Any]) -> None:
        from dataclasses import replace

        from qd_core.runtime.native_check import Capture

        plan = plan_of(case.executable, values, {n: Origin(i) for i, n in enumerate(case.names)})
        assert plan is not None
        extents = sum(len(axes) for axes in plan.tasks)
        self._capture = Capture(native.load_runtime().capture, len(plan.words), extents)
        self._launcher = NativeLauncher(lambda *args: "slow")
        self._launcher.install(replace(plan, variants=(self._capture.variant(),)))

    def launch(self, values: Sequence[Any]) -> Any:
        return self._launcher.entry(*values)

    @property
    def words(self) -> list[int]:
        return self._capture.words

    @property
    def extents(self) -> list[int]:
        return self._capture.extents


@pytest.mark.parametrize("ours", [True, False], ids=["ndarray", "numpy"])
def test_a_native_launch_computes(runtime: Runtime, ours: bool) -> None:
    case = case_of(runtime, ArrayType(dt.f32, 1), dt.f32)
    x, y = make_array(ours, (1000,), ()), make_array(ours, (1000,), ())
    if ours:
        x.fill(3.0)
        y.fill(1.0)
    else:
        x[:] = 3.0
    launcher = case.native([2, 0.5, x, y])
    assert launcher.entry(2, 0.5, x, y) is None
    assert launcher.launches == 1
    result = y.to_numpy() if ours else y
    assert (result == np.array([1.0, 1.0, *[1.5] * 998], np.float32)).all()


def test_an_array_of_a_closed_device_takes_the_slow_path(runtime: Runtime) -> None:
    case = case_of(runtime, ArrayType(dt.f32, 1), dt.f32)
    x, y = make_array(True, (8,), ()), make_array(True, (8,), ())
    launcher = case.native([0, 1.0, x, y])
    assert launcher.entry(0, 1.0, x, y) is None
    header = ctypes.c_uint64.from_address(int(x._header.ctypes.data))
    key, header.value = header.value, 0
    try:
        assert launcher.entry(0, 1.0, x, y) == "slow"
    finally:
        header.value = key


def test_what_the_python_path_refuses_is_not_launched(runtime: Runtime) -> None:
    case = case_of(runtime, ArrayType(dt.f32, 1), dt.f32)
    x, y = np.ones(8, np.float32), np.ones(8, np.float32)
    launcher = case.native([0, 1.0, x, y])
    y.flags.writeable = False
    assert launcher.entry(0, 1.0, x, y) == "slow"
    with pytest.raises(ValueError, match="read-only"):
        case.launch([0, 1.0, x, y])
    huge = np.broadcast_to(np.float32(0), (2**31,))
    assert launcher.entry(0, 1.0, huge, np.ones(8, np.float32)) == "slow"
    with pytest.raises((LaunchError, ValueError)):
        case.launch([0, 1.0, huge, np.ones(8, np.float32)])
