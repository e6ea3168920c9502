"""Claims are true, complete, and what is not claimed is refused; code is what was asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.backend.capabilities import feature_names
from qd_core.backend.contract import CompileOptions
from qd_core.dtypes import DType
from qd_core.errors import UnsupportedError
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Value
from qd_core.ir.ops import ORDERED_KINDS
from qd_core.testing.compare import agree, run, unchecked
from qd_core.testing.device import DeviceUnderTest
from qd_core.testing.kernels import array, parallel
from qd_core.testing.plugin import in_slice
from qd_core.testing.suite.atomics import PAIRS, arguments, kernel

__all__ = [
    "test_claimed_features_are_known",
    "test_code_compiles_to_the_same_bytes",
    "test_kernels_of_one_name_are_told_apart",
    "test_unclaimed_atomics_do_not_work",
    "test_unclaimed_types_are_refused",
    "test_unclaimed_types_do_not_work",
]


def copying(dtype: DType) -> Function:
    """Return the kernel ``y[i] = x[i]``."""
    x, y = array(dtype, "x"), array(dtype, "y")
    return parallel([x, y], lambda b: b.extent(y, 0), lambda b, i: b.store(y, [i], b.load(x, [i])))


def few(dtype: DType) -> dict[str, Any]:
    """Return arguments of `copying`."""
    return {"x": (np.arange(9) % 2).astype(dtype.numpy), "y": np.zeros(9, dtype.numpy)}


def unclaimed_types(device: DeviceUnderTest) -> list[DType]:
    """Return the types that the device does not claim."""
    return [d for d in dt.ALL if not device.has(f"type.{d.name}")]


def works(device: DeviceUnderTest, function: Function, given: dict[str, Any]) -> bool:
    """Whether the device runs what it does not claim, and rightly; whatever it raises means that it does not."""
    with unchecked():
        try:
            agree(device, function, given)
        except Exception:
            return False
    return True


@in_slice("smoke")
def test_claimed_features_are_known(device: DeviceUnderTest) -> None:
    """Every feature has a sentence that says what it claims."""
    unknown = device.capabilities.features - feature_names().keys()
    assert not unknown


def test_unclaimed_types_are_refused(device: DeviceUnderTest) -> None:
    """By name, with who has it, before anything runs."""
    for dtype in unclaimed_types(device):
        with pytest.raises(UnsupportedError, match=rf"{dtype.name} in global memory(?s:.*)backends that have it"):
            run(device, copying(dtype), few(dtype))


def test_unclaimed_types_do_not_work(device: DeviceUnderTest) -> None:
    """A type that the device has is claimed: users are refused what is not."""
    working = [d.name for d in unclaimed_types(device) if works(device, copying(d), few(d))]
    assert not working, f"types that work and are not claimed: {', '.join(working)}"


def test_unclaimed_atomics_do_not_work(device: DeviceUnderTest) -> None:
    """An atomic that the device has is claimed."""
    missing = [
        (k, d)
        for k, d in PAIRS
        if device.has(f"type.{d.name}") and k not in ORDERED_KINDS and not device.has(f"atomic.{k}.{d.name}")
    ]
    working = [f"atomic.{k}.{d.name}" for k, d in missing if works(device, kernel(k, d, old=False), arguments(k, d))]
    assert not working, f"atomics that work and are not claimed: {', '.join(working)}"


def test_kernels_of_one_name_are_told_apart(device: DeviceUnderTest) -> None:
    """Code is a function of the whole program and all options, not of a name and a signature."""
    for factor in (2, 3, 5):
        x, y = array(dt.i32, "x"), array(dt.i32, "y")

        def write(b: Builder, i: Value, x: Any = x, y: Any = y, factor: int = factor) -> None:
            b.store(y, [i], b.emit("mul", b.load(x, [i]), b.const(dt.i32, factor)))

        given = {"x": np.arange(9, dtype=np.int32), "y": np.zeros(9, np.int32)}
        after = run(device, parallel([x, y], lambda b, y=y: b.extent(y, 0), write), given)
        stale = f"a kernel got the code of another one of its name: a stale artifact ({after['y'].tolist()})"
        assert after["y"].tolist() == [factor * n for n in range(9)], stale


def test_code_compiles_to_the_same_bytes(device: DeviceUnderTest) -> None:
    """Compiling is a function of its input: caches rely on it. The identity names what else it depends on."""
    from qd_core.passes.offload import offload

    runtime = device.runtime
    blobs: list[bytes] = []
    for _ in range(2):
        compiler = runtime.backend.compiler(runtime.info.target)
        program = offload(copying(dt.i32))
        for step in compiler.pipeline():
            program = step(program)
        artifact = compiler.compile(program, CompileOptions())
        assert isinstance(artifact.blob, bytes)
        assert artifact.format
        assert compiler.identity() == runtime.compiler.identity() != ""
        blobs.append(artifact.blob)
    assert blobs[0] == blobs[1], "compiling the same program twice gives different code"
