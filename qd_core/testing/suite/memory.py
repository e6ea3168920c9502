"""Device memory through the contract: allocation, alignment, copies of any length and place, streams and events."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from qd_core.backend.contract import Buffer, BufferRef, HostSpan
from qd_core.testing.device import DeviceUnderTest
from qd_core.testing.plugin import in_slice, requires

__all__ = [
    "test_addresses_keep_the_alignment",
    "test_addresses_of_parts_are_offsets",
    "test_copies_of_parts",
    "test_copying_in_takes_a_snapshot",
    "test_copying_out_touches_nothing_else",
    "test_copying_within_the_device",
    "test_events_order_streams",
    "test_fills_of_every_pattern",
    "test_freed_memory_is_given_back",
    "test_probing_says_what_is_there",
    "test_views_of_the_host_show_what_is_copied",
]

Array = np.ndarray[Any, Any]


@contextmanager
def buffer(device: DeviceUnderTest, nbytes: int, **options: Any) -> Generator[Buffer]:
    """Allocate for a while."""
    target = device.runtime.device
    allocated = target.allocate(nbytes, **options)
    try:
        yield allocated
    finally:
        target.free(allocated, after=target.default_stream)


def span(data: Array) -> HostSpan:
    """Return the bytes of a contiguous array."""
    return HostSpan(data.ctypes.data, data.nbytes, data)


def put(device: DeviceUnderTest, data: Array, ref: BufferRef) -> None:
    """Copy to the device."""
    device.runtime.device.default_stream.copy_in(ref, span(data))


def get(device: DeviceUnderTest, ref: BufferRef) -> Array:
    """Copy from the device."""
    out = np.zeros(ref.nbytes, np.uint8)
    device.runtime.device.default_stream.copy_out(span(out), ref)
    return out


def numbers(count: int) -> Array:
    """Return bytes that tell their places apart."""
    return (np.arange(count) * 37 % 251).astype(np.uint8)


@in_slice("smoke")
def test_probing_says_what_is_there(device: DeviceUnderTest) -> None:
    """`probe`, `targets` and `devices` answer without raising and agree with the open device."""
    backend = device.runtime.backend
    assert backend.probe().available
    names = {target.name for target in backend.targets()}
    for index, info in enumerate(backend.devices()):
        assert info.index == index
        assert info.name
        assert info.target.name in names
    claimed = device.runtime.info.target.capabilities.names()
    missing = device.capabilities.missing(claimed)
    assert not missing, f"the open device lacks what its target claims: {missing}"


@requires("memory.address")
@pytest.mark.parametrize("alignment", [1, 16, 64, 256, 4096])
def test_addresses_keep_the_alignment(device: DeviceUnderTest, alignment: int) -> None:
    """`allocate` returns memory at a multiple of the alignment, whatever the size."""
    for nbytes in (1, 3, alignment, 1000):
        with buffer(device, nbytes, alignment=alignment) as b:
            address = int(device.runtime.device.address(BufferRef(b, 0, nbytes)))
            wrong = f"allocate({nbytes}, alignment={alignment}) ignores the alignment: address {address:#x}"
            assert address % alignment == 0, wrong


@requires("memory.address")
def test_addresses_of_parts_are_offsets(device: DeviceUnderTest) -> None:
    """Bytes of one buffer follow each other; two buffers share none."""
    target = device.runtime.device
    with buffer(device, 100) as a, buffer(device, 100) as b:
        first, second = (int(target.address(BufferRef(x, 0, 100))) for x in (a, b))
        assert int(target.address(BufferRef(a, 12, 4))) == first + 12
        assert abs(first - second) >= 100, "two live buffers overlap"


@in_slice("smoke")
@pytest.mark.parametrize("nbytes", [1, 3, 4, 255, 4096, 1_000_003])
def test_copies_of_parts(device: DeviceUnderTest, nbytes: int) -> None:
    """What is copied in comes out, and what is beside it stays."""
    with buffer(device, nbytes + 7) as b:
        put(device, np.full(nbytes + 7, 9, np.uint8), BufferRef(b, 0, nbytes + 7))
        put(device, numbers(nbytes), BufferRef(b, 4, nbytes))
        wanted = np.concatenate([np.full(4, 9), numbers(nbytes), np.full(3, 9)]).astype(np.uint8)
        np.testing.assert_array_equal(get(device, BufferRef(b, 0, nbytes + 7)), wanted)
        np.testing.assert_array_equal(get(device, BufferRef(b, 4, nbytes)), numbers(nbytes))


def test_copying_in_takes_a_snapshot(device: DeviceUnderTest) -> None:
    """The host's memory may be reused as soon as `copy_in` returns."""
    data = numbers(500)
    with buffer(device, 500) as b:
        put(device, data, BufferRef(b, 0, 500))
        data[:] = 0
        np.testing.assert_array_equal(get(device, BufferRef(b, 0, 500)), numbers(500))


def test_copying_out_touches_nothing_else(device: DeviceUnderTest) -> None:
    """`copy_out` writes as many bytes as the host asked for, where it asked for them."""
    out = np.full(64, 77, np.uint8)
    with buffer(device, 64) as b:
        put(device, numbers(64), BufferRef(b, 0, 64))
        part = HostSpan(out.ctypes.data + 16, 21, out)
        device.runtime.device.default_stream.copy_out(part, BufferRef(b, 8, 21))
    np.testing.assert_array_equal(out[16:37], numbers(64)[8:29], "copy_out brings the wrong bytes")
    outside = np.concatenate([out[:16], out[37:]])
    assert (outside == 77).all(), "copy_out wrote another length than it was asked for"


def test_copying_within_the_device(device: DeviceUnderTest) -> None:
    """`copy` between buffers and between parts of one."""
    stream = device.runtime.device.default_stream
    with buffer(device, 64) as a, buffer(device, 64) as b:
        put(device, numbers(64), BufferRef(a, 0, 64))
        stream.fill(BufferRef(b, 0, 64), b"\1")
        stream.copy(BufferRef(b, 10, 20), BufferRef(a, 4, 20))
        stream.copy(BufferRef(a, 32, 16), BufferRef(a, 0, 16))
        np.testing.assert_array_equal(get(device, BufferRef(b, 10, 20)), numbers(64)[4:24])
        np.testing.assert_array_equal(get(device, BufferRef(a, 32, 16)), numbers(64)[:16])
        assert set(get(device, BufferRef(b, 30, 34)).tolist()) == {1}


@in_slice("smoke")
@pytest.mark.parametrize("pattern", [b"\0", b"\x7f", b"\1\2", b"\1\2\3\4", b"\1\2\3\4\5\6\7\x08"], ids=len)
def test_fills_of_every_pattern(device: DeviceUnderTest, pattern: bytes) -> None:
    """`fill` repeats a pattern over a part and leaves the rest."""
    stream = device.runtime.device.default_stream
    with buffer(device, 96) as b:
        stream.fill(BufferRef(b, 0, 96), b"\xee")
        stream.fill(BufferRef(b, 16, 48), pattern)
        got = get(device, BufferRef(b, 0, 96))
    np.testing.assert_array_equal(got[16:64], np.resize(np.frombuffer(pattern, np.uint8), 48))
    assert set(got[:16].tolist()) | set(got[64:].tolist()) == {0xEE}


def test_views_of_the_host_show_what_is_copied(device: DeviceUnderTest) -> None:
    """`host_view`, where there is one, is the same memory."""
    import ctypes

    target = device.runtime.device
    with buffer(device, 32) as b:
        put(device, numbers(32), BufferRef(b, 0, 32))
        view = target.host_view(BufferRef(b, 8, 16))
        if view is None:
            return
        assert view.nbytes == 16
        target.default_stream.synchronize()
        seen = np.ctypeslib.as_array((ctypes.c_uint8 * 16).from_address(view.address))
        np.testing.assert_array_equal(seen, numbers(32)[8:24])


def test_events_order_streams(device: DeviceUnderTest) -> None:
    """Work after `wait` sees what another stream did before `record`."""
    target = device.runtime.device
    first, second = target.default_stream, target.stream()
    with buffer(device, 4096) as a, buffer(device, 4096) as b:
        for value in range(5):
            first.fill(BufferRef(a, 0, 4096), bytes([value]))
            second.wait(first.record())
            second.copy(BufferRef(b, 0, 4096), BufferRef(a, 0, 4096))
            event = second.record()
            first.wait(event)
            event.synchronize()
            assert set(get(device, BufferRef(b, 0, 4096)).tolist()) == {value}
        second.synchronize()


def test_freed_memory_is_given_back(device: DeviceUnderTest) -> None:
    """`free` ends a buffer: it is marked, and a hundred large ones fit one after the other."""
    target = device.runtime.device
    for _ in range(100):
        block = target.allocate(1 << 24)
        target.free(block, after=target.default_stream)
        assert block.freed, "free left the buffer in use: it leaks"
    target.default_stream.synchronize()
