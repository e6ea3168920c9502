"""The native entry: launches recorded by compiled code, mixed with those of Python."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import kernels
import numpy as np
import pytest
from harness import Bound, bind, span
from qd_vulkan import VulkanBackend
from qd_vulkan.module import BATCH

from qd_core import dtypes as dt
from qd_core.errors import DeviceFault
from qd_core.ir.nodes import Function, Region
from qd_core.testing.kernels import array, serial

ENTRY = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


@pytest.fixture
def device() -> Iterator[Any]:
    backend = VulkanBackend()
    there = backend.probe()
    if not there.available:
        pytest.skip(f"no Vulkan device: {there.reason}")
    device = backend.open(backend.devices()[0], {"offline_cache": False})
    yield device
    device.close()


@pytest.fixture
def compiler(device: Any) -> Any:
    return VulkanBackend().compiler(device.info.target)


class Native:
    """Launches a bound kernel by its entry, with the lock held, as core does."""

    def __init__(self, bound: Bound) -> None:
        self.entry = bound.module.native()
        assert self.entry is not None
        assert self.entry.brief
        self.words = np.frombuffer(bound.launch.words, np.uint64).copy()
        self.extents = np.array([*bound.launch.extents, 0], np.int64)
        self.call = ENTRY(self.entry.function)

    def __call__(self) -> int:
        return self.call(self.entry.context, self.words.ctypes.data, self.extents.ctypes.data, None)


def test_each_launch_sees_the_one_before(device: Any, compiler: Any) -> None:
    bound = bind(device, compiler, kernels.increment(), {"x": np.zeros(1000, np.int32)})
    launch = Native(bound)
    for _ in range(3 * BATCH + 5):
        assert launch() == 0
    np.testing.assert_array_equal(bound.fetch("x"), 3 * BATCH + 5)


def test_native_and_python_launches_and_copies_keep_their_order(device: Any, compiler: Any) -> None:
    bound = bind(device, compiler, kernels.increment(), {"x": np.zeros(64, np.int32)})
    launch, stream, ref = Native(bound), device.default_stream, bound.refs["x"]
    for n in range(50):
        launch()
        bound.run()
        launch()
        stream.copy_in(ref, span(np.full(64, n, np.int32)))
        launch()
        if n % 7 == 0:
            np.testing.assert_array_equal(bound.fetch("x"), n + 1)
    np.testing.assert_array_equal(bound.fetch("x"), 50)


@pytest.mark.parametrize("after", ["launch", "fill", "copy"])
def test_what_follows_a_launch_that_the_entry_handed_back_waits_for_it(
    device: Any, compiler: Any, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """The queue of a device runs what no barrier parts at once; one that runs all in order would not show it."""
    bound = bind(device, compiler, kernels.increment(), {"x": np.zeros(64, np.int32)})
    launch, stream, ref, said = Native(bound), device.default_stream, bound.refs["x"], []
    stream.synchronize()
    for name in ("CmdPipelineBarrier", "CmdDispatch", "CmdFillBuffer", "CmdCopyBuffer"):
        function = getattr(device.f, name)
        monkeypatch.setattr(device.f, name, lambda *a, n=name, f=function: (said.append(n), f(*a))[1])
    assert launch() == 0  # no command buffer is open: Python records it
    {
        "launch": bound.run,
        "fill": lambda: stream.fill(ref, b"\1\2\3\4"),
        "copy": lambda: stream.copy(replace(ref, nbytes=8), replace(ref, offset=128, nbytes=8)),
    }[after]()
    if device.place(ref).mapped and after == "fill":
        assert "CmdFillBuffer" in said, "memory that a launch uses was filled by the host"
    first, *rest = (n for n, name in enumerate(said) if name != "CmdPipelineBarrier")
    assert said[first] == "CmdDispatch"
    assert rest
    assert "CmdPipelineBarrier" in said[first : rest[0]]


@pytest.mark.parametrize("n", [0, 1, 128, 129, 70_000])
def test_saxpy(device: Any, compiler: Any, n: int) -> None:
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    bound = bind(device, compiler, kernels.saxpy(), {"a": 2.5, "x": x, "y": y})
    launch = Native(bound)
    launch()
    launch()
    np.testing.assert_array_equal(bound.fetch("y"), (np.float32(2.5) * x + 1) + np.float32(2.5) * x)


def test_arguments_in_the_ring(device: Any, compiler: Any) -> None:
    """Each launch has arguments of its own: those of an earlier one are not overwritten before it has run."""
    n, count = 40, 300
    values = {f"x{k}": np.full(n, k, np.int32) for k in range(count)} | {"y": np.zeros(n, np.int32)}
    bound = bind(device, compiler, kernels.many(count), values)
    first, second = Native(bound), Native(bound)
    second.words[0] = second.words[3]  # x1 in place of x0: the sum grows by one
    for _ in range(400):
        assert first() == 0
        assert second() == 0
    np.testing.assert_array_equal(bound.fetch("y"), count * (count - 1) // 2 + 1)
    first()
    np.testing.assert_array_equal(bound.fetch("y"), count * (count - 1) // 2)


def test_tasks_of_a_kernel_are_ordered(device: Any, compiler: Any) -> None:
    x = array(dt.i32, "x")
    function = Function("k", [x], Region())
    from qd_core.ir.build import Builder

    b = Builder(function.body)
    zero, one, stop = b.const(dt.i32, 0), b.const(dt.i32, 1), b.extent(x, 0)
    for _ in range(3):
        with b.inside([(dt.i32, "i")], loop=True) as body:
            i = body.args[0]
            mirrored = b.emit("sub", b.emit("sub", stop, one), i)
            b.store(x, [i], b.emit("add", b.load(x, [i]), b.emit("mul", mirrored, zero)))
            b.yield_()
        b.parallel_for([(zero, stop)], body)
        b.store(x, [zero], b.emit("add", b.load(x, [b.emit("sub", stop, one)]), one))
        b.store(x, [b.emit("sub", stop, one)], b.load(x, [zero]))
    b.yield_()
    bound = bind(device, compiler, function, {"x": np.zeros(5000, np.int32)})
    launch = Native(bound)
    for _ in range(20):
        launch()
    got = bound.fetch("x")
    assert (got[0], got[-1]) == (60, 60)


def test_private_memory(device: Any, compiler: Any) -> None:
    bound = bind(device, compiler, kernels.stack(same=True), {"n": 500, "y": np.zeros(3000, np.float32)})
    launch = Native(bound)
    for _ in range(3):
        launch()
    np.testing.assert_allclose(bound.fetch("y"), [500 * i + 500 * 499 / 2 for i in range(3000)], rtol=1e-5)


def test_private_memory_that_is_sized_first_has_no_entry(device: Any, compiler: Any) -> None:
    bound = bind(device, compiler, kernels.stack(), {"length": np.ones(9, np.int32), "y": np.zeros(9, np.float32)})
    assert bound.module.native() is None


def test_an_error_of_the_entry_is_raised_by_the_next_call(
    device: Any, compiler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = bind(device, compiler, kernels.increment(), {"x": np.zeros(8, np.int32)})
    launch = Native(bound)
    with monkeypatch.context() as patch:

        def refuse(*args: object) -> int:
            raise RuntimeError("no command buffer")

        patch.setattr(device.commands, "recording", refuse)
        assert launch() == 1
    with pytest.raises(RuntimeError, match="no command buffer"):
        device.default_stream.synchronize()
    assert launch() == 0
    np.testing.assert_array_equal(bound.fetch("x"), 1)


def test_a_fault_names_native_launches(device: Any, compiler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from qd_vulkan import binding
    from qd_vulkan.loader import VulkanError

    bound = bind(device, compiler, kernels.increment(), {"x": np.zeros(8, np.int32)})
    bound.launch.name = "named"
    bound.run()
    device.default_stream.synchronize()
    launch = Native(bound)
    launch()
    launch()
    with monkeypatch.context() as patch:

        def lost(*args: object) -> int:
            raise VulkanError("vkQueueSubmit", binding.DEVICE_LOST)

        patch.setattr(device.f, "QueueSubmit", lost)
        with pytest.raises(DeviceFault) as caught:
            device.default_stream.synchronize()
    assert "named" in caught.value.why


def test_kernels_whose_messages_the_host_reads_have_no_entry(device: Any, compiler: Any) -> None:
    y = array(dt.i32, "y")

    def write(b: Any) -> None:
        zero = b.const(dt.i32, 0)
        b.check("assert", b.emit("gt", b.load(y, [zero]), zero), message="")

    bound = bind(device, compiler, serial([y], write), {"y": np.ones(1, np.int32)})
    assert bound.module.native() is None
