"""Memory, order, errors and devices, through the contract."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from typing import Any

import kernels
import numpy as np
import pytest
from harness import ALONE, bind, load, silent, span
from qd_vulkan import VulkanBackend
from qd_vulkan import instance as instances
from qd_vulkan.hazards import Hazards
from qd_vulkan.memory import Block
from qd_vulkan.ring import Ring

import qd_core as qd
from qd_core import dtypes as dt
from qd_core.backend.contract import BufferRef
from qd_core.errors import ClosedError, DeviceFault, LaunchError, QuadrantsError
from qd_core.runtime.context import current


@pytest.fixture(params=["0", "1"], ids=["mapped", "staged"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A fresh device, its memory mapped for the host or not."""
    monkeypatch.setenv("QD_VULKAN_STAGING", request.param)
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


# -- memory -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("nbytes", [1, 3, 4, 31, 4096, 65536, 65540, 9_000_001])
def test_copies_of_every_size(device: Any, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    buffer, other, out = device.allocate(nbytes), device.allocate(nbytes), np.zeros(nbytes, np.uint8)
    stream = device.default_stream
    stream.copy_in(BufferRef(buffer, 0, nbytes), span(data))
    stream.copy(BufferRef(other, 0, nbytes), BufferRef(buffer, 0, nbytes))
    stream.copy_out(span(out), BufferRef(other, 0, nbytes))
    np.testing.assert_array_equal(out, data)
    if nbytes > 8:
        stream.copy(BufferRef(other, 5, nbytes - 8), BufferRef(other, 0, nbytes - 8))  # overlapping
        stream.copy_out(span(out), BufferRef(other, 0, nbytes))
        np.testing.assert_array_equal(out[5 : nbytes - 3], data[: nbytes - 8])


@pytest.mark.parametrize("pattern", [b"\0", b"\7", b"\1\2", b"\1\2\3\4", bytes(range(8)), b"\1\2\3\4" * 2])
@pytest.mark.parametrize(("offset", "nbytes"), [(0, 40), (0, 41), (8, 16), (3, 9)])
def test_fills(device: Any, pattern: bytes, offset: int, nbytes: int) -> None:
    size = max(offset + nbytes, 48)
    buffer, out = device.allocate(size), np.zeros(size, np.uint8)
    stream, whole = device.default_stream, BufferRef(buffer, 0, size)
    for _ in range(2):  # the second time, the buffer is in use by recorded commands
        stream.fill(whole, b"\xee")
        stream.fill(BufferRef(buffer, offset, nbytes), pattern)
        stream.copy(whole, whole)
    stream.copy_out(span(out), whole)
    want = np.full(size, 0xEE, np.uint8)
    want[offset : offset + nbytes] = np.resize(np.frombuffer(pattern, np.uint8), nbytes)
    np.testing.assert_array_equal(out, want)


def test_holes_are_joined() -> None:
    block = Block(0, 0, 0, 1024, 0, [(0, 1024)])
    places = [block.take(256, 256) for _ in range(4)]
    assert places == [0, 256, 512, 768]
    assert block.take(1, 1) is None
    for offset in (256, 768, 512, 0):
        block.give(offset, 256)
    assert block.holes == [(0, 1024)]


def test_memory_of_a_freed_buffer_is_reused_only_when_its_work_is_done(device: Any, compiler: Any) -> None:
    n = 1 << 16
    bound = bind(device, compiler, kernels.increment(), {"x": np.zeros(n, np.int32)})
    bound.run()
    ref = bound.refs["x"]
    place = ref.buffer.handle
    device.free(ref.buffer, after=device.default_stream)
    again = device.allocate(4 * n)
    assert again.handle.offset != place.offset or again.handle.block is not place.block
    device.default_stream.synchronize()
    assert device.allocate(4 * n).handle.offset == place.offset


def test_misuse_of_memory_is_an_error(device: Any) -> None:
    buffer, data = device.allocate(16), np.zeros(32, np.uint8)
    with pytest.raises(DeviceFault, match="outside a buffer of 16 bytes"):
        device.default_stream.copy_in(BufferRef(buffer, 0, 32), span(data))
    device.free(buffer)
    with pytest.raises(DeviceFault, match="freed buffer"):
        device.address(BufferRef(buffer, 0, 16))
    with pytest.raises(DeviceFault, match="freed twice"):
        device.free(buffer)


def test_exhausted_memory_says_how_much(device: Any) -> None:
    with pytest.raises(DeviceFault, match=r"no memory for \d+ bytes"):
        device.allocate(1 << 50)
    device.free(device.allocate(1024))


# -- launches ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [0, 1, 127, 128, 129, 100_000])
def test_saxpy(device: Any, compiler: Any, n: int) -> None:
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    bound = bind(device, compiler, kernels.saxpy(), {"a": 2.5, "x": x, "y": y})
    bound.run()
    np.testing.assert_array_equal(bound.fetch("y"), np.float32(2.5) * x + 1)


def test_each_launch_sees_the_one_before(device: Any, compiler: Any) -> None:
    bound = bind(device, compiler, kernels.increment(), {"x": np.zeros(1000, np.int32)})
    for _ in range(500):
        bound.run()
    event = device.default_stream.record()
    event.synchronize()
    np.testing.assert_array_equal(bound.fetch("x"), 500)


def test_launches_and_copies_keep_their_order(device: Any, compiler: Any) -> None:
    bound = bind(device, compiler, kernels.increment(), {"x": np.zeros(64, np.int32)})
    stream, ref = device.default_stream, bound.refs["x"]
    for n in range(20):
        bound.run()
        stream.copy_in(ref, span(np.full(64, 10 * n, np.int32)))
        bound.run()
    np.testing.assert_array_equal(bound.fetch("x"), 191)


def test_many_arguments_lie_in_a_ring(device: Any, compiler: Any) -> None:
    """300 arrays: their words are far more than push constants hold; more launches than the ring has room for."""
    n = 40
    values = {f"x{k}": np.full(n, k, np.int32) for k in range(300)} | {"y": np.zeros(n, np.int32)}
    bound = bind(device, compiler, kernels.many(300), values)
    for _ in range(700):
        bound.run()
    np.testing.assert_array_equal(bound.fetch("y"), 300 * 299 // 2)


def test_atomics_of_all_threads_meet(device: Any, compiler: Any) -> None:
    x = np.arange(10_000, dtype=np.int32)
    bound = bind(device, compiler, kernels.accumulate(), {"x": x, "total": np.zeros(1, np.int32)})
    bound.run()
    assert bound.fetch("total")[0] == x.sum()


def test_a_total_that_is_large_against_its_summands_loses_nothing(device: Any, compiler: Any) -> None:
    """One addition after the other would stop at 2**24."""
    n = 20_000_000
    values = {"x": np.ones(n, np.float32), "total": np.zeros(1, np.float32)}
    bound = bind(device, compiler, kernels.accumulate(dt.f32), values, ALONE)
    bound.run()
    assert bound.fetch("total")[0] == n


def test_a_dropped_module_is_destroyed_after_its_work(device: Any, compiler: Any) -> None:
    bound = bind(device, compiler, kernels.increment(), {"x": np.zeros(8, np.int32)})
    bound.run()
    refs = bound.refs
    del bound
    gc.collect()
    out = np.zeros(8, np.int32)
    device.default_stream.copy_out(span(out), refs["x"])
    np.testing.assert_array_equal(out, 1)


# -- private memory
# -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [dt.f32, dt.i64], ids=str)
def test_private_memory_of_different_lengths(device: Any, compiler: Any, dtype: dt.DType) -> None:
    lengths = np.random.default_rng(1).integers(-3, 90, 3000).astype(np.int32)
    bound = bind(device, compiler, kernels.stack(dtype), {"length": lengths, "y": np.zeros(3000, dtype.numpy)})
    bound.run()
    want = [sum(range(i, i + max(int(n), 0))) for i, n in enumerate(lengths)]
    np.testing.assert_allclose(bound.fetch("y"), want, rtol=1e-5)


def test_private_memory_much_longer_in_one_iteration(device: Any, compiler: Any) -> None:
    """Fewer threads run where an iteration needs much: 60 MB here, of a pool that all share."""
    lengths = np.full(5000, 2, np.int32)
    lengths[[7, 4000]] = 15_000_000
    bound = bind(device, compiler, kernels.ends(), {"length": lengths, "y": np.zeros(5000, np.int32)})
    bound.run()
    np.testing.assert_array_equal(bound.fetch("y"), lengths + np.arange(5000))


def test_a_loop_that_the_driver_ends_is_a_fault(device: Any, compiler: Any) -> None:
    """Mesa's lavapipe ends loops after 65535 iterations; whatever a driver does, the count is right or a fault."""
    given = np.full(3, 100_000, np.int32)
    bound = bind(device, compiler, kernels.count(), {"y": given})
    bound.run()
    if compiler.spirv.loop_limit:
        with pytest.raises(DeviceFault, match="ended a loop"):
            device.default_stream.synchronize()
    else:
        np.testing.assert_array_equal(bound.fetch("y"), given)
    small = bind(device, compiler, kernels.count(), {"y": np.full(3, 65_000, np.int32)})
    small.run()
    np.testing.assert_array_equal(small.fetch("y"), 65_000)


def test_private_memory_that_does_not_fit_is_a_fault_that_names_the_kernel(device: Any, compiler: Any) -> None:
    lengths = np.full(300, 1_000_000_000, np.int32)
    bound = bind(device, compiler, kernels.ends(), {"length": lengths, "y": np.zeros(300, np.int32)})
    bound.run()
    with pytest.raises(DeviceFault, match="do not fit the pool") as caught:
        device.default_stream.synchronize()
    assert "QD_VULKAN_POOL_NBYTES" in str(caught.value)
    assert "k" in caught.value.why.split(": ")[-1]
    device.default_stream.synchronize()  # it is reported once


# -- parts
# --------------------------------------------------------------------------------------------------------------
def test_hazards() -> None:
    hazards = Hazards()
    hazards.add([(1, 0, 100, False), (2, 0, 100, True)])
    assert not hazards.conflict([(1, 0, 100, False)])  # two reads
    assert hazards.conflict([(1, 50, 60, True)])  # write after read
    assert hazards.conflict([(2, 99, 200, False)])  # read after write
    assert not hazards.conflict([(2, 100, 200, True), (3, 0, 100, True)])
    hazards.clear()
    assert not hazards.conflict([(2, 0, 100, True)])


def test_ring_waits_before_it_reuses_a_part(device: Any) -> None:
    ring = Ring(device.host_memory.allocate(1024), device.commands)
    first = device.commands.pending + 1
    assert [ring.take(256) for _ in range(4)] == [0, 256, 512, 768]
    assert device.commands.completed < first
    assert ring.take(256) == 0
    assert device.commands.completed >= first


def test_a_foreign_artifact_is_refused(device: Any) -> None:
    from qd_core.backend.contract import Artifact

    with pytest.raises(LaunchError, match="no SPIR-V"):
        device.load(Artifact("qd-ir-text", b"", ()))


def test_a_closed_device_says_so(device: Any) -> None:
    device.close()
    device.close()
    with pytest.raises(ClosedError):
        device.allocate(16)


# -- devices
# --------------------------------------------------------------------------------------------------------------
def test_missing_loader_is_a_reason_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QD_VULKAN_LIBRARY", "/nowhere/libvulkan.so")
    monkeypatch.setattr(instances, "_instance", instances._instance.__wrapped__)
    answer = VulkanBackend().probe()
    assert not answer.available
    assert "no Vulkan loader" in answer.reason
    assert "/nowhere/libvulkan.so" in answer.reason
    assert answer.remedy
    assert not VulkanBackend().devices()


def test_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = VulkanBackend()
    devices = backend.devices()
    if not devices:
        pytest.skip(f"no Vulkan device: {backend.probe().reason}")
    for chosen in ("0", devices[0].name[:6].lower()):
        monkeypatch.setenv("QD_VISIBLE_DEVICE", chosen)
        assert [d.name for d in backend.devices()][:1] == [devices[0].name]
    for absent in ("no such device", str(len(devices))):
        monkeypatch.setenv("QD_VISIBLE_DEVICE", absent)
        assert not backend.devices()
    monkeypatch.setenv("QD_VISIBLE_DEVICE", "no such device")
    assert "no such device" in backend.probe().reason


@pytest.mark.parametrize("how", ["number", "name", "variable with a number", "variable with a name"])
def test_programs_choose_a_device(device: Any, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    name = device.info.name
    chosen: dict[str, Any] = {"number": {"device": 0}, "name": {"device": name[:7].upper()}}.get(how, {})
    if not chosen:
        monkeypatch.setenv("QD_VISIBLE_DEVICE", "0" if how.endswith("number") else name[:7])
    try:
        qd.init(arch=qd.vulkan, enable_fallback=False, offline_cache=False, **chosen)
        assert current().info.name == name
    finally:
        qd.reset()


@pytest.mark.parametrize("wanted", [99, "no such device"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(device: Any, wanted: Any) -> None:
    with pytest.raises(LaunchError, match=f"has no device {wanted!r}") as caught:
        qd.init(arch=qd.vulkan, enable_fallback=False, device=wanted)
    assert device.info.name in str(caught.value)


class Elsewhere:
    """A tensor that lies on another device."""

    shape, dtype = (4,), np.float32

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **words: Any) -> object:
        raise BufferError("it stays where it is")


def test_memory_of_another_device_is_refused_by_name(device: Any) -> None:
    @qd.kernel
    def clear(x: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        for i in range(x.shape[0]):
            x[i] = 0

    qd.init(arch=qd.vulkan, enable_fallback=False, offline_cache=False)
    try:
        with pytest.raises(QuadrantsError, match=r"'x' is a Elsewhere .*DLPack"):
            clear(Elsewhere())
        assert device.adopt(Elsewhere()) is None
    finally:
        qd.reset()


def test_memory_that_host_and_device_share_is_not_copied(device: Any) -> None:
    ref = BufferRef(device.allocate(64), 0, 64)
    view = device.host_view(ref)
    assert (view is None) == (os.environ["QD_VULKAN_STAGING"] == "1" or not device.place(ref).mapped)
    if view is not None:
        seen = np.frombuffer((ctypes.c_uint8 * 64).from_address(view.address), np.uint8)
        device.default_stream.fill(ref, b"\x07")
        device.default_stream.synchronize()
        assert (seen == 7).all()


@pytest.mark.skipif(
    isinstance(instances.instance(), str) or not instances.instance().validated, reason="no validation layer"
)
def test_a_fault_that_the_validation_layer_sees_fails_its_test(device: Any) -> None:
    """What every test here ends with, `silent`, would be worthless if messages did not arrive."""
    with pytest.raises(AssertionError, match="vkCmdPipelineBarrier"), silent():
        f, commands = device.f, device.commands.recording()
        f.CmdPipelineBarrier(commands, 0, 0, 0, 0, None, 0, None, 0, None)  # stages must be named


def test_lost_device_names_the_kernels(device: Any, compiler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from qd_vulkan import binding
    from qd_vulkan.loader import VulkanError

    program, module = load(device, compiler, kernels.increment())
    assert program
    bound = bind(
        device, compiler, kernels.saxpy(), {"a": 1.0, "x": np.ones(4, np.float32), "y": np.ones(4, np.float32)}
    )
    bound.launch.name = "the_kernel"
    bound.run()
    with monkeypatch.context() as patch:

        def lost(*args: object) -> int:
            raise VulkanError("vkQueueSubmit", binding.DEVICE_LOST)

        patch.setattr(device.f, "QueueSubmit", lost)
        with pytest.raises(DeviceFault, match="the device was lost") as caught:
            device.default_stream.synchronize()
    assert "the_kernel" in caught.value.why
    del module
