"""The launcher against a driver library with an address space of its own."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
from fake_driver import ILLEGAL_ADDRESS, INVALID_VALUE, FakeDriver
from qd_cuda.device import CudaDevice

import qd_core as qd
from qd_core.backend.contract import BufferRef, HostSpan
from qd_core.errors import ClosedError, DeviceFault, LaunchError
from qd_core.runtime.context import Runtime

N = qd.types.ndarray(dtype=qd.f32, ndim=1)


@qd.kernel
def axpy(a: qd.f32, x: N, y: N):
    for i in range(x.shape[0]):
        y[i] = a * x[i] + y[i]


@qd.kernel
def total(x: N, s: N):
    s[0] = 0.0
    for i in range(x.shape[0]):
        s[0] += x[i]


def span(array: np.ndarray) -> HostSpan:
    return HostSpan(array.ctypes.data, array.nbytes, array)


def test_arguments_arrive_by_value_with_addresses_of_live_memory(fake: FakeDriver, runtime: Runtime) -> None:
    x, y = qd.ndarray(qd.f32, 1000), qd.ndarray(qd.f32, 1000)
    fake.sizes, fake.check_words = (7, 1, 3), (1, 4)
    for _ in range(3):  # the Python packer, then the native one
        axpy(2.0, x, y)
    assert len(fake.launches) == 3
    assert fake.launches[0].words == fake.launches[2].words
    assert (fake.launches[0].grid, fake.launches[0].block) == (fake.launches[2].grid, fake.launches[2].block)
    words = fake.launches[0].words[0]
    assert words[0] == 0x40000000
    assert words[1] != words[4]
    assert words[2:4] == words[5:7] == [1000, 1]
    assert fake.launches[0].words[1] == [1000]


def test_a_small_launch_spreads_over_the_device(fake: FakeDriver, runtime: Runtime) -> None:
    fake.sizes = (7, 1, 3)
    grids = []
    for n in (1, 64, 132 * 256, 132 * 300, 132 * 1024 + 1, 10_000_000, 0):
        x, y = qd.ndarray(qd.f32, n), qd.ndarray(qd.f32, n)
        before = len(fake.launches)
        axpy(2.0, x, y)
        axpy(2.0, x, y)
        made = [(k.grid, k.block) for k in fake.launches[before:]]
        assert made[:1] == made[1:]
        grids += made[:1]
        del x, y
    assert grids == [(1, 64), (1, 64), (528, 64), (310, 128), (529, 256), (9766, 256)]


def test_tasks_start_in_order(fake: FakeDriver, runtime: Runtime) -> None:
    x, s = qd.ndarray(qd.f32, 100_000), qd.ndarray(qd.f32, 1)
    fake.sizes = (6, 1, 3)
    total(x, s)
    total(x, s)
    assert [(k.grid, k.block) for k in fake.launches] == [(1, 1), (391, 256)] * 2
    assert fake.launches[0].function != fake.launches[1].function


def test_memory_balances(fake: FakeDriver, runtime: Runtime) -> None:
    before = len(fake.memory)
    arrays = [qd.ndarray(qd.f32, 100) for _ in range(5)]
    assert len(fake.memory) == before + 5
    del arrays
    gc.collect()
    assert len(fake.memory) == before


def test_closing_gives_everything_back(fake: FakeDriver) -> None:
    from qd_cuda.facts import target_of

    from qd_core.backend.contract import DeviceInfo

    device = CudaDevice(fake.driver(), 0, DeviceInfo(0, "Fake GPU 0", target_of(90), fake.total))
    device.allocate(100)
    device.stream().record()
    device.close()
    assert not fake.memory
    assert not fake.host
    assert "pool" not in fake.handles.values()
    assert fake.retained == 0
    assert not fake.current
    with pytest.raises(ClosedError):
        device.allocate(1)


def test_the_callers_context_stays(fake: FakeDriver, device: CudaDevice) -> None:
    device.allocate(10)
    with pytest.raises(DeviceFault), fake.failing("cuMemAllocFromPoolAsync", INVALID_VALUE):
        device.allocate(10)
    assert not fake.current


def test_out_of_memory_says_sizes_and_leaves_the_device_usable(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = device.allocate(1000)
    with pytest.raises(DeviceFault) as caught:
        device.allocate(1 << 40)
    text = str(caught.value)
    assert str(1 << 40) in text
    assert str(fake.total) in text
    assert "hold 1000" in text
    assert "cuMemPoolTrimTo" in fake.calls
    device.free(buffer)
    device.allocate(1000)


def test_plain_allocations_without_a_pool() -> None:
    from qd_cuda.facts import target_of

    from qd_core.backend.contract import DeviceInfo

    fake = FakeDriver(pool=False)
    device = CudaDevice(fake.driver(), 0, DeviceInfo(0, "Fake GPU 0", target_of(60), fake.total))
    device.free(device.allocate(16))
    assert "cuMemAlloc_v2" in fake.calls
    assert "cuMemFree_v2" in fake.calls
    device.close()


@pytest.mark.parametrize("pattern", [b"\1", b"\1\2", b"\1\2\3\4", b"\1\2\3\4\1\2\3\4", b"\1\2\3\4\5\6\7\x08"])
@pytest.mark.parametrize("nbytes", [0, 1, 7, 24, 27])
def test_fill(device: CudaDevice, pattern: bytes, nbytes: int) -> None:
    buffer = device.allocate(nbytes + 3)
    whole = np.zeros(nbytes + 3, np.uint8)
    stream = device.default_stream
    stream.copy_in(BufferRef(buffer, 0, whole.nbytes), span(whole))
    stream.fill(BufferRef(buffer, 2, nbytes), pattern)
    stream.copy_out(span(whole), BufferRef(buffer, 0, whole.nbytes))
    assert whole.tobytes() == b"\0\0" + (pattern * (nbytes + 1))[:nbytes] + b"\0"


@pytest.mark.parametrize("shift", [-3, 0, 3, 50])
@pytest.mark.parametrize("nbytes", [10, 200_000])
def test_copies(device: CudaDevice, shift: int, nbytes: int) -> None:
    data = np.random.default_rng(0).integers(0, 255, nbytes + 100, np.uint8)
    buffer = device.allocate(data.nbytes)
    stream = device.default_stream
    stream.copy_in(BufferRef(buffer, 0, data.nbytes), span(data))
    stream.copy(BufferRef(buffer, 10 + shift, nbytes), BufferRef(buffer, 10, nbytes))
    out = np.empty_like(data)
    stream.copy_out(span(out), BufferRef(buffer, 0, out.nbytes))
    wanted = data.copy()
    wanted[10 + shift : 10 + shift + nbytes] = data[10 : 10 + nbytes]
    assert np.array_equal(out, wanted)


def test_bytes_outside_a_buffer_are_refused(device: CudaDevice) -> None:
    buffer = device.allocate(16)
    stream, data = device.default_stream, np.zeros(32, np.uint8)
    for ref in (BufferRef(buffer, 0, 32), BufferRef(buffer, -1, 4), BufferRef(buffer, 15, 2)):
        with pytest.raises(DeviceFault, match="outside a buffer of 16 bytes"):
            device.address(ref)
    with pytest.raises(DeviceFault, match="outside"):
        stream.copy_in(BufferRef(buffer, 0, 16), span(data))
    device.free(buffer)
    with pytest.raises(DeviceFault, match="freed buffer"):
        device.address(BufferRef(buffer, 0, 1))
    with pytest.raises(DeviceFault, match="freed twice"):
        device.free(buffer)


def test_a_fault_names_the_kernels_since_the_last_good_wait(fake: FakeDriver, runtime: Runtime) -> None:
    x, y = qd.ndarray(qd.f32, 8), qd.ndarray(qd.f32, 8)
    fake.sizes = (7, 1, 3)
    for _ in range(3):  # the first launch goes through Python, the others are native
        axpy(1.0, x, y)
        with pytest.raises(DeviceFault) as caught, fake.failing("cuStreamSynchronize", ILLEGAL_ADDRESS):
            qd.sync()
        assert "axpy" in str(caught.value)
        assert "ILLEGAL_ADDRESS" in str(caught.value)
        qd.sync()
    with pytest.raises(DeviceFault) as caught, fake.failing("cuStreamSynchronize", ILLEGAL_ADDRESS):
        qd.sync()
    assert "axpy" not in str(caught.value)


def test_a_failing_launch_is_an_error_on_both_paths(fake: FakeDriver, runtime: Runtime) -> None:
    x, y = qd.ndarray(qd.f32, 8), qd.ndarray(qd.f32, 8)
    fake.sizes = (7, 1, 3)
    for _ in range(2):
        with pytest.raises(DeviceFault), fake.failing("cuLaunchKernel", INVALID_VALUE):
            axpy(1.0, x, y)
        axpy(1.0, x, y)


def test_every_call_may_fail_without_harm(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = device.allocate(64)
    data = np.zeros(64, np.uint8)
    ref, stream = BufferRef(buffer, 0, 64), device.default_stream
    actions = {
        "cuMemcpyHtoDAsync_v2": lambda: stream.copy_in(ref, span(data)),
        "cuMemcpyDtoHAsync_v2": lambda: stream.copy_out(span(data), ref),
        "cuMemsetD8Async": lambda: stream.fill(ref, b"\1"),
        "cuEventCreate": stream.record,
        "cuStreamCreate": device.stream,
        "cuStreamSynchronize": stream.synchronize,
        "cuCtxPushCurrent_v2": stream.synchronize,
        "cuMemAllocFromPoolAsync": lambda: device.allocate(64),
    }
    for symbol, action in actions.items():
        with pytest.raises(DeviceFault), fake.failing(symbol, INVALID_VALUE):
            action()
        assert not fake.current, symbol
        action()


def test_large_arguments_go_through_memory(fake: FakeDriver, runtime: Runtime) -> None:
    from qd_core import dtypes as dt
    from qd_core.backend.contract import CompileOptions, Launch
    from qd_core.ir.build import Builder
    from qd_core.ir.nodes import Param, Region
    from qd_core.ir.program import Program, Task

    params = tuple(Param(dt.i64, f"p{n}") for n in range(600))
    region = Region(())
    Builder(region).yield_()
    program = Program("wide", params, (Task("t", (), region),))
    module = runtime.device.load(runtime.compiler.compile(program, CompileOptions()))
    fake.sizes = (1, 1, 3)
    fake.check_words = (0,)
    live = len(fake.memory)
    runtime.device.default_stream.run(module, Launch(memoryview(np.arange(600, dtype=np.uint64)), [], []))
    assert len(fake.launches) == 1
    assert len(fake.memory) == live
    assert module.native() is None


def test_bad_code_is_refused_with_the_translators_words(runtime: Runtime) -> None:
    from dataclasses import replace

    from qd_cuda.compiler import pack, unpack

    from qd_core.backend.contract import Artifact

    with pytest.raises(LaunchError, match="no PTX"):
        runtime.device.load(Artifact("other", b"", ()))
    code = replace(unpack(_artifact(runtime)), ptx=b"nonsense")
    with pytest.raises(LaunchError, match="refuses"):
        runtime.device.load(Artifact("qd-ptx-1", pack(code), ()))


def _artifact(runtime: Runtime):
    from qd_core.backend.contract import CompileOptions
    from qd_core.ir.build import Builder
    from qd_core.ir.nodes import Region
    from qd_core.ir.program import Program, Task

    region = Region(())
    Builder(region).yield_()
    return runtime.compiler.compile(Program("empty", (), (Task("t", (), region),)), CompileOptions())


def test_events_order_streams(fake: FakeDriver, device: CudaDevice) -> None:
    a, b = device.stream(), device.stream()
    event = a.record()
    b.wait(event)
    event.synchronize()
    assert "cuStreamWaitEvent" in fake.calls
    del a, b, event
    device.streams.clear()
    gc.collect()
    device.default_stream.synchronize()
    assert set(fake.handles.values()) <= {"pool", "event"}


def test_more_memory_for_private_arrays_after_a_fault(fake: FakeDriver, device: CudaDevice) -> None:
    stream = device.default_stream
    with device.guard("test"):
        stream.scratch.ready()
    first = stream.scratch.words[1]
    assert first * 4 == fake.total // 16
    ctypes.c_uint64.from_address(stream.scratch.words[2]).value = 1000
    with pytest.raises(DeviceFault, match="4000 bytes"):
        stream.synchronize()
    with device.guard("test"):
        stream.scratch.ready()
    assert stream.scratch.words[1] > first
    assert fake.place(stream.scratch.words[0], 4 * stream.scratch.words[1]) is not None


def test_probing_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    import qd_cuda.driver as module
    from qd_cuda.backend import CudaBackend

    monkeypatch.setenv("QD_CUDA_LIBRARY", "libno_such_driver.so")
    module.driver.cache_clear()
    answer = CudaBackend().probe()
    module.driver.cache_clear()
    assert not answer.available
    assert "libno_such_driver" in answer.reason
    assert "driver" in answer.remedy


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"devices": 0}, "no device"),
        ({"version": 8000}, "takes PTX up to 0.0"),
    ],
)
def test_probing_without_a_usable_device(monkeypatch: pytest.MonkeyPatch, change: dict, words: str) -> None:
    import qd_cuda.probe as probe

    monkeypatch.delenv("QD_VISIBLE_DEVICE", raising=False)
    monkeypatch.setattr(probe, "driver", FakeDriver(**change).driver)
    found = probe.find_devices()
    assert not found.devices
    assert words in found.reason
    assert found.remedy


def test_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    import qd_cuda.probe as probe

    fake = FakeDriver(devices=3)
    monkeypatch.setattr(probe, "driver", fake.driver)
    monkeypatch.setenv("QD_VISIBLE_DEVICE", "2,0")
    assert [ordinal for ordinal, _ in probe.find_devices().devices] == [2, 0]
    with fake.failing("cuDeviceGetCount", 100):
        assert "NO_DEVICE" in probe.find_devices().reason
