"""Tensors of other libraries, used in place."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from fake_driver import FakeDriver
from qd_cuda.device import CudaDevice

import qd_core as qd
from qd_core.backend.contract import BufferRef
from qd_core.backend.dlpack import _Tensor, exchange
from qd_core.errors import ArgumentValueError, QuadrantsRuntimeTypeError
from qd_core.runtime.context import Runtime

N = qd.types.ndarray(dtype=qd.f32, ndim=1)

DEVICE_MEMORY = 2
FLOAT = 2


class Tensor:
    """A foreign tensor in memory of ``device``, exported as DLPack says."""

    def __init__(
        self, device: CudaDevice, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, number: int = 0
    ) -> None:
        count = 1
        for n in shape:
            count *= n
        self.buffer = device.allocate(4 * count + 64)
        self.number, self.streams = number, list[Any]()
        self.address = int(device.address(BufferRef(self.buffer, 0, 4 * count)))
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = (ctypes.c_int64 * len(shape))(*strides) if strides is not None else None
        self._tensor = _Tensor(
            self.address - 8, DEVICE_MEMORY, number, len(shape), FLOAT, 32, 1, self._shape, self._strides, 8
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return DEVICE_MEMORY, self.number

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.streams.append(stream)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self._tensor), b"dltensor", None)


@qd.kernel
def scale(x: N):
    for i in range(x.shape[0]):
        x[i] = 2.0 * x[i]


def test_a_tensor_is_read_as_exported(device: CudaDevice) -> None:
    view = exchange(Tensor(device, (3, 5)))
    assert view is not None
    assert (view.dtype, view.shape, view.strides, view.nbytes) == (qd.f32, (3, 5), (5, 1), 60)
    assert view.contiguous
    turned = exchange(Tensor(device, (3, 5), (1, 3)))
    assert turned is not None
    assert not turned.contiguous


def test_a_kernel_works_on_its_memory(fake: FakeDriver, runtime: Runtime) -> None:
    assert isinstance(runtime.device, CudaDevice)
    tensor = Tensor(runtime.device, (100,))
    fake.sizes, fake.check_words = (3, 1, 3), (0,)
    live = len(fake.memory)
    for _ in range(2):
        scale(tensor)
    assert [k.words[0] for k in fake.launches] == [[tensor.address, 100, 1]] * 2
    assert set(tensor.streams) == {1}  # the library lets the default stream wait for its own work
    assert len(fake.memory) == live


def test_its_librarys_stream_waits_for_the_kernel(
    fake: FakeDriver, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = runtime.device
    assert isinstance(device, CudaDevice)
    other = device.stream()
    monkeypatch.setattr("qd_cuda.device._owner_stream", lambda tensor: other.handle)  # type: ignore[attr-defined]
    fake.sizes = (3, 1, 3)
    fake.calls.clear()
    scale(Tensor(device, (100,)))
    assert (
        fake.calls.index("cuLaunchKernel") < fake.calls.index("cuEventRecord") < fake.calls.index("cuStreamWaitEvent")
    )


def test_what_cannot_be_used_is_refused(runtime: Runtime) -> None:
    assert isinstance(runtime.device, CudaDevice)
    with pytest.raises(ArgumentValueError, match=r"'x' is not contiguous: got shape \(10,\) with strides \(2,\)"):
        scale(Tensor(runtime.device, (10,), (2,)))
    with pytest.raises(ArgumentValueError, match="cannot use in place"):
        scale(Tensor(runtime.device, (10,), number=3))
    with pytest.raises(QuadrantsRuntimeTypeError, match="must be an array"):
        scale(object())


def test_host_arrays_are_not_adopted(device: CudaDevice) -> None:
    import numpy as np

    assert device.adopt(np.zeros(3)) is None
    assert device.adopt(object()) is None
    buffer = device.adopt(Tensor(device, (4,)))
    assert buffer is not None
    assert buffer.nbytes == 16
    device.free(buffer)
    assert buffer.owner is None
