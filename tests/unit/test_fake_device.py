"""The fake device: each promise of core that is broken stops with the argument's name and role."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.backend.contract import Access, Buffer, BufferRef, BufferUse, CompileOptions, HostSpan, Launch
from qd_core.errors import ClosedError, DeviceFault
from qd_core.ir.nodes import ArrayType, Param, Role
from qd_core.passes.offload import offload
from qd_core.testing.fake import FakeBackend, FakeDevice, FakeViolation
from qd_core.testing.kernels import array, parallel


def opened(**options: Any) -> FakeDevice:
    backend = FakeBackend(**options)
    device = backend.open(backend.devices()[0], {})
    assert isinstance(device, FakeDevice)
    return device


@pytest.fixture(params=[False, True], ids=["synchronous", "asynchronous"])
def device(request: pytest.FixtureRequest) -> FakeDevice:
    return opened(asynchronous=request.param)


class Doubling:
    """y.grad[i] = 2 x[i] for i < 4, with arguments on a device."""

    def __init__(self, device: FakeDevice) -> None:
        x, y = array(dt.f32, "x"), Param(ArrayType(dt.f32, 1), "y.grad", Role.ADJOINT)
        two = lambda b, i: b.emit("mul", b.load(x, [i]), b.const(dt.f32, 2))  # noqa: E731
        program = offload(parallel([x, y], 4, lambda b, i: b.store(y, [i], two(b, i))))
        self.device, self.stream = device, device.default_stream
        compiler = FakeBackend().compiler(device.info.target)
        self.module = device.load(compiler.compile(program, CompileOptions()))
        self.host = np.arange(4, dtype=np.float32)
        self.x, self.y = device.allocate(16), device.allocate(16)
        self.stream.copy_in(whole(self.x), span(self.host))
        self.stream.synchronize()
        self.words = [int(device.address(whole(self.x))), 4, 1, int(device.address(whole(self.y))), 4, 1]
        self.uses = [
            BufferUse(whole(self.x), Access.READ, Role.DATA, "x"),
            BufferUse(whole(self.y), Access.WRITE, Role.ADJOINT, "y.grad"),
        ]

    def run(self, words: Sequence[int] | None = None, uses: Sequence[BufferUse] | None = None) -> None:
        packed = memoryview(np.array(words if words is not None else self.words, np.uint64))
        self.stream.run(self.module, Launch(packed, [4], self.uses if uses is None else uses, "double"))
        self.stream.synchronize()

    def with_word(self, position: int, word: int) -> list[int]:
        return [word if n == position else w for n, w in enumerate(self.words)]

    def with_use(self, position: int, **changes: Any) -> list[BufferUse]:
        return [replace(u, **changes) if n == position else u for n, u in enumerate(self.uses)]


def whole(buffer: Buffer) -> BufferRef:
    return BufferRef(buffer, 0, buffer.nbytes)


def span(data: np.ndarray) -> HostSpan:
    return HostSpan(data.ctypes.data, data.nbytes, data)


def result(k: Doubling) -> list[float]:
    out = np.empty(4, np.float32)
    k.stream.copy_out(span(out), whole(k.y))
    return out.tolist()


def test_a_right_launch_runs(device: FakeDevice) -> None:
    k = Doubling(device)
    k.run()
    assert result(k) == [0, 2, 4, 6]


def test_addresses_mean_nothing_to_the_host_and_keep_their_alignment() -> None:
    device = opened()
    addresses = [int(device.address(whole(device.allocate(5, alignment=a)))) for a in (1, 16, 256, 4096)]
    assert all(a % n == 0 for a, n in zip(addresses, (1, 16, 256, 4096), strict=True))
    assert device.space.is_own(min(addresses))
    assert not device.space.is_own(np.empty(1).ctypes.data)


def test_a_host_address_is_caught(device: FakeDevice) -> None:
    k = Doubling(device)
    with pytest.raises(FakeViolation, match=r"'y\.grad' \(adjoint\) is 0x.*an address of the host") as caught:
        k.run(k.with_word(3, k.host.ctypes.data))
    assert (caught.value.path, caught.value.role) == ("y.grad", "adjoint")


def test_null_foreign_freed_and_unissued_addresses_are_caught(device: FakeDevice) -> None:
    k, other = Doubling(device), opened()
    foreign = int(other.address(whole(other.allocate(16))))
    for word, why in ((0, "null"), (foreign, "another device"), (k.words[0] + 8, "did not come from"), (2**40, "host")):
        with pytest.raises(FakeViolation, match=rf"'x' \(data\).*{why}"):
            k.run(k.with_word(0, word))
    with pytest.raises(FakeViolation, match=r"'x' \(data\).*outside every buffer"):
        k.run(k.with_word(0, k.words[0] + 2000))
    device.free(k.x)
    with pytest.raises(FakeViolation, match=r"'x' \(data\).*was freed"):
        k.run()


def test_a_scalar_word_must_be_zero_extended(device: FakeDevice) -> None:
    s, y = Param(dt.i8, "s"), array(dt.i8, "y")
    program = offload(parallel([s, y], 1, lambda b, i: b.store(y, [i], s)))
    module = device.load(FakeBackend().compiler(device.info.target).compile(program, CompileOptions()))
    out = device.allocate(1)
    address, uses = int(device.address(whole(out))), [BufferUse(whole(out), Access.WRITE, Role.DATA, "y")]
    for word, refused in ((0xFF, False), (-1, True), (0x1FF, True)):
        packed = Launch(memoryview(np.array([word, address, 1, 1], np.int64)), [1], uses, "k")
        with pytest.raises(FakeViolation, match=r"'s'.*not zero-extended") if refused else nullcontext():
            device.default_stream.run(module, packed)


def test_another_array_than_its_use_is_caught(device: FakeDevice) -> None:
    k = Doubling(device)
    with pytest.raises(FakeViolation, match=r"'x' \(data\).*names other memory"):
        k.run(k.with_word(0, k.words[3]))


def test_uses_must_match_the_words(device: FakeDevice) -> None:
    k = Doubling(device)
    with pytest.raises(FakeViolation, match=r"'y\.grad' \(adjoint\) is packed and missing from Launch.uses"):
        k.run(uses=k.uses[:1])
    with pytest.raises(FakeViolation, match=r"use 0 is argument 'y\.grad'"):
        k.run(uses=k.uses[::-1])
    with pytest.raises(FakeViolation, match="3 uses for 2 arrays"):
        k.run(uses=[*k.uses, k.uses[0]])
    with pytest.raises(FakeViolation, match=r"'y\.grad' \(adjoint\) is written by the kernel, and its use says READ"):
        k.run(uses=k.with_use(1, access=Access.READ))
    with pytest.raises(FakeViolation, match=r"'x' \(data\) is read by the kernel, and its use says WRITE"):
        k.run(uses=k.with_use(0, access=Access.WRITE))


def test_an_array_longer_than_its_use_is_caught(device: FakeDevice) -> None:
    k = Doubling(device)
    with pytest.raises(FakeViolation, match=r"'y\.grad' \(adjoint\) reaches outside its buffer"):
        k.run(uses=k.with_use(1, ref=BufferRef(k.y, 0, 12)))
    with pytest.raises(FakeViolation, match=r"'x' \(data\) reaches outside"):
        k.run(k.with_word(1, 5))


def test_an_index_outside_is_a_fault_of_the_device(device: FakeDevice) -> None:
    k = Doubling(device)
    with pytest.raises(DeviceFault, match=r"index \(3,\) is outside array 'x'"):
        k.run(k.with_word(1, 3))
    assert device.default_stream.pending(k.x.handle) is False


def test_reading_what_was_never_written_is_caught(device: FakeDevice) -> None:
    k = Doubling(device)
    fresh = device.allocate(16)
    device.default_stream.copy_in(BufferRef(fresh, 0, 8), HostSpan(k.host.ctypes.data, 8, k.host))
    words, uses = k.with_word(0, int(device.address(whole(fresh)))), k.with_use(0, ref=whole(fresh))
    with pytest.raises(FakeViolation, match=r"'x' \(data\) is read at \(2,\), where nothing was ever written"):
        k.run(words, uses)


def test_copying_out_what_was_never_written_is_caught(device: FakeDevice) -> None:
    with pytest.raises(FakeViolation, match="reads byte 0 of 16, which nothing ever wrote"):
        result(Doubling(device))


def test_a_missing_copy_back_is_caught(device: FakeDevice) -> None:
    k = Doubling(device)
    k.stream.copy_in(whole(k.y), span(k.host))
    k.run()

    def give_back() -> None:
        device.free(k.y, after=device.default_stream)
        device.default_stream.synchronize()

    with pytest.raises(FakeViolation, match=r"'y\.grad' \(adjoint\) came from the host.*without a copy back"):
        give_back()


def test_copies_of_the_wrong_length_are_caught(device: FakeDevice) -> None:
    k = Doubling(device)
    with pytest.raises(FakeViolation, match="of 16 bytes is given room for 8"):
        k.stream.copy_in(BufferRef(k.y, 0, 8), span(k.host))
    with pytest.raises(FakeViolation, match="of 16 bytes is given room for 12"):
        k.stream.copy_out(span(k.host), BufferRef(k.x, 4, 12))
    with pytest.raises(FakeViolation, match="bytes 4 to 20 leave a buffer of 16"):
        k.stream.fill(BufferRef(k.x, 4, 16), b"\0")


def test_asynchronous_work_waits_for_synchronisation() -> None:
    device = opened(asynchronous=True, shared=True)
    k = Doubling(device)
    seen = np.ctypeslib.as_array((ctypes.c_float * 4).from_address(device.host_view(whole(k.y)).address))
    k.stream.run(k.module, Launch(memoryview(np.array(k.words, np.uint64)), [4], k.uses, "double"))
    assert np.isnan(seen).all()
    k.stream.synchronize()
    assert seen.tolist() == [0, 2, 4, 6]


def test_memory_in_use_is_not_freed_without_waiting() -> None:
    device = opened(asynchronous=True)
    k = Doubling(device)
    k.stream.fill(whole(k.x), b"\0")
    with pytest.raises(FakeViolation, match="freed while queued work uses it"):
        device.free(k.x)


def test_streams_wait_for_each_other_through_events() -> None:
    device = opened(asynchronous=True)
    k, other = Doubling(device), device.stream()
    k.stream.run(k.module, Launch(memoryview(np.array(k.words, np.uint64)), [4], k.uses, "double"))
    target, out = device.allocate(16), np.empty(4, np.float32)
    other.wait(k.stream.record())
    other.copy(whole(target), whole(k.y))
    other.copy_out(span(out), whole(target))
    assert out.tolist() == [0, 2, 4, 6]


def test_faults_name_the_kernels_since_the_last_synchronisation() -> None:
    device = opened(asynchronous=True)
    k = Doubling(device)
    k.run()
    with pytest.raises(DeviceFault, match=r"launched since the last synchronisation: double \["):
        k.run(k.with_word(1, 3))


def test_allocations_are_counted_and_freed_once(device: FakeDevice) -> None:
    k = Doubling(device)
    device.default_stream.synchronize()
    assert (device.allocated, device.leaked) == (2, 2)
    device.free(k.x)
    with pytest.raises(FakeViolation, match="freed twice"):
        device.free(k.x)
    assert device.leaked == 1
    device.close()
    with pytest.raises(ClosedError):
        device.allocate(1)
