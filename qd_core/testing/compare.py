"""Run code on a device and hold everything it leaves against the reference interpreter.

The reference computes each real result three times: in the result's own type, in f64 as the exact value, and, for f64
results, in f32: so the one tolerance rule (`qd_core.testing.tolerance`) knows the error that the reference makes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from ctypes import c_byte
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.dtypes import DType
from qd_core.ir.nodes import Function
from qd_core.passes.draws import RANDOM
from qd_core.reference.interpret import Run, interpret
from qd_core.runtime.exchange import ExchangeSource
from qd_core.testing.tolerance import assert_close
from qd_core.testing.widen import NARROW, WIDE, BitPatternError, retyped

if TYPE_CHECKING:
    from qd_core.backend.capabilities import CapabilitySet
    from qd_core.ir.program import Program
    from qd_core.testing.device import DeviceUnderTest

__all__ = ["EXACT", "Expected", "agree", "clone", "expect", "run", "run_kernel", "unchecked"]

Array = np.ndarray[Any, Any]
Arguments = Mapping[str, Any]

EXACT = CompileOptions(fast_math=False)
"""Arithmetic as written."""


def clone(arguments: Arguments, types: Mapping[DType, DType] | None = None) -> dict[str, Any]:
    """Copy arguments, in other real types where ``types`` says so; arrays that share memory share it in the copy."""
    mapping = {a.numpy: b.numpy for a, b in (types or {}).items()}
    blocks = _blocks([v for v in arguments.values() if isinstance(v, np.ndarray) and v.size])
    copies: dict[int, Array] = {}
    result: dict[str, Any] = {}
    for path, value in arguments.items():
        if not isinstance(value, np.ndarray):
            result[path] = value
        elif not value.size:
            result[path] = np.empty(value.shape, mapping.get(value.dtype, value.dtype))
        else:
            low = byte_bounds(value)[0]
            start, flat = next((s, a) for s, a in reversed(blocks[value.dtype]) if s <= low)
            if start not in copies:
                with np.errstate(all="ignore"):
                    copies[start] = flat.astype(mapping.get(value.dtype, value.dtype))
            copy = copies[start]
            ratio = copy.itemsize / value.itemsize
            offset = int((value.ctypes.data - start) * ratio)
            steps = tuple(int(s * ratio) for s in value.strides)
            result[path] = np.ndarray(value.shape, copy.dtype, copy.data, offset, steps)
    return result


def _blocks(arrays: Iterable[Array]) -> dict[np.dtype[Any], list[tuple[int, Array]]]:
    """By type: the runs of memory that the arrays cover, as (first byte, flat array) in order of their addresses."""
    spans: dict[np.dtype[Any], list[list[int]]] = {}
    for array in sorted(arrays, key=byte_bounds):
        low, high = byte_bounds(array)
        runs = spans.setdefault(array.dtype, [])
        if runs and low < runs[-1][1]:
            runs[-1][1] = max(runs[-1][1], high)
        else:
            runs.append([low, high])
    return {
        dtype: [(low, np.ndarray(((high - low) // dtype.itemsize,), dtype, _memory(low, high))) for low, high in runs]
        for dtype, runs in spans.items()
    }


def _memory(low: int, high: int) -> Any:
    """The bytes between two addresses."""
    return (c_byte * (high - low)).from_address(low)


@dataclass(slots=True)
class Expected:
    """What the reference computes: in the code's own types, with every real in f64, and with every real in f32."""

    run: Run
    arguments: dict[str, Any]
    exact: dict[str, Array] = field(default_factory=dict[str, Array])
    narrow: dict[str, Array] = field(default_factory=dict[str, Array])

    def check(self, path: str, actual: Array, what: str = "") -> None:
        """Hold the device's array ``path`` against the reference's."""
        reference = self.run.arrays.get(path, self.arguments.get(path))
        exact, narrow = self.exact.get(path), self.narrow.get(path)
        narrow = narrow if actual.dtype == np.float64 else None
        assert_close(actual, reference, exact, narrow, together=True, what=what + path)


def expect(function: Function, arguments: Arguments) -> Expected:
    """Run ``function`` on the reference; ``arguments`` are left alone."""
    own = clone(arguments)
    expected = Expected(interpret(function, own), own)
    kinds = {a.dtype for a in own.values() if isinstance(a, np.ndarray)} | {p.type for p in function.params}
    try:
        expected.exact = _in(function, arguments, WIDE)
        if np.dtype(np.float64) in kinds or dt.f64 in kinds:
            expected.narrow = _in(function, arguments, NARROW)
    except BitPatternError:
        pass
    return expected


def _in(function: Function, arguments: Arguments, types: Mapping[DType, DType]) -> dict[str, Array]:
    with np.errstate(all="ignore"):  # a scalar may be beyond the narrower type's range
        return interpret(retyped(function, types), clone(arguments, types)).arrays


def _accept(program: Program, capabilities: CapabilitySet, backend: str) -> None:
    """Refuse nothing."""


@contextmanager
def unchecked() -> Generator[None]:
    """Compile what the device does not claim, instead of refusing it."""
    from qd_core.runtime import launch

    check = launch.check_supported
    launch.check_supported = _accept
    try:
        yield
    finally:
        launch.check_supported = check


def run(
    device: DeviceUnderTest,
    function: Function,
    arguments: Arguments,
    *,
    host: bool = False,
    options: CompileOptions = EXACT,
) -> dict[str, Array]:
    """Run ``function`` on the device and return every array that was passed, as it is afterwards.

    Parameters
    ----------
    device : DeviceUnderTest
        Where.
    function : Function
        A kernel.
    arguments : mapping
        Scalars and arrays by path; arrays are copied, and stay as they are.
    host : bool
        Pass NumPy arrays; otherwise arrays of the device.
    options : CompileOptions
        Of the code generator.
    """
    from qd_core.passes.offload import offload
    from qd_core.runtime.launch import Executable

    values = clone(arguments)
    scalars = {p: v for p, v in values.items() if not isinstance(v, np.ndarray)}
    arrays = {p: v for p, v in values.items() if isinstance(v, np.ndarray)}
    resident = {} if host else _resident(function, arrays)
    sources = {p: _source(resident.get(p, a), p) for p, a in arrays.items()}
    executable = Executable.build(device.runtime, offload(function), options)
    executable.launch(scalars, sources)
    return {p: resident[p].to_numpy() if p in resident else a for p, a in arrays.items()}


def _source(value: Any, path: str) -> Any:
    from qd_core.runtime.interop import array_source

    return array_source(value, path)


def _resident(function: Function, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Arrays of the device with the same contents."""
    from qd_core.runtime.array import MatrixNdarray, ScalarNdarray, VectorNdarray

    result: dict[str, Any] = {}
    elements = {p.path: p.type.element_shape for p in function.params if p.path in arrays}
    for path, array in arrays.items():
        element = elements.get(path, ())
        kind = (ScalarNdarray, VectorNdarray, MatrixNdarray)[len(element)]
        dtype = dt.from_numpy(array.dtype)
        assert dtype is not None
        result[path] = kind(dtype, array.shape[: array.ndim - len(element)], element)
        result[path].from_numpy(array)
    return result


def agree(
    device: DeviceUnderTest,
    function: Function,
    arguments: Arguments,
    *,
    host: bool = False,
    options: CompileOptions = EXACT,
) -> dict[str, Array]:
    """Run on device and reference; `AssertionError` where an array differs. Arguments are those of `run`."""
    expected = expect(function, arguments)
    actual = run(device, function, arguments, host=host, options=options)
    for path, array in actual.items():
        expected.check(path, array)
    return actual


def run_kernel(kernel: Any, *args: Any) -> Any:
    """Call a kernel on the active device and hold its arrays and its value against the reference.

    Parameters
    ----------
    kernel : Kernel
        Made by ``qd.kernel``, or the ``grad`` of one.
    *args
        Its arguments; arrays are changed as by any call.

    Returns
    -------
    object
        What the kernel returns.
    """
    executable, bound = kernel._prepare(args, {})
    function = executable.program.function
    before = {**bound.scalars, **_contents(bound.sources)}
    if executable.draws is not None:
        draws, step = executable.draws
        before[RANDOM] = draws.last + step
    used = {p.path for p in function.params}
    expected = expect(function, {path: value for path, value in before.items() if path in used})
    result = kernel(*args)
    for path, array in _contents(bound.sources).items():
        if path in used:
            expected.check(path, np.asarray(array))
        else:
            np.testing.assert_array_equal(array, before[path], f"{path} is no argument of the kernel and changed")
    if executable.returns is not None:
        _check_value(result, executable.returns.decode(expected.run.arrays.__getitem__))
    return result


def _contents(sources: Mapping[str, Any]) -> dict[str, Array]:
    """Copies of what the sources hold; those that share memory share it."""
    known: dict[int, Array] = {}
    values: dict[str, Array] = {}
    for path, source in sources.items():
        if isinstance(source, ExchangeSource):  # the whole of a tensor in the device's memory
            values[path] = known.setdefault(source.view_of.address, source.tensor.detach().cpu().numpy())
        elif _is_ours(source.array):
            values[path] = known.setdefault(id(source.array), source.array.to_numpy())
        else:
            values[path] = source.array
    return clone(values)


def _is_ours(array: Any) -> bool:
    return hasattr(array, "to_numpy")


def _check_value(actual: Any, reference: Any) -> None:
    if isinstance(reference, tuple):
        for a, b in zip(actual, reference, strict=True):
            _check_value(a, b)
    else:
        a, b = (np.asarray(v.to_numpy() if _is_ours(v) else v) for v in (actual, reference))
        np.testing.assert_allclose(a, b, rtol=1e-6, err_msg="the kernel's value")
